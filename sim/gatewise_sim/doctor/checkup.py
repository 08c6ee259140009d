"""Examine a device's way to its cloud by trying it: five checks, from the machine outwards.

A broker of MQTT 3.1.1 refuses without a word: a denied SUBSCRIBE looks granted, a denied PUBLISH is
acknowledged. So no acknowledgement is believed alone: a request is sent and its response awaited.
Where the broker speaks MQTT 5, its reason codes say in addition why that failed.
"""

from __future__ import annotations

import datetime
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gatewise.errors import GatewiseError
from gatewise_sim.doctor.findings import BUNDLE, DeviceSettings, Finding
from gatewise_sim.doctor.installation import check_installation, clock_behind

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle


def examine(settings: DeviceSettings) -> Iterator[Finding]:
    """Run the checks of installation, bundle, broker, round trip and worker, up to a failed one.

    InputError if the URL or a file's name is wrong, WireError if the device id cannot be a level of
    a topic.
    """
    device = settings.bundle is not None or settings.broker is not None
    installation = list(check_installation(device=device))
    healthy = all(finding.state != "problem" for finding in installation)
    if healthy and settings.broker is not None:
        settings = _named(settings)
    yield from installation
    if not healthy:
        return
    bundle = None
    if settings.bundle is not None:
        bundle = yield from _check_bundle(settings.bundle, settings.block)
    if settings.broker is None:
        return
    # Only now, since they need the libraries of a device.
    from gatewise_sim.doctor.broker import reach_broker
    from gatewise_sim.doctor.round_trip import check_round_trip

    for finding in reach_broker(settings):
        healthy &= finding.state != "problem"
        yield finding
    if healthy:
        yield from check_round_trip(settings, bundle)


def _named(settings: DeviceSettings) -> DeviceSettings:
    """Give the device its id, and check it and the broker's URL."""
    from gatewise_edge.link.broker_url import Endpoint
    from gatewise_edge.link.wire import check_device
    from gatewise_sim.doctor.broker import common_name

    Endpoint(settings.broker or "")
    name = common_name(settings.cert_file) if settings.cert_file else ""
    device = check_device(settings.device or name or "gatewise-doctor")
    return msgspec.structs.replace(settings, device=device)


def _check_bundle(
    path: Path, functions: tuple[str, ...]
) -> Generator[Finding, None, Bundle | None]:
    """Open the bundle, run its self-test, and compare the clock with it; give it if it holds."""
    from gatewise_edge.device.self_checks import self_test
    from gatewise_edge.errors import SelfTestError
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_signals.blocks.block import load_block_functions

    try:
        bundle = Bundle.open(path, for_device=True)
        bundle = bundle.with_functions(load_block_functions(functions))
        self_test(bundle)
    except SelfTestError as error:
        yield BUNDLE.problem(
            "self-test",
            str(error),
            "do not run it here: copy or pack it again, and compare the versions of onnxruntime",
        )
        return None
    except GatewiseError as error:
        remedy = "copy it again, or run gatewise verify on it"
        yield BUNDLE.problem("bundle-unusable", str(error), remedy)
        return None
    yield BUNDLE.ok(f"{bundle.manifest.title} computes here as where it was packed")
    created = datetime.datetime.fromisoformat(bundle.manifest.created)
    created = created.replace(tzinfo=created.tzinfo or datetime.UTC)
    behind = clock_behind(created, "the bundle was packed")
    if behind is not None:
        yield behind
    return bundle
