"""Checks of a device's connection to its cloud, from the installation to the worker.

An MQTT 3.1.1 broker may grant a SUBSCRIBE or acknowledge a PUBLISH although it denies them.
Therefore the doctor sends a request and waits for its response. A broker that supports MQTT 5 also
gives a reason code, which explains a failure.
"""

from __future__ import annotations

import datetime
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gatewise.errors import GatewiseError
from gatewise_sim.doctor.findings import BUNDLE, Finding
from gatewise_sim.doctor.installation import check_clock, check_installation
from gatewise_sim.doctor.settings import DeviceSettings

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle


def examine(settings: DeviceSettings) -> Iterator[Finding]:
    """Run the checks of installation, bundle, broker, round trip and worker.

    The checks end at a problem with the installation or the broker.

    Raises
    ------
    InputError
        If the URL or a file name is invalid.
    WireError
        If the device id cannot be a level of a topic.
    """
    is_device = settings.bundle is not None or settings.broker is not None
    installation = list(check_installation(is_device=is_device))
    is_healthy = all(finding.state != "problem" for finding in installation)
    if is_healthy and settings.broker is not None:
        settings = _with_device_id(settings)
    yield from installation
    if not is_healthy:
        return
    bundle = None
    if settings.bundle is not None:
        bundle = yield from _check_bundle(settings.bundle, settings.block)
    if settings.broker is None:
        return
    # Imported here because they need a device's libraries.
    from gatewise_sim.doctor.broker import check_broker
    from gatewise_sim.doctor.round_trip import check_round_trip

    for finding in check_broker(settings):
        is_healthy &= finding.state != "problem"
        yield finding
    if is_healthy:
        yield from check_round_trip(settings, bundle)


def _with_device_id(settings: DeviceSettings) -> DeviceSettings:
    """Add the device's id to the settings; check the id and the broker's URL."""
    from gatewise_edge.link.endpoint import Endpoint
    from gatewise_edge.link.wire import check_device
    from gatewise_sim.doctor.broker import common_name

    Endpoint(settings.broker or "")
    certificate_name = common_name(settings.cert_file) if settings.cert_file else ""
    device = check_device(settings.device or certificate_name or "gatewise-doctor")
    return msgspec.structs.replace(settings, device=device)


def _check_bundle(
    path: Path, functions: tuple[str, ...]
) -> Generator[Finding, None, Bundle | None]:
    """Check that the bundle opens, passes its self-test and is not from the future.

    The generator returns the bundle, or None if it cannot be used.
    """
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
            "do not run it here; copy or pack it again, and compare the versions of onnxruntime",
        )
        return None
    except GatewiseError as error:
        remedy = "copy it again, or run gatewise verify on it"
        yield BUNDLE.problem("bundle-unusable", str(error), remedy)
        return None
    yield BUNDLE.ok(
        f"{bundle.manifest.title} gives the same results as on the machine that packed it"
    )
    creation_time = datetime.datetime.fromisoformat(bundle.manifest.created)
    creation_time = creation_time.replace(tzinfo=creation_time.tzinfo or datetime.UTC)
    clock_finding = check_clock(creation_time, "the bundle was packed")
    if clock_finding is not None:
        yield clock_finding
    return bundle
