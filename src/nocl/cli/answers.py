"""Commands that use a model of your own images: predict, evaluate, inspect, export, serve."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from nocl.app import modelfile
from nocl.app.classifier import Classifier
from nocl.app.serve.store import journal_of
from nocl.cli.options import Device
from nocl.cli.pictures import AsJson, Folder, Model, SkipBad, Trust, load_model, load_taught, measure, measured
from nocl.data.decode import BadImageError
from nocl.data.folder import refuse_splits

answers_app = typer.Typer(add_completion=False)


@answers_app.command()
def predict(
    model_file: Model,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to print.")] = 3,
    reject: Annotated[
        float | None,
        typer.Option(
            help="Answer 'none of these' for unsure images; this share of known images is then refused by mistake."
        ),
    ] = None,
    as_json: AsJson = False,
    trust: Trust = False,
    device: Device = "cpu",
) -> None:
    """Print the most probable classes of image files."""
    model = load_taught(model_file, trust, device)
    failed = 0
    for path in images:
        try:
            scores = model.learner_.decision_function(model.read(path)).cpu()
        except (BadImageError, OSError) as error:
            failed += 1
            if as_json:
                print(json.dumps({"file": str(path), "error": str(error)}))
            print(f"nocl: {error}", file=sys.stderr)
            continue
        found = _top(model, scores, top)
        refused = reject is not None and bool(model.refused(scores, reject)[0])
        if as_json:
            answer = None if refused else found[0]["label"]
            print(json.dumps({"file": str(path), "label": answer, "top": found}))
        else:
            shown = ", ".join(f"{one['label']} {one['probability']:.1%}" for one in found)
            print(f"{path}: {'none of these; nearest: ' if refused else ''}{shown}")
    if failed:
        raise typer.Exit(1)


@answers_app.command()
def evaluate(
    model_file: Model,
    folder: Folder,
    as_json: AsJson = False,
    skip_bad: SkipBad = False,
    trust: Trust = False,
    device: Device = "cpu",
) -> None:
    """Measure the accuracy on a folder of labelled images, class by class. Unknown classes are listed separately."""
    refuse_splits(folder, "test")
    model = load_taught(model_file, trust, device)
    result = measure(model, folder, skip_bad)
    if as_json:
        print(json.dumps(result))
        return
    for name, found in sorted(result["classes"].items()):
        print(f"{found['accuracy']:7.1%}  {name} ({found['images']})")
    print(measured(result))
    if result["unknown_classes"]:
        print(f"not in the model: {', '.join(result['unknown_classes'])}")


@answers_app.command()
def inspect(model_file: Model, as_json: AsJson = False) -> None:
    """Show what a model file contains."""
    header = modelfile.describe(model_file)
    if as_json:
        print(json.dumps(header, indent=1))
        return
    for key in ("method", "backbone", "nocl", "format"):
        print(f"{key:14} {header[key]}")
    print(f"{'size':14} {header['params']['image_size']} px")  # type: ignore[index, call-overload]
    print(f"{'bytes':14} {model_file.stat().st_size:,}")
    calibration, privacy = header["calibration"], header["privacy"]
    assert isinstance(calibration, dict)
    assert isinstance(privacy, dict)
    print(f"{'calibrated on':14} {calibration['images']} held-out images")
    for key, value in privacy.items():
        print(f"{key.replace('_', ' '):24} {value}")
    classes, counts = header["classes"], header["counts"]
    assert isinstance(classes, list)
    assert isinstance(counts, list)
    print(f"{len(classes)} classes:")
    for name, count in zip(classes, counts):
        print(f"{count:8}  {name}")


@answers_app.command()
def export(
    model_file: Model,
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    trust: Trust = False,
) -> None:
    """Write the model as an ONNX file: pixels in, scores and probabilities out."""
    from nocl.app.onnx import export_onnx

    model = load_model(model_file, trust, "cpu")
    export_onnx(model, onnx)
    print(f"{onnx}: {len(model.class_names)} classes, {onnx.stat().st_size:,} bytes")


@answers_app.command()
def serve(
    model_file: Annotated[
        Path, typer.Argument(help="A model file (.nocl); a new one is created if it does not exist.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; NOCL_TOKEN is needed for other addresses than this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8000,
    private: Annotated[bool, typer.Option("--private", help="Require the token for reading too.")] = False,
    name: Annotated[
        list[str] | None, typer.Option(help="A host name of the service that others use; repeatable.")
    ] = None,
    onnxruntime_web: Annotated[
        Path | None,
        typer.Option(help="The folder dist of the npm package onnxruntime-web: lets the page recognise on the device."),
    ] = None,
    trust: Trust = False,
    device: Device = "cpu",
) -> None:
    """Serve a model over HTTP, with a web page at /. The environment variable NOCL_TOKEN is the token for changes."""
    try:
        from nocl.app.serve.server import serve as run
    except ModuleNotFoundError as error:
        raise SystemExit(f"nocl: serving needs the package {error.name}: pip install 'nocl[serve]'") from error
    new = not model_file.exists()
    if new and journal_of(model_file).exists():
        raise FileNotFoundError(
            f"{model_file}: no such file, but {journal_of(model_file)} holds lessons for it: restore the file first"
        )

    def start() -> None:
        if new:
            Classifier(device=device).save(model_file)

    def listening(address: str) -> None:
        said = f"{model_file} is new and knows no class yet; " if new else ""
        print(f"{said}serving {model_file} at {address}", flush=True)

    run(
        model_file, host=host, port=port, token=os.environ.get("NOCL_TOKEN") or None, private=private,
        names=name or [], onnxruntime_web=onnxruntime_web, trust=trust, device=device, start=start, listening=listening,
    )  # fmt: skip


def _top(model: Classifier, scores: torch.Tensor, top: int) -> list[dict[str, Any]]:
    best, columns = model.calibration_.probabilities(scores)[0].topk(min(top, len(model.class_names)))
    return [
        {"label": model.class_names[c], "probability": round(p, 6)} for p, c in zip(best.tolist(), columns.tolist())
    ]
