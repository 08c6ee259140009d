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
_OPTIONAL_LIBRARY: Final = "onnxruntime"
#: Accepted difference between the clocks of two machines.
_CLOCK_TOLERANCE: Final = datetime.timedelta(minutes=10)


def check_installation(
    *,
    is_device: bool,
    now: datetime.datetime | None = None,
    requirements: Sequence[str] | None = None,
) -> Iterator[Finding]:
    """Check the libraries and the clock of this machine.

    A device needs only the libraries of the extra ``edge``. By default, `now` is the time of the
    clock, and `requirements` are the requirements of the installed distribution.
    """
    system_text = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield INSTALLATION.ok(f"gatewise {metadata.version('gatewise')}, {system_text}")
    if requirements is None:
        requirements = metadata.requires("gatewise") or ()
    for extra in ("edge",) if is_device else _EXTRAS:
        purpose = _EXTRAS[extra]
        missing_libraries = list(dict.fromkeys(_find_missing_libraries(extra, requirements)))
        if not missing_libraries:
            yield INSTALLATION.ok(f"[{extra}], {purpose}, is installed")
            continue
        is_needed = is_device and missing_libraries != [_OPTIONAL_LIBRARY]
        make_finding = INSTALLATION.problem if is_needed else INSTALLATION.note
        yield make_finding(
            "package-missing",
            f"[{extra}], {purpose}, lacks {', '.join(missing_libraries)}",
            f"pip install 'gatewise[{extra}]' in the environment that runs this command",
        )
    yield _check_onnxruntime()
    install_time = datetime.datetime.fromtimestamp(Path(__file__).stat().st_mtime, datetime.UTC)
    clock_finding = check_clock(install_time, "Gatewise was installed", now)
    yield INSTALLATION.ok("the clock is plausible") if clock_finding is None else clock_finding


def _find_missing_libraries(extra: str, requirements: Sequence[str]) -> Iterator[str]:
    """Yield the libraries of an extra, and of the extras in it, that are absent or too old."""
    for requirement_text in requirements:
        requirement = _REQUIREMENT.match(requirement_text)
        if requirement is None or requirement["extra"] != extra:
            continue
        name = requirement["name"]
        minimum = requirement["minimum"]
        if name == "gatewise":
            for included_extra in requirement["extras"].split(","):
                yield from _find_missing_libraries(included_extra, requirements)
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name
            continue
        if minimum and _parse_version(version) < _parse_version(minimum):
            yield f"{name}>={minimum} ({version} is installed)"


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:3])


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


def check_clock(
    event_time: datetime.datetime, event: str, now: datetime.datetime | None = None
) -> Finding | None:
    """Make a finding if the clock is behind the time of a past event; otherwise return None."""
    now = datetime.datetime.now(datetime.UTC) if now is None else now
    if now >= event_time - _CLOCK_TOLERANCE:
        return None
    clock_text = f"the clock of this machine shows {now:%Y-%m-%d %H:%M} UTC"
    problem_text = f"{clock_text}, but {event} at {event_time:%Y-%m-%d %H:%M} UTC"
    return INSTALLATION.problem("clock-behind", problem_text, SET_CLOCK)
