"""Measure the size of C code for signal features, and compare the features with Python's.

    python -m benchmarks.c99.signals [--quick] [--only movement,sound] [--out FOLDER]

Each set of :mod:`benchmarks.data.signal_sets` has its standard blocks, which compute features of
windows, and two stages of LightGBM trees. The first stage uses the first half of the blocks and
answers half of the rows. The second stage uses all blocks. The C code runs on this machine, and on
aarch64 and a Cortex-M4 (arm-none-eabi) in qemu, with windows that no tree was trained on.

All features must equal those of Python within the bound of the self-test. A value that is near a
threshold may then change a decision; such windows are counted. Without a compiler a machine is
skipped, and without an emulator only the sizes are measured; a message says so. The result is
c_signals.json. The exit status is 1 if a feature exceeds the bound.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.c99.compiled import (
    CORTEX_M4_EMULATOR,
    CORTEX_M4_LINK_FLAGS,
    STRICT_FLAGS,
    VECTOR_TABLE,
    max_stack_bytes,
    run_tool,
    section_sizes,
)
from benchmarks.c99.letters import TARGETS, Target
from benchmarks.cache import write_whole
from benchmarks.data.signal_sets import SIGNAL_SETS, SignalSet, load_set
from gatewise.decision import split_outputs
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.signals.signal_writer import MAX_RELATIVE_ERROR
from gatewise_export.c99.writer import CSource, write_cascade
from gatewise_signals import SignalGraph
from gatewise_signals.signal_input import SignalInput

#: Number of windows that each machine answers, without and with ``--quick``.
N_WINDOWS = 400
N_QUICK_WINDOWS = 60
#: Number of training windows; more would not change the size of these small trees in C.
N_TRAINING_WINDOWS = 1500
#: Number of self-test rows embedded in the C code.
N_SAMPLE_ROWS = 32
PACKAGES = ("numpy", "lightgbm")
#: Writes exit, label and features of each window as floats; :func:`_read_answers` reads them.
PROGRAM = """\
#include "m.h"
#include "m_signals.h"
#include <stdio.h>
int main(void)
{
    static m_signals signals;
    static m_instance instance;
    static ${element} window[${size}];
    m_answer answer;
    FILE *in = fopen("windows.bin", "rb"), *out = fopen("answers.bin", "wb");
    int i;
    while (in && out && fread(window, sizeof window, 1, in)) {
        float value;
        m_signals_start(&signals, window);
        m_decide(&instance, m_signals_acquire, &signals, &answer);
        value = (float)answer.exit;
        fwrite(&value, sizeof value, 1, out);
        value = (float)answer.label;
        fwrite(&value, sizeof value, 1, out);
        for (i = 0; i < ${n_features}; i++) {
            value = m_signals_acquire(i, &signals);
            fwrite(&value, sizeof value, 1, out);
        }
    }
    return !in || !out || fclose(out);
}
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure all sets; return 1 if a feature exceeds the bound, otherwise 0."""
    parser = harness.parser("c_signals", __doc__, f"{N_QUICK_WINDOWS} windows", SIGNAL_SETS)
    options = parser.parse_args(arguments)

    def run() -> int:
        names = harness.chosen_parts(options, SIGNAL_SETS)
        for target in TARGETS:
            if target.missing_tool():
                print(f"skipped: {target.name}: {target.missing_tool()}")
        n_windows = N_QUICK_WINDOWS if options.quick else N_WINDOWS
        sets = {name: _measure_set(load_set(name), n_windows) for name in names}
        figures = {"bound": MAX_RELATIVE_ERROR, **harness.environment(PACKAGES), "sets": sets}
        out = harness.out_folder(options, is_partial=set(names) != set(SIGNAL_SETS))
        write_whole(out / "c_signals.json", json.dumps(figures, indent=1) + "\n")
        print(f"written: {out / 'c_signals.json'}")
        return int(any(_exceeds_bound(set_figures) for set_figures in sets.values()))

    return harness.run_command(run)


def _exceeds_bound(set_figures: dict[str, Any]) -> bool:
    return any(
        target_figures.get("exceeds_bound") for target_figures in set_figures["targets"].values()
    )


def _measure_set(signal_set: SignalSet, max_windows: int) -> dict[str, Any]:
    """Fit a cascade of two stages to a set, and measure its C code on every machine."""
    cascade, windows = _fit_cascade(signal_set, max_windows)
    with tempfile.TemporaryDirectory() as folder:
        source = write_cascade(cascade, Path(folder), name="m", coded=8)  # the smallest tables
        assert source.signals is not None
        blocks = source.signals
        print(
            f"{signal_set.name}: {blocks.n_steps} steps, {blocks.n_features} features; tables "
            f"{blocks.table_bytes} B, results {blocks.struct_bytes} B, "
            f"stack at most {blocks.stack_bytes} B"
        )
        targets = {
            target.name: _compile_and_run(target, source, cascade, windows)
            for target in TARGETS
            if target.missing_tool() is None
        }
    for name, target_figures in targets.items():
        print(f"    {name}: {', '.join(f'{key} {n}' for key, n in target_figures.items())}")
    size_names = ("n_steps", "n_features", "table_bytes", "struct_bytes", "stack_bytes")
    return {name: getattr(blocks, name) for name in size_names} | {"targets": targets}


def _fit_cascade(signal_set: SignalSet, max_windows: int) -> tuple[Cascade, NDArray[Any]]:
    """Fit the cascade on the training windows of the first split; also return its test windows."""
    graph = SignalGraph(signal_set.blocks)
    signal = SignalInput(graph, signal_set.windows.shape[1:], signal_set.windows.dtype.name)
    train, test = signal_set.splits(1)[0]
    rng = np.random.default_rng(0)
    train = rng.permutation(train)[:N_TRAINING_WINDOWS]
    test = np.sort(rng.permutation(test)[:max_windows])
    train_feature_rows = signal.features(signal_set.windows[train])
    windows = signal_set.windows[test]
    feature_rows = signal.features(windows)
    stages = []
    thresholds = []
    n_first_features = graph.columns(len(graph.blocks) // 2).start
    for stage_features in (np.arange(n_first_features), np.arange(len(graph.feature_names))):
        model = LGBMClassifier(n_estimators=30, num_leaves=8, n_jobs=1, verbose=-1)
        model.fit(train_feature_rows[:, stage_features], signal_set.y[train])
        trees = TreeEnsemble.from_lightgbm(model.booster_)
        stages.append(Stage(trees, stage_features, "softmax"))
        scores = split_outputs(stages[-1].margins(feature_rows), "margin")[1]
        thresholds.append(float(np.median(scores)))  # a stage answers half of the rows
    cascade = Cascade(
        title=signal_set.name,
        stages=tuple(stages),
        thresholds=tuple(thresholds),
        rows=feature_rows[:N_SAMPLE_ROWS],
        feature_names=graph.feature_names,
        classes=tuple(np.unique(signal_set.y).tolist()),
        takes_missing=True,
        offloads=True,
        cloud_takes_missing=True,
        signal=signal,
        windows=windows[:N_SAMPLE_ROWS],
    )
    return cascade, windows


def _compile_and_run(
    target: Target, source: CSource, cascade: Cascade, windows: NDArray[Any]
) -> dict[str, Any]:
    """Compile the C code; return its sizes and, if it runs, how its answers differ."""
    folder = source.folder
    command = [target.compiler, *STRICT_FLAGS, *target.flags]
    sizes = _measure_sizes(target, folder, command)
    link_flags, emulator = ["-lm"], list(target.emulator)
    if not target.has_system:
        link_flags, emulator = [*CORTEX_M4_LINK_FLAGS, "vectors.c", "-lm"], list(CORTEX_M4_EMULATOR)
        (folder / "vectors.c").write_text(VECTOR_TABLE)
    if emulator and shutil.which(emulator[0]) is None:
        print(f"skipped: {target.name} does not run: {emulator[0]} is not installed")
        return sizes
    further_files = [
        f"m{suffix}.c" for suffix in ("_names", "_selftest", "_signals", "_signals_selftest")
    ]
    run_tool(folder, *command, "-o", "example", "m.c", "main.c", *further_files, *link_flags)
    run_tool(folder, *emulator, "./example")  # the self-tests
    n_features = len(cascade.feature_names)
    element_type = {"int16": "int16_t", "uint8": "uint8_t"}.get(windows.dtype.name, "float")
    placeholders = {"element": element_type, "size": windows[0].size, "n_features": n_features}
    (folder / "answers.c").write_text(Template(PROGRAM).substitute(placeholders))
    run_tool(folder, *command, "-o", "answers", "answers.c", "m.c", "m_signals.c", *link_flags)
    (folder / "windows.bin").write_bytes(windows.tobytes())
    run_tool(folder, *emulator, "./answers")
    return sizes | _compare(cascade, windows, *_read_answers(folder / "answers.bin", n_features))


def _measure_sizes(target: Target, folder: Path, command: list[str]) -> dict[str, int]:
    """Compile the blocks alone; return their section sizes and stack."""
    run_tool(folder, *command, "-fcallgraph-info=su", "-c", "-o", "blocks.o", "m_signals.c")
    text, data, bss = section_sizes(target.compiler, folder / "blocks.o")
    call_graph_file = next(folder.glob("*.ci"))
    stack = max_stack_bytes(call_graph_file.read_text())
    call_graph_file.unlink()  # the next target writes its own
    return {"text": text, "data": data, "bss": bss, "stack": stack}


def _read_answers(
    path: Path, n_features: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Read the exits, labels and features that PROGRAM has written."""
    answers = np.fromfile(path, np.float32).reshape(-1, 2 + n_features)
    return answers[:, 0], answers[:, 1], answers[:, 2:]


def _compare(
    cascade: Cascade,
    windows: NDArray[Any],
    exits: NDArray[np.float32],
    labels: NDArray[np.float32],
    features: NDArray[np.float32],
) -> dict[str, Any]:
    """Compare features and decisions with Python; count the windows that differ."""
    assert cascade.signal is not None
    expected_features = cascade.signal.features(windows)
    expected = cascade.expected_answers(expected_features)
    relative_errors = _relative_errors(features, expected_features)
    exceeds_bound = (relative_errors > MAX_RELATIVE_ERROR).any(axis=1)
    has_other_decision = (exits != expected.exits) | (labels != expected.labels)
    return {
        "windows": len(windows),
        "exceeds_bound": int(exceeds_bound.sum()),
        "other_decisions": int((has_other_decision & ~exceeds_bound).sum()),
        "max_relative_error": float(f"{relative_errors.max():.2g}"),
        "bit_equal_share": round(float((relative_errors == 0).mean()), 3),
    }


def _relative_errors(
    features: NDArray[np.float32], expected_features: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Compute errors relative to the largest absolute value that Python has for the feature.

    They are 0 for equal or equally missing values, and infinite if only one value is missing.
    """
    scales = np.max(
        np.abs(expected_features), axis=0, initial=0, where=np.isfinite(expected_features)
    )
    with np.errstate(invalid="ignore"):
        # 1e-30 avoids 0 / 0 for a feature that is always 0
        errors = np.abs(features - expected_features) / np.maximum(scales, np.float32(1e-30))
    is_equal = features == expected_features
    errors[is_equal | (np.isnan(features) & np.isnan(expected_features))] = 0
    errors[np.isnan(errors)] = np.inf
    return errors


if __name__ == "__main__":
    sys.exit(main())
