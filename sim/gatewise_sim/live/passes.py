"""Run a bundle for real: broker, workers and devices in processes of their own, over MQTT.

The same rows go through the same devices and the same links once per policy, one pass after
the other. Everything is waited for by its own sign of life and a deadline; everything ends
with the block that started it, on success, on an error and on Ctrl-C.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise_cloud.broker import EmbeddedBroker
from gatewise_cloud.client import open_client, shared_subscriptions_work
from gatewise_edge.mqtt import Endpoint, make_client
from gatewise_edge.wire import status_topic
from gatewise_sim.live.processes import Fleet, deal, start_workers
from gatewise_sim.network.proxy import DelayProxy, LinkProfile
from gatewise_sim.report.legs import POLICIES, Leg
from gatewise_training.console import Progress
from gatewise_training.errors import GatewiseError, InputError

__all__ = ["Run", "Settings", "check", "run"]

_FORGET_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a bundle is deployed.

    Attributes
    ----------
    devices : int
        Devices; the rows are dealt out to them in turn.
    workers : int
        Cloud workers; more than one needs a broker that shares subscriptions.
    broker : str or None
        URL of a broker that runs already; None starts the embedded one.
    link : LinkProfile
        Between devices and broker.
    deadline_ms : float
        For each answer.
    seed : int
        Of the link's jitter and loss.
    """

    devices: int
    workers: int
    broker: str | None
    link: LinkProfile
    deadline_ms: float
    seed: int

    @property
    def broker_name(self) -> str:
        """The URL of the broker given, without user and password, or "embedded"."""
        return "embedded" if self.broker is None else Endpoint(self.broker).url


@dataclass(frozen=True)
class Run:
    """What a run brought.

    Attributes
    ----------
    legs : dict of str to Leg
        By the keys of :data:`gatewise_sim.report.legs.POLICIES`.
    workers : list of dict
        Each worker's counters.
    processes : int
        Processes that the devices ran in.
    troubles : list of str
        What went wrong on the way: processes that ended, rows that could not be answered.
    """

    legs: dict[str, Leg]
    workers: list[dict[str, Any]]
    processes: int
    troubles: list[str]


def check(settings: Settings) -> None:
    """Find out what would not work before anything is trained or started.

    Raises
    ------
    InputError
        If there is no device or no worker, or the broker cannot serve so many workers.
    LinkError
        If the broker that was given cannot be reached.
    """
    if settings.devices < 1 or settings.workers < 1:
        raise InputError("a run needs at least one device and one worker")
    if settings.broker is None:
        if settings.workers > 1:
            raise InputError(
                "the embedded broker serves one worker only: "
                "start a mosquitto and give its URL as --broker"
            )
        return
    if settings.link.delays:
        DelayProxy(settings.broker, settings.link)
    if shared_subscriptions_work(settings.broker) is False and settings.workers > 1:
        raise InputError(
            f"broker {settings.broker_name} does not serve shared subscriptions: run one worker"
        )


def run(bundle: Path, rows: NDArray[np.float32], settings: Settings, report: Progress) -> Run:
    """Deploy a bundle and let the devices answer the rows once under each policy.

    Parameters
    ----------
    bundle : Path
    rows : ndarray of float32, shape (n, n_features)
    settings : Settings
    report : Progress
        Told (answers, answers to come, what).

    Returns
    -------
    Run
        Rows that a device did not answer are missing from its legs.

    Raises
    ------
    RunError
        If a worker or a device does not get ready; the message is its own last line.
    BrokerError
        If the embedded broker does not start.
    """
    run_id = secrets.token_hex(4)
    names = [f"demo-{run_id}-{i + 1}" for i in range(settings.devices)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatewise-run-")))
        table = folder / "rows.npy"
        np.save(table, rows)
        report(0, 1, "cloud")
        if settings.broker is None:
            url = stack.enter_context(EmbeddedBroker()).url
            subscription = ["--plain-subscription"]
        else:
            url = settings.broker
            # A pool of this run's own: another's workers would take a share of its requests.
            subscription = ["--pool", f"gw-{run_id}"]
            stack.callback(_forget, url, names)
        arguments = ["cloud", str(bundle), "--broker", url, "--json", *subscription]
        workers = start_workers(stack, settings.workers, arguments)
        if settings.link.delays:
            url = stack.enter_context(DelayProxy(url, settings.link, seed=settings.seed)).url
        report(0, 1, "devices")
        job = {
            "bundle": str(bundle),
            "rows": str(table),
            "broker": url,
            "deadline_ms": settings.deadline_ms,
        }
        jobs = [job | {"devices": some} for some in deal(names, len(rows))]
        fleet = Fleet(stack, jobs, len(rows), report)
        legs = {key: fleet.run_pass(policy) for key, policy in POLICIES.items()}
        counters = [worker.stop(fleet.troubles) for worker in workers]
    return Run(legs, counters, len(jobs), fleet.troubles)


def _forget(url: str, devices: Sequence[str]) -> None:
    """Clear the devices' retained status, which somebody's broker would keep for ever."""
    endpoint = Endpoint(url)
    client = make_client(endpoint, f"gw-{secrets.token_hex(6)}", max_inflight=len(devices))
    # A broker that is gone has nothing to forget, and the run's own error matters more.
    with contextlib.suppress(GatewiseError, RuntimeError, ValueError):
        open_client(client, endpoint)
        client.loop_start()
        sent = [client.publish(status_topic(d), b"", qos=1, retain=True) for d in devices]
        for message in sent:
            message.wait_for_publish(_FORGET_SECONDS)
        client.disconnect()
    client.loop_stop()
