"""Fetch the public data sets of the comparison.

    python -m benchmarks.data list
    python -m benchmarks.data fetch                    # all of them, into .bench-cache/data
    python -m benchmarks.data fetch thyroid letter --folder my-data
    python -m benchmarks.data fetch --mirror http://192.168.1.4:8000   # MIRROR/SET/FILE

Files and arrays that the folder already has are not fetched again, so the same command continues
after Ctrl-C.
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
    """Run the command; return 0, 2 for bad input, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    commands.add_parser("list", help="list the sets with their licences and files")
    fetching = commands.add_parser("fetch", help="fetch sets, check them and prepare their arrays")
    fetching.add_argument("names", nargs="*", metavar="NAME", help="names of sets; default: all")
    fetching.add_argument(
        "--folder", type=Path, default=FETCHED, help="folder of the arrays (default: %(default)s)"
    )
    fetching.add_argument("--mirror", help="address of a mirror with files at MIRROR/SET/FILE")
    options = parser.parse_args(arguments)
    if options.command == "list":
        return _list()
    message = "stopped; the same command continues with the files that are missing"
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
