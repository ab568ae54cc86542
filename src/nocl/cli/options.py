"""Options that several research commands have."""

from pathlib import Path
from typing import Annotated

import typer

AllowLeak = Annotated[
    bool, typer.Option("--allow-leak", help="Allow novel classes that the network was trained on; results say so.")
]
BackboneFrom = Annotated[Path | None, typer.Option(help="Use the trained base network in this file.")]
Cache = Annotated[Path | None, typer.Option(help="Folder of computed features; default the user's cache.")]
Data = Annotated[list[str] | None, typer.Option(help="Option of the data set, key=value; repeatable.")]
Dataset = Annotated[str, typer.Option(help="See `nocl list datasets`.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, mps.")]
Epochs = Annotated[int | None, typer.Option(help="Epochs of the base session.")]
NetworkEngine = Annotated[str, typer.Option(help="Engine that computes a frozen network: torch, onnx.")]
Partition = Annotated[str, typer.Option(help="Percent of base classes + percent in each session x sessions.")]
Root = Annotated[Path | None, typer.Option(help="Folder of the data sets; default NOCL_DATA, else the user's cache.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Parameter of the method, key=value; repeatable.")]
Threads = Annotated[int | None, typer.Option(help="Threads of each run.")]
Workers = Annotated[int | None, typer.Option(help="Number of parallel runs; default: from the number of cores.")]
