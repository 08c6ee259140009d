"""Comparison of this project's methods with those of AFABench (KDD 2026), in its pipeline.

    python -m benchmarks.bench_afabench --checkout FOLDER --python FOLDER/.venv/bin/python

FOLDER is a clone of https://github.com/Linusaronsson/AFA-Benchmark. FOLDER/.venv must have the
requirements of AFABench and of this project. The Snakemake workflow of AFABench makes the data sets
and splits, fits and evaluates the methods, and merges the metrics. It keeps finished steps in the
clone. The results are afabench.json and afabench.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.afabench.warm_interpreter import CLIENT
from benchmarks.harness import SINGLE_THREAD, Benchmark, split_names, table_lines
from gatewise.errors import InputError

ROOT = Path(__file__).parents[1]
PACKAGES = ("gatewise", "numpy", "scikit-learn", "lightgbm")
SETS = ("cube", "ckd", "actg", "cube_nonuniform_costs", "cube_nm", "physionet")
#: This project's methods by their names in AFABench.
OURS = {"gatewise_staged": "staged", "gatewise_adapt_gbrt": "adapt-gbrt"}
#: AFABench's own methods that a run compares unless ``--peers`` names others.
PEERS = ("permutation", "cae", "covert2023", "gadgil2023", "ma2018_external", "aaco")
#: AFABench's reinforcement learning, one fit of which takes from 45 minutes to 12 hours on a core.
SLOW_PEERS = ("jafa", "ol_with_mask", "odin_model_based")
TITLES = {
    "gatewise_staged": "`StagedCascade`",
    "gatewise_adapt_gbrt": "`AdaptGBRT`",
    "permutation": "PT-S",
    "cae": "CAE-S",
    "covert2023": "GDFS",
    "gadgil2023": "DIME",
    "ma2018_external": "EDDI",
    "aaco": "AACO",
    "jafa": "JAFA",
    "ol_with_mask": "OL",
    "odin_model_based": "ODIN",
}
#: Titles of the classifiers.
CLASSIFIERS = {"builtin": "built-in", "external": "external"}
#: Models that the pipeline fits before a method; methods may share one.
PRETRAINED_MODELS = {
    "covert2023": "gdfs",
    "gadgil2023": "dime",
    "ma2018_external": "pvae",
    "jafa": "jafa",
    "ol_with_mask": "ol_with_mask",
    "odin_model_based": "pvae",
}
#: Accuracy that a feature of price 1 must add in this project's methods, chosen before all runs.
SOFT_BUDGETS = (0.03, 0.01, 0.003)

#: Configuration files of AFABench's pipeline that a run needs.
CONFIGURATION = (
    *("eval_hard_budgets", "methods", "method_sets", "method_options", "pretrain_mapping"),
    *("soft_budget_params", "unmaskers", "classifier_names", "datasets_main"),
)
#: Commit of AFABench that the results were made with.
COMMIT = "a07c8a3b6bf2527f66853e87b1929396e08e0501"
PIPELINE = "extra/workflow/snakefiles/orchestration/pipeline.smk"
#: Line that makes the adapter known to AFABench.
REGISTRATION = 'REGISTERED_CLASSES["GatewiseMethod"] = "benchmarks.afabench.method.GatewiseMethod"'
CPU_LOG = "gatewise_cpu.jsonl"
MERGED = (
    "extra/output/merged_results/eval_split-test/initializer-cold/eval_perf/"
    "method_set-gatewise+{}.parquet"
)


def measure_set(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the pipeline of AFABench on one set; return its metrics and CPU seconds."""
    checkout = options.checkout.absolute()
    if not (checkout / PIPELINE).is_file():
        raise InputError(f"{checkout} is not a clone of AFABench")
    methods_by_instances = split_methods(options.peers, options.instances, quick=options.quick)
    records = []
    with _warm_interpreter(checkout, options.python.absolute()) as environment:
        for n_instances, methods in methods_by_instances.items():
            records += _run_set(options, environment, name, methods, n_instances)
    return {
        "commit": options.commit,
        "instances": options.instances,
        "records": records,
        "cpu_seconds": [
            time_sum for time_sum in cpu_seconds(checkout / CPU_LOG) if time_sum["set"] == name
        ],
    }


def split_methods(peers: str, n_instances: int, *, quick: bool = False) -> dict[int, list[str]]:
    """Group the methods of a run by their numbers of instances.

    ``METHOD:N`` in `peers` limits a method to the first N instances.
    """
    pairs = [peer.partition(":") for peer in peers.split(",")[: 1 if quick else None]]
    split_names(",".join(name for name, _, _ in pairs), (*PEERS, *SLOW_PEERS), "peer")
    groups = {n_instances: list(OURS)}
    for name, _, limit in pairs:
        if limit and not limit.isdecimal():
            raise InputError(f"--peers {name}:{limit}: give a number of instances after the colon")
        groups.setdefault(int(limit or n_instances), []).append(name)
    return groups


@contextlib.contextmanager
def _warm_interpreter(checkout: Path, python: Path) -> Iterator[dict[str, str]]:
    """Register the method as in the tutorial of AFABench; start the interpreter of its scripts."""
    registry = checkout / "afabench/common/registry.py"
    registry_code = registry.read_text()
    if REGISTRATION not in registry_code:
        registry.write_text(f"{registry_code}\n{REGISTRATION}\n")
    client = checkout / "gatewise_bin/python"
    client.parent.mkdir(exist_ok=True)
    socket_path = client.with_name("socket")
    socket_path.unlink(missing_ok=True)
    client.write_text(CLIENT.format(python=python, socket=str(socket_path)))
    client.chmod(0o755)
    packages = ("", "signals", "training", "export", "edge", "cloud", "sim")
    environment = {
        **os.environ,
        **SINGLE_THREAD,
        "PATH": f"{client.parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join([str(checkout), *(str(ROOT / name) for name in packages)]),
        "WANDB_MODE": "disabled",
    }
    script = Path(__file__).parent / "afabench/warm_interpreter.py"
    server = subprocess.Popen(
        [python, script, socket_path, checkout / CPU_LOG], cwd=checkout, env=environment
    )
    try:
        while not socket_path.exists():
            if server.poll() is not None:
                raise InputError(f"{python} cannot import the requirements of AFABench")
            time.sleep(0.1)
        yield environment
    finally:
        server.kill()
        server.wait()


def _run_set(
    options: argparse.Namespace,
    environment: Mapping[str, str],
    name: str,
    methods: list[str],
    n_instances: int,
) -> list[dict[str, Any]]:
    """Run the pipeline on the first instances of one set; return its metrics."""
    checkout = options.checkout.absolute()
    settings_file = checkout / "gatewise_pipeline.json"
    settings_file.write_text(json.dumps(_make_settings(checkout, methods, name)))
    # remove merged metrics of an earlier run, which may have other sets or methods
    merged_files = [
        MERGED.format(f"classifier_type-{classifier}") for classifier in ("builtin", "external")
    ]
    for path in (MERGED.format("all"), *merged_files):
        (checkout / path).unlink(missing_ok=True)
    instances = ",".join(str(i) for i in range(n_instances))
    configuration_files = [f"extra/workflow/conf/{name}.yaml" for name in CONFIGURATION]
    command = ["-m", "snakemake", "-s", PIPELINE, *merged_files, "--configfile"]
    command += [*configuration_files, settings_file.name]
    command += ["--config", "eval_dataset_split=test", f"dataset_instance_indices=[{instances}]"]
    command += ["smoke_test=false", "use_wandb=false", "device=cpu"]
    command += ["--cores", "1", "--keep-going", "--rerun-triggers", "mtime", "--quiet", "rules"]
    _run_python(options, environment, command)
    output = _run_python(options, environment, ["-m", "benchmarks.afabench.metrics", *merged_files])
    return json.loads(output.splitlines()[-1])


def _make_settings(checkout: Path, methods: Sequence[str], set_name: str) -> dict[str, Any]:
    """Make the configuration that overrides AFABench's."""
    script = os.path.relpath(Path(__file__).parent / "afabench/method", checkout / "scripts/train")
    soft_budgets = [[None, budget] for budget in SOFT_BUDGETS]
    return {
        "datasets": [set_name],
        "methods": list(methods),
        "method_sets": {"gatewise": list(methods)},
        "method_options": {
            name: {
                "train_script_name": script,
                "method_specific_params": [f"method={method}"],
                "eval_batch_size": {"default": 512},
            }
            for name, method in OURS.items()
        },
        "soft_budget_params": {name: {"default": soft_budgets} for name in OURS},
    }


def _run_python(
    options: argparse.Namespace, environment: Mapping[str, str], command: list[str]
) -> str:
    completed_process = subprocess.run(
        [options.python.absolute(), *command],
        cwd=options.checkout,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if completed_process.returncode:
        raise InputError(
            f"{' '.join(command[:2])} ended with status {completed_process.returncode}"
        )
    return completed_process.stdout


def cpu_seconds(log: Path) -> list[dict[str, Any]]:
    """Sum the CPU seconds of the pipeline by kind of step, method or model, and data set.

    A step that was repeated counts once, with its last run.
    """
    seconds_of_step: dict[str, float] = {}
    for line in log.read_text().splitlines():
        seconds, *arguments = json.loads(line)
        for argument in arguments:
            if argument.startswith("save_path="):
                seconds_of_step[argument] = seconds
    sums: dict[tuple[str, str, str], float] = {}
    for save_path, seconds in seconds_of_step.items():
        name_match = re.search(
            r"/initializer-\w+/([^/]+)/dataset-([^+]+)\+instance_idx-\d+", save_path
        )
        step_match = re.search(r"(pretrained_models|trained_methods|eval_results)/", save_path)
        if name_match and step_match:
            key = (step_match.group(1), name_match.group(1), name_match.group(2))
            sums[key] = sums.get(key, 0.0) + seconds
    return [
        {"step": step, "name": name, "set": set_name, "seconds": seconds}
        for (step, name, set_name), seconds in sums.items()
    ]


def page(figures: Mapping[str, Any]) -> list[str]:
    """Write the tables of hard and soft budgets, ranks and CPU seconds."""
    parts = [figures[name] for name in SETS if name in figures]
    records = [record for part in parts for record in part["records"]]
    names = list(dict.fromkeys(record["method"] for record in records))
    names.sort(key=list(TITLES).index)
    lines = [
        "# AFABench",
        "",
        f"The pipeline, splits, classifiers and metrics are those of AFABench at commit "
        f"{parts[0]['commit'][:12]}, on test rows, with as many of its instances (seeds) as the "
        "first column says, or as the cell says after *on*. With the *external* classifier, a "
        "masked network of AFABench answers from the features that a method acquired. With the "
        "*built-in* classifier, the method's own model answers; AACO has none. A method was not "
        "run where its cell is empty. Figures are means in percent with the standard error over "
        "instances, and the rank in parentheses, among the methods with all instances of the row; "
        "the highest is bold. "
        "[How it compares](../../docs/comparison.md#afabench) says how to repeat the comparison "
        "and what was not run.",
        "",
    ]
    for classifier, title in CLASSIFIERS.items():
        lines += [f"## Hard budgets, {title} classifier", ""]
        lines += _write_hard_budgets(
            [record for record in records if record["classifier"] == classifier], names
        )
        lines += [""]
    for classifier, title in CLASSIFIERS.items():
        lines += [f"## Soft budgets: mean cost and metric of each point, {title} classifier", ""]
        lines += _write_soft_budgets(
            [record for record in records if record["classifier"] == classifier], names
        )
        lines += [""]
    lines += ["## CPU seconds of all fits and of all evaluations that were run", ""]
    lines += _write_cpu_seconds(
        [time_sum for part in parts for time_sum in part["cpu_seconds"]], names
    )
    return lines


def _write_hard_budgets(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Tabulate metric and rank of each method by set and budget; the highest metric is bold.

    A method with fewer instances than others has no rank.
    """
    names = [name for name in names if any(record["method"] == name for record in records)]
    cells: dict[tuple[str, float], dict[str, list[float]]] = {}
    metric_names = {record["set"]: record["metric_name"] for record in records}
    for record in records:
        if record["hard_budget"] is not None:
            metrics = cells.setdefault((record["set"], record["hard_budget"]), {})
            metrics.setdefault(record["method"], []).append(record["metric"])
    rows = []
    ranks: dict[str, list[int]] = {name: [] for name in names}
    for (set_name, budget), metrics in sorted(cells.items()):
        n_instances = max(map(len, metrics.values()))
        # equal means may differ in the last bits, because their sums have different orders
        means = {
            name: round(float(np.mean(values)), 9)
            for name, values in metrics.items()
            if len(values) == n_instances
        }
        row = [f"{set_name}, {metric_names[set_name]} ({n_instances})", f"{budget:g}"]
        for name in names:
            percent = _write_mean(metrics[name]) if name in metrics else ""
            if name in means:
                rank = 1 + sum(mean > means[name] for mean in means.values())
                ranks[name].append(rank)
                percent = f"**{percent}** (1)" if rank == 1 else f"{percent} ({rank})"
            elif percent:
                percent += f" on {len(metrics[name])}"
            row.append(percent)
        rows.append(row)
    mean_ranks = [f"{np.mean(ranks[name]):.1f}" if ranks[name] else "" for name in names]
    header = ["set", "budget", *(TITLES[name] for name in names)]
    return table_lines(header, [*rows, ["mean rank", "", *mean_ranks]])


def _write_mean(metrics: Sequence[float]) -> str:
    """Write a mean in percent, with its standard error if there are several values."""
    percent = f"{100 * np.mean(metrics):.1f}"
    if len(metrics) < 2:
        return percent
    return f"{percent} ± {100 * np.std(metrics, ddof=1) / math.sqrt(len(metrics)):.1f}"


def _write_soft_budgets(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    points: dict[tuple[str, str], dict[float, list[tuple[float, float]]]] = {}
    for record in records:
        if record["hard_budget"] is None and record["soft_budget"] is not None:
            points_by_budget = points.setdefault((record["set"], record["method"]), {})
            points_by_budget.setdefault(record["soft_budget"], []).append(
                (record["cost"], record["metric"])
            )
    names = [name for name in names if any(key[1] == name for key in points)]
    rows = []
    for set_name in sorted({key[0] for key in points}):
        row = [set_name]
        n_instances = max(
            len(values)
            for (other_set, _), points_by_budget in points.items()
            if other_set == set_name
            for values in points_by_budget.values()
        )
        for name in names:
            seed_points = list(points.get((set_name, name), {}).values())
            means = [np.mean(values, axis=0) for values in seed_points]
            point_texts = [
                f"{cost:.1f}: {100 * metric:.1f}" for cost, metric in sorted(map(tuple, means))
            ]
            if seed_points and len(seed_points[0]) < n_instances:
                point_texts.append(f"on {len(seed_points[0])}")
            row.append("<br>".join(point_texts))
        rows.append(row)
    return table_lines(["set", *(TITLES[name] for name in names)], rows)


def _write_cpu_seconds(time_sums: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Tabulate CPU seconds of fits, with pretraining that methods may share, and of runs."""
    seconds = {
        (time_sum["set"], time_sum["step"], time_sum["name"]): time_sum["seconds"]
        for time_sum in time_sums
    }
    rows = []
    for set_name in sorted({time_sum["set"] for time_sum in time_sums}):
        row = [set_name]
        for name in names:
            fit = seconds.get((set_name, "trained_methods", name))
            pretraining = seconds.get((set_name, "pretrained_models", PRETRAINED_MODELS.get(name)))
            fit_durations = [duration for duration in (fit, pretraining) if duration is not None]
            run = seconds.get((set_name, "eval_results", name), 0.0)
            row.append(f"{sum(fit_durations):.0f} + {run:.0f}" if fit_durations else "")
        rows.append(row)
    return table_lines(["set", *(TITLES[name] for name in names)], rows)


BENCHMARK = Benchmark(
    name="afabench",
    quick_help="one of AFABench's methods",
    packages=PACKAGES,
    page=page,
    parts={name: partial(measure_set, name) for name in SETS},
    options={
        "--checkout": {"type": Path, "required": True, "help": "clone of AFABench"},
        "--python": {"type": Path, "required": True, "help": "interpreter of its environment"},
        "--instances": {"type": int, "default": 2, "help": "instances (seeds) of each set"},
        "--peers": {
            "default": ",".join(PEERS),
            "metavar": "METHOD[:N],...",
            "help": "AFABench's own methods, those with :N on the first N instances only; "
            f"{', '.join(SLOW_PEERS)} take hours",
        },
        "--commit": {"default": COMMIT, "help": "commit of the clone"},
    },
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
