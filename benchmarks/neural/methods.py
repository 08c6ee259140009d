"""Methods of the neural comparison: the peers in an environment of their own, and our cascade.

Each gives probabilities after 0, 1, 2, ... features, on validation and on test rows.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.neural.tasks import Task, score, together
from gatewise.costs import FeatureCosts
from gatewise.decision import probabilities, split
from gatewise.errors import InputError
from gatewise_training import StagedCascade


@dataclass(frozen=True)
class Code:
    """Public code of peers: its address, a file that a clone has, and our script that runs it."""

    url: str
    file: str
    script: Path


SEFA = Code(
    "https://github.com/a-norcliffe/SEFA", "models/sefa.py", Path(__file__).with_name("peer.py")
)
AACO = Code(
    "https://github.com/lupalab/aaco", "src/aaco_rollout.py", Path(__file__).with_name("aaco.py")
)
CONFIGS: Mapping[str, tuple[float, ...]] = {
    "sefa": (1,),
    "dime": (1, 5),
    "gdfs": (1, 5),
    "opportunistic": (9,),
    "aaco": (0.05, 0.005),
}
"""Peers, and which of their nine configurations are tried, of AACO prices of a feature (theirs is
0.05); validation chooses."""
MOST_VALIDATION_ROWS = {"sefa": 250}
"""SEFA acquires on all validation rows after each of 120 epochs, with 200 samples of each: rows
beyond so many are rows to fit instead."""


FEW_VALIDATION_ROWS = 300
"""With fewer our cascade cross-fits on them and the rows to fit, as it does by itself."""
FITTED_BUDGETS = (1, 2, 3, 5, 7, 10, 15)
"""On few rows it is fitted for each of these; between them the smaller one answers."""
Proba = Callable[[NDArray[np.float32]], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Answers:
    """Probabilities of test rows after 0, 1, 2, ... features, shape (steps + 1, n, n_classes)."""

    test: NDArray[Any]
    about: dict[str, Any]  # cpu_seconds of the fit, and what else a method says
    validation: NDArray[Any] | None = None  # the same of the peer's validation rows


@dataclass(frozen=True)
class Peers:
    """A clone of the peers' repository and the interpreter of their environment."""

    folder: Path
    python: Path
    code: Code = SEFA

    @classmethod
    def found(cls, folder: Path, python: Path, code: Code = SEFA) -> Peers:
        """Check both; InputError if the models are not there or the interpreter is not."""
        if not (folder / code.file).is_file():
            raise InputError(f"{folder} is no clone of {code.url}")
        if not python.is_file():
            raise InputError(f"no interpreter {python}: name one that has torch with --python")
        return cls(folder.absolute(), python.absolute(), code)

    @property
    def commit(self) -> str:
        """Commit of the clone."""
        asked = ["git", "-C", str(self.folder), "rev-parse", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        return done.stdout.strip() or "unknown"

    def key(self, task: Task, model: str, config: float) -> str:
        """Name of what is kept of a run: readable, and a hash of all that decides it."""
        script = ast.dump(ast.parse(self.code.script.read_text()))
        decides = [task.digest, self._settings(task, model, config), script, self.commit]
        digest = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]
        return f"{task.name}.{model}-{config}.{task.seed}.{digest}"

    def is_kept(self, task: Task, model: str, config: float, cache: Path) -> bool:
        """Whether a run is in the cache."""
        return (cache / f"{self.key(task, model, config)}.npz").is_file()

    def run(self, task: Task, model: str, config: float, cache: Path) -> Answers:
        """Fit a model in a process of its own, on one thread, unless the cache has it."""
        kept = cache / f"{self.key(task, model, config)}.npz"
        if not kept.is_file():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                given, found = Path(folder, "task.npz"), Path(folder, "found.npz")
                settings = json.dumps(self._settings(task, model, config))
                rows: dict[str, Any] = _rows_of(task, model)
                np.savez(given, settings=np.array(settings), **rows)
                self._run_script(given, found, kept.with_suffix(".log"))
                found.replace(kept)
        with np.load(kept) as file:
            about = json.loads(str(file["about"]))
            return Answers(file["test"], about, file["val"])

    def _run_script(self, given: Path, found: Path, log: Path) -> None:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with log.open("w") as text:
            done = subprocess.run(
                [self.python, "-u", self.code.script, self.folder, given, found],
                env=outside | one,
                stderr=text,
                check=False,
            )
        if done.returncode:
            raise InputError(
                f"{self.code.script.name} ended with status {done.returncode}; see {log}"
            )

    @staticmethod
    def validation_labels(task: Task, model: str) -> NDArray[np.int64]:
        """Classes of the rows that a model validates on."""
        found: NDArray[np.int64] = _rows_of(task, model)["y_val"]
        return found

    @staticmethod
    def _settings(task: Task, model: str, config: float) -> dict[str, Any]:
        return {
            "model": model,
            "config": config,
            "seed": task.seed,
            "n_features": task.n_features,
            "n_classes": task.n_classes,
            "max_dim": task.steps,
            "metric": task.metric,
            "most_validation_rows": MOST_VALIDATION_ROWS.get(model),
        }


def _rows_of(task: Task, model: str) -> dict[str, Any]:
    (x, y), (x_held, y_held) = task.train, task.validation
    most = MOST_VALIDATION_ROWS.get(model, len(y_held))
    order = np.random.default_rng(task.seed).permutation(len(y_held))
    held, more = order[:most], order[most:]
    return {
        "x_train": np.concatenate([x, x_held[more]]),
        "y_train": np.concatenate([y, y_held[more]]),
        "x_val": x_held[held],
        "y_val": y_held[held],
        "x_test": task.test[0],
        "y_test": task.test[1],
    }


def cascade(task: Task) -> Answers:
    """Fit StagedCascade, and choose by validation what answers within each budget.

    Nothing is offloaded: with the high-cost model, which reads all features, an instance would
    cost more than `max_instance_cost`. One fit serves all budgets; at a hard budget nothing is
    saved by stopping early, so that beside the operating point at it each stage alone is a choice.
    With few validation rows there is a cross-fitted system a budget, at its own operating point.
    """
    few = len(task.validation[1]) < FEW_VALIDATION_ROWS
    started = time.process_time()
    chosen = [_Chosen.first(task)]
    most = min(task.steps, task.n_features - 1)
    system = None if few else _system(task, most).fit(*task.train, validation=task.validation)
    for budget in range(1, task.steps + 1):
        before = chosen[-1]
        if budget > most:
            chosen.append(before)
        elif system is not None:
            chosen.append(_within(system, task, budget, before))
        elif budget in FITTED_BUDGETS:
            own = _system(task, budget).fit(*together(task.train, task.validation))
            chosen.append(_Chosen.point(own, task))
        else:
            chosen.append(before)
    seconds = time.process_time() - started
    about = {
        "cpu_seconds": seconds,
        "answered_by": [each.name for each in chosen],
        "most_acquired": [float(each.cost(task.test[0]).max()) for each in chosen],
    }
    return Answers(np.stack([each.proba(task.test[0]) for each in chosen]), about)


def _system(task: Task, most: int) -> StagedCascade:
    return StagedCascade(
        make_pipeline(StandardScaler(), LogisticRegression()),  # never asked, quickly fitted
        feature_costs=FeatureCosts.uniform(task.n_features),
        max_instance_cost=float(most),
        budget=float(most),
        n_stages=task.steps,
        random_state=task.seed,
    )


@dataclass(frozen=True, eq=False)
class _Chosen:
    """What answers within a budget, and its probabilities on validation rows."""

    name: str
    proba: Proba
    cost: Proba  # of each instance
    held: NDArray[Any]

    @classmethod
    def first(cls, task: Task) -> _Chosen:
        """Shares of the classes, for nothing."""
        shares = np.bincount(task.train[1], minlength=task.n_classes) / len(task.train[1])

        def proba(x: NDArray[np.float32]) -> NDArray[Any]:
            return np.tile(shares, (len(x), 1))

        return cls("nothing", proba, lambda x: np.zeros(len(x)), proba(task.validation[0]))

    @classmethod
    def point(cls, system: StagedCascade, task: Task) -> _Chosen:
        """The active operating point of a system."""
        proba = system.predict_proba
        return cls("operating point", proba, system.cost, proba(task.validation[0]))


def _within(system: StagedCascade, task: Task, budget: int, before: _Chosen) -> _Chosen:
    """Choose by validation rows among the operating point, stages alone, and what was before."""
    x, y = task.validation
    found = [before]
    try:
        point = system.at(budget=float(budget), max_instance_cost=float(budget))
        found.append(_Chosen.point(point, task))
    except InputError:  # nothing is within the budget
        pass
    stages = {stage: None for stages in system.chains_ for stage in stages}
    # smaller ones were compared before
    found += [_alone(stage, x) for stage in stages if len(stage.features) == budget]
    return max(found, key=lambda each: score(each.held, y))


def _alone(stage: Any, held: NDArray[np.float32]) -> _Chosen:
    """One stage for all instances."""
    n = len(stage.features)

    def proba(x: NDArray[np.float32]) -> NDArray[Any]:
        margins, _ = split(stage.margins(x), stage.score)
        return probabilities(margins, stage.link)

    return _Chosen(f"stage of {n}", proba, lambda x: np.full(len(x), n), proba(held))
