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
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.cache import CACHE, code_version, write_whole
from benchmarks.neural.methods import (
    AACO,
    CONFIGS,
    FEW_VALIDATION_ROWS,
    FITTED_BUDGETS,
    MOST_VALIDATION_ROWS,
    SEFA,
    Answers,
    Peers,
    cascade,
)
from benchmarks.neural.tasks import (
    MEAN,
    MOST_FEATURES,
    BySeed,
    Task,
    ahead,
    draw,
    figures,
    led,
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
HOURS = {
    "opportunistic": "its 20,000 episodes would take 48 CPU minutes on statlog_heart, the "
    "smallest set, and hours on the others",
    "sefa": "it takes a gradient of every class for each of 200 samples at every acquisition",
    "aaco": "its search would take an hour or more of each set: on four instances it took 0.8 "
    "(thyroid) and 1.2 (mbne_tiny) CPU seconds of each at a price of 0.005, and 6 on digits even "
    "at 0.05; on letter-26 and forest-7 its fit alone had not ended after 100 seconds",
}
"""Why peers are left out."""
NOT_RUN: Mapping[tuple[str, str], tuple[int, ...]] = {
    **{(name, "opportunistic"): seeds for name, seeds in SEEDS.items()},
    **{(name, "sefa"): SEEDS[name] for name in ("letter-26", "forest-7", "digits")},
    **{(name, "aaco"): seeds for name, seeds in SEEDS.items() if name != "statlog_heart"},
}
"""Set and peer, and the seeds that are left out of a run; --all runs them too."""
FASTER = 1.4
"""How much faster the machine was on which the figures that --again takes were measured."""
OURS = "gatewise"
TITLES = {
    OURS: "`StagedCascade`",
    "sefa": "SEFA",
    "dime": "DIME",
    "gdfs": "GDFS",
    "opportunistic": "Opportunistic RL",
    "aaco": "AACO",
}
PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm", "numba")
KEPT = CACHE / "neural"
Found = dict[str, Any]


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


def summary(sets: Mapping[str, Found]) -> Found:
    """Count the cells that we lead, of all peers and of each, and our share of the CPU time."""
    cells, lead = 0, 0
    against: Found = {}
    for found in sets.values():
        by_seed = {name: _by_seed(method) for name, method in found["methods"].items()}
        ours = by_seed.pop(OURS)
        if not by_seed:
            continue
        best = led(ours, by_seed)
        cells, lead = cells + len(best), lead + sum(best.values())
        for peer, theirs in by_seed.items():
            won = ahead(ours, theirs)
            mine = against.setdefault(peer, {"cells": 0, "led": 0, "ours": 0.0, "theirs": 0.0})
            mine["cells"] += len(won)
            mine["led"] += sum(won.values())
            seconds = found["methods"][peer]["cpu_seconds"]
            mine["theirs"] += sum(seconds.values())
            mine["ours"] += sum(found["methods"][OURS]["cpu_seconds"][seed] for seed in seconds)
    for mine in against.values():
        mine["share_of_time"] = mine["ours"] / mine["theirs"]
    return {"cells": cells, "led": lead, "against": against}


def _by_seed(method: Found) -> BySeed:
    found: BySeed = method["figures"]
    return found


def page(found: Found) -> str:
    """Write the page: the cells, the CPU time, what was left out, the settings."""
    total, shown = found["summary"], _shown(found)
    share = 100 * total["led"] / max(1, total["cells"])
    lines = [
        "# Neural feature acquisition",
        "",
        "Test AUROC (two classes) or accuracy (more) in percent when each instance may acquire at "
        f"most so many features, at a price of 1 each; *{MEAN}*: over 0, 1, 2, ... features, the "
        f"area by trapezes up to {MOST_FEATURES} features, or all there are. Mean over "
        "seeds, ± standard error. Bold: the highest of those with all seeds.",
        "",
        f"Of {total['cells']} cells `StagedCascade` leads {total['led']} ({share:.0f} %) before "
        "all peers that were run on them.",
        "",
        _line("set", "features", *(TITLES[method] for method in shown), "highest"),
        _rule(3 + len(shown)),
    ]
    for name, part in found["sets"].items():
        columns = next(iter(_by_seed(part["methods"][OURS]).values()))
        lines += [_cells(name, part, column, shown) for column in columns]
    lines += ["", *_times(found), "", *_against(total), "", *_notes(found)]
    return "\n".join(lines) + "\n"


def _shown(found: Found) -> list[str]:
    """Methods that were run on any set."""
    run = {method for part in found["sets"].values() for method in part["methods"]}
    return [method for method in TITLES if method in run]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _rule(n: int) -> str:
    return _line(*["---"] * n)


def _cells(name: str, part: Found, column: str, methods: Sequence[str]) -> str:
    values = {
        method: [100 * each[column] for each in _by_seed(mine).values()]
        for method, mine in part["methods"].items()
    }
    whole = [method for method in values if len(values[method]) == len(values[OURS])]
    highest = max(whole, key=lambda method: float(np.mean(values[method])))
    texts = {m: _figure(v) for m, v in values.items()} | {
        highest: f"**{_figure(values[highest])}**"
    }
    shown = [texts.get(method, "") for method in methods]
    return _line(f"{name}, {part['metric']}", column, *shown, TITLES[highest])


def _figure(values: Sequence[float], digits: int = 2) -> str:
    text = f"{np.mean(values):.{digits}f}"
    if len(values) < 2:
        return text
    return f"{text} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.{digits}f}"


def _times(found: Found) -> list[str]:
    methods = _shown(found)
    lines = [
        "CPU seconds of a fit on one thread, validation with it; of a peer that of the one "
        "configuration which validation chose:",
        "",
        _line("set", "rows to fit, validate, test", "features", *(TITLES[m] for m in methods)),
        _rule(3 + len(methods)),
    ]
    for name, part in found["sets"].items():
        shown = [_seconds(part["methods"].get(method)) for method in methods]
        rows = " / ".join(f"{n:,}" for n in part["rows"])
        lines.append(_line(name, rows, str(part["features"]), *shown))
    if "\\*" in "".join(lines):
        lines += [
            "",
            f"\\* of an earlier run, on a machine about {FASTER} times as fast: beside ours these "
            "peers took longer than it says here.",
        ]
    return lines


def _seconds(method: Found | None) -> str:
    if method is None:
        return ""
    earlier = any(each.get("earlier") for each in method["about"].values())
    return _figure(list(method["cpu_seconds"].values()), 0) + "\\*" * earlier


def _against(total: Found) -> list[str]:
    lines = [
        "Against each, on the sets and seeds that both have:",
        "",
        _line("peer", "cells", "we lead", "share of its CPU time"),
        _rule(4),
    ]
    for peer, mine in total["against"].items():
        lead = f"{mine['led']} ({100 * mine['led'] / mine['cells']:.0f} %)"
        share = f"{100 * mine['share_of_time']:.0f} %"
        lines.append(_line(TITLES[peer], str(mine["cells"]), lead, share))
    return lines


def _notes(found: Found) -> list[str]:
    settings = found["settings"]
    configs = ", ".join(
        f"{TITLES[m]} {' and '.join(map(str, n))}"
        for m, n in settings["configurations"].items()
        if m != "aaco"
    )
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    missing = []
    for peer in CONFIGS:
        left = [each for name, part in found["sets"].items() if (each := _left(name, part, peer))]
        if left:
            reason = f": {HOURS[peer]}" if peer in HOURS else ""
            missing.append(f"- Not run: {TITLES[peer]} on {', '.join(left)}{reason}.")
    return [
        "How it was done:",
        "",
        f"- Peers: {settings['peers']}, commit {settings['peers_commit'][:12]}, torch "
        f"{_torch(found)}; configurations tried of their nine: {configs}. "
        "Epochs, learning rates and the model that is kept are as there; all features are "
        "continuous ones.",
        "- Two things about their run are set here: what `einsum` gives is made contiguous, "
        "without which SEFA fails on this torch; and objects made before a fit are kept from the "
        "garbage collection that they call at every acquisition, which is most of their time "
        "otherwise. Both leave the results as they are.",
        f"- SEFA validates on {MOST_VALIDATION_ROWS['sefa']} rows at most, since it acquires on "
        "all of them after each of 120 epochs; the other validation rows it gets to fit.",
        "- `StagedCascade`: one fit with `max_instance_cost` at the most features and as many "
        "stages; for each budget validation chooses among the operating point at it and each "
        f"stage alone. With fewer than {FEW_VALIDATION_ROWS} validation rows there is a fit for "
        f"budgets of {', '.join(map(str, FITTED_BUDGETS))}, cross-fitted on these and the rows to "
        "fit, and its own operating point answers.",
        *_about_aaco(found),
        *missing,
        "",
        f"Versions: {versions}. `make bench-neural` writes this page.",
    ]


def _left(name: str, part: Found, peer: str) -> str:
    """Name of a set on which a peer was not run, with the seeds if it was on some."""
    run = part["methods"].get(peer, {"curves": {}})["curves"]
    seeds = [str(seed) for seed in part["methods"][OURS]["curves"] if seed not in run]
    if run and seeds:
        return f"{name} (seed {' and '.join(seeds)})"
    return name if seeds else ""


def _about_aaco(found: Found) -> list[str]:
    runs = [
        run
        for part in found["sets"].values()
        for run in part["methods"].get("aaco", {"about": {}})["about"].values()
    ]
    if not runs:
        return []
    settings = found["settings"]
    prices = " and ".join(map(str, settings["configurations"]["aaco"]))
    searched = sum(run["acquisition_cpu_seconds"] for run in runs)
    each = searched / sum(run["instances"] for run in runs)
    return [
        f"- AACO: {settings['aaco']}, commit {settings['aaco_commit'][:12]}, torch "
        f"{runs[0]['torch']}, xgboost {runs[0]['xgboost']}, by its script's rollout with random "
        f"masks and 20 neighbours; prices of a feature tried: {prices}, its own first. Its trained "
        "classifiers are not published: one XGBoost model is fitted with its settings, on five "
        "copies of each row with features hidden at random, as the name of its MNIST model says; "
        "the feature to begin with is the best one alone on the rows to fit. An instance that "
        "stops keeps its answer. The CPU time above is of that model alone: the search itself "
        f"takes another {each:.2f} CPU seconds of each instance."
    ]


def _torch(found: Found) -> str:
    """Versions of torch that peers of the first repository were run with."""
    versions = {
        run["torch"]
        for part in found["sets"].values()
        for name, method in part["methods"].items()
        for run in method["about"].values()
        if name not in (OURS, "aaco")
    }
    return " and ".join(sorted(versions, reverse=True)) or "not run"


if __name__ == "__main__":
    sys.exit(main())
