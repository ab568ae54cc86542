"""Every method by name: one file with one :class:`~nocl.learner.Learner` each; listing it here is all it takes."""

from collections.abc import Mapping

from nocl.learner import Learner
from nocl.methods.acil import ACIL
from nocl.methods.alice import ALICE
from nocl.methods.aser import ASER
from nocl.methods.dsr import DSR
from nocl.methods.dsr_calibrated import DSRCalibrated
from nocl.methods.dvc import DVC
from nocl.methods.fact import FACT
from nocl.methods.fecam import FeCAM
from nocl.methods.finetune import Finetune
from nocl.methods.gdumb import GDumb
from nocl.methods.mir import MIR
from nocl.methods.ncm import NCM
from nocl.methods.ocm import OCM
from nocl.methods.pass_ import PASS
from nocl.methods.ranpac import RanPAC
from nocl.methods.rda.method import RDA
from nocl.methods.scr import SCR
from nocl.methods.slda import SLDA
from nocl.methods.ssre import SSRE
from nocl.plumbing.registry import by_name
from nocl.plumbing.types import JSON

METHODS: dict[str, type[Learner]] = {
    "acil": ACIL,
    "alice": ALICE,
    "aser": ASER,
    "dsr": DSR,
    "dsr_calibrated": DSRCalibrated,
    "dvc": DVC,
    "fact": FACT,
    "fecam": FeCAM,
    "finetune": Finetune,
    "gdumb": GDumb,
    "mir": MIR,
    "ncm": NCM,
    "ocm": OCM,
    "pass": PASS,
    "ranpac": RanPAC,
    "rda": RDA,
    "scr": SCR,
    "slda": SLDA,
    "ssre": SSRE,
}


def make(name: str, **params: JSON) -> Learner:
    """A learner by its key in ``METHODS``, or a user's own as ``module:Class``."""
    cls = by_name(name, METHODS, "method")
    if not (isinstance(cls, type) and issubclass(cls, Learner)):
        raise TypeError(f"method {name!r} is not a subclass of nocl.Learner")
    return cls(**params)  # type: ignore[arg-type]


def remake(name: str, params: Mapping[str, JSON]) -> Learner:
    """``make`` with the parameters of a saved file, which may have some that the method no longer takes.

    Such a parameter is left out where it has the value that it had by default, or where any value will do. With another
    value the file is loaded as the method's ``successor``, or refused.
    """
    cls = by_name(name, METHODS, "method")
    retired = cls.retired
    changed = {key: value for key, value in params.items() if key in retired and retired[key] not in (value, ...)}
    if not changed:
        return make(name, **{key: value for key, value in params.items() if key not in retired})
    if cls.successor and not changed.keys() & METHODS[cls.successor].retired.keys():
        return remake(cls.successor, params)
    key, value = next(iter(changed.items()))
    raise ValueError(f"{name} no longer has {key}, which this file sets to {value!r}; use the nocl that saved it")


def name_of(learner: Learner) -> str:
    """The name that ``make`` takes to build this kind of learner."""
    for name, cls in METHODS.items():
        if type(learner) is cls:
            return name
    return f"{type(learner).__module__}:{type(learner).__qualname__}"


__all__ = ["METHODS", "make", "name_of", "remake"]
