"""Numbers of the public codes of ALICE, FACT, PASS and SSRE."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CASES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "fixtures" / "fscil.json").read_text())["cases"]


def floats(value: Any) -> Tensor:
    """Numbers of a case in the precision that they were computed in."""
    return torch.tensor(value, dtype=torch.float32)
