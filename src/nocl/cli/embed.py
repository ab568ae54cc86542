"""``nocl embed``: the features of a folder of images in one file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nocl.app.backbones import DEFAULT
from nocl.app.embed import Embedder, embed_folder
from nocl.cli.options import Device
from nocl.cli.pictures import writing
from nocl.cli.show import shown_progress
from nocl.data.folder import refuse_splits
from nocl.data.vectors import read_vectors

embed_app = typer.Typer(add_completion=False)


@embed_app.command()
def embed(
    folder: Annotated[Path, typer.Argument(help="A folder with one folder of images for each class.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The .npz file to write.")],
    backbone: Annotated[
        str, typer.Option(help="efficientnet_lite0 to 2, cifar100, FILE.safetensors, timm:NAME or module:factory.")
    ] = DEFAULT,
    size: Annotated[int | None, typer.Option(help="Side in pixels; default the network's own.")] = None,
    stages: Annotated[
        str | None, typer.Option(help="Stages of the network to concatenate, such as 3,4,5; default the last.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Engine that computes features: auto, torch, onnx.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file of other features.")] = False,
    skip_bad: Annotated[bool, typer.Option(help="Leave out files that are not images, with a warning.")] = False,
    device: Device = "cpu",
) -> None:
    """Write the features of DIR/<class>/<image>; the same command continues after an interruption."""
    if output.suffix != ".npz":
        raise ValueError(f"{output}: the file must end in .npz, as numpy's archives do")
    refuse_splits(folder, "train")
    embedder = Embedder.of(backbone, size=size, stages=_numbers(stages), engine=engine, device=device)
    try:
        with shown_progress(), writing(output):
            left_out = embed_folder(folder, output, embedder, skip_bad=skip_bad, overwrite=force)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", flush=True)
        raise
    for name, reason in left_out.items():
        print(f"nocl: left out {folder / name}: {reason}", file=sys.stderr)
    vectors = read_vectors(output)
    print(f"{output}: {len(vectors)} images of {len(vectors.class_names)} classes, {vectors.x.shape[1]} values each")


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--stages {text}: write numbers, as in 3,4,5") from None
