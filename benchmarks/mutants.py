"""Mutation tests: change one operator or constant of a module, and run the tests of the module.

Each mutant runs in a forked process that loads the changed module. Only the mirrored test file and
the examples in the module run. The operators come from cosmic-ray. A mutant that survives is a
boundary without a test, or an equivalent program.

    python -m benchmarks.mutants                          # 10 mutants per module
    python -m benchmarks.mutants --each 40 breaker offload   # more mutants of two modules
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: A mutant that runs longer counts as killed, because a change can make a loop endless. The command
#: fails if the tests of an unchanged module run longer.
TIMEOUT_S = 120

#: Maps a module to its mirrored tests; paths are relative to the repository.
TARGETS = {
    "gatewise/decision.py": "tests/gatewise/test_decision.py",
    "gatewise/costs.py": "tests/gatewise/test_costs.py",
    "gatewise/acquisition.py": "tests/gatewise/test_acquisition.py",
    "signals/gatewise_signals/windows.py": "tests/signals/test_windows.py",
    "training/gatewise_training/adapt/qstep.py": "tests/training/adapt/test_qstep.py",
    "training/gatewise_training/adapt/m_step.py": "tests/training/adapt/test_steps.py",
    "training/gatewise_training/forests/grower/minimax_split.py": (
        "tests/training/forests/grower/test_minimax_split.py"
    ),
    "training/gatewise_training/operating_points/thresholds.py": (
        "tests/training/operating_points/test_thresholds.py"
    ),
    "training/gatewise_training/operating_points/cascade_record.py": (
        "tests/training/operating_points/test_thresholds.py"
    ),
    "training/gatewise_training/operating_points/frontier.py": (
        "tests/training/operating_points/test_frontier.py"
    ),
    "training/gatewise_training/operating_points/guarantee.py": (
        "tests/training/operating_points/test_guarantee.py"
    ),
    "training/gatewise_training/prune/path.py": "tests/training/prune/test_path.py",
    "training/gatewise_training/prune/solvers/mincut.py": "tests/training/prune/test_solvers.py",
    "training/gatewise_training/prune/solvers/flow_network.py": (
        "tests/training/prune/test_push_relabel.py"
    ),
    "training/gatewise_training/prune/solvers/push_relabel.py": (
        "tests/training/prune/test_push_relabel.py"
    ),
    "export/gatewise_export/c99/layout.py": "tests/export/c99/test_layout.py",
    "edge/gatewise_edge/link/breaker.py": "tests/edge/link/test_breaker.py",
    "edge/gatewise_edge/link/offload.py": "tests/edge/link/test_offload.py",
    "edge/gatewise_edge/link/encoding.py": "tests/edge/link/test_encoding.py",
    "edge/gatewise_edge/link/messages.py": "tests/edge/link/test_messages.py",
    "edge/gatewise_edge/update/state.py": "tests/edge/update/test_state.py",
    "edge/gatewise_edge/update/store.py": "tests/edge/update/test_store.py",
    "edge/gatewise_edge/update/trial.py": "tests/edge/update/test_trial.py",
    "cloud/gatewise_cloud/worker/batcher.py": "tests/cloud/worker/test_batcher.py",
    "cloud/gatewise_cloud/broker/abort_limits.py": "tests/cloud/broker/test_rollout.py",
    "cloud/gatewise_cloud/broker/comparison.py": "tests/cloud/broker/test_comparison.py",
    "cloud/gatewise_cloud/broker/rollout.py": "tests/cloud/broker/test_rollout.py",
    "cloud/gatewise_cloud/broker/rollout_report.py": "tests/cloud/broker/test_rollout_report.py",
}

#: Modules whose mutants run uncompiled, because compilation takes longer than their tests, and also
#: under slow tests, because the pruner has no others.
UNCOMPILED = frozenset(
    f"training/gatewise_training/{path}"
    for path in (
        "forests/grower/minimax_split.py",
        "prune/path.py",
        "prune/solvers/mincut.py",
        "prune/solvers/flow_network.py",
        "prune/solvers/push_relabel.py",
    )
)

#: Operators of cosmic-ray that change boundaries, signs, constants and conditions.
OPERATORS = tuple(
    f"core/{name}"
    for name in (
        *(
            f"Replace{kind}Operator_{old}_{new}"
            for kind, first, second in (
                ("Comparison", "Lt", "LtE"),
                ("Comparison", "Gt", "GtE"),
                ("Comparison", "Eq", "NotEq"),
                ("Comparison", "Is", "IsNot"),
                ("Binary", "Add", "Sub"),
                ("Binary", "Mul", "Div"),
            )
            for old, new in ((first, second), (second, first))
        ),
        *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
        *("NumberReplacer", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
        *("ReplaceAndWithOr", "ReplaceOrWithAnd"),
    )
)


class Mutant(NamedTuple):
    """Single change to a module."""

    module: str
    operator: str
    line: int
    before: str
    after: str
    source: str


class _MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import finder and loader of one module from changed source."""

    def __init__(self, path: Path, source: str) -> None:
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.name = ".".join(parts if parts[0] == "gatewise" else parts[1:])
        self._path = path
        self._source = source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)


def mutants_of(module: str) -> list[Mutant]:
    """List all mutants of a module."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / module).read_text()
    mutants = []
    for name in OPERATORS:
        operator_instance = get_operator(name)()
        occurrence = 0
        while (mutated_source := mutate_code(source, operator_instance, occurrence)) is not None:
            occurrence += 1
            mutant = _compare(module, name, source, mutated_source)
            if mutant is not None:
                mutants.append(mutant)
    return mutants


def _compare(module: str, operator: str, source: str, mutated_source: str) -> Mutant | None:
    """Make a mutant with its changed line, or None if the change has no effect.

    A bare ``*`` in a signature is not a product, and settings of numba do not change results.
    """
    line_pairs = enumerate(zip(source.splitlines(), mutated_source.splitlines(), strict=False), 1)
    for number, (old_line, new_line) in line_pairs:
        if old_line != new_line:
            if old_line.replace("*,", "/,") == new_line or old_line.startswith("@numba"):
                return None
            return Mutant(
                module, operator, number, old_line.strip(), new_line.strip(), mutated_source
            )
    return None


def survives(mutant: Mutant, tests: str) -> bool:
    """Return whether the tests pass with the mutant; a mutant that hangs does not survive."""
    child_pid = os.fork()
    if child_pid == 0:
        os._exit(_run_tests(mutant, tests))
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child_pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)  # much shorter than the start of pytest, a second
    os.killpg(child_pid, signal.SIGKILL)
    os.waitpid(child_pid, 0)
    return False


def _run_tests(mutant: Mutant, tests: str) -> int:
    import pytest

    os.setpgrp()  # so that the timeout also ends the processes that the tests start
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    cache_folder = tempfile.mkdtemp()  # do not load compiled kernels of other mutants
    os.environ["NUMBA_CACHE_DIR"] = cache_folder
    if mutant.module in UNCOMPILED:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    finder = _MutantFinder(ROOT / mutant.module, mutant.source)
    sys.meta_path.insert(0, finder)
    try:
        # Import before pytest runs, because pytest loads modules with examples from the disk.
        importlib.import_module(finder.name)
        options = ["-x", "-q", "--doctest-modules"]
        options += [] if mutant.module in UNCOMPILED else ["-m", "not slow"]
        options += ["-p", "no:xdist", "-p", "no:cacheprovider"]
        return int(pytest.main([*options, str(ROOT / tests), str(ROOT / mutant.module)]))
    except Exception:  # the import of the module fails
        return 1
    finally:
        shutil.rmtree(cache_folder, ignore_errors=True)


def run_mutants(names: Sequence[str], n_each: int, seed: int) -> dict[str, Any]:
    """Run random mutants of each module; report the killed ones and the survivors."""
    modules: dict[str, Any] = {}
    for module, tests in TARGETS.items():
        if names and Path(module).stem not in names:
            continue
        mutants = mutants_of(module)
        drawn_mutants = random.Random(seed).sample(mutants, min(n_each, len(mutants)))
        unchanged_module = Mutant(module, "", 0, "", "", (ROOT / module).read_text())
        if not survives(unchanged_module, tests):
            raise SystemExit(f"{tests} fails without a mutant")
        survivors = [mutant for mutant in drawn_mutants if survives(mutant, tests)]
        modules[module] = {
            "mutants": len(mutants),
            "tried": len(drawn_mutants),
            "killed": len(drawn_mutants) - len(survivors),
            "survivors": [
                {key: getattr(mutant, key) for key in ("line", "operator", "before", "after")}
                for mutant in survivors
            ],
        }
        print(
            f"{module}: {len(drawn_mutants) - len(survivors)} of {len(drawn_mutants)} killed",
            flush=True,
        )
        for mutant in survivors:
            print(f"    {mutant.line}: {mutant.before}\n        -> {mutant.after}", flush=True)
    n_tried = sum(counts["tried"] for counts in modules.values())
    n_killed = sum(counts["killed"] for counts in modules.values())
    return {"seed": seed, "tried": n_tried, "killed": n_killed, "modules": modules}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="names of modules; default: all")
    parser.add_argument("--each", type=int, default=10, help="mutants per module")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = run_mutants(options.names, options.each, options.seed)
    print(f"{report['killed']} of {report['tried']} killed")
    if not options.names:
        (RESULTS / "mutants.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
