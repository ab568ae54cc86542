"""The check of ``kept()``: the words about what is stored agree with the shapes of the state."""

from collections.abc import Iterator

from torch import Tensor

from nocl.checks.material import BASE_LABELS, NOVEL_LABELS, QUICK, SIDE, build, easy_images, expect
from nocl.learner import Learner
from nocl.plumbing.parameters import parameters_of
from nocl.plumbing.types import JSON

_OVERRIDE = "; override kept() so that its words and the state agree"


def kept_says_what_is_stored(cls: type[Learner], params: dict[str, JSON]) -> None:
    """``kept()`` names covariances, variances and images if, and only if, the state has them; with every preset."""
    for settings in _settings(cls):
        learner = build(cls, {**params, **settings})
        learner.observe(*easy_images((*BASE_LABELS, *NOVEL_LABELS), 2, seed=2))
        learner.end_session()
        words, own = learner.kept(), learner.network_state_names()
        state = {name: tensor for name, tensor in learner.state_dict().items() if name not in own}
        n = len(learner.classes_)
        dim = learner.network.feature_dim(SIDE, getattr(learner, "stages", None))
        of_class = words.partition("beside")[0].replace("directions of its covariance", "")
        covariances = [name for name, tensor in state.items() if _is_covariance(tensor, n, dim)]
        variances = [name for name, t in state.items() if name.endswith("scatter") and t.shape == (n, dim)]
        where = f"with {settings}: kept() says {words!r}"
        _compare(where, "a covariance", "covariance" in of_class, covariances, state)
        _compare(where, "variances", "variances" in words, variances, state)
        said = "images themselves" in words
        expect(said == learner.stores_exemplars, f"{where}, but stores_exemplars is {not said}{_OVERRIDE}")


def _settings(cls: type[Learner]) -> Iterator[dict[str, JSON]]:
    """The defaults, every preset without weights of its own, and every choice of every parameter."""
    named = [preset for preset in cls.presets.values() if "weights" not in preset]
    chosen = [{name: choice} for name, parameter in parameters_of(cls).items() for choice in parameter.choices]
    for settings in ({}, *named, *chosen):
        yield {**settings, "recipe": {**QUICK["recipe"], **settings.get("recipe", {})}}  # type: ignore[dict-item]


def _is_covariance(tensor: Tensor, n: int, dim: int) -> bool:
    """True for a matrix of each class, [n, d, d], its triangle of d (d + 1) / 2 values, or as many values in rows."""
    triangle = dim * (dim + 1) // 2
    if tensor.ndim < 2 or len(tensor) != n:
        return False
    in_rows = tensor.ndim == 3 and tensor.shape[2] == dim  # [n, r, d], as rda's sketches
    return tensor[0].numel() == triangle or (in_rows and tensor[0].numel() >= triangle)


def _compare(where: str, what: str, said: bool, found: list[str], state: dict[str, Tensor]) -> None:
    """Fail if the words name it and the state has none, or the other way round."""
    shown = ", ".join(f"{name} {list(state[name].shape)}" for name in found)
    expect(said or not found, f"{where}, but the state has {what} of each class, by its shape: {shown}{_OVERRIDE}")
    expect(bool(found) or not said, f"{where}, but no state has the shape of {what} of each class{_OVERRIDE}")
