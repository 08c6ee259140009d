"""Round trips over the broker: request and response, presence, rights, delays."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gatewise_edge.errors import LinkError, WireError
from gatewise_edge.link import wire
from gatewise_edge.link.mqtt import Endpoint
from gatewise_sim.doctor.findings import (
    ACCESS_LIST,
    DeviceSettings,
    Finding,
    note,
    ok,
    problem,
    skipped,
)
from gatewise_sim.doctor.mqtt_probe import DENIED, NOBODY, UNKNOWN, Probe

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle

_FAILURE: Final = 0x80
#: The model of a request where there is no bundle: a worker says that it does not serve it.
_NO_MODEL: Final = ("gatewise-doctor", "0")
#: Requests for the model, so that each worker of a pool has its turn.
_TURNS: Final = 12
#: Seconds that another pool may take to answer what one does not serve.
_ANOTHER_POOL: Final = 0.3
_EXCHANGES: Final = 40
_TOGETHER: Final = 4
_FEWEST: Final = 5
_LONGEST: Final = 3.0
#: Delayed acknowledgements wait 40 ms on Linux and more elsewhere.
_NAGLE_MS: Final = 20.0
#: Share of the exchanges that it must hold back for the broker to be blamed.
_HELD_SHARE: Final = 0.2


def check_round_trips(settings: DeviceSettings, bundle: Bundle | None) -> Iterator[Finding]:
    """Send a request as the device would, then check presence, rights and delays."""
    endpoint = settings.endpoint
    try:
        with Probe(endpoint, settings.timeout) as probe:
            for finding in _check(probe, settings, bundle):
                if probe.lost_within(0.0):
                    yield problem(
                        "login",
                        "session-taken",
                        "another client with this certificate took the connection over: the broker "
                        "allows one",
                        "stop the device's service while the doctor runs",
                    )
                    return
                yield finding
            if endpoint.tls:
                yield _sessions(probe, endpoint, settings)
    except LinkError as error:
        yield problem("login", "no-connection", f"no connection: {error}", "look at its log")


def _check(probe: Probe, settings: DeviceSettings, bundle: Bundle | None) -> Iterator[Finding]:
    yield from _request_and_response(probe, settings, bundle)
    yield _presence(probe, settings)
    yield _rights(probe, settings.endpoint)
    if settings.endpoint.tls:
        yield _pool(probe)
    yield from _delays(probe, settings)


# -- a request and its response --------------------------------------------------------------


def _request_and_response(
    probe: Probe, settings: DeviceSettings, bundle: Bundle | None
) -> Iterator[Finding]:
    topic, reply = wire.request_topic(settings.name), wire.response_topic(settings.name)
    granted = probe.subscribe(reply)
    if granted >= _FAILURE or granted == UNKNOWN:
        yield problem(
            "worker",
            "subscription-denied",
            f"the broker refuses the subscription to {reply}",
            f"let this client read it, in {ACCESS_LIST}: pattern read gw/v1/%u/rsp",
        )
        return
    request, expected = _make_request(settings, bundle)
    if bundle is not None and bundle.manifest.cloud is None:
        says = "the bundle has no cloud model: nothing is ever offloaded"
        yield note("model", "no-cloud", says)
    code = probe.publish(topic, wire.encode_request(request))
    response = (
        None
        if code in (DENIED, NOBODY)
        else _await_response(probe, reply, request, seconds=settings.timeout)
    )
    if response is None:
        yield _no_response(probe, settings, code)
        return
    yield ok("request", f"a request on {topic} is taken")
    yield ok("worker", f"a worker answers on {reply}")
    if bundle is not None and bundle.manifest.cloud is not None:
        served, unserved = _more_responses(probe, settings, request, response)
        finding = _check_response(served or response, request, expected)
        if finding.state == "ok" and unserved:
            finding = problem(
                "model",
                "mixed-pool",
                f"some workers of the pool serve {request.model} {request.version}, others do not: "
                "each request that one of these takes costs a no-model and a retry",
                "a pool for each bundle (gatewise cloud --pool NAME), or all bundles to all its "
                "workers",
            )
        yield finding


def _more_responses(
    probe: Probe, settings: DeviceSettings, request: wire.Request, response: wire.Response
) -> tuple[wire.Response | None, bool]:
    """Send the request a few times more: workers of a pool take turns.

    Returns a response of a worker that serves the model, if one came, and whether a request was
    answered ``no-model`` and nothing else. (Of several pools each answers: one that serves it is
    enough.)
    """
    topic, reply = wire.request_topic(settings.name), wire.response_topic(settings.name)
    came: wire.Response | None = response
    served, unserved, until = None, False, time.monotonic() + _LONGEST
    for turn in range(_TURNS):
        if (served is not None and unserved) or time.monotonic() > until:
            break
        if turn:
            request = replace(request, id=wire.new_id())
            probe.publish(topic, wire.encode_request(request))
            came = _await_response(probe, reply, request, seconds=settings.timeout)
        if came is not None and came.error == wire.NO_MODEL:
            came = _await_response(probe, reply, request, seconds=_ANOTHER_POOL)
            unserved |= came is None
        if came is not None and came.error != wire.NO_MODEL:
            served = served or came
    return served, unserved


def _make_request(settings: DeviceSettings, bundle: Bundle | None) -> tuple[wire.Request, Any]:
    """Make the request: a sample row for the bundle's model, or one that no model answers."""
    (model, version), X, expected = _NO_MODEL, np.zeros((1, 1), np.float32), None
    if bundle is not None and bundle.manifest.cloud is not None:
        manifest, sample = bundle.manifest, bundle.sample()
        columns = manifest.request_inputs()
        model, version = manifest.name, manifest.version
        X = np.asarray(sample["X"][:1, columns], np.float32)
        expected = int(sample["cloud_label"][0])
    ttl_ms = int(1000 * settings.timeout)
    request = wire.Request(id=wire.new_id(), model=model, version=version, ttl_ms=ttl_ms, X=X)
    return request, expected


def _await_response(
    probe: Probe, topic: str, request: wire.Request, *, seconds: float
) -> wire.Response | None:
    def wanted(where: str, payload: bytes, retained: bool) -> bool:
        if where != topic or retained:
            return False
        try:
            return wire.decode_response(payload).id == request.id
        except WireError:
            return False

    came = probe.wait(wanted, seconds)
    return None if came is None else wire.decode_response(came[1])


def _no_response(probe: Probe, settings: DeviceSettings, code: int) -> Finding:
    """Find out why no response came, as far as the broker lets it be known."""
    topic, reply = wire.request_topic(settings.name), wire.response_topic(settings.name)
    if code == DENIED:
        return problem(
            "request",
            "publish-denied",
            f"this client may not write {topic}: its requests vanish",
            f"let it, in {ACCESS_LIST}: pattern write gw/v1/%u/req; is --device the user's own "
            "name?",
        )
    if code == NOBODY:
        return problem(
            "worker",
            "no-worker",
            f"nobody reads {topic}: there is no worker on this broker",
            "start one: gatewise cloud BUNDLE --broker URL; may it read gw/v1/+/req?",
        )
    if code != UNKNOWN:
        return problem(
            "worker",
            "subscription-denied",
            "the request reaches a reader, but no response comes within "
            f"{settings.timeout:g} s: this client may not read {reply}, or the worker may not "
            "write it or hangs",
            f"let it, in {ACCESS_LIST}: pattern read gw/v1/%u/rsp; workers: topic write "
            "gw/v1/+/rsp; read the worker's counters",
        )
    if _echo(probe, topic, settings.timeout):
        return problem(
            "worker",
            "no-worker",
            f"a message on {topic} is passed on, but no response comes on {reply}: there is no "
            "worker, or this client may not read its responses",
            f"start one: gatewise cloud BUNDLE; pattern read gw/v1/%u/rsp in {ACCESS_LIST}",
        )
    return problem(
        "request",
        "publish-denied",
        f"a message on {topic} is not passed on: this client may not write it (or, no less usual, "
        "not read it back)",
        f"let it, in {ACCESS_LIST}: pattern readwrite gw/v1/%u/req; then look again",
    )


def _echo(probe: Probe, topic: str, seconds: float) -> bool:
    """Whether a message comes back to its own sender."""
    mark = b"gatewise doctor " + secrets.token_bytes(8)
    if probe.subscribe(topic) >= _FAILURE:
        return False
    probe.publish(topic, mark)
    came = probe.wait(lambda where, what, _: where == topic and what == mark, seconds)
    probe.unsubscribe(topic)
    return came is not None


def _check_response(
    response: wire.Response, request: wire.Request, expected: int | None
) -> Finding:
    model = f"{request.model} {request.version}"
    if response.error == wire.NO_MODEL:
        return problem(
            "model",
            "no-model",
            f"the worker that answered does not serve {model}",
            "start a worker with this very bundle, or give the device the one that is served: "
            + (response.detail or "see its log"),
        )
    if response.error is not None:
        hint = "more workers, or a longer queue" if response.error == wire.BUSY else "read its log"
        says = f"the worker answers {response.error}: {response.detail}"
        return problem("model", f"cloud-{response.error}", says, hint)
    if expected is not None and int(response.labels[0]) != expected:
        return problem(
            "model",
            "model-differs",
            f"the worker's {model} answers class {int(response.labels[0])} for a sample row, the "
            f"bundle says {expected}",
            "two bundles share a name and version: pack one with a version of its own",
        )
    return ok("model", f"the worker serves {model} and answers as the bundle says")


# -- presence and rights -----------------------------------------------------------------------


def _presence(probe: Probe, settings: DeviceSettings) -> Finding:
    """Publish the device's status again, unchanged."""
    topic = wire.status_topic(settings.name)
    probe.subscribe(topic)
    kept = probe.wait(lambda where, _, retained: where == topic and retained, 0.5)
    status = kept[1] if kept is not None else b"offline"
    code = probe.publish(topic, status, retain=True)
    if code == DENIED:
        seen = False
    else:
        came = probe.wait(lambda where, what, _: where == topic and what == status, 1.0)
        seen = came is not None or code in (0, NOBODY)
        if kept is None:  # leave nothing behind
            probe.publish(topic, b"", retain=True)
    probe.unsubscribe(topic)
    if seen:
        says = "nothing" if kept is None else status.decode(errors="replace")
        return ok("presence", f"{topic} can be written; it says {says}")
    return problem(
        "presence",
        "status-denied",
        f"this client may not write {topic}: nobody sees whether the device is there",
        f"let it, in {ACCESS_LIST}: pattern readwrite gw/v1/%u/status",
    )


def _rights(probe: Probe, endpoint: Endpoint) -> Finding:
    """Try to respond in a worker's place: a device must not be able to."""
    topic = wire.response_topic(f"doctor-{secrets.token_hex(6)}")
    code = probe.publish(topic, b"")
    if code == DENIED or (code == UNKNOWN and not _echo(probe, topic, 1.0)):
        return ok("rights", "this client cannot answer in a worker's place")
    says = "any client of this broker may answer in a worker's place"
    if endpoint.tls:
        remedy = f"only workers may write gw/v1/+/rsp: {ACCESS_LIST}"
        return problem("rights", "open-broker", says, remedy)
    remedy = "fine for trying out; else: gatewise broker init"
    return note("rights", "open-broker", says, remedy)


def _pool(probe: Probe) -> Finding:
    """Try to join a pool of workers, one of this trial's own: no device should be able to."""
    granted = probe.subscribe(wire.shared(f"doctor-{secrets.token_hex(6)}"))
    if granted >= _FAILURE:
        return ok("pool", "this client cannot join the workers")
    return problem(
        "pool",
        "open-pool",
        "the broker grants every subscription: who knows the name of the workers' pool takes "
        "requests away from them",
        "mosquitto's dynamic security plugin (gatewise broker init --plugin)",
    )


def _sessions(probe: Probe, endpoint: Endpoint, settings: DeviceSettings) -> Finding:
    """Connect a second time, under another client id: the first connection should end."""
    with Probe(endpoint, settings.timeout):
        if probe.lost_within(1.0):
            return ok("sessions", "this certificate is good for one session")
    return note(
        "sessions",
        "free-ids",
        "a certificate is good for any number of sessions, and for other clients' ids",
        "use_username_as_clientid true, where no two workers share one (gatewise broker init)",
    )


# -- delays ------------------------------------------------------------------------------------


def _delays(probe: Probe, settings: DeviceSettings) -> Iterator[Finding]:
    """Measure messages sent one by one, and the last of a few sent together.

    Nagle's algorithm holds that one back until those before it were acknowledged, which the
    receiving side delays by 40 ms. (Of a pair, the second often carries the acknowledgement.)
    """
    topic = f"gw/v1/{settings.name}/probe"
    probe.subscribe(topic)
    delays: dict[int, list[float]] = {1: [], _TOGETHER: []}
    began = time.monotonic()
    for turn in range(_EXCHANGES):
        for count, found in delays.items():
            delay = _exchange(probe, topic, count, settings.timeout)
            if delay is None:
                yield skipped("delay", f"not measured: this client may not write and read {topic}")
                return
            found.append(delay)
        if turn >= _FEWEST and time.monotonic() - began > _LONGEST:
            break
    # The later half: at first Linux acknowledges at once.
    delays = {count: found[len(found) // 2 :] for count, found in delays.items()}
    single = statistics.median(delays[1])
    held = {c: [d for d in found if d - single > _NAGLE_MS] for c, found in delays.items()}
    # On a busy machine an acknowledgement may travel with something else, now and then; and what
    # only the machine holds back comes late alone, too.
    share = len(held[_TOGETHER]) / len(delays[_TOGETHER]) - len(held[1]) / len(delays[1])
    nagle = share > _HELD_SHARE
    if nagle:
        last = statistics.median(held[_TOGETHER])
        yield problem(
            "delay",
            "nodelay",
            f"a message that follows others comes after {last:.0f} ms, alone after {single:.1f}: "
            "the broker sends without TCP_NODELAY",
            "set_tcp_nodelay true in mosquitto.conf",
        )
    # Request, response and one retry of both must fit into the deadline.
    if 4 * single > settings.deadline_ms:
        yield problem(
            "delay",
            "slow-broker",
            f"a message to the broker and back takes {single:.0f} ms: with a deadline of "
            f"{settings.deadline_ms:g} ms there is no time for a retry",
            "a broker nearer or less busy, or a longer deadline (--deadline-ms)",
        )
    elif not nagle:
        yield ok("delay", f"a message to the broker and back takes {single:.1f} ms")


def _exchange(probe: Probe, topic: str, count: int, seconds: float) -> float | None:
    """Send messages together, await the last: milliseconds from its sending."""
    marks = [secrets.token_bytes(8) for _ in range(count)]
    sent = [probe.send(topic, mark) for mark in marks]
    came = probe.wait(lambda where, what, _: where == topic and what == marks[-1], seconds)
    return None if came is None else 1000 * (came[0] - sent[-1])
