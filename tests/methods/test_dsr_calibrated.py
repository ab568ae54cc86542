"""What our DSR adds to the paper's: covariances, contrast, several stages."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nocl.checks import NOVEL_LABELS, easy_images
from nocl.methods._saving import load, save
from nocl.methods.dsr_calibrated import DSRCalibrated
from nocl.methods.rda.method import RDA
from nocl.stats.class_stats import tukey
from tests.support.dsr_cases import HIGH, D, fitted, learn, taught
from tests.support.feature_nets import blobs, feed, on_features


def test_shrunk_covariance_is_that_of_rda() -> None:
    learner = taught(4, 2, cls=DSRCalibrated, covariance="shrunk", power=1.0, prior=2.0, ridge=0.01, end=False)
    rival: RDA = on_features(RDA, D, stages=None, power=1.0, prior=2.0, ridge=0.01)
    z, y = blobs(6, 12, D)
    rival.learn(z.float(), y)
    v, columns = learner.sample(40000, 40000)
    for column, label in enumerate(learner.classes_.tolist()):
        expected = rival.class_covariances(torch.tensor([rival.classes_.tolist().index(label)]))[0]
        found = torch.cov(v[columns == column].double().T)
        torch.testing.assert_close(found, expected, atol=0.03 * float(expected.diagonal().max()), rtol=0)


def test_a_class_of_one_image_is_sampled_with_the_shared_covariance() -> None:
    learner: DSRCalibrated = on_features(
        DSRCalibrated, D, dim=HIGH, power=1.0, covariance="shrunk", recipe={"head_epochs": 0}
    )
    z, y = blobs(4, 50, D)
    learner.fit_base_features([(z.float(), y)])
    learner.learn(z.float()[:1], torch.tensor([9]))
    v, columns = learner.sample(0, 40000)
    shared = learner.vanilla.shared_covariance(unbiased=True)
    found = torch.cov(v[columns == 4].double().T)
    torch.testing.assert_close(found, shared, atol=0.03 * float(shared.diagonal().max()), rtol=0)
    torch.testing.assert_close(v.mean(0), z.float()[0], atol=0.03, rtol=0)


def test_factors_are_made_anew_when_a_class_gets_images() -> None:
    learner = taught(cls=DSRCalibrated, covariance="shrunk", end=False)
    learner.sample(1, 1)
    z, _ = blobs(7, 5, D, seed=3)
    learner.learn(100 * z.float()[:10], torch.full((10,), 5))
    v, columns = learner.sample(0, 2000)
    wide = v[columns == learner.classes_.tolist().index(5)].std(0).mean()
    assert wide > 1.5 * v[columns == learner.classes_.tolist().index(4)].std(0).mean()


def test_contrast_in_the_upper_level_is_cross_entropy_over_the_cosines() -> None:
    learner = taught(cls=DSRCalibrated, covariance="diagonal", upper="contrast", upper_tau=0.05, iterations=0)
    v, columns = learner.sample(10, 10)
    learner.sample = lambda n_base, n_novel: (v, columns)  # type: ignore[method-assign]
    cosines = torch.cosine_similarity(learner.project(v)[:, None], learner.high.mean.float()[None], dim=2) / 0.05
    expected = (cosines.exp().sum(1).log() - cosines[torch.arange(60), columns]).mean()
    optimizer = torch.optim.SGD(learner.projection.parameters(), 0.05)
    for _ in range(10):
        learner.upper_level(learner.high.mean.float(), optimizer)
    losses = learner.log_["upper_loss"]
    assert losses[0] == pytest.approx(expected.item(), rel=1e-4)  # type: ignore[index]
    assert losses[-1] < losses[0]  # type: ignore[index,operator]


def test_several_stages_get_a_projection_of_their_own_behind_the_same_network() -> None:
    rotating: dict[str, Any] = {"epochs": 1, "lr": 0.05, "compile": False, "objective": "sc+ssl"}
    plain, deep = fitted(recipe=rotating), fitted("dsr_calibrated", recipe=rotating)
    assert deep.projection.dim == 16 + 32 + 64
    for name, tensor in plain.network.state_dict().items():
        assert torch.equal(tensor, deep.network.state_dict()[name]), name  # the base session is the same
    assert deep.projection.layer1[1].num_batches_tracked > 0  # trained, on features
    assert deep.log_["base_loss"] == plain.log_["base_loss"]
    assert len(deep.log_["projection_loss"]) == deep.full_recipe.head_epochs  # type: ignore[arg-type]
    learn(deep)
    x = easy_images(NOVEL_LABELS, 2, seed=5)[0]
    cosines = torch.nn.functional.cosine_similarity(
        deep.project(tukey(deep.features(x), 0.5))[:, None], deep.high.mean.float()[None], dim=2
    )
    torch.testing.assert_close(deep.decision_function(x), cosines, atol=1e-5, rtol=0)


def test_full_covariance_keeps_correlations_that_the_diagonal_loses() -> None:
    draw = torch.Generator().manual_seed(0)
    shared = torch.randn(400, 1, generator=draw)
    z = (shared + 0.1 * torch.randn(400, D, generator=draw) + 10).float()
    correlations = {}
    for covariance in ("full", "diagonal"):
        learner: DSRCalibrated = on_features(
            DSRCalibrated, D, dim=HIGH, power=1.0, covariance=covariance, recipe={"head_epochs": 0}
        )
        learner.fit_base_features([(z, torch.zeros(400, dtype=torch.int64))])
        v, _ = learner.sample(4000, 0)
        correlations[covariance] = torch.corrcoef(v.T)[0, 1].item()
        torch.testing.assert_close(v.std(0), z.std(0), atol=0.05, rtol=0.05)
    assert correlations["full"] > 0.95
    assert abs(correlations["diagonal"]) < 0.1


def test_the_calibrated_method_keeps_a_run_going_through_save_and_load(tmp_path: Path) -> None:
    straight, broken = fitted("dsr_calibrated", samples=4), fitted("dsr_calibrated", samples=4)
    save(broken, tmp_path / "a.safetensors")
    loaded = load(tmp_path / "a.safetensors")
    assert isinstance(loaded, DSRCalibrated)
    learn(straight)
    learn(loaded)
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name


@pytest.mark.parametrize("dim", [16, 64])
def test_the_calibrated_method_learns_novel_classes(dim: int) -> None:
    recipe = {"objective": "ce", "head_epochs": 40, "lr": 0.1, "momentum": 0.9}
    learner: DSRCalibrated = on_features(DSRCalibrated, D, stages=None, dim=dim, recipe=recipe)
    z, y = blobs(6, 40, D, spread=0.5)
    z = z.float()
    learner.fit_base_features([(z[y < 4], y[y < 4])])
    feed(learner, z[y >= 4], y[y >= 4])
    learner.end_session()
    right = learner.classes_[learner.score(z).argmax(1)] == y
    assert right[y < 4].float().mean() > 0.9  # without the clip it diverges and both are at chance
    assert right[y >= 4].float().mean() > 0.9


def test_stages_that_the_network_has_not_are_refused() -> None:
    with pytest.raises(ValueError, match="has stages 1 to 4"):
        DSRCalibrated(backbone="tiny_resnet18", dim=HIGH, stages=[5])
