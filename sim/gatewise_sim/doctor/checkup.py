"""Examine a device's way to its cloud by trying it, and say what to do.

An MQTT 3.1.1 broker refuses without a word: a denied SUBSCRIBE looks granted, a denied PUBLISH
is acknowledged. So no acknowledgement is believed alone: a request is sent and its response
awaited, a message is published and read back. Where the broker speaks MQTT 5, its reason codes say
in addition why a round trip failed; the runtime itself never needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gatewise_sim.doctor.findings import DeviceSettings, Finding, skipped
from gatewise_sim.doctor.local import check_bundle, check_packages

__all__ = ["examine"]


def examine(settings: DeviceSettings) -> Iterator[Finding]:
    """Run all checks, from the machine itself outwards, up to the first that fails.

    Parameters
    ----------
    settings : DeviceSettings

    Yields
    ------
    Finding
        As they are made.

    Raises
    ------
    InputError
        If the URL or a file's name is wrong: nothing to examine.
    WireError
        If the device id cannot be a topic level.
    """
    packages, missing = check_packages()
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
        bundle = yield from check_bundle(settings.bundle)
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
