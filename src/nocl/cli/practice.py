"""Commands that make or change a model of your own images: new, fit, learn, forget, merge."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from nocl.app.backbones import DEFAULT as DEFAULT_BACKBONE
from nocl.app.classifier import DEFAULT_METHOD, Classifier
from nocl.app.modelfile import clear_parts
from nocl.app.serve.journal import has_lessons
from nocl.app.serve.store import Store, journal_of
from nocl.app.sharded import learn_sharded
from nocl.app.sources import Bad, Source, open_source
from nocl.app.watching import Watch
from nocl.cli.options import Device
from nocl.cli.pictures import (
    Folder,
    Model,
    SkipBad,
    Trust,
    bad_files,
    files_of,
    load_model,
    measure,
    measured,
    summary,
    writing,
)
from nocl.cli.show import shown_progress
from nocl.data.decode import BadImageError, BadImagesError
from nocl.data.folder import has_splits, refuse_splits
from nocl.plumbing.files import holding
from nocl.plumbing.progress import steps

practice_app = typer.Typer(add_completion=False)
SECONDS_BETWEEN_LOOKS = 1.0

Method = Annotated[str, typer.Option(help="The method; see `nocl list methods`.")]
Backbone = Annotated[
    str, typer.Option(help="efficientnet_lite0 to 2, cifar100, FILE.safetensors, timm:NAME, or a network to train.")
]
Size = Annotated[
    int | None, typer.Option(help="Side in pixels to which images are resized; default the network's own.")
]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an output file that exists.")]


@practice_app.command()
def new(
    model_file: Annotated[Path, typer.Argument(help="The model file to write (.nocl).")],
    method: Method = DEFAULT_METHOD,
    backbone: Backbone = DEFAULT_BACKBONE,
    size: Size = None,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Make an empty model, ready to learn."""
    _refuse_overwriting(model_file, force)
    model = Classifier(method, backbone=backbone, size=size, seed=seed)
    with writing(model_file):
        model.save(model_file)
    print(f"{model_file}: {model!r}; teach it: nocl learn {model_file} FOLDER, or nocl serve {model_file}")


@practice_app.command()
def fit(
    folder: Folder,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    method: Method = DEFAULT_METHOD,
    backbone: Backbone = DEFAULT_BACKBONE,
    size: Size = None,
    holdout: Annotated[float, typer.Option(help="Share of each class that is held out for calibration.")] = 0.1,
    param: Annotated[list[str] | None, typer.Option(help="Parameter of the method, NAME=VALUE; repeatable.")] = None,
    recipe: Annotated[
        list[str] | None, typer.Option(help="Setting of the network's training, NAME=VALUE; repeatable.")
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    skip_bad: SkipBad = False,
    device: Device = "cpu",
) -> None:
    """Start a model from base images: DIR/<class>/<image>. With DIR/train and DIR/test, the latter is for testing."""
    _refuse_overwriting(output, force)
    split = has_splits(folder, "test")
    model = Classifier(
        method, backbone=backbone, size=size, holdout=holdout, device=device, seed=seed,
        params=_settings(param), recipe=_settings(recipe),
    )  # fmt: skip
    with shown_progress():
        files, names = files_of(folder / "train" if split else folder, model, skip_bad)
        try:
            model.fit(files, names)
        except BadImageError:  # names the first alone
            raise BadImagesError(bad_files(files, model)) from None
    with writing(output):
        model.save(output)
    print(f"{output}: {summary(model)}")
    if split:
        print(f"{measured(measure(model, folder / 'test', skip_bad))} in {folder / 'test'}")


@practice_app.command()
def learn(
    model_file: Model,
    folder: Annotated[
        Path, typer.Argument(help="A folder with one folder of images for each class, or an .npz of embeddings.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the new model here; default: replace the model file.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes; the result is the same.")] = None,
    ray: Annotated[
        str | None, typer.Option(help="Learn on the Ray cluster at this address, or start one here: local.")
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Keep running and learn images when they are added to class folders. Ctrl-C ends."
        ),
    ] = False,
    force: Force = False,
    skip_bad: SkipBad = False,
    trust: Trust = False,
    device: Device = "cpu",
) -> None:
    """Learn the images of a folder, each once. An interruption never damages the model file."""
    target = output or model_file
    in_place = target.resolve() == model_file.resolve()
    if not in_place:
        _refuse_overwriting(target, force)
    refuse_splits(folder, "train")
    _fold_journal(model_file, trust)
    if watch:
        if output or workers or ray:
            raise ValueError("--watch learns in place and in one process: leave out --output, --workers and --ray")
        _watch(model_file, folder, trust, device)
        return
    source = open_source(folder)
    with holding(model_file), writing(target):
        with shown_progress():
            if workers is None and ray is None:
                model, bad = _learn_here(model_file, source, trust, device)
            else:
                model, bad = learn_sharded(
                    model_file, source, workers=workers, address=ray,
                    skip_bad=skip_bad, trust=trust, device=device,
                )  # fmt: skip
        if bad and not skip_bad:
            raise BadImagesError(bad)
        model.save(target, held=in_place)
        clear_parts(model_file)
    for path, reason in bad.items():
        print(f"nocl: left out {path}: {reason}", file=sys.stderr)
    print(f"{target}: {summary(model)}")


@practice_app.command()
def forget(
    model_file: Model,
    name: Annotated[str, typer.Argument(help="The class to forget.")],
    exact: Annotated[bool, typer.Option("--exact", help="Refuse if any trace of the class would stay.")] = False,
    trust: Trust = False,
) -> None:
    """Remove a class, its name and its statistics from a model."""
    _fold_journal(model_file, trust)
    with holding(model_file):
        model = Classifier.load(model_file, trust=trust)
        exactly = model.leaves_no_trace(name)
        try:
            model.forget(name, exact=exact)
        except KeyError as error:
            raise ValueError(error.args[0]) from None
        with writing(model_file):
            model.save(model_file, held=True)
    if not exactly:
        print(
            "its name and own statistics are gone; some of what it gave to the covariance that all share may stay in it"
        )
    print(f"{model_file}: {summary(model)}")


@practice_app.command()
def merge(
    first: Model,
    second: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    base: Annotated[
        Path | None, typer.Option(help="The model that both were copied from, if both learned more of its classes.")
    ] = None,
    force: Force = False,
    trust: Trust = False,
) -> None:
    """Merge two models that learned different images on the same network: the result is as if one had seen all."""
    _refuse_overwriting(output, force)
    model = load_model(first, trust, "cpu")
    common = None if base is None else load_model(base, trust, "cpu")
    model.merge(load_model(second, trust, "cpu"), common)
    with writing(output):
        model.save(output)
    print(f"{output}: {summary(model)}")


def _learn_here(model_file: Path, source: Source, trust: bool, device: str) -> tuple[Classifier, Bad]:
    model = Classifier.load(model_file, trust=trust, device=device)
    with steps("learning", len(source)) as advance:
        return model, source.shuffled(model.seed).teach(model, advance)


def _watch(model_file: Path, folder: Path, trust: bool, device: str) -> None:
    with holding(model_file):
        watch = Watch(model_file, folder, Classifier.load(model_file, trust=trust, device=device))
        print(f"watching {folder}: put images into folders named for their classes; Ctrl-C ends", flush=True)
        try:
            while True:
                step = watch.look()
                for path, reason in step.bad.items():
                    print(f"nocl: left out {path}: {reason}", file=sys.stderr)
                if step.learned:
                    print("learned " + ", ".join(f"{n} of {name}" for name, n in step.learned.items()), flush=True)
                if not step.more:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
        except KeyboardInterrupt:  # the normal way to end; what was learned is on disk
            print(f"{model_file}: {summary(watch.model)}")


def _refuse_overwriting(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists: choose another name, or overwrite it with --force")


def _fold_journal(path: Path, trust: bool) -> None:
    """Add what a killed service has learned, before the model is changed."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; make one with: nocl new {path}")
    if has_lessons(journal_of(path)):
        Store(path, trust=trust).close()


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
