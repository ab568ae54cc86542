"""Commands for your own images: fit, learn, predict, evaluate, merge, inspect, export, serve."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from nocl.app import modelfile
from nocl.app.backbones import DEFAULT as DEFAULT_BACKBONE
from nocl.app.classifier import DEFAULT_METHOD, Classifier
from nocl.app.serve.journal import has_lessons
from nocl.app.serve.store import Store, journal_of
from nocl.app.sharded import clear_parts, learn_sharded
from nocl.app.sources import Bad, Source, open_source
from nocl.cli.show import shown_progress
from nocl.data.decode import BadImageError, BadImagesError
from nocl.data.folder import class_files
from nocl.plumbing.files import holding
from nocl.plumbing.progress import steps, track
from nocl.plumbing.workers import cores

practice_app = typer.Typer()
_AT_ONCE = 64

Model = Annotated[Path, typer.Argument(help="A model file (.nocl).")]
Folder = Annotated[Path, typer.Argument(help="A folder with one folder of images for each class.")]
SkipBad = Annotated[bool, typer.Option(help="Leave out files that are not images, with a warning.")]
Trust = Annotated[bool, typer.Option(help="Allow a method or network of your own: its code is run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, mps.")]


@practice_app.command()
def fit(
    folder: Folder,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    method: Annotated[str, typer.Option(help="How to learn.")] = DEFAULT_METHOD,
    backbone: Annotated[
        str,
        typer.Option(help="efficientnet_lite0 to 2, cifar100, FILE.safetensors, timm:NAME, or a network to train."),
    ] = DEFAULT_BACKBONE,
    size: Annotated[
        int | None, typer.Option(help="Side in pixels to which images are brought; default the network's own.")
    ] = None,
    holdout: Annotated[float, typer.Option(help="Share of each class kept back to calibrate with.")] = 0.1,
    param: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the method; repeat.")] = None,
    recipe: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the network's training; repeat.")] = None,
    seed: int = 0,
    skip_bad: SkipBad = False,
    device: Device = "cpu",
) -> None:
    """Start a model from base images: DIR/<class>/<image>."""
    model = Classifier(
        method, backbone=backbone, size=size, holdout=holdout, device=device, seed=seed,
        params=_settings(param), recipe=_settings(recipe),
    )  # fmt: skip
    read = list(_read(folder, model, skip_bad))
    model.fit(torch.cat([x for x, _ in read]), [name for _, names in read for name in names])
    model.save(output)
    _say(f"{output}: {_summary(model)}")


@practice_app.command()
def learn(
    model_file: Model,
    folder: Annotated[
        Path, typer.Argument(help="A folder with one folder of images for each class, or an .npz of embeddings.")
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write here instead of in place.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Learn with so many processes; the result is the same.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Learn on the Ray cluster at this address, or start one here: local.")
    ] = None,
    skip_bad: SkipBad = False,
    trust: Trust = False,
    device: Device = "cpu",
) -> None:
    """Learn the images of a folder, each once. The model file is the old one or the new one, never half."""
    _fold_journal(model_file, trust)
    source, target = open_source(folder), output or model_file
    with holding(model_file):
        with shown_progress():
            if workers is None and ray is None:
                model, bad = _learn_here(model_file, source, trust, device)
            else:
                model, bad = learn_sharded(
                    model_file, source, workers=workers or cores(), address=ray,
                    skip_bad=skip_bad, trust=trust, device=device,
                )  # fmt: skip
        if bad and not skip_bad:
            raise BadImagesError(bad)
        model.save(target, held=target.resolve() == model_file.resolve())
        clear_parts(model_file)
    for path, reason in bad.items():
        print(f"nocl: left out {path}: {reason}", file=sys.stderr)
    _say(f"{target}: {_summary(model)}")


@practice_app.command()
def predict(
    model_file: Model,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to print.")] = 3,
    reject: Annotated[
        float | None, typer.Option(help="Answer 'none of these' where this share of known images would be unsure.")
    ] = None,
    as_json: AsJson = False,
    trust: Trust = False,
    device: Device = "cpu",
) -> None:
    """The likeliest classes of image files, with probabilities."""
    model = _load(model_file, trust, device)
    failed = 0
    for path in images:
        try:
            scores = model.learner_.decision_function(model.read(path)).cpu()
        except (BadImageError, OSError) as error:
            failed += 1
            if as_json:
                _say(json.dumps({"file": str(path), "error": str(error)}))
            print(f"nocl: {error}", file=sys.stderr)
            continue
        found = _top(model, scores, top)
        refused = reject is not None and bool(model.refused(scores, reject)[0])
        if as_json:
            answer = None if refused else found[0]["label"]
            _say(json.dumps({"file": str(path), "label": answer, "top": found}))
        else:
            shown = ", ".join(f"{one['label']} {one['probability']:.1%}" for one in found)
            _say(f"{path}: {'none of these; nearest: ' if refused else ''}{shown}")
    if failed:
        raise typer.Exit(1)


@practice_app.command()
def evaluate(
    model_file: Model,
    folder: Folder,
    as_json: AsJson = False,
    skip_bad: SkipBad = False,
    trust: Trust = False,
    device: Device = "cpu",
) -> None:
    """Accuracy on a folder of labelled images, by class; classes the model does not know are counted apart."""
    model = _load(model_file, trust, device)
    right: dict[str, list[bool]] = {}
    for x, names in _read(folder, model, skip_bad):
        for name, found in zip(names, model.predict(x)):
            right.setdefault(name, []).append(bool(name == found))
    known = {name: float(np.mean(hits)) for name, hits in right.items() if name in model.counts_}
    images = sum(len(right[name]) for name in known)
    result = {
        "images": images,
        "accuracy": sum(sum(right[name]) for name in known) / images if images else None,
        "mean_over_classes": float(np.mean(list(known.values()))) if known else None,
        "classes": {name: {"images": len(right[name]), "accuracy": value} for name, value in known.items()},
        "unknown_classes": sorted(set(right) - set(known)),
    }
    if as_json:
        _say(json.dumps(result))
        return
    for name, value in sorted(known.items()):
        _say(f"{value:7.1%}  {name} ({len(right[name])})")
    if images:
        _say(f"{result['accuracy']:7.1%}  of {images} images; {result['mean_over_classes']:.1%} mean over classes")
    if result["unknown_classes"]:
        _say(f"not in the model: {', '.join(sorted(set(right) - set(known)))}")


@practice_app.command()
def merge(
    first: Model,
    second: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    base: Annotated[
        Path | None, typer.Option(help="The model both come from, if both went on learning its classes.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Join what two machines learned from different images on the same network: the same as one that saw all."""
    model = _load(first, trust, "cpu")
    common = None if base is None else _load(base, trust, "cpu")
    model.merge(_load(second, trust, "cpu"), common)
    model.save(output)
    _say(f"{output}: {_summary(model)}")


@practice_app.command()
def inspect(model_file: Model, as_json: AsJson = False) -> None:
    """What a model file is and what it keeps, without building the model."""
    header = modelfile.describe(model_file)
    if as_json:
        _say(json.dumps(header, indent=1))
        return
    for key in ("method", "backbone", "nocl", "format"):
        _say(f"{key:14} {header[key]}")
    _say(f"{'size':14} {header['params']['image_size']} px")  # type: ignore[index, call-overload]
    _say(f"{'bytes':14} {model_file.stat().st_size:,}")
    calibration, privacy = header["calibration"], header["privacy"]
    assert isinstance(calibration, dict)
    assert isinstance(privacy, dict)
    _say(f"{'calibrated on':14} {calibration['images']} held-out images")
    for key, value in privacy.items():
        _say(f"{key.replace('_', ' '):24} {value}")
    classes, counts = header["classes"], header["counts"]
    assert isinstance(classes, list)
    assert isinstance(counts, list)
    _say(f"{len(classes)} classes:")
    for name, count in zip(classes, counts):
        _say(f"{count:8}  {name}")


@practice_app.command()
def export(
    model_file: Model,
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    trust: Trust = False,
) -> None:
    """Write the model for onnxruntime: pixels in, scores and probabilities out."""
    from nocl.app.onnx import export_onnx

    model = _load(model_file, trust, "cpu")
    export_onnx(model, onnx)
    _say(f"{onnx}: {len(model.class_names)} classes, {onnx.stat().st_size:,} bytes")


@practice_app.command()
def serve(
    model_file: Model,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine need NOCL_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    private: Annotated[bool, typer.Option("--private", help="Reading needs the token too.")] = False,
    name: Annotated[
        list[str] | None, typer.Option(help="A host name by which others reach the service; repeat.")
    ] = None,
    onnxruntime_web: Annotated[
        Path | None,
        typer.Option(help="The folder dist of the npm package onnxruntime-web: lets the page recognise on the device."),
    ] = None,
    trust: Trust = False,
    device: Device = "cpu",
) -> None:
    """Serve a model with a page at /: predictions while it learns. NOCL_TOKEN is the token for changes."""
    try:
        from nocl.app.serve.server import serve as run
    except ModuleNotFoundError as error:
        raise SystemExit(f"nocl: serving needs the package {error.name}: pip install 'nocl[serve]'") from error
    _say(f"serving {model_file} at http://{host}:{port}/")
    sys.stdout.flush()
    run(
        model_file, host=host, port=port, token=os.environ.get("NOCL_TOKEN") or None, private=private,
        names=name or [], onnxruntime_web=onnxruntime_web, trust=trust, device=device,
    )  # fmt: skip


def _learn_here(model_file: Path, source: Source, trust: bool, device: str) -> tuple[Classifier, Bad]:
    model = Classifier.load(model_file, trust=trust, device=device)
    with steps("learning", len(source)) as advance:
        return model, source.shuffled(model.seed).teach(model, advance)


def _read(folder: Path, model: Classifier, skip_bad: bool) -> Iterator[tuple[torch.Tensor, list[str]]]:
    """Batches of a folder's images with their class names; nothing is kept on disk."""
    class_names, files, labels = class_files(folder)
    bad: dict[str, str] = {}
    starts = range(0, len(files), _AT_ONCE)
    for start in track(starts, "reading images", total=len(starts)):
        rows, names = [], []
        for position in range(start, min(start + _AT_ONCE, len(files))):
            try:
                rows.append(model.read(files[position]))
                names.append(class_names[labels[position]])
            except BadImageError as error:
                bad[str(files[position])] = str(error).removeprefix(f"{files[position]}: ")
        if bad and not skip_bad:
            raise BadImagesError(bad)
        if rows:
            yield torch.cat(rows), names
    for path, reason in bad.items():
        print(f"nocl: left out {path}: {reason}", file=sys.stderr)


def _load(path: Path, trust: bool, device: str) -> Classifier:
    if has_lessons(journal_of(path)):
        print(
            f"nocl: {journal_of(path).name} lies beside {path.name}: a service is running or was killed, and what "
            "it learned since it last wrote the model is not used here",
            file=sys.stderr,
        )
    return Classifier.load(path, trust=trust, device=device)


def _fold_journal(path: Path, trust: bool) -> None:
    """Take in what a killed service learned, before more is learned."""
    if has_lessons(journal_of(path)):
        Store(path, trust=trust).close()


def _top(model: Classifier, scores: torch.Tensor, top: int) -> list[dict[str, Any]]:
    best, columns = model.calibration_.probabilities(scores)[0].topk(min(top, len(model.class_names)))
    return [
        {"label": model.class_names[c], "probability": round(p, 6)} for p, c in zip(best.tolist(), columns.tolist())
    ]


def _settings(pairs: list[str] | None) -> dict[str, Any] | None:
    settings: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r}: write NAME=VALUE, e.g. epochs=20")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    return settings or None


def _summary(model: Classifier) -> str:
    images = sum(model.counts_.values())
    return f"{len(model.class_names)} classes, {images} images learned, 0 stored"


def _say(text: str) -> None:
    print(text)
