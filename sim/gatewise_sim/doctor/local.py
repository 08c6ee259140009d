"""The doctor's look at the machine itself: libraries, the bundle, the clock."""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gatewise.errors import GatewiseError
from gatewise_sim.doctor.findings import Finding, note, ok, problem, skipped

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle

__all__ = ["check_bundle", "check_packages"]

#: Module and the distribution that brings it.
_NEEDED: Final = {
    "numpy": "numpy",
    "cbor2": "cbor2",
    "paho": "paho-mqtt",
    "cryptography": "cryptography",
}
#: A clock may be off by this and nobody minds: times to live are relative.
_SLACK: Final = datetime.timedelta(minutes=10)


def check_packages() -> tuple[Finding, bool]:
    """Check the libraries that a device needs; returns whether one is missing."""
    missing = [name for module, name in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        found = problem(
            "packages",
            "package-missing",
            f"not installed: {', '.join(missing)}",
            "pip install 'gatewise[edge]' in the environment that runs this command",
        )
    elif importlib.util.find_spec("onnxruntime") is None:
        found = note(
            "packages",
            "no-onnxruntime",
            "onnxruntime is not installed: stages run slower, in numpy",
            "pip install onnxruntime, where there is one for this machine",
        )
    else:
        found = ok("packages", f"{', '.join(_NEEDED.values())} and onnxruntime are there")
    return found, bool(missing)


def check_bundle(path: Path) -> Generator[Finding, None, Bundle | None]:
    """Open the bundle and run its self-test; give it if it holds. Looks at the clock, too."""
    from gatewise_edge.errors import SelfTestError
    from gatewise_edge.stages.stages import StageRunner, self_test
    from gatewise_export.bundle.bundle import Bundle

    try:
        bundle = Bundle.open(path, for_device=True)
        self_test(bundle, StageRunner(bundle))
    except SelfTestError as error:
        yield problem(
            "bundle",
            "self-test",
            str(error),
            "do not run it here: copy or pack it again, and compare the versions of onnxruntime",
        )
        return None
    except GatewiseError as error:
        yield problem(
            "bundle", "bundle-unusable", str(error), "copy it again, or run gatewise verify on it"
        )
        return None
    manifest = bundle.manifest
    name = f"{manifest.name} {manifest.version}"
    yield ok("bundle", f"{name} computes here as where it was packed")
    yield _check_clock(manifest.created)
    return bundle


def _check_clock(created: str) -> Finding:
    """A clock that is before the bundle's making is wrong; more cannot be known without a peer."""
    try:
        made = datetime.datetime.fromisoformat(created)
    except ValueError:
        return skipped("clock", "the bundle does not say when it was made")
    if made.tzinfo is None:
        made = made.replace(tzinfo=datetime.UTC)
    now = datetime.datetime.now(datetime.UTC)
    if now < made - _SLACK:
        return problem(
            "clock",
            "clock-behind",
            f"this machine says {now:%Y-%m-%d %H:%M} UTC, before the bundle was packed "
            f"({made:%Y-%m-%d %H:%M} UTC)",
            "set the clock: timedatectl set-ntp true, or add a clock with a battery",
        )
    return ok(
        "clock",
        f"{now:%Y-%m-%d %H:%M} UTC is after the bundle was packed (a small drift does not "
        "matter: times to live are relative)",
    )
