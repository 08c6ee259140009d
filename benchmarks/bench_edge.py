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
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.data import problems
from benchmarks.edge import process as edge_process
from benchmarks.edge.models import Model, make_models
from gatewise.console import note
from gatewise.errors import GatewiseError, InputError
from gatewise_edge import Device
from gatewise_edge.device.stages import DeviceStage, StageOutput, load_stages
from gatewise_edge.sensors.feature_reader import Meter, Reading

PACKAGES = ("gatewise", "numpy", "onnxruntime", "paho-mqtt")
NOOP = "noop"
#: Item, reference item (None for microseconds), and the maximum of the ratio or the figure.
TARGETS: tuple[tuple[str, str | None, float], ...] = (
    ("trees-50 decide", NOOP, 2.0),
    ("trees-50 answer", None, 15.0),
    ("trees-50 c99", None, 3.0),
)
IMPORT_SECONDS, RESIDENT_MB = 0.6, 80.0

Call = Callable[[], object]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time all items in rounds, then new processes."""
    rounds, calls = (7, 100) if options.quick else (41, 300)
    problems.get("letter-bin")  # report a missing data file before the fits
    with tempfile.TemporaryDirectory() as folder:
        models = make_models(Path(folder), options.quick)
        for name, model in models.items():
            note(f"{name}: {model.about}")
        items, skipped = _items(models, Path(folder))
        runs = timed(items, rounds, calls)
        processes = _processes(models, Path(folder), 2 if options.quick else 7)
    return document(runs, models, processes, skipped, calls=calls)


# -- what is timed -----------------------------------------------------------------------------


def _items(models: Mapping[str, Model], folder: Path) -> tuple[dict[str, Call], dict[str, str]]:
    """Calls to time, by item, and the reason for each item that cannot run."""
    items: dict[str, Call] = {NOOP: _noop()}
    skipped: dict[str, str] = {}
    for name, model in models.items():
        if name == "lazy-50":
            items[f"{name} python"] = _visit(model)
        else:
            items[f"{name} graph"] = _graph(model)
            items[f"{name} decide"] = _decide(model, "onnxruntime")
            items[f"{name} numpy"] = _decide(model, "numpy")
        items[f"{name} answer"] = _answer(model)
        try:
            items[f"{name} c99"] = _c99(name, model, folder)
        except (GatewiseError, ImportError) as error:
            skipped[f"{name} c99"] = str(error)
    return items, skipped


def _noop() -> Call:
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


def _first_stage(model: Model, stage: DeviceStage) -> list[NDArray[np.float32]]:
    return list(np.ascontiguousarray(model.rows[:, stage.inputs]))


def _graph(model: Model) -> Call:
    """Run the graph of the first stage without a decision."""
    stage = load_stages(model.bundle, "onnxruntime")[0]
    rows = cycle(_first_stage(model, stage))
    return lambda: stage.model.run_row(next(rows))


def _decide(model: Model, kind: Any) -> Call:
    """Compute margins and stop score of the first stage, and compare with its threshold."""
    stage = load_stages(model.bundle, kind)[0]
    rows = cycle(_first_stage(model, stage))
    return lambda: StageOutput(stage, stage.model.run_row(next(rows))).stops


def _visit(model: Model) -> Call:
    """Walk the trees of the first stage and acquire features of a row node by node."""
    stage = load_stages(model.bundle)[0]
    meter = Meter(model.bundle.manifest.feature_costs())
    rows = cycle(model.rows)

    def call() -> object:
        reading = Reading(next(rows), meter, lambda: 1.0)
        return stage.run_instance(reading, allow_missing=False).stops

    return call


def _answer(model: Model) -> Call:
    """Answer instances on the device with all stages, label and cost, but without a cloud."""
    device, rows = Device(model.bundle), cycle(model.rows)
    return lambda: device.answer(next(rows))


def _c99(name: str, model: Model, folder: Path) -> Call:
    """Decide in generated C, through cffi."""
    from benchmarks.c99.compiled import build
    from gatewise_export.c99.cascade_reader import cascade_of
    from gatewise_export.c99.writer import write_cascade

    c_name = "m_" + name.replace("-", "_")
    (folder / c_name).mkdir()
    source = write_cascade(cascade_of(model.bundle), folder / c_name, name=c_name)
    (compiled,) = build([(source, [stage.outputs for stage in model.bundle.manifest.stages])])
    if compiled.selftest():
        raise InputError(f"{name}: C answers its sample rows differently from Python")
    outcome = compiled.ffi.new("int32_t[5]")
    rows = cycle([compiled.ffi.from_buffer("float[]", row) for row in model.rows])

    # The closure keeps `compiled` alive, because its library is unloaded with it.
    def call(one: Any = compiled.answer_row) -> object:
        return one(next(rows), outcome), compiled

    return call


# -- measuring ---------------------------------------------------------------------------------


def timed(items: Mapping[str, Call], rounds: int, calls: int) -> dict[str, list[float]]:
    """Mean microseconds per call of each item, one value per round."""
    runs: dict[str, list[float]] = {name: [] for name in items}
    clock = time.perf_counter_ns
    for turn in range(rounds + 1):
        for name, call in items.items():
            started = clock()
            for _ in range(calls):
                call()
            if turn:  # the first round warms up
                runs[name].append((clock() - started) / calls / 1000.0)
    return runs


def _processes(models: Mapping[str, Model], folder: Path, runs: int) -> dict[str, dict[str, float]]:
    """Start-up time and memory of new processes, with a broker if mosquitto is installed."""
    from gatewise_cloud.broker.broker import MosquittoBroker, find_mosquitto

    model = models["letters"]
    table = folder / "rows.csv"
    names = ",".join(model.bundle.manifest.feature_names)
    np.savetxt(table, model.rows[:1000], "%g", ",", header=names, comments="")
    settings = folder / "settings.toml"
    settings.write_text('runner = "numpy"\n')
    modes: dict[str, list[str]] = {"nothing": [], "import": []}
    for name in ("letters-64kb", "letters"):
        path = str(models[name].bundle.path)
        modes[f"serve {name}"] = [path, "--data", str(table), "--deadline-ms", "50"]
        modes[f"serve {name}, numpy"] = [*modes[f"serve {name}"], "--settings", str(settings)]
    samples: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}

    def measure_all(broker_options: list[str]) -> None:
        for _ in range(runs):
            for mode, arguments in modes.items():
                options = broker_options if arguments else []
                sample = edge_process.measure(mode.split()[0], arguments + options)
                samples[mode].append(sample)

    if find_mosquitto() is None:
        measure_all([])
    else:
        with MosquittoBroker() as broker:
            measure_all(["--broker", broker.url])
    return {
        mode: {
            "seconds": round(median(f["seconds"] for f in mode_samples), 3),
            "cpu": round(median(f["cpu"] for f in mode_samples), 3),
            "rss_mb": round(median(f["rss"] for f in mode_samples) / 1e6, 1),
            "peak_mb": round(median(f["peak"] for f in mode_samples) / 1e6, 1),
        }
        for mode, mode_samples in samples.items()
    }


# -- figures -----------------------------------------------------------------------------------


def document(
    runs: Mapping[str, Sequence[float]],
    models: Mapping[str, Model],
    processes: Mapping[str, Mapping[str, float]],
    skipped: Mapping[str, str],
    *,
    calls: int,
) -> dict[str, Any]:
    """Medians, ratios to the no-op graph, settings and targets."""
    rounds = len(runs[NOOP])
    items = {
        name: {
            "us": round(median(us), 2),
            "us_quartiles": [round(float(q), 2) for q in np.quantile(us, [0.25, 0.75])],
            "noops": round(median(a / b for a, b in zip(us, runs[NOOP], strict=True)), 3),
        }
        for name, us in runs.items()
    }
    targets = []
    for name, against, bound in TARGETS:
        if name in items:
            figure = items[name]["us" if against is None else "noops"]
            title = f"us of `{name}`" if against is None else f"`{name}` / `{against}`"
            targets.append({"what": title, "figure": figure, "at_most": bound})
    targets += [
        {
            "what": "seconds until everything is imported",
            "figure": processes["import"]["seconds"],
            "at_most": IMPORT_SECONDS,
        },
        {
            "what": "MB resident after 1000 instances of `letters-64kb`, with a broker",
            "figure": processes["serve letters-64kb"]["rss_mb"],
            "at_most": RESIDENT_MB,
        },
        {
            "what": "the same with the runner numpy",
            "figure": processes["serve letters-64kb, numpy"]["rss_mb"],
            "at_most": RESIDENT_MB,
        },
    ]
    return {
        "settings": {"rounds": rounds, "calls": calls, "rows": "letter-bin, test", "threads": 1},
        "models": {name: {"title": m.title} | m.about for name, m in models.items()},
        "items": items,
        "processes": processes,
        "skipped": dict(skipped),
        "targets": targets,
    }


_ITEM_TITLES = {
    "graph": "the first stage's graph alone",
    "decide": "its decision: margins, stop score, threshold",
    "numpy": "the same decision where there is no onnxruntime",
    "answer": "`Device.answer`: all stages visited, label, probabilities, meter",
    "c99": "the whole decision in generated C, through cffi",
    "python": "the trees walked in Python, features acquired node by node",
}


def page(results: Mapping[str, Any]) -> list[str]:
    """Lines of the page, from the content of edge.json."""
    settings = results["settings"]
    lines = [
        "# What a decision on the device costs",
        "",
        f"Made by `make bench-edge`; the figures are in `edge.json`. Letters' test rows, one at a "
        f"time, one thread; medians over {settings['rounds']} rounds of {settings['calls']} calls "
        "of each item in turn, in one process. The no-op is onnxruntime's graph of one Identity "
        "node, by `session.run`.",
        *(["", "A quick look, not a result."] if results["quick"] else []),
        "",
        "| target | | at most | |",
        "| --- " * 4 + "|",
    ]
    for row in results["targets"]:
        met = "met" if row["figure"] <= row["at_most"] else "missed"
        lines.append(f"| {row['what']} | {row['figure']:g} | {row['at_most']:g} | {met} |")
    lines += ["", "| model | item | us | no-ops |", "| --- " * 4 + "|"]
    for name, item in results["items"].items():
        model, _, item_name = name.partition(" ")
        title = _ITEM_TITLES.get(item_name, "the no-op graph")
        lines.append(f"| `{model}` | {title} | {item['us']:.1f} | {item['noops']:.2f} |")
    lines += [
        "",
        "| model | | stages | flat bytes | file bytes | stop at stage 0 | offloaded | accuracy |",
        "| --- " * 8 + "|",
    ]
    for name, m in results["models"].items():
        rates = f"{m['first_stage_stops']:.1%} | {m['offload_rate']:.1%} | {m['accuracy']:.4f}"
        sizes = f"{m['stages']} | {m['flat_bytes']:,} | {m['file_bytes']:,}"
        lines.append(f"| `{name}` | {m['title']} | {sizes} | {rates} |")
    lines += ["", "| process | imported after s | CPU s | MB resident | MB at most |"]
    lines += ["| --- " * 5 + "|"]
    titles = {
        "nothing": "an interpreter alone",
        "import": "onnxruntime, paho, cbor2 and `gatewise_edge` imported",
        "serve letters-64kb": "`gatewise edge`, 1000 instances of `letters-64kb`, with a broker",
        "serve letters": "`gatewise edge`, 1000 instances of `letters`, with a broker",
    }
    for mode, row in results["processes"].items():
        figures = f"{row['seconds']:.2f} | {row['cpu']:.2f} | {row['rss_mb']:.0f}"
        figures += f" | {row['peak_mb']:.0f}"
        served, _, runner = mode.partition(", ")
        title = titles[served] + (f", runner {runner}" if runner else "")
        lines.append(f"| {title} | {figures} |")
    for name, why in results["skipped"].items():
        lines += ["", f"Left out: `{name}`: {why}"]
    return lines


BENCHMARK = harness.Benchmark(
    name="edge", quick_help="few rows and rounds", packages=PACKAGES, measure=measure, page=page
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
