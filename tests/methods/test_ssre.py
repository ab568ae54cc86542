"""SSRE: folding branches and normalisation, the weights, and that only branches and head learn."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocl import nets
from nocl.checks import easy_images, fitted, novel, teach
from nocl.methods.ssre import SSRE, likeness, weighted_learning
from nocl.nets.adapters import Adapters, fold_batchnorm, folded_batchnorm, with_branch
from nocl.plumbing.seeding import generator
from tests.support.reference_cases import CASES, floats

FOLD, NORM, LOSS = CASES["ssre_adapter_fold"], CASES["ssre_bn_fold"], CASES["ssre_loss"]


@pytest.mark.parametrize("stride", [1, 2])
def test_branch_and_kernel_are_one_convolution(stride: int) -> None:
    draw = generator(stride)
    x = torch.randn(4, 5, 9, 9, generator=draw)
    kernel, branch = 0.2 * torch.randn(6, 5, 3, 3, generator=draw), 0.2 * torch.randn(6, 5, 1, 1, generator=draw)
    both = F.conv2d(x, kernel, stride=stride, padding=1) + F.conv2d(x, branch, stride=stride)
    one = F.conv2d(x, with_branch(kernel, branch), stride=stride, padding=1)
    assert (both - one).abs().max() <= 2e-6


def test_fold_equals_the_reference() -> None:
    state, after = FOLD["inputs"]["state_before"], FOLD["outputs"]["state_after"]
    prefix = "convnet.block."

    def get(name: str) -> Tensor:
        return floats(state[prefix + name])

    def unit(x: Tensor, name: str, stride: int) -> tuple[Tensor, Tensor]:
        """The reference's two-branch convolution, and ours with one kernel."""
        kernel, branch = get(f"{name}.conv.weight"), get(f"{name}.adapter.weight")
        bias = get(f"{name}.conv.bias") + get(f"{name}.adapter.bias")
        summed = with_branch(kernel, branch)
        torch.testing.assert_close(summed, floats(after[f"{prefix}{name}.conv.weight"]), atol=1e-6, rtol=0)
        torch.testing.assert_close(bias, floats(after[f"{prefix}{name}.conv.bias"]), atol=1e-6, rtol=0)
        both = F.conv2d(x, kernel, bias, stride, 1) + F.conv2d(x, branch, None, stride)
        return both, F.conv2d(x, summed, bias, stride, 1)

    def norm(x: Tensor, name: str) -> Tensor:
        statistics = (get(f"{name}.running_mean"), get(f"{name}.running_var"))
        return F.batch_norm(x, *statistics, get(f"{name}.weight"), get(f"{name}.bias"))

    x = floats(FOLD["inputs"]["x"])
    both, one = unit(x, "conv1", 2)
    torch.testing.assert_close(both, floats(FOLD["outputs"]["conv1_before"]), atol=1e-5, rtol=0)
    torch.testing.assert_close(one, floats(FOLD["outputs"]["conv1_after"]), atol=1e-5, rtol=0)
    _, second = unit(F.relu(norm(one, "norm1")), "conv2", 1)
    shortcut = F.conv2d(x, get("downsample.0.weight"), get("downsample.0.bias"), 2)
    block = F.relu(norm(second, "norm2") + shortcut)
    torch.testing.assert_close(block, floats(FOLD["outputs"]["block_before"]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("conv", "norm"), [("b.conv", "b.bn"), ("layer2.0.downsample.0", "layer2.0.downsample.1"), ("conv1", "bn1")]
)
def test_normalisation_folds_as_in_the_reference(conv: str, norm: str) -> None:
    params, folded = NORM["inputs"]["params"], NORM["outputs"]["folded"]
    layer = nn.BatchNorm2d(len(params[f"{norm}.weight"]))
    names = ("weight", "bias", "running_mean", "running_var")
    layer.load_state_dict({name: floats(params[f"{norm}.{name}"]) for name in names}, strict=False)
    kernel, bias = folded_batchnorm(floats(params[f"{conv}.weight"]), None, layer)
    torch.testing.assert_close(kernel, floats(folded[f"{conv}.weight"]), atol=1e-5, rtol=0)
    torch.testing.assert_close(bias, floats(folded[f"{conv}.bias"]), atol=1e-5, rtol=0)
    if conv == "b.conv":
        corrected = NORM["corrected"]
        _, with_bias = folded_batchnorm(floats(params[f"{conv}.weight"]), floats(corrected["b0"]), layer)
        torch.testing.assert_close(with_bias, floats(corrected["bias"]), atol=1e-5, rtol=0)
        out = F.conv2d(floats(NORM["inputs"]["x"]), kernel, bias, padding=1)
        torch.testing.assert_close(out, floats(NORM["outputs"]["output_conv_bn"]), atol=2e-5, rtol=0)


def random_network() -> nets.Backbone:
    """A network whose batch statistics are not those of a new one."""
    network, draw = nets.build("tiny_resnet18").eval(), generator(7)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.copy_(0.2 * torch.randn(len(layer.weight), generator=draw))
            layer.running_var.copy_(0.5 + torch.rand(len(layer.weight), generator=draw))
            layer.weight.data.copy_(0.5 + torch.rand(len(layer.weight), generator=draw))
            layer.bias.data.copy_(0.2 * torch.randn(len(layer.weight), generator=draw))
    return network


def test_folding_all_normalisation_keeps_the_features_and_the_state_names() -> None:
    network, x = random_network(), torch.rand(3, 3, 32, 32, generator=generator(1))
    before, names = network(x), list(network.state_dict())
    fold_batchnorm(network)
    torch.testing.assert_close(network(x), before, atol=1e-4, rtol=1e-4)
    assert list(network.state_dict()) == names
    gains = [layer.weight for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(gains) == 20  # stem, 16 in blocks, 3 shortcuts
    assert all((gain == 1).all() for gain in gains)


def test_branches_stand_beside_inner_3x3_convolutions_only() -> None:
    adapters = Adapters(nets.build("tiny_resnet18"))
    assert len(adapters.names) == 16
    assert all(name.endswith((".conv1", ".conv2")) for name in adapters.names)
    assert "conv1" not in adapters.names
    ninth = sum(p.numel() for p in adapters.parameters())
    kernels = [nets.build("tiny_resnet18").get_parameter(f"{name}.weight").numel() for name in adapters.names]
    assert 9 * ninth == sum(kernels)
    with pytest.raises(ValueError, match="3x3"):
        Adapters(nets.build("tests.support.feature_nets:d8"))


def test_zero_branches_and_folding_change_no_bit() -> None:
    network, x = random_network(), torch.rand(3, 3, 32, 32, generator=generator(1))
    adapters, draw = Adapters(network), generator(3)
    with torch.no_grad():
        assert torch.equal(adapters.encode(network, x), network(x))
        for kernel in adapters.parameters():
            kernel.copy_(0.05 * torch.randn(kernel.shape, generator=draw))
        expanded = adapters.encode(network, x)
        assert (expanded - network(x)).abs().max() > 1e-3
        adapters.fold(network)
        assert not any(kernel.any() for kernel in adapters.parameters())
        torch.testing.assert_close(network(x), expanded, atol=1e-5, rtol=0)
        assert torch.equal(adapters.encode(network, x), network(x))


def test_expanded_network_equals_two_branches_run_apart() -> None:
    network, x = random_network(), torch.rand(2, 3, 32, 32, generator=generator(1))
    adapters, draw = Adapters(network), generator(3)
    for kernel in adapters.parameters():
        kernel.data.copy_(0.05 * torch.randn(kernel.shape, generator=draw))
    expanded = adapters.encode(network, x)
    for name, kernel in zip(adapters.names, adapters.kernels.values()):
        conv = network.get_submodule(name)
        branch = kernel.detach()
        conv.register_forward_hook(
            lambda conv, inputs, out, branch=branch: out + F.conv2d(inputs[0], branch, stride=conv.stride)
        )
    torch.testing.assert_close(network(x), expanded, atol=1e-4, rtol=1e-4)


def test_loss_and_weights_equal_the_reference() -> None:
    inputs, expected = LOSS["inputs"], LOSS["outputs"]
    x, y, means = floats(inputs["x"]), torch.tensor(inputs["y"]), floats(inputs["prototypes"])
    z, before = x @ floats(inputs["Wf"]).T, x @ floats(inputs["Wo"]).T
    head, picked = floats(inputs["fc_weight"]), torch.tensor(inputs["picks"])
    weight = likeness(z, means)
    torch.testing.assert_close(weight, floats(expected["w"]), atol=1e-4, rtol=0)
    learning, keeping = weighted_learning(z @ head.T / 0.1, y, z, before, weight)
    assert learning.item() == pytest.approx(expected["pycil"]["L_cls"], abs=1e-4)
    assert keeping.item() == pytest.approx(expected["pycil"]["L_kd"], abs=1e-4)
    reminding = 10 * F.cross_entropy(means[picked] @ head.T / 0.1, picked)
    total = learning + keeping + reminding
    assert total.item() == pytest.approx(expected["total_official"], rel=1e-5, abs=1e-3)
    averaged = weighted_learning(z @ head.T / 0.1, y, z, before, weight, "mean")[1]
    assert 6 * averaged.item() == pytest.approx(keeping.item(), rel=1e-5)


def test_an_image_like_an_old_class_is_not_learned_but_kept() -> None:
    means = torch.rand(5, 16, generator=generator(1))
    z = torch.cat([3 * means[2:3], -means[:1]])
    weight = likeness(z, means)
    assert weight.tolist() == pytest.approx([1, 0], abs=1e-6)
    logits = torch.randn(2, 7, generator=generator(2))
    learning, keeping = weighted_learning(logits, torch.tensor([5, 6]), z, z + 2, weight)
    second = F.cross_entropy(logits[1:], torch.tensor([6]))
    assert learning.item() == pytest.approx(second.item() / 2, rel=1e-5)
    assert keeping.item() == pytest.approx(8, rel=1e-5)  # 2 in each of 16 values


def test_only_branches_and_head_learn_and_the_number_of_parameters_stays() -> None:
    learner = fitted(SSRE, {})
    assert {name.split(".")[0] for name in learner.learning_parameters()} == {"adapters", "head"}
    network = {name: value.clone() for name, value in learner.network.state_dict().items()}
    count = sum(value.numel() for name, value in learner.named_parameters() if not name.startswith("head."))
    for session in (novel(5), novel(5, seed=4)):
        for x, y in session:
            learner.observe(x, y)
        assert all(torch.equal(value, network[name]) for name, value in learner.network.state_dict().items())
        assert all(kernel.any() for kernel in learner.adapters.parameters())
        x = easy_images((7, 12), 3, seed=9).x
        before = learner.decision_function(x)
        learner.end_session()
        assert torch.equal(learner.decision_function(x), before)
        assert not any(kernel.any() for kernel in learner.adapters.parameters())
        now = learner.network.state_dict()
        changed = {name for name in now if not torch.equal(now[name], network[name])}
        assert changed == {f"{name}.weight" for name in learner.adapters.names}
        assert all(torch.equal(value, now[name]) for name, value in learner.previous.state_dict().items())
        network = {name: value.clone() for name, value in now.items()}
        later = sum(value.numel() for name, value in learner.named_parameters() if not name.startswith("head."))
        assert later == count


def test_folding_normalisation_first_gives_the_same_base_answers_and_other_gradients() -> None:
    plain, folded = fitted(SSRE, {}), fitted(SSRE, {"fold_batchnorm": True})
    x = easy_images((7, 3, 40, 0), 3, seed=9).x
    torch.testing.assert_close(folded.decision_function(x), plain.decision_function(x), atol=1e-3, rtol=1e-3)
    teach(folded, novel(5))
    assert torch.isfinite(folded.decision_function(x)).all()
