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
from gatewise_sim.doctor.findings import (
    INSTALL_ONNXRUNTIME,
    SET_CLOCK,
    Finding,
    note,
    ok,
    problem,
)

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
_SLACK: Final = datetime.timedelta(minutes=10)


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
            yield note(
                "extra",
                "extra-missing",
                f"[{extra}], {use}, lacks {', '.join(missing)}",
                f"pip install 'gatewise[{extra}]', if that is what this machine is for",
            )
        else:
            yield ok("extra", f"[{extra}], {use}, is installed")
    yield _check_onnxruntime()
    broker = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    if broker:
        yield ok("broker", f"mosquitto is {broker}")
    else:
        yield note(
            "broker",
            "no-mosquitto",
            "no mosquitto here; the embedded broker serves the demo alone",
            "apt install mosquitto, or use the broker that you have (--broker)",
        )
    installed = datetime.datetime.fromtimestamp(Path(__file__).stat().st_mtime, datetime.UTC)
    yield check_clock(installed, "Gatewise was installed", now)
    folder = Path.cwd() if folder is None else folder
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        says = f"nothing can be written in {folder}"
        yield problem(
            "disk", "folder-read-only", says, "go to a folder that this user may write to"
        )
    elif free < _LEAST_SPACE:
        yield problem(
            "disk",
            "disk-full",
            f"{free >> 20} MB are free in {folder}; bundles and reports need up to "
            f"{_LEAST_SPACE >> 20}",
            "make room, or go to another disk",
        )
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
            return note("packages", *INSTALL_ONNXRUNTIME)
        why = " ".join(str(error).split())[:200]
        remedy = "install it again, or run devices with --runner numpy"
        says = f"onnxruntime does not load: {why}"
        return problem("onnxruntime", "onnxruntime-broken", says, remedy)
    return ok("onnxruntime", f"onnxruntime {onnxruntime.__version__} loads")


def check_clock(
    made: datetime.datetime, event: str, now: datetime.datetime | None = None
) -> Finding:
    """Compare the clock with an event of the past; more cannot be known without a peer."""
    now = datetime.datetime.now(datetime.UTC) if now is None else now
    if now < made - _SLACK:
        says = f"this machine says {now:%Y-%m-%d %H:%M} UTC, before {event} "
        return problem("clock", "clock-behind", f"{says}({made:%Y-%m-%d %H:%M} UTC)", SET_CLOCK)
    return ok(
        "clock",
        f"{now:%Y-%m-%d %H:%M} UTC is after {event} (a small drift does not matter: times to "
        "live are relative)",
    )
