"""AACO by its authors' code: the part that runs in the peers' environment.

    PYTHON benchmarks/neural/aaco.py FOLDER task.npz found.npz

FOLDER is a clone of https://github.com/lupalab/aaco, PYTHON an interpreter with its packages
(torch, xgboost, pyyaml). Nothing of the project is imported here and nothing of theirs is copied:
the search, its random masks and its classifier's wrapper are theirs. Their trained classifiers are
not published; one is fitted in the way of theirs for MNIST (``xgb_classifier_MNIST_random_subsets_
5``). Their acquisition is over all features, so that its answers after so many are read from it.

Task and what is found are as in ``peer.py``; a configuration is a price of a feature, their
``acquisition_cost``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

TREES = {"n_estimators": 250, "max_depth": 5, "random_state": 29, "n_jobs": 1}
"""Their settings of XGBClassifier, on one thread."""
SUBSETS = 5
"""Random subsets of features of each row that the classifier is fitted on."""
NEIGHBOURS = 20
"""Their ``nearest_neighbors``."""
HIDDEN = -10.0
"""What their rollout puts in place of a feature that is not acquired."""
PARTS = ("train", "val", "test")


def main(arguments: list[str]) -> int:
    """Fit the classifier and acquire features one by one; returns the exit status."""
    folder, task_file, found_file = (Path(each).absolute() for each in arguments)
    sys.path.insert(0, str(folder / "src"))
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    theirs: Any = importlib.import_module("aaco_rollout")
    with np.load(task_file) as file:
        task = {key: file[key] for key in file.files}
    settings = json.loads(str(task["settings"]))
    np.random.seed(settings["seed"])  # noqa: NPY002 - their code draws from the global generator
    x, y = inputs(torch, task), torch.tensor(task["y_train"]).long()
    started = time.process_time()
    classifier = fitted(torch, theirs, x["train"], y)
    first = first_feature(torch, classifier, x["train"], y)
    fit_seconds, started = time.process_time() - started, time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        found = {}
        for part in PARTS[1:]:
            masks = acquired(torch, theirs, classifier, (x["train"], y), x[part], first, settings)
            answers = [classifier(hidden(torch, x[part], mask), None) for mask in masks]
            found[part] = torch.stack(answers).numpy().astype(np.float32)
    about = {
        "cpu_seconds": fit_seconds,
        "acquisition_cpu_seconds": time.process_time() - started,
        "instances": len(x["val"]) + len(x["test"]),
        "first_feature": first,
        "torch": torch.__version__,
        "xgboost": importlib.import_module("xgboost").__version__,
    }
    np.savez(found_file, about=json.dumps(about), **found)
    return 0


def inputs(torch: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Features standardised by the rows to fit, as theirs are; a constant one becomes 0."""
    raw = {part: torch.tensor(task[f"x_{part}"]).float() for part in PARTS}
    mean, spread = raw["train"].mean(dim=0), raw["train"].std(dim=0)
    return {part: torch.nan_to_num((raw[part] - mean) / spread, 0.0, 0.0, 0.0) for part in PARTS}


def hidden(torch: Any, x: Any, mask: Any) -> Any:
    """Rows as their rollout hands them to a classifier: what is not acquired hidden, the mask."""
    return torch.cat([x * mask + (1 - mask) * HIDDEN, mask], -1)


def fitted(torch: Any, theirs: Any, x: Any, y: Any) -> Any:
    """Fit their classifier on rows whose features are hidden at random, by their masks."""
    masks = theirs.random_mask_generator(10_000, x.shape[1], SUBSETS * len(x))(None)
    rows = hidden(torch, x.repeat(SUBSETS, 1), masks)
    model = theirs.XGBClassifier(**TREES)
    return theirs.classifier_xgb(model.fit(rows.numpy(), y.repeat(SUBSETS).numpy()))


def first_feature(torch: Any, classifier: Any, x: Any, y: Any) -> int:
    """Choose the feature to begin with: the one that alone has the least of their loss here."""
    losses = []
    for alone in torch.eye(x.shape[1]):
        proba = classifier(hidden(torch, x, alone.expand_as(x)), None)
        losses.append(float(torch.nn.functional.cross_entropy(proba, y)))
    return int(np.argmin(losses))


def acquired(
    torch: Any, theirs: Any, classifier: Any, train: Any, x: Any, first: int, settings: Any
) -> Any:
    """Masks after 0, 1, 2, ... features, shape (steps + 1, n, features), of their rollout.

    It writes a row a step: the mask before it and the feature that it takes, or that it answers.
    """
    n_features = x.shape[1]
    x_train, y_train = train
    labels = torch.nn.functional.one_hot(y_train, settings["n_classes"])
    config = {
        "dataset": "task",
        "nearest_neighbors": NEIGHBOURS,
        "acquisition_cost": settings["config"],
        "train_or_validation": "valid",
        "num_instances": len(x),
    }
    unseen = torch.zeros(len(x), settings["n_classes"])  # the labels are not for acquisition
    generator = theirs.load_mask_generator("MNIST", n_features)
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as kept:
        os.chdir(kept)  # it writes into results/ of the current folder
        theirs.aaco_rollout(x_train, labels, x, unseen, classifier, generator, first, config)
        written = torch.load("results/dataset_task_rollout.pt")
        os.chdir(here)
    masks = torch.zeros(settings["max_dim"] + 1, len(x), n_features)
    row = -1
    for before, action in zip(written["mask"], written["Action"], strict=True):
        n_before, taken = int(before.sum()), int(action.argmax())
        row += n_before == 0
        if taken < n_features:
            masks[n_before + 1 :, row, taken] = 1
    return masks


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
