"""Our cascade beside neural feature acquisition at hard budgets of features, by its authors' code.

    git clone https://github.com/a-norcliffe/SEFA FOLDER
    git clone https://github.com/lupalab/aaco AACO
    python3 -m venv ENV
    ENV/bin/pip install torch torchmetrics numpy scikit-learn "xgboost<2" pyyaml
    python -m benchmarks.bench_neural --field FOLDER --aaco AACO --python ENV/bin/python
    python -m benchmarks.bench_neural --field FOLDER --python ENV/bin/python --only mbne_tiny

SEFA, DIME, GDFS and Opportunistic RL are run as the first repository has them, in a process and an
environment of their own, with the epochs of its configurations; AACO as the second has it, or not
at all without it. Every feature costs 1; a method acquires at most 5, 10 or 15 of each instance,
and the mean is over 0, 1, 2, ... features. Rows are the same for all; validation chooses and test
rows only report. Each fit is kept under .bench-cache/ and read from there. Peers take hours: with
--again the figures of those that are not kept are taken from the results as they stand, and ours
are measured. Writes neural.json and neural.md into benchmarks/results. Without the first clone
nothing is run. GATEWISE_FIELD, GATEWISE_AACO and GATEWISE_FIELD_PYTHON stand for the options.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.cache import CACHE, code_version, write_whole
from benchmarks.neural.methods import (
    AACO,
    CONFIGS,
    MOST_VALIDATION_ROWS,
    SEFA,
    Answers,
    Peers,
    cascade,
)
from benchmarks.neural.pages import OURS, Found, page, summary
from benchmarks.neural.tasks import (
    MOST_FEATURES,
    Task,
    draw,
    figures,
    mean_over_steps,
    score,
)
from gatewise.console import note, plain
from gatewise.errors import InputError

SEEDS: Mapping[str, tuple[int, ...]] = {
    "mbne_tiny": (0,),
    "letter-26": (0,),
    "forest-7": (0,),
    "thyroid": (0,),
    "digits": (0,),
    "statlog_heart": (0, 1, 2),
}
"""Data sets, and the seeds of fits and of drawn parts."""
NOT_RUN: Mapping[tuple[str, str], tuple[int, ...]] = {
    **{(name, "opportunistic"): s[name == "statlog_heart" :] for name, s in SEEDS.items()},
    **{(name, "sefa"): SEEDS[name] for name in ("letter-26", "forest-7", "digits")},
    **{(name, "aaco"): seeds for name, seeds in SEEDS.items() if name != "statlog_heart"},
}
"""Set and peer, and the seeds that are left out of a run; --all runs them too."""
PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm", "numba")
KEPT = CACHE / "neural"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 0 without the peers, 2 for bad input, 130 after Ctrl-C."""
    parser = harness.parser("bench_neural", __doc__, "the first seed, kept fits only", SEEDS)
    parser.description, parser.formatter_class = __doc__, RawDescriptionHelpFormatter
    given = os.environ.get
    parser.add_argument("--field", metavar="FOLDER", default=given("GATEWISE_FIELD"))
    parser.add_argument("--aaco", metavar="FOLDER", default=given("GATEWISE_AACO"))
    parser.add_argument("--python", metavar="FILE", default=given("GATEWISE_FIELD_PYTHON"))
    parser.add_argument("--all", action="store_true", help="run also what takes hours")
    parser.add_argument("--kept", action="store_true", help="no new fit of a peer: what is kept")
    parser.add_argument(
        "--again",
        action="store_true",
        help="of a peer that is not kept the figures in results/neural.json as they stand, with "
        "the CPU times of the earlier run; ours anew",
    )
    options = parser.parse_args(arguments)

    def action() -> int:
        if options.field is None:
            note("the peers' code is not given: name a clone of it with --field; nothing is run")
            return 0
        python = Path(options.python or sys.executable)
        field = Peers.found(Path(options.field), python)
        aaco = Peers.found(Path(options.aaco), python, AACO) if options.aaco else None
        peers = {model: aaco if model == "aaco" else field for model in CONFIGS}
        sets = harness.chosen_parts(options, SEEDS)
        record = harness.RESULTS / "neural.json"
        standing = json.loads(record.read_text()) if options.again else {}
        found: Found = {
            "settings": {
                "most_features": MOST_FEATURES,
                "configurations": {model: list(tried) for model, tried in CONFIGS.items()},
                "most_validation_rows": dict(MOST_VALIDATION_ROWS),
                "peers": SEFA.url,
                "peers_commit": field.commit,
                **({"aaco": AACO.url, "aaco_commit": aaco.commit} if aaco else {}),
            },
            **harness.environment(PACKAGES),
            "sets": {},
        }
        for name in sets:
            seeds = SEEDS[name][:1] if options.quick else SEEDS[name]
            ways = {"kept": options.kept or options.quick, "every": options.all}
            found["sets"][name] = _measure(name, seeds, peers, standing, **ways)
        found["summary"] = summary(found["sets"])
        out = harness.out_folder(options, whole=sets == list(SEEDS))
        harness.write_results(out, "neural", plain(found), page(found))
        return 0

    return harness.run_command(action, "stopped; finished fits are kept")


def _measure(
    name: str,
    seeds: Sequence[int],
    peers: Mapping[str, Peers | None],
    standing: Found,
    *,
    kept: bool,
    every: bool,
) -> Found:
    methods: Found = {}
    task = draw(name, seeds[0])
    for seed in seeds:
        task = draw(name, seed)
        runs = {OURS: _ours(task)}
        for model, tried in CONFIGS.items():
            if (clone := peers[model]) is None:
                continue
            run = None
            if not all(clone.is_kept(task, model, config, KEPT) for config in tried):
                run = stands(standing, task, model, clone.commit)
            long = seed in NOT_RUN.get((name, model), ()) and not every
            if run := run or _peer(task, model, tried, clone, kept=kept or long):
                runs[model] = run
        for method, run in runs.items():
            mine = methods.setdefault(method, {"curves": {}, "figures": {}, "cpu_seconds": {}})
            mine["curves"][seed] = run["curve"]
            mine["figures"][seed] = figures(run["curve"], task.budgets())
            mine["cpu_seconds"][seed] = run["about"]["cpu_seconds"]
            mine.setdefault("about", {})[seed] = run["about"]
    return _shape(task) | {"methods": methods}


def _shape(task: Task) -> Found:
    return {
        "metric": task.metric,
        "features": task.n_features,
        "classes": task.n_classes,
        "rows": [len(part[1]) for part in (task.train, task.validation, task.test)],
    }


def stands(standing: Found, task: Task, model: str, commit: str) -> Found | None:
    """Take a run of a peer from results as they stand, None if it has none.

    Rows are drawn by the seed, so that the counts and the metric say whether they are the same;
    InputError if they, the commit or the configurations are others.
    """
    part = standing.get("sets", {}).get(task.name, {})
    curves = part.get("methods", {}).get(model, {}).get("curves", {})
    if str(task.seed) not in curves:
        return None
    settings = standing["settings"]
    then = settings["aaco_commit" if model == "aaco" else "peers_commit"]
    same = {key: part[key] for key in _shape(task)} == _shape(task)
    tried = settings["configurations"][model] == list(CONFIGS[model])
    if not (same and tried and then == commit):
        raise InputError(f"the results of {model} on {task.name} stand for other rows or settings")
    about = part["methods"][model]["about"][str(task.seed)]
    return {"curve": curves[str(task.seed)], "about": about | {"earlier": True}}


def _ours(task: Task) -> Found:
    version = code_version("benchmarks.neural.methods")
    digest = hashlib.sha256(json.dumps([task.digest, task.seed, version]).encode()).hexdigest()
    path = KEPT / f"{task.name}.{OURS}.{task.seed}.{digest[:16]}.json"
    if not path.is_file():
        write_whole(path, json.dumps(plain(_run(task, cascade(task)))))
        note(f"{task.name} seed {task.seed}: fitted {OURS}")
    found: Found = json.loads(path.read_text())
    return found


def _run(task: Task, answers: Answers) -> Found:
    return {"curve": [score(p, task.test[1]) for p in answers.test], "about": answers.about}


def _peer(
    task: Task, model: str, tried: Sequence[float], peers: Peers, *, kept: bool
) -> Found | None:
    """Run a peer's configurations; validation chooses. None if none is kept and none shall run."""
    best: tuple[float, float, Answers] | None = None
    for config in tried:
        if kept and not peers.is_kept(task, model, config, KEPT):
            continue
        answers = peers.run(task, model, config, KEPT)
        assert answers.validation is not None
        held = peers.validation_labels(task, model)
        mean = mean_over_steps([score(p, held) for p in answers.validation])
        note(f"{task.name} seed {task.seed}: {model} {config}, validation {mean:.4f}")
        if best is None or mean > best[0]:
            best = mean, config, answers
    if best is None:
        return None
    found = _run(task, best[2])
    return found | {"about": found["about"] | {"configuration": best[1]}}


if __name__ == "__main__":
    sys.exit(main())
