"""Fetch the public data sets of the comparison.

    python -m benchmarks.data list
    python -m benchmarks.data fetch                    # all of them, into .bench-cache/data
    python -m benchmarks.data fetch thyroid letter --folder my-data
    python -m benchmarks.data fetch --mirror http://192.168.1.4:8000   # MIRROR/SET/FILE

A file that is there already is not fetched again; a set that data folders hold is not either. After
Ctrl-C the same command goes on from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.data.fetching import FETCHED, fetch, find_file
from benchmarks.data.sources import SOURCES
from gatewise.console import note
from gatewise.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 2 for bad input, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    commands.add_parser("list", help="sets, their licences and where they are")
    fetching = commands.add_parser("fetch", help="fetch sets, check them and prepare their arrays")
    fetching.add_argument("names", nargs="*", metavar="NAME", help="sets; all by default")
    fetching.add_argument(
        "--folder", type=Path, default=FETCHED, help="folder of the arrays (default: %(default)s)"
    )
    fetching.add_argument("--mirror", help="address of a copy: files are at MIRROR/SET/FILE")
    options = parser.parse_args(arguments)
    if options.command == "list":
        return _list()
    message = "stopped; whole files are kept, the same command goes on from there"
    return harness.run_command(lambda: _fetch(options), message)


def _list() -> int:
    for name, source in SOURCES.items():
        path = find_file(name)
        print(f"{name}: {source.licence}; {source.publisher}")
        print(f"    {source.citation}")
        print(f"    {path or f'not here: python -m benchmarks.data fetch {name}'}")
    return 0


def _fetch(options: argparse.Namespace) -> int:
    for name in options.names:
        if name not in SOURCES:
            raise InputError(f"no source of {name!r}; there are {', '.join(SOURCES)}")
    for name in options.names or SOURCES:
        path = fetch(name, options.folder, mirror=options.mirror)
        note(f"{name}: {path}; {SOURCES[name].licence}; {SOURCES[name].citation}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
