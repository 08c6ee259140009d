"""Time of a decision on the device, relative to a no-op graph of onnxruntime, and memory.

    python -m benchmarks.bench_edge [--quick]

Each round times a few hundred calls of every item, so that other load on the machine affects all
items. Calls have one row and one thread. A figure is the median over the rounds of the mean time of
a call; a ratio is the median of the ratios within the rounds. The results are edge.json and edge.md
in benchmarks/results; ``--quick`` writes them into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.data import problems
from benchmarks.edge import process as edge_process
from benchmarks.edge.models import PackedModel, make_models
from benchmarks.harness import Column
from gatewise.console import note
from gatewise.errors import GatewiseError, InputError
from gatewise_cloud.broker.broker import MosquittoBroker
from gatewise_edge import Device
from gatewise_edge.device.stages import StageOutput, load_stages
from gatewise_edge.sensors.feature_reader import Meter, Reading

PACKAGES = ("gatewise", "numpy", "onnxruntime", "paho-mqtt")
NOOP = "noop"
#: Item, reference item (None for microseconds), and the maximum of the ratio or the figure.
TARGETS: tuple[tuple[str, str | None, float], ...] = (
    ("trees-50 decide", NOOP, 2.0),
    ("trees-50 answer", None, 15.0),
    ("trees-50 c99", None, 3.0),
)
#: Largest time until all modules are imported, and largest memory of a device that serves.
IMPORT_SECONDS = 0.6
RESIDENT_MB = 80.0

Call = Callable[[], object]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time all items in rounds, then new processes."""
    n_rounds, n_calls = (7, 100) if options.quick else (41, 300)
    problems.get("letter-bin")  # report a missing data file before the fits
    with tempfile.TemporaryDirectory() as folder:
        models = make_models(Path(folder), options.quick)
        for name, model in models.items():
            note(f"{name}: {model.figures}")
        call_by_item, skipped = _make_calls(models, Path(folder))
        runs = time_calls(call_by_item, n_rounds, n_calls)
        processes = _measure_processes(models, Path(folder), 2 if options.quick else 7)
    return document(runs, models, processes, skipped, n_calls=n_calls)


# -- what is timed -----------------------------------------------------------------------------


def _make_calls(
    models: Mapping[str, PackedModel], folder: Path
) -> tuple[dict[str, Call], dict[str, str]]:
    """Make the calls to time, by item, and the reason for each item that cannot run."""
    call_by_item: dict[str, Call] = {NOOP: _make_noop_call()}
    skipped: dict[str, str] = {}
    for name, model in models.items():
        if name == "lazy-50":
            call_by_item[f"{name} python"] = _make_visit_call(model)
        else:
            call_by_item[f"{name} graph"] = _make_stage_call(model, "onnxruntime", decides=False)
            call_by_item[f"{name} decide"] = _make_stage_call(model, "onnxruntime", decides=True)
            call_by_item[f"{name} numpy"] = _make_stage_call(model, "numpy", decides=True)
        call_by_item[f"{name} answer"] = _make_answer_call(model)
        try:
            call_by_item[f"{name} c99"] = _make_c99_call(name, model, folder)
        except (GatewiseError, ImportError) as error:
            skipped[f"{name} c99"] = str(error)
    return call_by_item, skipped


def _make_noop_call() -> Call:
    """Run a graph of one Identity node on 16 numbers, the minimum time of onnxruntime."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    shape: list[str | int | None] = ["n", 16]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "noop",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x = np.zeros((1, 16), np.float32)
    return lambda: session.run(None, {"x": x})


def _make_stage_call(model: PackedModel, runner: Any, *, decides: bool) -> Call:
    """Run the model of the first stage, and compare its stop score with the threshold."""
    stage = load_stages(model.bundle, runner)[0]
    rows = cycle(np.ascontiguousarray(model.rows[:, stage.inputs]))
    if not decides:
        return lambda: stage.model.run_row(next(rows))
    return lambda: StageOutput(stage, stage.model.run_row(next(rows))).stops


def _make_visit_call(model: PackedModel) -> Call:
    """Walk the trees of the first stage and acquire features of a row node by node."""
    stage = load_stages(model.bundle)[0]
    meter = Meter(model.bundle.manifest.feature_costs())
    rows = cycle(model.rows)

    def call() -> object:
        reading = Reading(next(rows), meter, lambda: 1.0)
        return stage.run_instance(reading, allow_missing=False).stops

    return call


def _make_answer_call(model: PackedModel) -> Call:
    """Answer instances on the device with all stages, label and cost, but without a cloud."""
    device, rows = Device(model.bundle), cycle(model.rows)
    return lambda: device.answer(next(rows))


def _make_c99_call(name: str, model: PackedModel, folder: Path) -> Call:
    """Decide in generated C, through cffi."""
    from benchmarks.c99.compiled import compile_models
    from gatewise_export.c99.cascade_reader import cascade_of
    from gatewise_export.c99.writer import write_cascade

    c_name = "m_" + name.replace("-", "_")
    (folder / c_name).mkdir()
    source = write_cascade(cascade_of(model.bundle), folder / c_name, name=c_name)
    (compiled,) = compile_models(
        [(source, [stage.outputs for stage in model.bundle.manifest.stages])]
    )
    if compiled.count_selftest_failures():
        raise InputError(f"{name}: C answers its sample rows differently from Python")
    answer_fields = compiled.ffi.new("int32_t[5]")  # as BATCH_TEMPLATE writes them
    rows = cycle([compiled.ffi.from_buffer("float[]", row) for row in model.rows])

    # The closure keeps `compiled` alive, because its library is unloaded with it.
    def call(answer_row: Any = compiled.answer_row) -> object:
        return answer_row(next(rows), answer_fields), compiled

    return call


# -- measuring ---------------------------------------------------------------------------------


def time_calls(
    call_by_item: Mapping[str, Call], n_rounds: int, n_calls: int
) -> dict[str, list[float]]:
    """Measure the mean microseconds per call of each item, one value per round."""
    microseconds_by_item: dict[str, list[float]] = {item: [] for item in call_by_item}
    clock = time.perf_counter_ns
    for round_number in range(n_rounds + 1):
        for item, call in call_by_item.items():
            start_ns = clock()
            for _ in range(n_calls):
                call()
            if round_number:  # the first round warms up
                microseconds_by_item[item].append((clock() - start_ns) / n_calls / 1000.0)
    return microseconds_by_item


def _measure_processes(
    models: Mapping[str, PackedModel], folder: Path, n_runs: int
) -> dict[str, dict[str, float]]:
    """Measure start-up time and memory of new processes, with a broker."""
    model = models["letters"]
    table = folder / "rows.csv"
    names = ",".join(model.bundle.manifest.feature_names)
    np.savetxt(table, model.rows[:1000], "%g", ",", header=names, comments="")
    settings = folder / "settings.toml"
    settings.write_text('runner = "numpy"\n')
    samples: dict[str, list[dict[str, Any]]] = {}
    with MosquittoBroker() as broker:
        modes: dict[str, list[str]] = {"nothing": [], "import": []}
        for name in ("letters-64kb", "letters"):
            command = [str(models[name].bundle.path), "--data", str(table), "--deadline-ms", "50"]
            modes[f"serve {name}"] = [*command, "--broker", broker.url]
            modes[f"serve {name}, numpy"] = [*modes[f"serve {name}"], "--settings", str(settings)]
        for _ in range(n_runs):
            for mode, arguments in modes.items():
                sample = edge_process.measure(mode.split()[0], arguments)
                samples.setdefault(mode, []).append(sample)
    # keys of the figures, factors and digits of the samples
    units = {
        "seconds": ("seconds", 1, 3),
        "cpu": ("cpu", 1, 3),
        "rss_mb": ("rss", 1e-6, 1),
        "peak_mb": ("peak", 1e-6, 1),
    }
    return {
        mode: {
            key: round(factor * median(sample[name] for sample in mode_samples), digits)
            for key, (name, factor, digits) in units.items()
        }
        for mode, mode_samples in samples.items()
    }


# -- figures -----------------------------------------------------------------------------------


def document(
    runs: Mapping[str, Sequence[float]],
    models: Mapping[str, PackedModel],
    processes: Mapping[str, Mapping[str, float]],
    skipped: Mapping[str, str],
    *,
    n_calls: int,
) -> dict[str, Any]:
    """Collect medians, ratios to the no-op graph, settings and targets."""
    items = {
        name: {
            "us": round(median(round_us), 2),
            "us_quartiles": np.quantile(round_us, [0.25, 0.75]).round(2).tolist(),
            "noops": round(
                median(us / noop_us for us, noop_us in zip(round_us, runs[NOOP], strict=True)), 3
            ),
        }
        for name, round_us in runs.items()
    }
    targets = [
        (f"us of `{name}`", items[name]["us"], bound)
        if reference is None
        else (f"`{name}` / `{reference}`", items[name]["noops"], bound)
        for name, reference, bound in TARGETS
        if name in items
    ]
    targets += [
        ("seconds until everything is imported", processes["import"]["seconds"], IMPORT_SECONDS),
        (
            "MB resident after 1000 instances of `letters-64kb`, with a broker",
            processes["serve letters-64kb"]["rss_mb"],
            RESIDENT_MB,
        ),
        (
            "the same with the runner numpy",
            processes["serve letters-64kb, numpy"]["rss_mb"],
            RESIDENT_MB,
        ),
    ]
    return {
        "settings": {
            "rounds": len(runs[NOOP]),
            "calls": n_calls,
            "rows": "letter-bin, test",
            "threads": 1,
        },
        "models": {name: {"title": model.title} | model.figures for name, model in models.items()},
        "items": items,
        "processes": processes,
        "skipped": dict(skipped),
        "targets": [
            {"what": title, "figure": figure, "at_most": bound} for title, figure, bound in targets
        ],
    }


_ITEM_TITLES = {
    "graph": "the first stage's graph alone",
    "decide": "its decision: margins, stop score, threshold",
    "numpy": "the same decision where there is no onnxruntime",
    "answer": "`Device.answer`: all stages visited, label, probabilities, meter",
    "c99": "the whole decision in generated C, through cffi",
    "python": "the trees walked in Python, features acquired node by node",
}


_PROCESS_TITLES = {
    "nothing": "an interpreter alone",
    "import": "onnxruntime, paho, cbor2 and `gatewise_edge` imported",
    "serve letters-64kb": "`gatewise edge`, 1000 instances of `letters-64kb`, with a broker",
    "serve letters": "`gatewise edge`, 1000 instances of `letters`, with a broker",
}


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page from the content of edge.json."""
    settings = results["settings"]
    return [
        "# What a decision on the device costs",
        "",
        "`make bench-edge` writes this page from the figures in `edge.json`. One process with one "
        "thread takes the test rows of Letters one at a time. Figures are medians over "
        f"{settings['rounds']} rounds, each of which makes {settings['calls']} calls of every item "
        "in turn. The no-op is a graph of one Identity node, which `session.run` of onnxruntime "
        "runs.",
        *(["", "This was a quick run."] if results["quick"] else []),
        "",
        *harness.column_table(TARGET_COLUMNS, results["targets"]),
        "",
        *harness.column_table(ITEM_COLUMNS, _list_named(results["items"])),
        "",
        *harness.column_table(MODEL_COLUMNS, _list_named(results["models"])),
        "",
        *harness.column_table(PROCESS_COLUMNS, _list_named(results["processes"])),
        *(
            line
            for name, reason in results["skipped"].items()
            for line in ("", f"Left out: `{name}`: {reason}")
        ),
    ]


def _list_named(figures_by_name: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add the names to the figures, as the field ``name``."""
    return [{"name": name, **figures} for name, figures in figures_by_name.items()]


def _write_verdict(target: Mapping[str, Any]) -> str:
    return "met" if target["figure"] <= target["at_most"] else "missed"


def _write_item_title(name: str) -> str:
    """Write the title of an item, which is named by its model and by what is timed."""
    _, _, timed_name = name.partition(" ")
    return _ITEM_TITLES.get(timed_name, "the no-op graph")


def _write_process_title(mode: str) -> str:
    title_key, _, runner = mode.partition(", ")
    return _PROCESS_TITLES[title_key] + (f", runner {runner}" if runner else "")


TARGET_COLUMNS = (
    Column("target", lambda target: target["what"]),
    Column("", lambda target: f"{target['figure']:g}"),
    Column("at most", lambda target: f"{target['at_most']:g}"),
    Column("", _write_verdict),
)
ITEM_COLUMNS = (
    Column("model", lambda item: f"`{item['name'].partition(' ')[0]}`"),
    Column("item", lambda item: _write_item_title(item["name"])),
    Column("us", lambda item: f"{item['us']:.1f}"),
    Column("no-ops", lambda item: f"{item['noops']:.2f}"),
)
MODEL_COLUMNS = (
    Column("model", lambda model: f"`{model['name']}`"),
    Column("", lambda model: model["title"]),
    Column("stages", lambda model: str(model["stages"])),
    Column("flat bytes", lambda model: f"{model['flat_bytes']:,}"),
    Column("file bytes", lambda model: f"{model['file_bytes']:,}"),
    Column("stop at stage 0", lambda model: f"{model['first_stage_stops']:.1%}"),
    Column("offloaded", lambda model: f"{model['offload_rate']:.1%}"),
    Column("accuracy", lambda model: f"{model['accuracy']:.4f}"),
)
PROCESS_COLUMNS = (
    Column("process", lambda process: _write_process_title(process["name"])),
    Column("imported after s", lambda process: f"{process['seconds']:.2f}"),
    Column("CPU s", lambda process: f"{process['cpu']:.2f}"),
    Column("MB resident", lambda process: f"{process['rss_mb']:.0f}"),
    Column("MB at most", lambda process: f"{process['peak_mb']:.0f}"),
)


BENCHMARK = harness.Benchmark(
    name="edge", quick_help="few rows and rounds", packages=PACKAGES, measure=measure, page=page
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
