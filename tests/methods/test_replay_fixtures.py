"""All stored values of the public replay codes, or the corrected value where the reference is wrong.

``tests/fixtures/replay.json`` says where each value comes from. Tolerances: float64 1e-9 (OCM 1e-6: its reference
adds 1e-8 here and there), float32 2e-5, integers exact.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocl import metrics
from nocl.methods.aser import adversarial_shapley, exchange, knn_shapley
from nocl.methods.dvc import dual_view, last_layer_gradient, negative_entropy
from nocl.methods.mir import interference
from nocl.methods.ocm import embedding_similarity, other_view_nce, same_label_nce, variant_labels
from nocl.nets.heads import GrowingLinear, GrowingPairHead
from nocl.pretrain.augment import cutmix_box, turned_variants
from nocl.pretrain.supcon import supcon
from nocl.stats import memory
from nocl.stats.memory import BalancedMemory, Reservoir, gradients, highest, look, moved

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "fixtures" / "replay.json").read_text())["cases"]
COVERED: set[str] = set()


def cases(*prefixes: str) -> Any:
    """Parametrize by all cases with these prefixes, and remember that they are tested."""
    chosen = [case for case in CASES if case["id"].startswith(prefixes)]
    COVERED.update(case["id"] for case in chosen)
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def exact(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(got: Tensor, wanted: object, tolerance: float) -> None:
    torch.testing.assert_close(got.detach().double(), exact(wanted), atol=tolerance, rtol=0)


# --- SCR ------------------------------------------------------------------------------------------------------------


@cases("supcon_")
def test_supcon(case: dict[str, Any]) -> None:
    features = exact(case["inputs"]["features"]).requires_grad_()  # [n, views, d]
    n, views = features.shape[:2]
    labels = case["inputs"]["labels"]
    y = torch.arange(n) if labels is None else torch.tensor(labels)
    loss = supcon(
        features.transpose(0, 1).flatten(0, 1),
        y.repeat(views),
        case["inputs"]["temperature"],
        unit=False,
        anchors=n if case["inputs"]["contrast_mode"] == "one" else None,
    )
    if case["id"] == "supcon_bug_no_positive":  # the reference divides 0 by 0
        close(loss, case["corrected"]["mean_over_anchors_with_positives"], 1e-9)
        return
    close(loss, case["outputs"]["loss_f64"], 1e-9)
    close(torch.autograd.grad(loss, features)[0], case["outputs"]["grad_f64"], 1e-9)


def test_supcon_in_float32_survives_a_small_temperature() -> None:
    case = next(case for case in CASES if case["id"] == "supcon_bug_small_tau")
    features = torch.tensor(case["inputs"]["features"]).transpose(0, 1).flatten(0, 1)
    loss = supcon(features, torch.tensor(case["inputs"]["labels"]).repeat(2), case["inputs"]["temperature"])
    assert float(loss) == pytest.approx(case["outputs"]["loss_f64"], rel=1e-5)


# --- ASER -----------------------------------------------------------------------------------------------------------


@cases("knnsv_")
def test_knn_shapley(case: dict[str, Any]) -> None:
    given = case["inputs"]
    points, candidates = torch.tensor(given["eval_features"]), torch.tensor(given["cand_features"])
    labels = torch.tensor(given["eval_labels"]), torch.tensor(given["cand_labels"])
    values = knn_shapley(points, labels[0], candidates, labels[1], given["K"])
    wanted = case.get("corrected", {}).get("exact_sv_matrix", case["outputs"]["sv_matrix"])
    close(values, wanted, 2e-5)
    order = case["outputs"]["sorted_cand_index"]
    matches = labels[1][torch.tensor(order)[:, : given["K"]]] == labels[0][:, None]
    close(values.sum(1), (matches.sum(1) / given["K"]).tolist(), 2e-5)


@cases("aser_retrieve_")
def test_aser_retrieval(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    features, labels = torch.tensor(given["buffer_features"]), torch.tensor(given["buffer_labels"])
    new, new_labels = torch.tensor(given["batch_features"]), torch.tensor(given["batch_labels"])
    slots = torch.tensor(given["cand_slots"])
    adversarial = knn_shapley(new, new_labels, features[slots], labels[slots], given["K"])
    close(adversarial, wanted["sv_adversarial"], 2e-5)
    cooperative = adversarial
    if given["coop_slots"] is not None:
        others = torch.tensor(given["coop_slots"])
        cooperative = knn_shapley(features[others], labels[others], features[slots], labels[slots], given["K"])
        close(cooperative, wanted["sv_cooperative"], 2e-5)
    scores = adversarial_shapley(adversarial, cooperative, given["score_type"])
    close(scores, wanted["score_per_cand"], 2e-5)
    assert slots[highest(scores, given["n_replay"])].tolist() == wanted["retrieved_slots"]


@cases("aser_update_")
def test_aser_update(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    features, labels = torch.tensor(given["buffer_features"]), torch.tensor(given["buffer_labels"])
    new, new_labels = torch.tensor(given["batch_features"]), torch.tensor(given["batch_labels"])
    points, slots = torch.tensor(given["eval_slots"]), torch.tensor(given["cand_slots"])
    share = torch.bincount(labels, minlength=given["n_classes"]) / len(labels)
    minority = share[new_labels] < given["minority_threshold"]
    assert minority.nonzero().flatten().tolist() == wanted["minority_batch_index"]
    values = knn_shapley(
        torch.cat([features[points], new[minority]]),
        torch.cat([labels[points], new_labels[minority]]),
        torch.cat([features[slots], new]),
        torch.cat([labels[slots], new_labels]),
        given["K"],
    )
    close(values, wanted["sv_matrix"], 2e-5)
    close(values.sum(0), wanted["cand_score"], 1e-4)
    lost, kept = exchange(values.sum(0), len(slots))
    owners = dict(enumerate(wanted["slot_owner"]))
    assert set(slots[lost].tolist()) == {slot for slot, owner in owners.items() if owner != slot}
    assert set((kept + 100).tolist()) == {owner for owner in owners.values() if owner >= 100}


# --- MIR ------------------------------------------------------------------------------------------------------------


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


# --- memories -------------------------------------------------------------------------------------------------------


def numbered(ids: list[int]) -> Tensor:
    """Images of one pixel that say which they are."""
    return torch.tensor(ids, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 1, 1)


@cases("reservoir_")
def test_reservoir_writes_what_was_drawn(case: dict[str, Any]) -> None:
    """The slots drawn are given: the reference freezes their bound during a batch, ours is the unbiased one."""
    store = Reservoir(case["inputs"]["capacity"], image_size=1)
    for batch, step in zip(case["inputs"]["batches"], case["outputs"]["steps"], strict=True):
        ids, drawn = batch["item_ids"], batch["drawn_slots_for_overflow_items"]
        free = list(range(len(store), len(store) + len(ids) - len(drawn)))
        store.write(numbered(ids), torch.tensor(batch["labels"]), torch.tensor(free + drawn))
        held = [slot for slot in step["slot_ids_after"] if slot >= 0]
        assert store.images[: len(store), 0, 0, 0].tolist() == held
        assert store.columns[: len(store)].tolist() == step["slot_labels_after"][: len(store)]


@cases("gdumb_blocks", "gdumb_random_stream", "gdumb_sessions")
def test_greedy_sampler_keeps_the_same_images(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    labels, positions = case["inputs"]["labels"], case["inputs"]["evict_positions"]
    order = list(dict.fromkeys(labels))
    store = BalancedMemory(case["inputs"]["capacity"], image_size=1)
    draws: list[int] = []
    monkeypatch.setattr(memory, "below", lambda n, generator: draws.pop(0))
    for i, (label, position) in enumerate(zip(labels, positions, strict=True)):
        draws[:] = [] if position is None else [0, position]  # ties fall to the class that came first
        store.update(numbered([i]), torch.tensor([order.index(label)]), torch.Generator())
        assert not draws
        counts = {str(order[c]): n for c, n in enumerate(store.counts(0).tolist()) if n}
        assert counts == {name: n for name, n in case["outputs"]["counts_after_each"][i].items() if n}
    kept = sorted(store.images[: len(store), 0, 0, 0].tolist())
    assert kept == sorted(item for ids in case["outputs"]["final_ids"].values() for item in ids)


@cases("gdumb_more_classes_than_slots")
def test_more_classes_than_slots_is_refused(case: dict[str, Any]) -> None:
    """The reference's memory freezes with a quota of 0."""
    labels = case["inputs"]["labels"]
    store = BalancedMemory(case["inputs"]["capacity"], image_size=1)
    with pytest.raises(ValueError, match="memory_size 3 cannot hold 4 classes"):
        store.update(numbered(list(range(len(labels)))), torch.tensor(labels), torch.Generator())


@cases("gdumb_original_")
def test_streaming_sampler_keeps_at_least_the_offline_quota(case: dict[str, Any]) -> None:
    """The original repository selects offline and leaves slots unused; one pass must not keep less of a class."""
    targets = case["inputs"]["targets"]
    store = BalancedMemory(case["inputs"]["capacity"], image_size=1)
    store.update(numbered(list(range(len(targets)))), torch.tensor(targets), torch.Generator().manual_seed(0))
    counts = store.counts(0).tolist()
    assert all(counts[int(label)] >= n for label, n in case["outputs"]["kept_counts"].items())
    assert len(store) <= case["inputs"]["capacity"]
    kept = store.images[: len(store), 0, 0, 0].tolist()
    assert [targets[pixel] for pixel in kept] == store.columns[: len(store)].tolist()


@cases("gdumb_cutmix_")
def test_cutmix_box(case: dict[str, Any]) -> None:
    side = case["inputs"]["side"]
    box = cutmix_box(case["inputs"]["lam"], tuple(case["inputs"]["centre"]), side)
    assert list(box) == case["outputs"]["box"]
    assert 1 - (box[2] - box[0]) * (box[3] - box[1]) / side**2 == case["outputs"]["lam_adjusted"]


# --- DVC ------------------------------------------------------------------------------------------------------------


@cases("dvc_entropy_")
def test_entropy_of_average_predictions(case: dict[str, Any]) -> None:
    kinds = [exact(case["inputs"][name]).mean(0) for name in ("P_raw", "P_heavy", "P_joint")]
    close(torch.stack([negative_entropy(p) for p in kinds]).mean(), case["outputs"]["L_H"], 1e-7)


@cases("dvc_losses_")
def test_dual_view_loss(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    blocks = [exact(given[f"logits_{kind}"]).requires_grad_() for kind in ("raw", "heavy", "joint")]
    terms = dual_view(blocks[0], blocks[1], blocks[2], torch.tensor(given["labels"]), given["dl_weight"])
    for got, name in zip((*terms, terms.total), ("L_CE", "L_H", "L_D", "total"), strict=True):
        close(got, wanted[name], 1e-7)
    for got, kind in zip(torch.autograd.grad(terms.total, blocks), ("raw", "heavy", "joint"), strict=True):
        close(got, wanted[f"grad_logits_{kind}"], 1e-7)


class TinyDual(nn.Module):
    """The fixture's network: one layer, perhaps batch normalisation, a classifier and QNet."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        values = {name: torch.tensor(value) for name, value in params.items()}
        n_classes, dim = values["backbone.linear.weight"].shape
        self.fc, self.norm = nn.Linear(*values["backbone.fc.weight"].T.shape), nn.Identity()
        draw = torch.Generator()
        self.head, self.qnet = GrowingLinear(dim), GrowingPairHead(len(values["qnet.model.0.bias"]), draw)
        self.head.grow(n_classes, draw)
        self.qnet.grow(n_classes, draw)
        renamed = {f"fc.{kind}": values[f"backbone.fc.{kind}"] for kind in ("weight", "bias")}
        renamed |= {f"head.{kind}": values[f"backbone.linear.{kind}"] for kind in ("weight", "bias")}
        renamed |= {f"qnet.out.{kind}": values[f"qnet.model.2.{kind}"] for kind in ("weight", "bias")}
        first, second = values["qnet.model.0.weight"].T.chunk(2)
        renamed |= {"qnet.first": first, "qnet.second": second, "qnet.bias": values["qnet.model.0.bias"]}
        if "backbone.bn.weight" in values:
            self.norm = nn.BatchNorm1d(dim)
            renamed |= {f"norm.{name[12:]}": v for name, v in values.items() if name.startswith("backbone.bn.")}
        self.load_state_dict(renamed)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(self.fc(x)).relu()
        return self.head(z), z


@cases("dvc_mgi_")
def test_gradient_growth_chooses_the_same_images(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    model = TinyDual(given["params"])
    y = torch.tensor(given["new_y"])
    raw, heavy = model(torch.tensor(given["new_x"] + given["new_x_heavy"]))[0].chunk(2)
    terms = dual_view(raw, heavy, model.qnet(raw, heavy), y, given["dl_weight"])
    close(terms.total, wanted["loss_new"], 1e-4)
    learning = dict(model.named_parameters())
    gradient = gradients(terms.total, learning)
    close(gradient["fc.weight"], wanted["grads"]["backbone.fc.weight"], 1e-4)
    close(torch.cat([gradient["qnet.first"], gradient["qnet.second"]]).T, wanted["grads"]["qnet.model.0.weight"], 1e-4)
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    x, labels = torch.tensor(given["cand_x"] + given["cand_x_heavy"]), torch.tensor(given["cand_y"])
    norms = []
    for theta in ({}, moved(learning, gradient, given["lr"])):
        logits, z = look(model, x, theta)  # both views pass as one batch, the raw ones are scored
        norms.append(last_layer_gradient(logits[: len(labels)], z[: len(labels)], labels))
    close(norms[0], wanted["G_before"], 1e-4)
    close(norms[1], wanted["G_after"], 1e-4)
    assert highest(norms[1] - norms[0], given["n_replay"]).tolist() == wanted["chosen_index"]
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, statistics[name]), name


# --- OCM ------------------------------------------------------------------------------------------------------------


@cases("ocm_rot16_")
def test_sixteen_variants(case: dict[str, Any]) -> None:
    images = torch.tensor(case["inputs"]["images"])
    assert torch.equal(turned_variants(images), torch.tensor(case["outputs"]["images"]))
    labels = variant_labels(torch.tensor(case["inputs"]["labels"]), 16, offset=1000)
    assert labels.tolist() == case["outputs"]["labels"]


def new_loss(similarity: Tensor, labels: Tensor, tau: float, official: bool) -> Tensor:
    same = same_label_nce(similarity, labels, labels, tau, self_apart=True, official=official)
    return 2 * same + other_view_nce(similarity, tau, official=official)


@cases("ocm_loss_")
def test_info_nce(case: dict[str, Any]) -> None:
    given = case["inputs"]
    similarity, labels = exact(given["similarity"]).requires_grad_(), torch.tensor(given["labels"])
    labels = labels if given["variant"] == "pre" else labels.repeat(2)
    for official in (True, False):
        if given["variant"] == "n":
            loss = new_loss(similarity, labels, given["temperature"], official)
        else:
            loss = same_label_nce(similarity, labels, labels, given["temperature"], official=official)
        if not official:
            close(loss, case["corrected"]["exact_log_softmax_value"], 1e-9)
            continue
        rows = len(similarity)
        mean = (rows - rows % 2) / rows  # of an odd number of rows the reference divides by one too few
        close(loss, case["outputs"]["loss_f64"] * mean, 1e-6)
        gradient = torch.autograd.grad(loss, similarity)[0]
        close(gradient, (exact(case["outputs"]["grad_similarity_f64"]) * mean).tolist(), 1e-6)


@cases("ocm_similarity_")
def test_similarity(case: dict[str, Any]) -> None:
    given = case["inputs"]
    similarity = embedding_similarity(exact(given["embeddings"]), exact(given["features"]), given["offset"])
    close(similarity, case["outputs"]["S"], 1e-6)
    labels = torch.tensor(given["labels_once"]).repeat(2)
    close(new_loss(similarity, labels, given["temperature"], True), case["outputs"]["L_new"], 1e-5)
    wanted = case["corrected"]["exact_log_softmax_value"]
    close(new_loss(similarity, labels, given["temperature"], False), wanted, 1e-5)


@cases("ocm_step_")
def test_three_contrastive_terms_of_a_step(case: dict[str, Any]) -> None:
    given, wanted, tau = case["inputs"], case["outputs"], case["inputs"]["temperature"]
    features, embeddings = exact(given["features"]).requires_grad_(), exact(given["embeddings"]).requires_grad_()
    labels = [variant_labels(torch.tensor(given[f"labels_{kind}"]), 16, 1000) for kind in ("new", "mem")]
    assert [t.tolist() for t in labels] == [wanted["rot_labels_new"], wanted["rot_labels_mem"]]
    n = 2 * len(labels[0])
    new = embedding_similarity(embeddings[:n], features[:n], given["offset_new"])
    old = embedding_similarity(embeddings[n:], features[n:], given["offset_mem"])
    close(new[:8, :8], wanted["S_new_block"], 1e-6)
    close(new.sum(1), wanted["S_new_row_sums"], 1e-5)
    close(old[:8, :8], wanted["S_mem_block"], 1e-6)
    first = F.normalize(embeddings[n : n + len(labels[1])], dim=1)
    cross = first @ F.normalize(exact(given["prev_embeddings"]), dim=1).T
    close(cross[:8, :8], wanted["S_prev_block"], 1e-6)
    for official, values in ((True, wanted), (False, case["corrected"]["exact_log_softmax"])):
        terms = [
            new_loss(new, labels[0].repeat(2), tau, official),
            same_label_nce(old, labels[1].repeat(2), labels[1].repeat(2), tau, official=official),
            same_label_nce(cross, labels[1], labels[1], tau, official=official),
        ]
        for term, name in zip(terms, ("L_new", "L_mem", "L_prev"), strict=True):
            close(term, values[name], 1e-5)
        if official:
            slopes = torch.autograd.grad(torch.stack(terms).sum(), (features, embeddings), retain_graph=True)
            close(slopes[0].norm(dim=1), wanted["grad_features_row_norms"], 1e-5)
            close(slopes[1].norm(dim=1), wanted["grad_embeddings_row_norms"], 1e-5)


# --- metrics --------------------------------------------------------------------------------------------------------


@cases("metrics_")
def test_metrics(case: dict[str, Any]) -> None:
    """Of accuracies the reference agrees; its forgetting counts rows before a task was learned, ours does not."""
    runs = case["inputs"]["acc"]
    ones = [1] * len(runs[0])
    seen = [[[a if j <= i else None for j, a in enumerate(row)] for i, row in enumerate(run)] for run in runs]
    ends = [metrics.acc(run[-1], ones, "session") for run in seen]
    averages = [metrics.average(run, ones, "session") for run in seen]
    assert sum(ends) / len(ends) == pytest.approx(case["outputs"]["avg_end_acc"][0], abs=1e-12)
    assert sum(averages) / len(averages) == pytest.approx(case["outputs"]["avg_acc"][0], abs=1e-12)
    forgotten = [metrics.forgetting(run, ones, "session") for run in seen]
    assert forgotten == pytest.approx(case["corrected"]["usual_forgetting_per_run"], abs=1e-12)


def test_every_stored_case_is_tested() -> None:
    assert {case["id"] for case in CASES} == COVERED
    assert len(COVERED) == 74
