"""Command line, environment record, subprocesses and page tables of all benchmarks."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cache import CACHE, write_whole
from gatewise.console import as_json_value, note
from gatewise.errors import GatewiseError, InputError

RESULTS = Path(__file__).parent / "results"
#: Environment of a process whose libraries use one thread.
SINGLE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

Options = argparse.Namespace
Figures = dict[str, Any]
#: Maps the key of a figure to its title, "at most" or "at least", and the bound.
Targets = Mapping[str, tuple[str, str, float]]


def merge_parts(path: Path, parts: Figures) -> Figures:
    """Add the figures of parts to those of an earlier run in a JSON file."""
    return (json.loads(path.read_text()) if path.is_file() else {}) | parts


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Command that measures, then writes NAME.json and the page NAME.md.

    The first line of the docstring of the module of `page` is the help text.

    Parameters
    ----------
    name : str
        Name of the two files.
    quick_help : str
        Help text of ``--quick``.
    packages : sequence of str
        Packages whose versions the results record.
    page : callable
        Takes the figures, machine and versions, and returns the lines of the page.
    measure : callable
        Takes the options and returns the figures, unless there are parts.
    parts : dict
        Functions from the options to the figures of a part, by the names that ``--only`` selects.
        Each part runs in a separate process, which must be able to import its function.
    merge : callable
        Takes the file NAME.json and the figures of the parts that were run; returns all figures.
    options : dict
        Further options: arguments of ``add_argument`` by the name of the option.
    is_partial : callable
        Whether a run with these options must not replace the committed files. A run of some of the
        parts must not.
    """

    name: str
    quick_help: str
    packages: Sequence[str]
    page: Callable[[Mapping[str, Any]], list[str]]
    measure: Callable[[Options], Figures] = lambda _options: {}
    parts: Mapping[str, Callable[[Options], Any]] = field(default_factory=dict)
    merge: Callable[[Path, Figures], Figures] = merge_parts
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_partial: Callable[[Options], bool] = lambda _options: False

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the benchmark; return 0, 2 for bad input, or 130 after Ctrl-C."""
        description = sys.modules[self.page.__module__].__doc__
        command_line = parser(f"bench_{self.name}", description, self.quick_help, self.parts)
        for option, settings in self.options.items():
            command_line.add_argument(option, **settings)
        options = command_line.parse_args(arguments)
        return run_command(lambda: self._run(options))

    def _run(self, options: Options) -> int:
        if not self.parts:
            path = out_folder(options, is_partial=self.is_partial(options)) / f"{self.name}.json"
            page = self._write(path, options, self.measure(options))
        else:
            names = split_names(options.only, self.parts)
            is_partial = set(names) != set(self.parts) or self.is_partial(options)
            path = out_folder(options, is_partial=is_partial) / f"{self.name}.json"
            for name in names:
                note(name)
                part = call_in_process(self.parts[name], options)
                # write after each part, so that an interrupted run leaves the finished parts
                page = self._write(path, options, self.merge(path, {name: part}))
        print(page)
        return 0

    def _write(self, path: Path, options: Options, figures: Figures) -> str:
        """Write both files; return the page."""
        figures |= {"quick": options.quick, **environment(self.packages)}
        page = "\n".join([*self.page(figures), ""])
        write_whole(path, json.dumps(as_json_value(figures), indent=1) + "\n")
        write_whole(path.with_suffix(".md"), page)
        note(f"wrote {path.with_suffix('.md')}")
        return page


def parser(
    program: str, description: str | None, quick_help: str, parts: Iterable[str] = ()
) -> argparse.ArgumentParser:
    """Make the options that every benchmark has; `quick_help` describes --quick."""
    options = argparse.ArgumentParser(prog=program, description=(description or "").split("\n")[0])
    options.add_argument("--quick", action="store_true", help=quick_help)
    options.add_argument("--out", type=Path, default=None, help="folder of the results")
    if names := tuple(parts):
        options.add_argument("--only", default=",".join(names), metavar="PART,...")
    return options


def split_names(text: str, valid_names: Iterable[str], noun: str = "part") -> list[str]:
    """Split comma-separated names; raise InputError if one is unknown."""
    valid_names = tuple(valid_names)
    names = text.split(",")
    for name in names:
        if name not in valid_names:
            raise InputError(f"no {noun} {name!r}; there are {', '.join(valid_names)}")
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
    versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    machine = {"processor": platform.machine(), "cores": os.cpu_count()}
    return {"machine": machine, "versions": versions}


def memory(*, peak: bool) -> int:
    """Read the resident bytes of this process, or their peak, from Linux's /proc."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines["VmHWM" if peak else "VmRSS"].split()[0])


def call_in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, whose libraries use one thread."""
    os.environ.update(SINGLE_THREAD)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


@contextlib.contextmanager
def python_process(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run Python during a block, which begins when the process has printed a line."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | dict(environment or {}),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.terminate()
        process.communicate()


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write the lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


class Column(NamedTuple):
    """Column of a table: its title, and the function that writes its cell of a row."""

    title: str
    write_cell: Callable[[Any], str]


def column_table(columns: Sequence[Column], rows: Iterable[Any]) -> list[str]:
    """Write a table with one line for each row, which may be of any type."""
    cells_of_rows = [[column.write_cell(row) for column in columns] for row in rows]
    return table_lines([column.title for column in columns], cells_of_rows)


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
