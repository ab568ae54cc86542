"""Can one tell from a model file whether an image was learned? A membership-inference test on real CIFAR-100.

    python benchmarks/membership.py --root DATA --out benchmarks/results/membership.json

For classes taught with n images each, an attacker who holds the model file scores candidate images: members, which
were learned, and others of the same classes, which were not. The score is the closeness of the image's features to
the class's statistics (NCM: the distance to the mean; RDA: the Mahalanobis distance by the covariances as the file
has them, without the caution with which the model uses them while they rest on few images). AUC 0.5
means that he cannot tell, 1 that he always can. Two kinds of images are tested: *new* ones, which the network was
never trained on (members and others both come from the test split), and *training* ones against test images, which
shows what the network, not the statistics, gives away. Each case is repeated over seeds.
"""

import argparse
import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

from nocl.app.calibration import auc
from nocl.app.classifier import Classifier
from nocl.app.naming import label_of
from nocl.app.weights import file as weights_file
from nocl.data.cifar100 import cifar100
from nocl.data.images import ImageSet
from nocl.learner import FrozenLearner
from nocl.methods.rda import shared
from nocl.plumbing.files import file_digest, write_json
from nocl.plumbing.version import __version__

NEW, TRAINING = 100, 400  # images of each class that can be members; 50 new ones are the others


def empty_model(method: str, params: dict[str, None]) -> Classifier:
    """A classifier on the packaged network that knows nothing."""
    blank = np.zeros((1, 3, 32, 32), dtype=np.uint8)
    return Classifier(method, backbone="cifar100", params=params).partial_fit(blank, "start").apart()  # type: ignore[arg-type]


def features_of(model: FrozenLearner, images: ImageSet, n_classes: int, each: int) -> dict[int, torch.Tensor]:
    """The first ``each`` images of each class as features."""
    found = {}
    for label in range(n_classes):
        x, _ = images.subset(np.flatnonzero(images.labels == label)[:each]).take(np.arange(each))
        found[label] = model.features(x)
    return found


def attack(
    empty: Classifier, members: dict[int, torch.Tensor], others: dict[int, torch.Tensor], names: tuple[str, ...]
) -> float:
    """AUC of closeness to the own class's statistics, averaged over the classes."""
    model = empty.apart()
    learner = model.learner_
    assert isinstance(learner, FrozenLearner)
    for label, z in members.items():
        learner.learn(z, torch.full((len(z),), label_of(names[label])))
    scores = []
    for column, label in enumerate(members):
        inside = learner.score(members[label])[:, column]
        scores.append(auc(inside, learner.score(others[label])[:, column]))
    return float(np.mean(scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="folder of cifar-100-python")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/membership.json"))
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    shared._HALF_KNOWN = 1e-9  # type: ignore[assignment]
    data = cifar100(root=given.root)
    wide = empty_model("rda", {"shortlist": None})
    extract = wide.learner_
    assert isinstance(extract, FrozenLearner)
    new = features_of(extract, data.test, given.classes, NEW)
    trained = features_of(extract, data.train, given.classes, TRAINING)
    rows = []
    for method, empty in (("ncm", empty_model("ncm", {})), ("rda", wide)):
        dim = empty.learner_.feature_dim  # the last stage is the end of the wide feature
        for kind, pool in (("new", new), ("training", trained)):
            for n in (1, 2, 5, 10, 25, 50, 100, 400):
                if n > (NEW // 2 if kind == "new" else TRAINING):
                    continue
                values = []
                for seed in range(given.seeds):
                    draw = torch.Generator().manual_seed(seed)
                    order, apart = torch.randperm(len(pool[0]), generator=draw), torch.randperm(NEW, generator=draw)
                    apart = order if kind == "new" else apart
                    members = {label: z[order[:n], -dim:] for label, z in pool.items()}
                    others = {label: z[apart[NEW // 2 :], -dim:] for label, z in new.items()}
                    values.append(attack(empty, members, others, data.class_names))
                rows.append({"method": method, "images": kind, "per_class": n, "auc": float(np.mean(values)),
                             "std_over_seeds": float(np.std(values))})  # fmt: skip
                print(f"{method} {kind:8} n={n:3}  AUC {np.mean(values):.3f} +- {np.std(values):.3f}", flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    write_json(given.out, {
        "command": f"python benchmarks/membership.py --classes {given.classes} --seeds {given.seeds}",
        "classes": given.classes, "seeds": given.seeds, "backbone": "cifar100",
        "backbone_sha256": file_digest(weights_file("cifar100")), "nocl": __version__, "commit": commit,
        "torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine(), "rows": rows,
    })  # fmt: skip


if __name__ == "__main__":
    main()
