"""Check of the installation: the libraries of each extra, onnxruntime, the clock."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from gatewise.imports import load_onnxruntime
from gatewise_sim.doctor.findings import INSTALLATION, SET_CLOCK, Finding

#: Extras of users, and their use.
_EXTRAS: Final = {
    "edge": "to run a device",
    "cloud": "to run workers",
    "train": "to train",
    "export": "to pack bundles",
    "sim": "to simulate, and the demo",
}
#: A requirement as an installed distribution lists it: name, extras, least version, own extra.
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[\w.-]+)(?:\[(?P<extras>[\w,-]+)\])?[^;]*?(?:>=(?P<least>[\d.]+))?[^;]*"
    r"(?:;.*extra == ['\"](?P<extra>[\w-]+)['\"])?"
)
#: Extras whose libraries have a replacement: without onnxruntime stages run in numpy.
_OPTIONAL: Final = "onnxruntime"
_CLOCK_SLACK: Final = datetime.timedelta(minutes=10)


def check_installation(
    *, device: bool, now: datetime.datetime | None = None, requirements: Sequence[str] | None = None
) -> Iterator[Finding]:
    """Check this machine; a `device` needs the libraries of the extra ``edge``, and no others.

    `now` is the time by this machine's clock, `requirements` are the distribution's.
    """
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield INSTALLATION.ok(f"gatewise {metadata.version('gatewise')}, {system}")
    if requirements is None:
        requirements = metadata.requires("gatewise") or ()
    for extra in ("edge",) if device else _EXTRAS:
        use = _EXTRAS[extra]
        missing = list(dict.fromkeys(_missing(extra, requirements)))
        if not missing:
            yield INSTALLATION.ok(f"[{extra}], {use}, is installed")
            continue
        is_needed = device and missing != [_OPTIONAL]
        finding = INSTALLATION.problem if is_needed else INSTALLATION.note
        yield finding(
            "package-missing",
            f"[{extra}], {use}, lacks {', '.join(missing)}",
            f"pip install 'gatewise[{extra}]' in the environment that runs this command",
        )
    yield _check_onnxruntime()
    installed = datetime.datetime.fromtimestamp(Path(__file__).stat().st_mtime, datetime.UTC)
    behind = clock_behind(installed, "Gatewise was installed", now)
    yield INSTALLATION.ok("the clock is after the installation") if behind is None else behind


def _missing(extra: str, requirements: Sequence[str]) -> Iterator[str]:
    """Name the libraries of an extra, and of the extras in it, that are absent or too old."""
    for text in requirements:
        requirement = _REQUIREMENT.match(text)
        if requirement is None or requirement["extra"] != extra:
            continue
        name = requirement["name"]
        oldest = requirement["least"]
        if name == "gatewise":
            for included in requirement["extras"].split(","):
                yield from _missing(included, requirements)
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name
            continue
        if oldest and _numbers(version) < _numbers(oldest):
            yield f"{name}>={oldest} (it is {version})"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _check_onnxruntime() -> Finding:
    try:
        onnxruntime = load_onnxruntime()
    except ModuleNotFoundError:
        return INSTALLATION.note(
            "no-onnxruntime",
            "onnxruntime is not installed: stages run slower, in numpy",
            "pip install onnxruntime, where there is one for this machine",
        )
    except ImportError as error:
        return INSTALLATION.problem(
            "onnxruntime-broken",
            f"onnxruntime does not load: {' '.join(str(error).split())[:200]}",
            'install it again, or run devices with runner = "numpy" in --settings',
        )
    return INSTALLATION.ok(f"onnxruntime {onnxruntime.__version__} loads")


def clock_behind(
    made: datetime.datetime, event: str, now: datetime.datetime | None = None
) -> Finding | None:
    """Make a finding if the clock shows a time before a past event; else None."""
    now = datetime.datetime.now(datetime.UTC) if now is None else now
    if now >= made - _CLOCK_SLACK:
        return None
    text = f"this machine says {now:%Y-%m-%d %H:%M} UTC, before {event} ({made:%Y-%m-%d %H:%M} UTC)"
    return INSTALLATION.problem("clock-behind", text, SET_CLOCK)
