"""Neural feature acquisition by its authors' code: the part that runs in the peers' environment.

    PYTHON benchmarks/neural/peer.py FOLDER task.npz found.npz

FOLDER is a clone of https://github.com/a-norcliffe/SEFA, PYTHON an interpreter with its packages
(torch, torchmetrics, scikit-learn). Nothing of the project is imported here and nothing of theirs
is copied: models, training, acquisition, preprocessing and hyperparameters are theirs.

The task holds ``x_train``, ``y_train`` and the like of ``val`` and ``test``, and ``settings``, a
JSON text: model, number of its configuration, seed, classes, most features. What is found:
probabilities of classes after 0, 1, 2, ... acquired features, ``val`` and ``test`` of shape
(steps + 1, n, classes), and ``about``, a JSON text with the CPU seconds of the fit.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = {
    "sefa": ("sefa", "SEFA"),
    "dime": ("dime", "DIME"),
    "gdfs": ("gdfs", "GDFS"),
    "opportunistic": ("opportunistic_rl", "OpportunisticRL"),
}
"""Module and class of each model."""
CDF = {"num_bins": 200, "size_normal": 1e-5, "ratio_uniform": 0.05}
"""Their settings of the empirical distribution for MiniBooNE."""
PARTS = ("train", "val", "test")
ROWS_AT_ONCE = 100
"""Rows that acquire at once: their ``acquisition_batch_limit``, here what fits into a cache."""


def main(arguments: list[str]) -> int:
    """Fit a model and acquire features one by one; returns the exit status."""
    folder, task_file, found_file = arguments
    sys.path.insert(0, folder)
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    keep_views_valid(torch)
    with np.load(task_file) as file:
        task = {key: file[key] for key in file.files}
    settings = json.loads(str(task["settings"]))
    name, seed = settings["model"], settings["seed"]
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - their code draws from the global generator
    config = configuration(Path(folder), name, settings)
    x = inputs(torch, task, cdf=name == "sefa")
    y = {part: torch.tensor(task[f"y_{part}"]).long() for part in PARTS}
    sets = [
        torch.utils.data.TensorDataset(x[part], y[part], torch.ones_like(x[part]))
        for part in PARTS[:2]
    ]
    metric = importlib.import_module("experiments.metrics_dict").metrics_dict[settings["metric"]]
    module, kind = CLASSES[name]
    model = getattr(importlib.import_module(f"models.{module}"), kind)(config)
    model.batch_limit = ROWS_AT_ONCE
    torch.optim.Adam(model.parameters()).step()  # loads what torch loads late
    gc.freeze()  # they collect garbage at every acquisition: of what is made from here on
    with tempfile.TemporaryDirectory() as kept, contextlib.redirect_stdout(sys.stderr):
        wall, cpu = time.monotonic(), time.process_time()
        model.fit(*sets, kept, metric)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        model.load(kept)
    started = time.process_time()
    found = {part: _acquired(torch, model, x[part], config["max_dim"]) for part in PARTS[1:]}
    about = {
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "acquisition_cpu_seconds": time.process_time() - started,
        "config": config,
        "torch": torch.__version__,
    }
    np.savez(found_file, about=json.dumps(about), **found)
    return 0


def keep_views_valid(torch: Any) -> None:
    """Return what einsum gives in one piece: SEFA views it, which later versions refuse."""
    einsum = torch.einsum
    torch.einsum = lambda *given: einsum(*given).contiguous()


def configuration(folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Read one of their configurations, with the shape of the task."""
    number = settings["config"]
    path = folder / "experiments/hyperparameters/configs" / name / f"config{number}.json"
    config: dict[str, Any] = json.loads(path.read_text())
    return config | {
        "num_con_features": settings["n_features"],
        "num_cat_features": 0,
        "most_categories": 0,
        "out_dim": settings["n_classes"],
        "max_dim": settings["max_dim"],
    }


def inputs(torch: Any, task: dict[str, Any], *, cdf: bool) -> dict[str, Any]:
    """Features as each of their models wants them: standardised, and for SEFA made normal.

    Their empirical distribution is taken of standardised values, so that its noise is as small
    beside a feature's spread as in their own data; a constant feature becomes 0.
    """
    theirs = importlib.import_module("datasets.preprocessing_utils")
    raw = {part: torch.tensor(task[f"x_{part}"]).float() for part in PARTS}
    standard = theirs.Standardizer()
    standard.fit(raw["train"])
    x = {part: torch.nan_to_num(standard.transform(raw[part]), 0.0, 0.0, 0.0) for part in PARTS}
    if not cdf:
        return x
    empirical = theirs.VectorEmpiricalCDF(**CDF)
    empirical.fit(x["train"].clone())
    return {part: torch.nan_to_num(empirical.transform(x[part])) for part in PARTS}


def _acquired(torch: Any, model: Any, x: Any, steps: int) -> Any:
    """Probabilities after each acquired feature, shape (steps + 1, n, classes)."""
    parts = []
    model.eval()
    with torch.no_grad():
        for rows in torch.split(x, ROWS_AT_ONCE):
            mask, all_mine = torch.zeros_like(rows), torch.ones_like(rows)
            answers = [model.predict(rows, mask)]
            for _ in range(steps):
                mask = model.acquire(rows, mask, all_mine)
                answers.append(model.predict(rows, mask))
            parts.append(torch.stack(answers))
    return torch.cat(parts, dim=1).numpy().astype(np.float32)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
