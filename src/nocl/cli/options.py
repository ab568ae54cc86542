"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer


def checked_device(name: str) -> str:
    """Refuse a device that PyTorch does not know, or that this machine does not have."""
    if name == "cpu":
        return name
    import torch

    try:
        torch.zeros(1, device=torch.device(name)).item()
    except Exception as error:  # each kind of device has its own kind of error
        raise ValueError(f"--device {name}: PyTorch finds no such device on this machine; use cpu") from error
    return name


AllowLeak = Annotated[
    bool, typer.Option("--allow-leak", help="Allow novel classes that the network was trained on; results say so.")
]
BackboneFrom = Annotated[Path | None, typer.Option(help="Use the trained base network in this file.")]
Cache = Annotated[Path | None, typer.Option(help="Folder of computed features; default the user's cache.")]
Data = Annotated[list[str] | None, typer.Option(help="Option of the data set, key=value; repeatable.")]
Dataset = Annotated[str, typer.Option(help="See `nocl list datasets`.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, mps.", callback=checked_device)]
DeviceThere = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, mps.")]  # maybe of another machine
Epochs = Annotated[int | None, typer.Option(help="Epochs of the base session.")]
NetworkEngine = Annotated[str, typer.Option(help="Engine that computes a frozen network: torch, onnx.")]
Partition = Annotated[str, typer.Option(help="Percent of base classes + percent in each session x sessions.")]
Root = Annotated[Path | None, typer.Option(help="Folder of the data sets; default NOCL_DATA, else the user's cache.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Parameter of the method, key=value; repeatable.")]
Threads = Annotated[int | None, typer.Option(help="Threads of each run.")]
Workers = Annotated[int | None, typer.Option(help="Number of parallel runs; default: from the number of cores.")]
