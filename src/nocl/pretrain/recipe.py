"""A recipe: all settings of base training that determine the trained network."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from nocl.plumbing.parameters import check_values
from nocl.plumbing.registry import UnknownNameError, by_name, unknown
from nocl.plumbing.types import JSON
from nocl.pretrain.augment import Augment
from nocl.pretrain.objectives import OBJECTIVES

_STEPS = "steps:"
_CHOICES = {
    "schedule": ("constant", "onecycle", "cosine", f"{_STEPS}60,70"),
    "spaces": ("both", "vanilla", "high"),
    "optimizer": ("sgd", "adam"),
}
_SPEED_ONLY = ("compile",)
_HEADS_ONLY = ("head_epochs", "head_rounds")
_UNSET: dict[str, JSON] = {"optimizer": "sgd", "options": {}}  # not in the JSON: older networks keep their keys


@dataclass(frozen=True)
class Recipe:
    """Settings of base training. Defaults are the paper's: plain SGD, constant learning rate, 100 epochs.

    ``objective`` is ``ce`` or ``sc`` (supervised contrastive), followed by any of ``+ssl`` (rotation labels) and
    ``+da`` (mixed classes). With a ``projection`` of D > 0 values the loss is that of the features plus that of their
    projection, L_vp + L_hp; ``spaces`` selects one of the two. Methods with equal recipes share a network.
    A schedule ``steps:60,70`` divides the rate by ten when those epochs begin.
    """

    objective: str = "ce"
    epochs: int = 100
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"  # "cosine", "steps:...", or "onecycle": warm-up and cosine, momentum at least 0.9
    augment: str = "none"
    normalize: bool = False  # by mean and std of the base images
    power: float = 1.0  # Tukey's power on the features before every head
    projection: int = 0  # D of the projection that is trained with the network; 0: none
    spaces: str = "both"  # features of the loss: "both", "vanilla" (L_vp), "high" (L_hp)
    tau: float = 0.1  # sc: temperature
    head: tuple[int, int] = (160, 128)  # sc: hidden and output width of the heads
    mixes: int = 1  # +da: mixed images for each image and view
    head_epochs: int = 2  # with given weights, epochs for projection and heads alone
    head_rounds: int = 2  # with given weights, passes over the images from which those epochs take their features
    compile: bool | None = None  # torch.compile; None: if the training is long enough
    optimizer: str = "sgd"  # or "adam", which ignores momentum
    options: Mapping[str, JSON] = field(default_factory=dict)  # settings of a custom objective

    def __post_init__(self) -> None:
        check_values(Recipe, {each.name: getattr(self, each.name) for each in fields(self)})
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices and not (name == "schedule" and self.schedule.startswith(_STEPS)):
                raise UnknownNameError(unknown(str(getattr(self, name)), choices, name))
        self.milestones()
        for name in ("epochs", "head_epochs", "projection"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        for name in ("lr", "tau", "mixes", "head_rounds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.spaces == "high" and not self.projection:
            raise ValueError("spaces='high' needs a projection; set projection to its dimension, e.g. 2048")
        object.__setattr__(self, "head", tuple(self.head))
        if len(self.head) != 2 or min(self.head) < 1:
            raise ValueError(f"head must be two widths above 0, not {list(self.head)}")
        by_name(self.objective, OBJECTIVES, "objective")
        Augment(self.augment)

    def with_changes(self, changes: Mapping[str, JSON]) -> "Recipe":
        """A copy with some values replaced; an unknown name is an error that lists the known ones."""
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise UnknownNameError(unknown(name, known, "recipe setting"))
        return replace(self, **changes)  # type: ignore[arg-type]

    def milestones(self) -> tuple[int, ...]:
        """Epochs at which a schedule of steps divides the learning rate by ten.

        >>> Recipe(schedule="steps:60,70").milestones()
        (60, 70)
        """
        if not self.schedule.startswith(_STEPS):
            return ()
        try:
            return tuple(int(epoch) for epoch in self.schedule.removeprefix(_STEPS).split(","))
        except ValueError:
            raise ValueError(f"schedule {self.schedule!r}: write the epochs as in steps:60,70") from None

    def to_json(self) -> dict[str, JSON]:
        """The settings that determine the network, without those that change the speed or the heads only."""
        return self._without(_SPEED_ONLY + _HEADS_ONLY)

    def heads_to_json(self) -> dict[str, JSON]:
        """The settings that determine projection and heads on a given network."""
        return self._without((*_SPEED_ONLY, "epochs", "normalize"))

    def _without(self, names: tuple[str, ...]) -> dict[str, JSON]:
        values = asdict(self) | {"head": list(self.head)}
        unset = [name for name, default in _UNSET.items() if values[name] == default]
        return {name: value for name, value in values.items() if name not in (*names, *unset)}
