"""Checks of one round trip from request to response, and of the worker that answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from gatewise_edge.errors import LinkError, WireError
from gatewise_edge.link import wire
from gatewise_sim.doctor.findings import ACCESS_LIST, ROUND_TRIP, WORKER, DeviceSettings, Finding
from gatewise_sim.doctor.probe import (
    DENIED,
    FAILURE,
    NO_SUBSCRIBER,
    PACKET_TOO_LARGE,
    SESSION_TAKEN,
    UNKNOWN,
    Probe,
)

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle

#: Model of a request without a bundle: a worker responds that it does not serve it.
_NO_MODEL: Final = ("gatewise-doctor", "0")
#: Largest number of bytes of a PUBLISH packet of QoS 1, topic and payload apart.
_HEADER_BYTES: Final = 9


def check_round_trip(settings: DeviceSettings, bundle: Bundle | None) -> Iterator[Finding]:
    """Send a request as the device would, and check the response that comes."""
    if bundle is not None and bundle.manifest.cloud is None:
        yield WORKER.note("no-cloud", "the bundle has no cloud model: nothing is offloaded")
        bundle = None
    request, expected = _make_request(settings, bundle)
    payload = wire.encode_request(request)
    try:
        with Probe(settings.endpoint, settings.timeout) as probe:
            yield from _exchange(probe, settings, request, payload, expected)
            lost = probe.lost
            largest = probe.largest_packet
        if lost is not None:
            topic = wire.request_topic(settings.device or "")
            n_bytes = len(payload) + len(topic) + _HEADER_BYTES
            yield _lost_connection(lost, n_bytes, largest)
    except LinkError as error:
        yield ROUND_TRIP.problem("no-connection", str(error), "look at the broker's log")


def _make_request(
    settings: DeviceSettings, bundle: Bundle | None
) -> tuple[wire.Request, int | None]:
    """Make the request, of a sample row or for no model at all; and the class index expected."""
    model, version = _NO_MODEL
    X = np.zeros((1, 1), np.float32)
    expected = None
    if bundle is not None:
        manifest = bundle.manifest
        sample = bundle.sample()
        model = manifest.name
        version = manifest.version
        X = np.asarray(sample["X"][:1, manifest.cloud_inputs()], np.float32)
        expected = int(sample["cloud_label"][0])
    ttl_ms = int(1000 * settings.timeout)
    request = wire.Request(id=wire.new_id(), model=model, version=version, ttl_ms=ttl_ms, X=X)
    return request, expected


def _exchange(
    probe: Probe,
    settings: DeviceSettings,
    request: wire.Request,
    payload: bytes,
    expected: int | None,
) -> Iterator[Finding]:
    """Send the request and await its response; nothing is yielded if the connection is lost."""
    device = settings.device or ""
    topic, reply = wire.request_topic(device), wire.response_topic(device)
    if (granted := probe.subscribe(reply)) >= FAILURE or granted == UNKNOWN:
        if probe.lost is None:
            yield ROUND_TRIP.problem(
                "subscription-denied",
                f"the broker refuses the subscription to {reply}",
                f"let this client read it, in {ACCESS_LIST}: pattern read gw/v1/%u/rsp",
            )
        return
    response = None
    started = time.perf_counter()
    code = probe.publish(topic, payload)
    if code not in (DENIED, NO_SUBSCRIBER):
        response = _await_response(probe, reply, request, settings.timeout)
    if response is None:
        if probe.lost is None:
            yield _no_response(probe, settings, code)
        return
    came, decoded = response
    trip_ms = 1000 * (came - started) - decoded.worker_us / 1000
    # A device sends its request again after two round trips, if one more fits.
    text = f"a request on {topic} has its response in {trip_ms:.1f} ms"
    yield ROUND_TRIP.ok(f"{text}: a deadline of {3 * trip_ms:.0f} ms leaves time for a retry")
    yield _check_response(decoded, request, expected)


def _await_response(
    probe: Probe, topic: str, request: wire.Request, seconds: float
) -> tuple[float, wire.Response] | None:
    """Wait for the response; one of a pool that does not serve the model counts if it is alone."""
    end = time.monotonic() + seconds
    refusal: tuple[float, wire.Response] | None = None

    def wanted(where: str, payload: bytes, retained: bool) -> bool:
        if where != topic or retained:
            return False
        try:
            return wire.decode_response(payload).id == request.id
        except WireError:
            return False

    while (message := probe.wait(wanted, max(0.0, end - time.monotonic()))) is not None:
        response = message[0], wire.decode_response(message[1])
        if response[1].error != wire.NO_MODEL or request.model == _NO_MODEL[0]:
            return response
        refusal = refusal or response
    return refusal


def _no_response(probe: Probe, settings: DeviceSettings, code: int) -> Finding:
    """Find out why no response came, as far as the broker lets it be known."""
    device = settings.device or ""
    topic, reply = wire.request_topic(device), wire.response_topic(device)
    if code == DENIED or (code == UNKNOWN and not probe.echoes(topic, settings.timeout)):
        return ROUND_TRIP.problem(
            "publish-denied",
            f"a message on {topic} is not passed on: this client may not write it",
            f"let it, in {ACCESS_LIST}: pattern write gw/v1/%u/req; is --device the user's own "
            "name?",
        )
    if code in (NO_SUBSCRIBER, UNKNOWN):
        return WORKER.problem(
            "no-worker",
            f"no worker on this broker answers a request on {topic}",
            f"start one: gatewise cloud BUNDLE --broker URL; it must read gw/v1/+/req, and this "
            f"client {reply}, by {ACCESS_LIST}",
        )
    return ROUND_TRIP.problem(
        "subscription-denied",
        f"the request reaches a reader, but no response comes within {settings.timeout:g} s: this "
        f"client may not read {reply}, or the worker may not write it or hangs",
        f"let it, in {ACCESS_LIST}: pattern read gw/v1/%u/rsp; workers: topic write gw/v1/+/rsp",
    )


def _lost_connection(reason: int, n_bytes: int, largest: int | None) -> Finding:
    """Find out why the broker ended the connection when the request was sent."""
    if reason == SESSION_TAKEN:
        return ROUND_TRIP.problem(
            "session-taken",
            "another client with this certificate took the connection over: the broker allows one",
            "stop the device's service while the doctor runs",
        )
    too_large = reason == PACKET_TOO_LARGE or (largest is not None and largest < n_bytes)
    if too_large:
        limit = "" if largest is None else f", its limit is {largest}"
        return ROUND_TRIP.problem(
            "packet-limit",
            f"the broker closes the connection on a packet of {n_bytes} bytes{limit}",
            "raise its limit on packets (mosquitto: max_packet_size), or pack a bundle with a "
            "smaller request (--max-message)",
        )
    text = f"the broker closed the connection on a request of {n_bytes} bytes"
    remedy = "look at the broker's log, and at its limit on packets"
    return ROUND_TRIP.problem("connection-lost", text, remedy)


def _check_response(
    response: wire.Response, request: wire.Request, expected: int | None
) -> Finding:
    """Compare the worker's answer with the bundle's own."""
    model = f"{request.model} {request.version}"
    if request.model == _NO_MODEL[0]:
        return WORKER.ok("a worker answers; give a bundle to try its model")
    if response.error == wire.NO_MODEL:
        return WORKER.problem(
            "no-model",
            f"the worker that answered does not serve {model}",
            "start a worker with this very bundle, or give the device the one that is served: "
            + (response.detail or "see its log"),
        )
    if response.error is not None:
        remedy = (
            "more workers, or a longer queue" if response.error == wire.BUSY else "read its log"
        )
        text = f"the worker answers {response.error}: {response.detail}"
        return WORKER.problem(f"cloud-{response.error}", text, remedy)
    label = int(response.labels[0])
    if label != expected:
        return WORKER.problem(
            "model-differs",
            f"the worker's {model} answers class {label} for a sample row, the bundle {expected}",
            "two bundles share a name and version: pack one with another version",
        )
    return WORKER.ok(f"a worker serves {model} and answers as the bundle says")
