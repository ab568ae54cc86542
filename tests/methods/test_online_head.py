"""The linear head by SGD: the contract, a step by hand, and that order matters to it."""

import torch

from nocl.checks import check_learner
from nocl.methods.online_head import OnlineHead


def test_contract() -> None:
    assert check_learner(OnlineHead)


def test_a_step_is_that_of_softmax_regression() -> None:
    learner = OnlineHead(backbone="features:2", lr=0.5)
    learner.meet([4, 7])
    learner.head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    learner.learn(torch.tensor([[2.0, 0.0]]), torch.tensor([7]))
    likely = torch.tensor([2.0, 0.0]).softmax(0)  # of the logits 2 and 0
    error = likely - torch.tensor([0.0, 1.0])
    assert torch.allclose(learner.head.bias, -0.5 * error)
    assert torch.allclose(learner.head.weight, torch.eye(2) - 0.5 * error[:, None] * torch.tensor([2.0, 0.0]))
    assert len(learner.memory) == 0
    assert not learner.stores_exemplars


def test_replay_keeps_what_the_last_class_would_overwrite() -> None:
    z, y = torch.eye(4).repeat(20, 1), torch.arange(4).repeat(20)
    ordered = y.argsort(stable=True)
    right = []
    for memory_size in (0, 40):
        learner = OnlineHead(backbone="features:4", lr=1.0, memory_size=memory_size)
        for row in ordered.tolist():
            learner.learn(z[row : row + 1], y[row : row + 1])
        right.append(int((learner.predict(torch.eye(4)) == torch.arange(4)).sum()))
    assert right[1] == 4 > right[0]
