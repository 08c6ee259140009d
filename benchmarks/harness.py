"""Command line, environment record, subprocesses and page tables of all benchmarks."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.cache import CACHE, write_whole
from gatewise.console import as_json_value, note
from gatewise.errors import GatewiseError, InputError

RESULTS = Path(__file__).parent / "results"
#: Environment of a process whose libraries use one thread.
SINGLE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

#: Maps the key of a figure to its title, "at most" or "at least", and the bound.
Targets = Mapping[str, tuple[str, str, float]]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Command that measures, then writes NAME.json and the page NAME.md.

    The first line of the docstring of the module of `measure` is the help text.

    Parameters
    ----------
    name : str
        Name of the two files.
    quick_help : str
        Help text of ``--quick``.
    packages : sequence of str
        Packages whose versions the results record.
    measure : callable
        Takes the options and returns the figures.
    page : callable
        Takes the figures, machine and versions, and returns the lines of the page.
    parts : sequence of str
        Names of the parts that ``--only`` can select.
    options : dict
        Further options: arguments of ``add_argument`` by the name of the option.
    is_partial : callable
        Whether a run with these options must not replace the committed files.
    """

    name: str
    quick_help: str
    packages: Sequence[str]
    measure: Callable[[argparse.Namespace], dict[str, Any]]
    page: Callable[[Mapping[str, Any]], list[str]]
    parts: Sequence[str] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_partial: Callable[[argparse.Namespace], bool] = lambda _options: False

    def parser(self) -> argparse.ArgumentParser:
        """Make the options of the command."""
        description = sys.modules[self.measure.__module__].__doc__
        options = parser(f"bench_{self.name}", description, self.quick_help, self.parts)
        for option, settings in self.options.items():
            options.add_argument(option, **settings)
        return options

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the benchmark; return 0, 2 for bad input, or 130 after Ctrl-C."""
        options = self.parser().parse_args(arguments)
        return run_command(lambda: self._run(options))

    def _run(self, options: argparse.Namespace) -> int:
        is_partial = self.is_partial(options)
        if self.parts:
            options.only = chosen_parts(options, self.parts)
            is_partial = is_partial or set(options.only) != set(self.parts)
        figures = {"quick": options.quick, **environment(self.packages), **self.measure(options)}
        page = "\n".join([*self.page(figures), ""])
        folder = out_folder(options, is_partial=is_partial)
        document = json.dumps(as_json_value(figures), indent=1)
        write_whole(folder / f"{self.name}.json", document + "\n")
        write_whole(folder / f"{self.name}.md", page)
        note(f"wrote {folder / f'{self.name}.md'}")
        print(page)
        return 0


def parser(
    program: str, description: str | None, quick_help: str, parts: Iterable[str] = ()
) -> argparse.ArgumentParser:
    """Make the options that every benchmark has; `quick_help` describes --quick."""
    options = argparse.ArgumentParser(prog=program, description=(description or "").split("\n")[0])
    options.add_argument("--quick", action="store_true", help=quick_help)
    options.add_argument("--out", type=Path, default=None, help="folder of the results")
    if names := tuple(parts):
        options.add_argument("--only", default=",".join(names), metavar="PART,...")
        options.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    return options


def chosen_parts(options: argparse.Namespace, parts: Iterable[str]) -> list[str]:
    """List the parts that --only selects; raise InputError if one is unknown."""
    valid_parts = tuple(parts)
    names: list[str] = options.only.split(",")
    for name in names:
        if name not in valid_parts:
            raise InputError(f"no part {name!r}; there are {', '.join(valid_parts)}")
    return names


def out_folder(options: argparse.Namespace, *, is_partial: bool = False) -> Path:
    """Choose the folder of the results; a quick or partial run never replaces committed files."""
    folder: Path | None = options.out
    if folder is None:
        folder = CACHE / "quick" if is_partial or options.quick else RESULTS
    return folder


def run_command(
    action: Callable[[], int], stop_message: str = "stopped; nothing is written"
) -> int:
    """Call `action`; return its status, 2 for bad input, or 130 after Ctrl-C."""
    try:
        return action()
    except GatewiseError as error:
        note(str(error))
        return 2
    except KeyboardInterrupt:
        note(stop_message)
        return 130


def environment(packages: Sequence[str]) -> dict[str, Any]:
    """Describe versions of packages and the machine, for the JSON of a result."""
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    machine = {"processor": platform.machine(), "cores": os.cpu_count()}
    return {"machine": machine, "versions": versions}


def memory(*, peak: bool) -> int:
    """Read the resident bytes of this process, or their peak since :func:`reset_memory_peak`.

    Systems other than Linux report only the peak since the process started.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        field_name = "VmHWM:" if peak else "VmRSS:"
        lines = [line.split() for line in status.read_text().splitlines()]
        return 1024 * next(int(line[1]) for line in lines if line and line[0] == field_name)
    # ru_maxrss is in bytes on macOS and in KiB elsewhere
    max_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max_rss if sys.platform == "darwin" else 1024 * max_rss


def reset_memory_peak() -> None:
    """Reset the memory peak of this process if the system supports it."""
    with contextlib.suppress(OSError):
        # 5 sets VmHWM to VmRSS (Linux manual, proc_pid_clear_refs)
        Path("/proc/self/clear_refs").write_text("5")


def run_part(module: str, name: str, *options: str) -> dict[str, Any]:
    """Run one part of a benchmark in a separate process, with one thread per library."""
    completed_process = subprocess.run(
        [sys.executable, "-m", module, "--part", name, *options],
        env=os.environ | SINGLE_THREAD,
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if completed_process.returncode:
        raise InputError(f"part {name} ended with status {completed_process.returncode}; see above")
    # the part may print before its figures, which are the last line
    figures: dict[str, Any] = json.loads(completed_process.stdout.splitlines()[-1])
    return figures


@contextlib.contextmanager
def python_process(
    *arguments: str | Path, ready_text: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run Python during a block; yield the process and its first line with `ready_text`."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=os.environ | dict(environment or {}),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, next(line for line in process.stdout if ready_text in line)
    finally:
        process.terminate()
        process.communicate()


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write the lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def targets_met(targets: Targets, figures: Mapping[str, float]) -> dict[str, bool]:
    """Check whether each figure is within its bound."""
    return {
        name: figures[name] <= bound if relation == "at most" else figures[name] >= bound
        for name, (_, relation, bound) in targets.items()
    }


def targets_table(targets: Targets, results: Mapping[str, Any]) -> list[str]:
    """Write the table of targets; `results` has the keys ``figures`` and ``holds``."""
    lines = ["| target | bound | measured | |", "| --- | --- | --- | --- |"]
    for name, (title, relation, bound) in targets.items():
        verdict = "holds" if results["holds"][name] else "missed"
        figure = results["figures"][name]
        lines.append(f"| {title} | {relation} {bound:g} | {figure:g} | {verdict} |")
    return lines
