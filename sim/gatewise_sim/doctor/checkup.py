"""Examine a device's way to its cloud by trying it, and say what to do.

An MQTT 3.1.1 broker refuses without a word: a denied SUBSCRIBE looks granted, a denied PUBLISH
is acknowledged. So no acknowledgement is believed alone: a request is sent and its response
awaited, a message is published and read back. Where the broker speaks MQTT 5, its reason codes say
in addition why a round trip failed; the runtime itself never needs them.
"""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gatewise.errors import GatewiseError
from gatewise_sim.doctor.findings import (
    INSTALL_ONNXRUNTIME,
    DeviceSettings,
    Finding,
    note,
    ok,
    problem,
    skipped,
)
from gatewise_sim.doctor.installation import check_clock

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle

#: Module and the distribution that brings it.
_NEEDED: Final = {
    "numpy": "numpy",
    "cbor2": "cbor2",
    "paho": "paho-mqtt",
    "cryptography": "cryptography",
}


def examine(settings: DeviceSettings) -> Iterator[Finding]:
    """Run all checks, from the machine itself outwards, up to the first that fails.

    InputError if the URL or a file's name is wrong, WireError if the device id is no topic level.
    """
    packages, missing = _check_packages()
    if missing:
        yield packages
        return
    # Only now, since they need those packages.
    from gatewise_edge.link.mqtt import Endpoint
    from gatewise_edge.link.wire import check_device
    from gatewise_sim.doctor.certificates import common_name
    from gatewise_sim.doctor.network import reach
    from gatewise_sim.doctor.round_trips import check_round_trips

    if settings.broker is not None:
        Endpoint(settings.broker)
    named = common_name(settings.cert_file) if settings.cert_file else ""
    settings = replace(settings, device=check_device(settings.device or named or "gatewise-doctor"))
    yield packages
    bundle: Any = None
    if settings.bundle is not None:
        bundle = yield from _check_bundle(settings.bundle, settings.blocks)
    else:
        yield skipped("clock", "no bundle, so there is no date that this clock must be after")
    if settings.broker is None:
        return
    failed = False
    for finding in reach(settings):
        failed |= finding.state == "problem"
        yield finding
    if not failed:
        yield from check_round_trips(settings, bundle)


def _check_packages() -> tuple[Finding, bool]:
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
        found = note("packages", *INSTALL_ONNXRUNTIME)
    else:
        found = ok("packages", f"{', '.join(_NEEDED.values())} and onnxruntime are there")
    return found, bool(missing)


def _check_bundle(path: Path, blocks: Sequence[str]) -> Generator[Finding, None, Bundle | None]:
    """Open the bundle and run its self-test; give it if it holds. Looks at the clock, too."""
    from gatewise_edge.device.stages import StageRunner, self_test
    from gatewise_edge.errors import SelfTestError
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_signals.blocks.block import load_block_functions

    try:
        bundle = Bundle.open(path, for_device=True)
        bundle = bundle.with_functions(load_block_functions(blocks))
        self_test(bundle, StageRunner(bundle))
    except SelfTestError as error:
        remedy = (
            "do not run it here: copy or pack it again, and compare the versions of onnxruntime"
        )
        yield problem("bundle", "self-test", str(error), remedy)
        return None
    except GatewiseError as error:
        remedy = "copy it again, or run gatewise verify on it"
        yield problem("bundle", "bundle-unusable", str(error), remedy)
        return None
    manifest = bundle.manifest
    yield ok("bundle", f"{manifest.title} computes here as where it was packed")
    try:
        made = datetime.datetime.fromisoformat(manifest.created)
    except ValueError:
        yield skipped("clock", "the bundle does not say when it was made")
    else:
        made = made if made.tzinfo else made.replace(tzinfo=datetime.UTC)
        yield check_clock(made, "the bundle was packed")
    return bundle
