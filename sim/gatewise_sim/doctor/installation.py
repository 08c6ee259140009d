"""Examine an installation: libraries of each extra, a broker, the clock, space on the disk."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from gatewise.imports import load_onnxruntime
from gatewise_sim.doctor.findings import Finding, note, ok, problem

#: Extras of users, and what they are for.
_EXTRAS: Final = {
    "edge": "to run a device",
    "cloud": "to run workers",
    "train": "to train",
    "export": "to pack bundles",
    "sim": "to simulate, and the demo",
    "parquet": "to read Parquet files",
    "jpeg": "for instances that are JPEG files",
}
#: A requirement as an installed distribution lists it: name, extras, least version, own extra.
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[\w.-]+)(?:\[(?P<extras>[\w,-]+)\])?[^;]*?(?:>=(?P<least>[\d.]+))?[^;]*"
    r"(?:;.*extra == ['\"](?P<extra>[\w-]+)['\"])?"
)
_LEAST_SPACE: Final = 200 << 20


def examine_installation(
    *,
    now: datetime.datetime | None = None,
    folder: Path | None = None,
    requirements: Sequence[str] | None = None,
) -> Iterator[Finding]:
    """Run all checks of this machine; none needs a bundle or a broker.

    `requirements` are those of the installed distribution, `folder` the one whose space is
    looked at: by default the current one.
    """
    yield ok(
        "python",
        f"gatewise {metadata.version('gatewise')}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    )
    if requirements is None:
        requirements = metadata.requires("gatewise") or ()
    for extra, use in _EXTRAS.items():
        missing = list(dict.fromkeys(_missing(extra, requirements)))
        if missing:
            yield note("extra-missing", extra=extra, use=use, names=", ".join(missing))
        else:
            yield ok("extra", f"[{extra}], {use}, is installed")
    yield _check_onnxruntime()
    broker = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    yield ok("broker", f"mosquitto is {broker}") if broker else note("no-mosquitto")
    yield _check_clock(datetime.datetime.now(datetime.UTC) if now is None else now)
    folder = Path.cwd() if folder is None else folder
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        yield problem("folder-read-only", folder=folder)
    elif free < _LEAST_SPACE:
        yield problem("disk-full", folder=folder, free=free >> 20, least=_LEAST_SPACE >> 20)
    else:
        yield ok("disk", f"{free >> 20} MB are free in {folder}")


def _missing(extra: str, requirements: Sequence[str]) -> Iterator[str]:
    """Name what an extra, and those that it includes, needs and is not there or too old."""
    for text in requirements:
        found = _REQUIREMENT.match(text)
        if found is None or found["extra"] != extra:
            continue
        if found["name"] == "gatewise":
            for other in found["extras"].split(","):
                yield from _missing(other, requirements)
            continue
        try:
            there = metadata.version(found["name"])
        except metadata.PackageNotFoundError:
            yield found["name"]
            continue
        if found["least"] and _numbers(there) < _numbers(found["least"]):
            yield f"{found['name']}>={found['least']} (it is {there})"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _check_onnxruntime() -> Finding:
    try:
        onnxruntime = load_onnxruntime()
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError):
            return note("no-onnxruntime")
        return problem("onnxruntime-broken", error=" ".join(str(error).split())[:200])
    return ok("onnxruntime", f"onnxruntime {onnxruntime.__version__} loads")


def _check_clock(now: datetime.datetime) -> Finding:
    """A clock that is before the installation is wrong; more cannot be known without a peer."""
    installed = datetime.datetime.fromtimestamp(Path(__file__).stat().st_mtime, datetime.UTC)
    if now < installed - datetime.timedelta(minutes=10):
        return problem("clock-behind the installation", now=now, made=installed)
    return ok("clock", f"{now:%Y-%m-%d %H:%M} UTC is after Gatewise was installed")
