"""Checks of a live run's settings before anything is started."""

from __future__ import annotations

from typing import Final

from gatewise.errors import InputError
from gatewise_cloud.broker.broker import find_mosquitto
from gatewise_cloud.broker.mqtt_client import shared_subscriptions_work
from gatewise_edge.link.broker_url import Endpoint
from gatewise_sim.fleet.devices.gateway import check_gateways
from gatewise_sim.fleet.network.proxy import DelayProxy
from gatewise_sim.fleet.settings import FleetSettings

_MOST_NAMED: Final = 16**4


def check_live(
    settings: FleetSettings, *, broker: str | None = None, gateways: bool = False
) -> None:
    """Check settings, and a given broker, before anything is started.

    `gateways`: whether the bundle places stages there.
    """
    check_gateways(settings, there=gateways)
    if broker is not None and gateways and settings.gateways:
        raise InputError("gateways need brokers of the run's own: leave out the broker's URL")
    if settings.devices > _MOST_NAMED:
        raise InputError(f"devices is {settings.devices}; a live run has at most {_MOST_NAMED}")
    what = {window.what for window in settings.outages.windows}
    if broker is not None:
        Endpoint(broker)
        if settings.link.delays or "link" in what:
            DelayProxy(broker, settings.link)
        if "broker" in what:
            raise InputError(
                "outage of the broker: one that was given is not stopped; leave out its URL"
            )
        if shared_subscriptions_work(broker) is False and settings.workers > 1:
            raise InputError(
                f"broker {Endpoint(broker).url} does not serve shared subscriptions: run one worker"
            )
    elif settings.workers > 1 and find_mosquitto() is None:
        raise InputError(
            "the embedded broker serves one worker only: install mosquitto, or run one worker"
        )
