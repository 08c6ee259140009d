"""Check of the installation: libraries of each extra, onnxruntime, clock."""

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

#: Extras that users install, and the purpose of each.
_EXTRAS: Final = {
    "edge": "to run a device",
    "cloud": "to run workers",
    "train": "to train",
    "export": "to pack bundles",
    "sim": "to simulate, and the demo",
}
#: Requirement in a distribution's metadata: name, its extras, minimum version, extra that needs it.
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[\w.-]+)(?:\[(?P<extras>[\w,-]+)\])?[^;]*?(?:>=(?P<minimum>[\d.]+))?[^;]*"
    r"(?:;.*extra == ['\"](?P<extra>[\w-]+)['\"])?"
)
#: Library of the edge extra that a device can do without, because numpy can run the stages.
_OPTIONAL: Final = "onnxruntime"
_CLOCK_TOLERANCE: Final = datetime.timedelta(minutes=10)


def check_installation(
    *, device: bool, now: datetime.datetime | None = None, requirements: Sequence[str] | None = None
) -> Iterator[Finding]:
    """Check the libraries and the clock of this machine.

    A `device` needs only the libraries of the extra ``edge``. `now` and `requirements` replace the
    time of the clock and the requirements of the installed distribution.
    """
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield INSTALLATION.ok(f"gatewise {metadata.version('gatewise')}, {system}")
    if requirements is None:
        requirements = metadata.requires("gatewise") or ()
    for extra in ("edge",) if device else _EXTRAS:
        purpose = _EXTRAS[extra]
        missing = list(dict.fromkeys(_missing(extra, requirements)))
        if not missing:
            yield INSTALLATION.ok(f"[{extra}], {purpose}, is installed")
            continue
        is_needed = device and missing != [_OPTIONAL]
        finding = INSTALLATION.problem if is_needed else INSTALLATION.note
        yield finding(
            "package-missing",
            f"[{extra}], {purpose}, lacks {', '.join(missing)}",
            f"pip install 'gatewise[{extra}]' in the environment that runs this command",
        )
    yield _check_onnxruntime()
    installed = datetime.datetime.fromtimestamp(Path(__file__).stat().st_mtime, datetime.UTC)
    behind = clock_behind(installed, "Gatewise was installed", now)
    yield INSTALLATION.ok("the clock is plausible") if behind is None else behind


def _missing(extra: str, requirements: Sequence[str]) -> Iterator[str]:
    """Yield the libraries of an extra, and of the extras in it, that are absent or too old."""
    for text in requirements:
        requirement = _REQUIREMENT.match(text)
        if requirement is None or requirement["extra"] != extra:
            continue
        name = requirement["name"]
        minimum = requirement["minimum"]
        if name == "gatewise":
            for included in requirement["extras"].split(","):
                yield from _missing(included, requirements)
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name
            continue
        if minimum and _version_numbers(version) < _version_numbers(minimum):
            yield f"{name}>={minimum} ({version} is installed)"


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _check_onnxruntime() -> Finding:
    try:
        onnxruntime = load_onnxruntime()
    except ModuleNotFoundError:
        return INSTALLATION.note(
            "no-onnxruntime",
            "onnxruntime is not installed, so numpy runs the stages, which is slower",
            "pip install onnxruntime, if it exists for this platform",
        )
    except ImportError as error:
        return INSTALLATION.problem(
            "onnxruntime-broken",
            f"onnxruntime cannot be loaded: {' '.join(str(error).split())[:200]}",
            'install it again, or run devices with runner = "numpy" in --settings',
        )
    return INSTALLATION.ok(f"onnxruntime {onnxruntime.__version__} loads")


def clock_behind(
    event_time: datetime.datetime, event: str, now: datetime.datetime | None = None
) -> Finding | None:
    """Make a finding if the clock is behind the time of a past event; otherwise return None."""
    now = datetime.datetime.now(datetime.UTC) if now is None else now
    if now >= event_time - _CLOCK_TOLERANCE:
        return None
    clock = f"the clock of this machine shows {now:%Y-%m-%d %H:%M} UTC"
    text = f"{clock}, but {event} at {event_time:%Y-%m-%d %H:%M} UTC"
    return INSTALLATION.problem("clock-behind", text, SET_CLOCK)
