"""Size of cascades on Letters as C99 on three machines, and equality with Python.

    python -m benchmarks.c99.letters [--quick] [--out FOLDER]

The staged cascade is fitted on Letters, once with N-Z against A-M and once with 26 classes and a
bound of bytes. Two operating points are written as C. The first is the point that the system
chooses. The second is the 64 KB point, whose answering stages take at most 64 KB. It is the
cheapest point within 1 % of the accuracy of the high-cost model, or the most accurate point if
there is no such point. Its C leaves out the models of other stages.

On this machine and on aarch64 in qemu, every test row must have the same exit stage, label,
acquired features and output bits as in Python. For arm-none-eabi (Cortex-M4), the 64 KB points are
compiled and measured. Targets without a compiler are skipped with a message. The result is
c_letters.json. The exit status is 1 if any row differs.
"""

from __future__ import annotations

import copy
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.c99.compiled import STRICT_FLAGS, run_tool, section_sizes
from benchmarks.cache import code_version, write_whole
from benchmarks.comparison import peers
from benchmarks.data import problems
from benchmarks.data.folds import Fold
from gatewise.console import note
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.cascade_reader import cascade_of
from gatewise_export.c99.layout import ThresholdForm, lay_out
from gatewise_export.c99.writer import CSource, write_cascade
from gatewise_training import StagedCascade

#: Rows of ``--quick``: enough that each of 26 classes has training rows.
QUICK_ROWS = 1500
PACKAGES = ("numpy", "scikit-learn", "lightgbm", "numba")
#: Problems, names of cascades, and their bounds of bytes.
CASCADES = (
    ("letter-bin", "staged", None),
    ("letter-bin", "staged-64kb", 2**16),
    ("letter-26", "staged-64kb", 2**16),
    ("letter-26", "staged-8kb", 2**13),
)
#: Bound of the small operating point: a microcontroller with 64 KB of flash for the model.
MAX_BYTES = 2**16
#: Forms of thresholds in the C: floats, or codes of 8 or 16 bits.
FORMS: tuple[ThresholdForm, ...] = ("float", 8, 16)


@dataclass(frozen=True)
class Target:
    """Machine to build for."""

    name: str
    compiler: str
    package: str  # Debian packages of the compiler
    flags: tuple[str, ...] = ("-O2",)
    emulator: tuple[str, ...] = ()  # command, if needed
    has_system: bool = True  # whether an operating system can run programs

    def missing_tool(self) -> str | None:
        """Return a message about a missing tool, or None."""
        if shutil.which(self.compiler) is None:
            return f"{self.compiler} is not installed (apt install {self.package})"
        if self.emulator and shutil.which(self.emulator[0]) is None:
            return f"{self.emulator[0]} is not installed (apt install qemu-user-static)"
        return None


QEMU = "qemu-aarch64" if shutil.which("qemu-aarch64") else "qemu-aarch64-static"
TARGETS = (
    Target(platform.machine(), "cc", "gcc"),
    Target(
        "aarch64",
        "aarch64-linux-gnu-gcc",
        "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        ("-O2", "-static"),
        (QEMU,),
    ),
    Target(
        "arm-none-eabi",
        "arm-none-eabi-gcc",
        "gcc-arm-none-eabi libnewlib-arm-none-eabi",
        ("-Os", "-mcpu=cortex-m4", "-mthumb"),
        has_system=False,
    ),
)


def main(arguments: list[str] | None = None) -> int:
    """Measure all cascades; return 1 if a row differs from Python, otherwise 0."""
    parser = harness.parser("c_letters", __doc__, f"{QUICK_ROWS} rows, 64 KB only")
    options = parser.parse_args(arguments)
    skipped = {target.name: target.missing_tool() for target in TARGETS if target.missing_tool()}
    for name, message in skipped.items():
        note(f"skipped: {name}: {message}")
    about = {
        "quick": options.quick,
        "strict": STRICT_FLAGS,
        "skipped": skipped,
        **harness.environment(PACKAGES),
        "code": code_version("benchmarks.c99.letters"),
    }
    points = [
        point
        for problem, method, max_bytes in CASCADES
        if max_bytes is not None or not options.quick
        for point in _measure_cascade(problem, method, max_bytes, options.quick)
    ]
    path = harness.out_folder(options) / "c_letters.json"
    write_whole(path, json.dumps({"about": about, "cascades": points}, indent=1) + "\n")
    n_different = sum(
        sizes.get("rows_that_differ", 0)
        for point in points
        for form in point["forms"]
        for sizes in form["targets"]
    )
    note(f"wrote {path}; {n_different} rows differ from Python")
    return 1 if n_different else 0


def _measure_cascade(
    problem_name: str, method: str, max_bytes: int | None, quick: bool
) -> list[dict[str, Any]]:
    """Fit one cascade, then measure its two points."""
    problem = problems.get(problem_name)
    (fold,) = problem.make_folds(0)
    fold = fold.sample(QUICK_ROWS) if quick else fold
    system: Any = StagedCascade(
        feature_costs=problem.costs,
        max_loss=peers.MAX_LOSS,
        max_bytes=max_bytes,
        random_state=0,
    )
    system.fit(*fold.train, validation=fold.validation)
    points: list[dict[str, Any]] = []
    for is_small in (False, True):
        point_system = _within_bytes(system) if is_small else system
        settings = {"problem": problem_name, "method": method, "small": is_small}
        if point_system is None:
            note(f"{settings}: no operating point fits into {MAX_BYTES} B")
        else:
            points.append(settings | _measure_point(point_system, fold, is_small))
            note(str(points[-1]))
    return points


def _within_bytes(system: Any) -> Any:
    """Select the best operating point within MAX_BYTES; return None if no point fits."""
    small_points = [
        point for point in system.frontier_.points if 0 < (point.bytes or point.nbytes) <= MAX_BYTES
    ]
    if not small_points:
        return None
    min_accuracy = system.frontier_.reference_accuracy - peers.MAX_LOSS
    accurate_points = [point for point in small_points if point.accuracy >= min_accuracy]
    small_system = copy.copy(system)
    small_system.operating_point_ = (
        min(accurate_points, key=lambda point: point.cost)
        if accurate_points
        else max(small_points, key=lambda point: point.accuracy)
    )
    return small_system


def _measure_point(system: Any, fold: Fold, is_small: bool) -> dict[str, Any]:
    """Measure an operating point in every form of its C on every machine."""
    rows, classes = fold.test
    cascade = cascade_of(system, sample=rows, lean=is_small)
    has_trees = bool(lay_out(cascade, None).forests)
    return {
        "stages": [
            type(stage.model).__name__ if has_model else "left out"
            for stage, has_model in zip(cascade.stages, cascade.stage_has_model, strict=True)
        ],
        "flat_bytes": system.operating_point_.nbytes,
        "test_rows": len(rows),
        "accuracy": float(np.mean(system.predict(rows) == classes)),
        "offload_rate": float(np.mean(system.exit_stage(rows) == len(cascade.stages))),
        "mean_cost": float(system.cost(rows).mean()),
        # without trees there are no thresholds to encode
        "forms": [
            _measure_form(cascade, is_small, form) for form in (FORMS if has_trees else FORMS[:1])
        ],
    }


def _measure_form(cascade: Cascade, is_small: bool, form: ThresholdForm) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            source = write_cascade(cascade, Path(folder), coded=form, name="letters")
        except ConversionError as error:
            return {"coded": form, "refused": str(error), "targets": []}
        return {
            "coded": source.coded,
            "table_bytes": source.table_bytes,
            "instance_bytes": source.instance_bytes,
            "stack_bytes": source.stack_bytes,
            "targets": [
                _compile_and_run(target, source)
                for target in TARGETS
                if target.missing_tool() is None and (target.has_system or is_small)
            ],
        }


def _compile_and_run(target: Target, source: CSource) -> dict[str, Any]:
    """Compile the model; return section sizes, stack frames and, if it runs, its differences."""
    command = [target.compiler, *STRICT_FLAGS, *target.flags]
    model = f"{source.name}.c"
    run_tool(source.folder, *command, "-fstack-usage", "-c", "-o", "model.o", model)
    text, data, bss = section_sizes(target.compiler, source.folder / "model.o")
    usage_file = next(source.folder.glob("*.su"))
    frames = sum(int(line.split("\t")[1]) for line in usage_file.read_text().splitlines())
    usage_file.unlink()
    figures = {"target": target.name, "text": text, "data": data, "bss": bss, "frames": frames}
    if not target.has_system:
        return figures
    further_files = [f"{source.name}_{suffix}.c" for suffix in ("names", "selftest")]
    run_tool(source.folder, *command, "-o", "example", model, "main.c", *further_files, "-lm")
    # the self-test compares exits, labels, acquired features and output bits of all test rows; it
    # exits with status 1 if some differ
    example = [*target.emulator, "./example"]
    output = subprocess.run(
        example, cwd=source.folder, capture_output=True, text=True, check=False
    ).stdout
    counts = re.search(r"(\d+) of (\d+) rows differ", output)
    assert counts is not None, output
    return figures | {"rows": int(counts[2]), "rows_that_differ": int(counts[1])}


if __name__ == "__main__":
    sys.exit(main())
