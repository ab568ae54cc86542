"""MIR: scores and choice against the public code, and what a step does."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nocl.checks import BASE_LABELS, easy_images
from nocl.methods.mir import MIR, interference
from nocl.stats.memory import gradients, highest, look, moved
from tests.support.replay_cases import cases, close, fitted


def small_classifier(params: Mapping[str, Any]) -> nn.Sequential:
    layers: dict[str, nn.Module] = {}
    for name in {name.split(".")[0] for name in params}:
        weight = torch.tensor(params[f"{name}.weight"])
        has_bias = f"{name}.bias" in params
        layers[name] = nn.BatchNorm1d(len(weight)) if weight.ndim == 1 else nn.Linear(*weight.T.shape, bias=has_bias)
    model = nn.Sequential(*(layers.get(str(i), nn.ReLU()) for i in range(1 + max(int(name) for name in layers))))
    model.load_state_dict({name: torch.tensor(value) for name, value in params.items()})
    return model


@cases("mir_")
def test_mir_scores_and_choice(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    model = small_classifier(given["params"]).train(given["train_mode"])
    learning = {name: p for name, p in model.named_parameters() if name not in given["frozen"]}
    loss = F.cross_entropy(model(torch.tensor(given["new_x"])), torch.tensor(given["new_y"]))
    close(loss, wanted["new_batch_loss"], 2e-5)
    gradient = gradients(loss, learning)
    ahead = moved(learning, gradient, given["lr"])
    for name in learning:
        close(gradient[name], wanted["grads"][name], 2e-5)
        close(ahead[name], wanted["virtual_params"][name], 2e-5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x, y = torch.tensor(given["cand_x"]), torch.tensor(given["cand_y"])
    scores = interference(model, x, y, ahead)
    close(scores, wanted["score"], 1e-4)
    close(F.cross_entropy(look(model, x, ahead), y, reduction="none"), wanted["loss_after"], 1e-4)
    assert highest(scores, given["n_replay"]).tolist() == wanted["chosen_index"]
    for name, tensor in model.state_dict().items():  # the reference moves live batch statistics here
        assert torch.equal(tensor, before[name]), name
    for name, value in wanted.get("bn_buffers", {}).get("after_new_batch", {}).items():
        close(model.state_dict()[name], value, 2e-5)


def test_mir_step_is_the_gradient_of_the_new_plus_that_of_the_retrieved(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = fitted("mir", lr=0.1)
    x, y = easy_images(BASE_LABELS, 2, seed=3)
    slots = torch.tensor([3, 1, 7])
    monkeypatch.setattr(MIR, "retrieve", lambda self, ahead: slots)
    twin = copy.deepcopy(learner)
    learner.observe(x, y)
    twin.set_training(True)
    parameters = twin.learning_parameters()
    new = gradients(F.cross_entropy(twin(twin.prepare(x)), twin.columns(y)), parameters)
    images, columns = twin.recall(slots)
    old = gradients(F.cross_entropy(twin(images), columns), parameters)
    for name, value in learner.learning_parameters().items():
        wanted = parameters[name] - 0.1 * (new[name] + old[name])
        torch.testing.assert_close(value, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_mir_retrieval_leaves_no_trace(mode: str) -> None:
    learner = fitted("mir", score_bn_mode=mode)
    ahead = {name: value + 0.01 for name, value in learner.learning_parameters().items()}
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items() if "extra" not in name}
    slopes = {name: p.grad.clone() for name, p in learner.named_parameters() if p.grad is not None}
    slots = learner.retrieve(ahead)
    assert len(set(slots.tolist())) == len(slots) == 10
    assert int(slots.max()) < len(learner.memory)
    for name, tensor in before.items():
        assert torch.equal(tensor, learner.state_dict()[name]), name
    after = {name: p.grad for name, p in learner.named_parameters() if p.grad is not None}
    assert after.keys() == slopes.keys()
    assert all(torch.equal(after[name], slope) for name, slope in slopes.items())


def test_choosing_all_candidates_is_refused() -> None:
    with pytest.raises(ValueError, match="replay_batch must be at most candidates, 50, not 100"):
        MIR(replay_batch=100)
