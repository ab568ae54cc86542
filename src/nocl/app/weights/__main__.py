"""Make a packaged network of a trained one: ``python -m nocl.app.weights SOURCE TARGET``.

SOURCE is a base network that ``nocl run`` left in its cache, or any safetensors file that ``--backbone-from`` takes.
Only the backbone goes into TARGET, with the classes and the recipe it was trained with in the header.
"""

import sys
from pathlib import Path

from nocl import nets
from nocl.plumbing.files import file_digest, read_tensors, write_tensors
from nocl.pretrain import load_weights


def pack(source: Path, target: Path, network: str = "reduced_resnet18") -> None:
    """Write the backbone in ``source`` alone to ``target``."""
    backbone = nets.build(network)
    load_weights(backbone, source)
    _, header = read_tensors(source)
    key = header.get("key")
    recipe = key.get("recipe") if isinstance(key, dict) else header.get("recipe")
    precision = key.get("precision", "32-true") if isinstance(key, dict) else None
    about = {
        "kind": "nocl packaged network", "network": network, "classes": header.get("classes"), "recipe": recipe,
        "precision": precision,
    }  # fmt: skip
    write_tensors(target, backbone.state_dict(), {**about, "made_of": source.name, "sha256": file_digest(source)})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m nocl.app.weights SOURCE TARGET")
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
