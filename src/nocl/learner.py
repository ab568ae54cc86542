"""The base class of every method, and the one for methods on a frozen network.

After the base session a learner receives batches ``(x, y)`` and nothing else, so it can use each image only once.
Outside a learner images are ``uint8 [B, 3, H, W]`` on the CPU; only :meth:`Learner.prepare` converts them. With
``backbone="features:D"`` a learner on a frozen network takes float rows [B, D] instead of images. This module does not
depend on data sets, streams or results. Forgetting classes and merging learners is in :mod:`nocl.merging`.

A method defines ``observe``, ``decision_function`` and ``grow``, or on a frozen network ``learn``, ``score`` and
``grow``; and ``end_session`` if it uses the end of a session. The base session calls, in this order:

    fit_base(base)
        train_network(base)           trains or loads the network; also heads, if needs_heads()
        after_base(trained, base)     hook: copies a trained head, uses the base images once more
            fit_base_features(pairs)  hook of FrozenLearner: its pass over base features; ends with end_session()
        end_session()                 the base session ends like every other
"""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack

import torch
from torch import Tensor, nn

from nocl import nets
from nocl.merging import Merging, UnsupportedError
from nocl.nets.engine import Engine
from nocl.plumbing.parameters import Count, check_values, parameters_of
from nocl.plumbing.progress import track
from nocl.plumbing.seeding import generator
from nocl.plumbing.types import JSON, BaseSession, Batch
from nocl.pretrain import Recipe, Trained, load_given, train_base


class NotFittedError(RuntimeError):
    """``predict`` was called before the learner has seen any class."""


class Common(TypedDict, total=False):
    """The parameters of every method. A method's ``__init__`` takes them as ``**common: Unpack[Common]``."""

    backbone: str
    weights: str | None
    recipe: Mapping[str, JSON] | None
    image_size: int
    seed: int


class FrozenCommon(Common, total=False):
    """The parameters of every method on a frozen network."""

    stages: Sequence[int] | Literal["auto"] | None


class Learner(Merging):
    """Learns classes from a stream. Subclasses give ``observe``, ``decision_function`` and ``grow``.

    Hyper-parameters are keyword arguments of ``__init__`` with JSON values, kept under their own names. Their limits
    are declared in the annotations (:mod:`nocl.plumbing.parameters`) and are checked before ``__init__`` runs.

    Parameters
    ----------
    backbone
        The network: a name that ``nocl list backbones`` shows, or a module of your own as ``module:name``.
    weights
        A safetensors file with the network's weights. The base session then does not train the network.
    recipe
        Changes to the method's own base recipe, such as ``{"epochs": 10}``; see :class:`nocl.pretrain.Recipe`.
    image_size
        The side of the square images in pixels, 1 or more.
    seed
        The random seed of everything the learner draws.
    """

    stores_exemplars: ClassVar[bool] = False
    uses_boundaries: ClassVar[bool] = False
    depends_on_batching: ClassVar[bool] = True  # False: batch size changes results by rounding only
    needs_base: ClassVar[str] = ""  # why the method needs a base session; empty if it does not
    base_recipe: ClassVar[Recipe] = Recipe()
    presets: ClassVar[dict[str, dict[str, JSON]]] = {}  # named settings
    search_space: ClassVar[tuple[str, ...]] = ()  # what `nocl tune` varies, as `power=0.2:1`; not inherited
    stands_in: ClassVar[dict[str, str]] = {}  # {"a": "b"}: if parameter a is None, the value of b is used
    # parameters that old files have and the method no longer takes: the value that may be ignored, or ... for any value
    retired: ClassVar[Mapping[str, JSON | EllipsisType]] = {}
    successor: ClassVar[str] = ""  # the method that still takes some of the retired parameters
    novel_classes: ClassVar[str] = ""  # the parameter that a run sets to the number of novel classes, if not set
    scoring: ClassVar[int] = 1  # raised when scores of the same statistics change: what was fitted to the old ones goes
    softmax_scale: ClassVar[float] = 1.0  # divides scores before a softmax: 1 for logits
    # defaults that meant something else while scoring was lower: the scoring since when they do not, and their values
    former: ClassVar[Mapping[str, tuple[int, tuple[JSON, ...]]]] = {}
    check_params: ClassVar[dict[str, JSON]] = {}  # smaller values for the quick runs of checks.py

    def __new__(cls, *args: Any, **params: Any) -> Self:
        """Check the parameters of every learner in one place, before any work is done."""
        check_values(cls, params)
        return super().__new__(cls)

    def __init__(
        self,
        *,
        backbone: str = "reduced_resnet18",
        weights: str | None = None,
        recipe: Mapping[str, JSON] | None = None,
        image_size: Count = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.backbone, self.weights, self.image_size, self.seed = backbone, weights, image_size, seed
        self.recipe: dict[str, JSON] = dict(recipe or {})
        self.full_recipe = self.base_recipe.with_changes(self.recipe)
        self.network = nets.build(backbone, seed=seed)
        if isinstance(self.network, nets.StoredFeatures) and not isinstance(self, FrozenLearner):
            raise ValueError(f"{type(self).__name__} trains its network on images and cannot take {backbone}")
        self.network.eval()
        self.draw = generator(seed, type(self).__name__)  # all random numbers of the method; saved with the state
        self.base_: dict[str, JSON] = {}  # where the network came from
        self.log_: dict[str, JSON] = {}  # curves for the report
        self.register_buffer("classes_", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("n_base_", torch.zeros((), dtype=torch.int64))
        self._column: dict[int, int] = {}

    # --- what a method writes ---------------------------------------------------------------------------------

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Learn from one batch, once; keep neither tensor."""
        raise NotImplementedError(f"{type(self).__name__} must define observe(x, y)")

    def decision_function(self, x: Tensor) -> Tensor:
        """Scores float [B, K], larger is likelier; changes nothing."""
        raise NotImplementedError(f"{type(self).__name__} must define decision_function(x)")

    def grow(self, n: int) -> None:
        """Make room for ``n`` classes that have just been added to ``classes_``."""

    def end_session(self) -> None:
        """Called when a session ends, without data. May be called twice."""

    def without_boundaries(self) -> str:
        """The error message for streams that do not announce the end of sessions, if ``uses_boundaries``."""
        return f"{type(self).__name__} learns at the end of a session, and this stream has none: choose another one"

    # --- the base session -------------------------------------------------------------------------------------

    def fit_base(self, base: Iterable[Batch], *, workdir: Path | None = None) -> Self:
        """Train the network on the base classes: the one place where epochs are allowed."""
        self.meet(base.classes if isinstance(base, BaseSession) else _labels_of(base))
        self.n_base_.fill_(len(self.classes_))
        self.after_base(self.train_network(base, workdir), base)
        self.end_session()
        self.eval()
        return self

    def skip_base(self) -> Self:
        """Start without a base session, on a network trained on other data; nothing is learned yet."""
        if self.needs_base:
            raise UnsupportedError(f"{type(self).__name__} needs a base session: {self.needs_base}")
        if self.weights is not None:
            self.base_ = load_given(self.network, Path(self.weights), self.backbone, allowed=set())
        elif next(self.network.parameters(), None) is not None:
            raise UnsupportedError(
                "this stream has no base session to train a network in: give the weights of one that was trained on "
                "other data (--backbone-from FILE, or --set weights=pretrained), or choose a stream with base classes"
            )
        self.eval()
        return self

    def train_network(self, base: Iterable[Batch], workdir: Path | None) -> Trained:
        """Train the network with this learner's recipe, or load it."""
        trained = train_base(
            self.network,
            base,
            self.full_recipe,
            classes=tuple(self.classes_.tolist()),
            image_size=self.image_size,
            seed=self.seed,
            name=self.backbone,
            weights=None if self.weights is None else Path(self.weights),
            workdir=workdir,
            train_heads=self.needs_heads(),
        )
        self.base_ = trained.origin
        self.log_["base_loss"] = list(trained.losses)
        return trained

    def needs_heads(self) -> bool:
        """True if the projection or heads of the base objective must be trained although the network is given."""
        return False

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        """Called after base training: copy a trained head, or use the base images once more."""

    # --- classes ----------------------------------------------------------------------------------------------

    def meet(self, labels: Iterable[int]) -> None:
        """Add the labels not met before, in order."""
        new = [label for label in dict.fromkeys(int(label) for label in labels) if label not in self._column]
        if not new:
            return
        self._column |= {label: len(self._column) + i for i, label in enumerate(new)}
        self.classes_ = torch.cat([self.classes_, torch.tensor(new, device=self.classes_.device)])
        self.grow(len(new))

    def columns(self, y: Tensor) -> Tensor:
        """Labels [B] to columns [B], adding the labels not met before."""
        labels = y.tolist()
        self.meet(labels)
        return torch.tensor([self._column[label] for label in labels], dtype=torch.int64, device=self.device)

    # --- images to tensors ------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.classes_.device

    def scale(self, x: Tensor) -> Tensor:
        """uint8 images to float in [0, 1] on this learner's device; stored features are not changed."""
        return self.network.read(x, self.image_size)

    def prepare(self, x: Tensor) -> Tensor:
        """uint8 images as the network's input: on its device, scaled, normalised."""
        return self.network.normalise(self.scale(x))

    # --- predictions ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Original labels int64 [B], on the CPU."""
        if not len(self.classes_):
            raise NotFittedError(f"{type(self).__name__} has met no class yet: call fit_base or observe first")
        scores = self.decision_function(x)
        if scores.shape != (len(x), len(self.classes_)):
            raise ValueError(
                f"decision_function of {type(self).__name__} must give scores [{len(x)}, {len(self.classes_)}], one of "
                f"each image and class, not {list(scores.shape)}"
            )
        if bool(scores.isnan().any()):
            raise ValueError(f"decision_function of {type(self).__name__} gives NaN; correct the method or its input")
        return self.classes_[scores.argmax(1)].cpu()

    def softmax_temperature(self) -> float:
        """The number that divides images' scores before a softmax, if no held-out images were there to fit it."""
        return self.softmax_scale

    # --- parameters and state ---------------------------------------------------------------------------------

    def get_params(self) -> dict[str, JSON]:
        """The keyword arguments that build this learner again."""
        names = parameters_of(type(self))
        for name in names:
            if not hasattr(self, name):
                raise TypeError(f"{type(self).__name__}: keep parameter {name} as self.{name}")
        values = {name: getattr(self, name) for name in names}
        copied: dict[str, JSON] = json.loads(json.dumps(values))
        return copied

    def clone(self, **changes: JSON) -> Self:
        """A new learner with the same parameters, some changed; it has learned nothing."""
        return type(self)(**(self.get_params() | changes))  # type: ignore[arg-type]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy. torch's own copy of a generator leaks 4 kB, and a service copies the learner for each change."""
        memo[id(self.draw)] = self.draw.clone_state()
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def get_extra_state(self) -> Tensor:
        """The generator's state, so that a loaded learner continues with the same random numbers."""
        return self.draw.get_state()

    def set_extra_state(self, state: Any) -> None:
        self.draw.set_state(state.cpu())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """torch's own, after growing to the saved classes."""
        if "classes_" in state_dict:
            self.meet(state_dict["classes_"].tolist())
        return super().load_state_dict(state_dict, strict, assign)

    def state_bytes(self) -> dict[str, int]:
        """What is kept between batches, by kind. Exemplars are the buffers under a name that starts with memory."""
        sizes = {"network": 0, "statistics": 0, "exemplars": 0}
        of_network = self.network_state_names()
        for name, tensor in self.state_dict().items():
            kind = "network" if name in of_network else "statistics"
            sizes["exemplars" if name.startswith("memory.") else kind] += tensor.numel() * tensor.element_size()
        return sizes

    def network_state_names(self) -> set[str]:
        """State that does not depend on the classes met: the backbone, and layers a method adds to it."""
        return {name for name in self.state_dict() if name.startswith("network.")}


class FrozenLearner(Learner):
    """A method on a frozen backbone: everything after the features. ``observe(x, y)`` is ``learn(features(x), y)``.

    Features may be cached and given to ``learn`` and ``score`` directly, with the same result as images.

    Parameters
    ----------
    stages
        The stages of the network whose pooled outputs make the feature, numbers from 1 such as ``[2, 3, 4]``. None: the
        last one. ``"auto"``: what the method usually takes of this network (:meth:`usual_stages`). ``-2`` is the
        spread of stage 2 over its positions: ``[1, 2, 3, 4, -1, -2, -3]``.
    **common
        ``backbone``, ``weights``, ``recipe``, ``image_size``, ``seed``: see :class:`Learner`.
    """

    softmax_scale: ClassVar[float] = 0.03  # cosines and ridge scores lie within 1 of each other
    learns_from_one_image: ClassVar[bool] = False  # True: one image is enough to learn a class without harming others
    depths: ClassVar[int] = 1  # number of stages that stages="auto" uses

    def __init__(self, *, stages: Sequence[int] | Literal["auto"] | None = None, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        wanted = self.usual_stages() if stages == "auto" else stages
        self.stages = None if wanted is None else tuple(int(stage) for stage in wanted)
        self.feature_dim = self.network.feature_dim(self.image_size, self.stages)
        self.engine = Engine()  # not a parameter: like the device, it changes where, not what is computed

    def usual_stages(self) -> tuple[int, ...]:
        """What ``stages="auto"`` takes of this network."""
        return self.network.last_stages(self.depths)

    def learn(self, z: Tensor, y: Tensor) -> None:
        """Learn from features [B, d] with their labels."""
        raise NotImplementedError(f"{type(self).__name__} must define learn(z, y)")

    def score(self, z: Tensor) -> Tensor:
        """Scores [B, K] of features [B, d]."""
        raise NotImplementedError(f"{type(self).__name__} must define score(z)")

    @property
    def sees_images(self) -> bool:
        """True if predictions need the image and not only its feature; then stored features cannot be used."""
        return False

    def portable_scorer(self) -> nn.Module | None:
        """A module from features to scores with everything precomputed, for export; None: use ``score``."""
        return None

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Frozen features float [B, d], computed by the chosen engine (:mod:`nocl.nets.engine`)."""
        return self.engine.features(self.network, x, self.image_size, self.stages)

    def observe(self, x: Tensor, y: Tensor) -> None:
        self.learn(self.features(x), y)

    @torch.no_grad()
    def decision_function(self, x: Tensor) -> Tensor:
        return self.score(self.features(x))

    def after_base(self, trained: Trained, base: Iterable[Batch]) -> None:
        """One pass over the base images with the final network."""
        self.fit_base_features((self.features(x), y) for x, y in track(base, "base statistics"))

    def fit_base_features(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Self:
        """Learn the base session from features with their labels, each once."""
        for z, y in pairs:
            self.learn(z, y)
        self.n_base_.fill_(len(self.classes_))
        self.end_session()
        return self


def _labels_of(base: Iterable[Batch]) -> Iterator[int]:
    for _, y in base:
        yield from y.tolist()


__all__ = ["Common", "FrozenCommon", "FrozenLearner", "Learner", "NotFittedError", "UnsupportedError"]
