"""The page of the neural comparison: cells and who leads them, CPU time, what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.neural.methods import (
    CONFIGS,
    FEW_VALIDATION_ROWS,
    FITTED_BUDGETS,
    MOST_VALIDATION_ROWS,
)
from benchmarks.neural.tasks import MEAN, MOST_FEATURES, BySeed, ahead, led

OURS = "gatewise"
TITLES = {
    OURS: "`StagedCascade`",
    "sefa": "SEFA",
    "dime": "DIME",
    "gdfs": "GDFS",
    "opportunistic": "Opportunistic RL",
    "aaco": "AACO",
}
HOURS = {
    "opportunistic": "its 20,000 episodes took 47 CPU minutes on a seed of statlog_heart, "
    "the smallest set; they would take hours on the others",
    "sefa": "it takes a gradient of every class for each of 200 samples at every acquisition",
    "aaco": "its search would take an hour or more of each set: on four instances it took 0.8 "
    "(thyroid) and 1.2 (mbne_tiny) CPU seconds of each at a price of 0.005, and 6 on digits even "
    "at 0.05; on letter-26 and forest-7 its fit alone had not ended after 100 seconds",
}
"""Why peers are left out."""
FASTER = 1.4
"""How much faster the machine was on which the figures that --again takes were measured."""
Found = dict[str, Any]


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
