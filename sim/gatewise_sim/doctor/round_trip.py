"""Checks of one round trip from request to response, and of the worker that responds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from gatewise_edge.errors import LinkError, WireError
from gatewise_edge.link import wire
from gatewise_sim.doctor.findings import ACCESS_LIST, ROUND_TRIP, WORKER, Finding
from gatewise_sim.doctor.probe import (
    DENIED,
    FAILURE,
    NO_SUBSCRIBER,
    PACKET_TOO_LARGE,
    SESSION_TAKEN,
    UNKNOWN,
    BrokerProbe,
    ReceivedMessage,
)
from gatewise_sim.doctor.settings import DeviceSettings

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle

#: Model of a request without a bundle. A worker responds that it does not serve this model.
_NO_MODEL: Final = ("gatewise-doctor", "0")
#: Deadline of a device without --deadline-ms.
_DEFAULT_DEADLINE_MS: Final = 500.0
#: Largest size of a PUBLISH packet of QoS 1 without its topic and payload (MQTT 3.1.1, section
#: 3.3): a byte of type, four of length, two of the topic's length, and two of the packet id.
_HEADER_BYTES: Final = 9


def check_round_trip(settings: DeviceSettings, bundle: Bundle | None) -> Iterator[Finding]:
    """Send a request as the device does, and check the response."""
    if bundle is not None and bundle.manifest.cloud is None:
        yield WORKER.note(
            "no-cloud", "the bundle has no high-cost model, so no instance is offloaded"
        )
        bundle = None
    request, expected_class = _make_request(settings, bundle)
    payload = wire.encode_request(request)
    try:
        with BrokerProbe(settings.endpoint, settings.timeout) as probe:
            yield from _exchange(probe, settings, request, payload, expected_class)
            disconnect_code = probe.disconnect_code
            max_packet_bytes = probe.max_packet_bytes
        if disconnect_code is not None:
            topic = wire.request_topic(settings.device or "")
            n_bytes = len(payload) + len(topic) + _HEADER_BYTES
            yield _explain_lost_connection(disconnect_code, n_bytes, max_packet_bytes)
    except LinkError as error:
        yield ROUND_TRIP.problem("no-connection", str(error), "read the broker's log")


def _make_request(
    settings: DeviceSettings, bundle: Bundle | None
) -> tuple[wire.Request, int | None]:
    """Make a request of the bundle's first sample row, and give its expected class index.

    Without a bundle, the request is for a model that no worker serves.
    """
    model, version = _NO_MODEL
    X = np.zeros((1, 1), np.float32)
    expected_class = None
    if bundle is not None:
        manifest = bundle.manifest
        sample = bundle.sample()
        model = manifest.name
        version = manifest.version
        X = sample["X"][:1, manifest.cloud_inputs()].astype(manifest.request_dtype)
        expected_class = int(sample["cloud_label"][0])
    ttl_ms = int(1000 * settings.timeout)
    request = wire.Request(id=wire.new_id(), model=model, version=version, ttl_ms=ttl_ms, X=X)
    return request, expected_class


def _exchange(
    probe: BrokerProbe,
    settings: DeviceSettings,
    request: wire.Request,
    payload: bytes,
    expected_class: int | None,
) -> Iterator[Finding]:
    """Send the request, wait for its response and check it; yield nothing on a lost connection."""
    device = settings.device or ""
    topic = wire.request_topic(device)
    response_topic = wire.response_topic(device)
    granted_qos = probe.subscribe(response_topic)
    if granted_qos >= FAILURE or granted_qos == UNKNOWN:
        if probe.disconnect_code is None:
            yield ROUND_TRIP.problem(
                "subscription-denied",
                f"the broker refuses the subscription to {response_topic}",
                f"let this client read it, in {ACCESS_LIST}: pattern read gw/v1/%u/rsp",
            )
        return
    timed_response = None
    sent_at = time.perf_counter()
    reason_code = probe.publish(topic, payload)
    if reason_code not in (DENIED, NO_SUBSCRIBER):
        timed_response = _await_response(probe, response_topic, request, settings.timeout)
    if timed_response is None:
        if probe.disconnect_code is None:
            yield _explain_missing_response(probe, settings, reason_code)
        return
    arrival, response = timed_response
    yield _rate_round_trip(topic, 1000 * (arrival - sent_at), response.worker_us / 1000)
    yield _check_response(response, request, expected_class)


def _rate_round_trip(topic: str, trip_ms: float, worker_ms: float) -> Finding:
    """Compare the time of a round trip, with the worker's time, with the deadline of a device."""
    trip_text = (
        f"the response to a request on {topic} takes {trip_ms:.1f} ms, of which the worker takes "
        f"{worker_ms:.1f} ms"
    )
    # A device retries after two round trips, if a third one ends before the deadline.
    retry_ms = 3 * trip_ms
    if trip_ms < _DEFAULT_DEADLINE_MS:
        return ROUND_TRIP.ok(
            f"{trip_text}; a deadline of {retry_ms:.0f} ms leaves time for a retry"
        )
    return ROUND_TRIP.note(
        "slow",
        f"{trip_text}; this is longer than the default deadline of {_DEFAULT_DEADLINE_MS:.0f} ms, "
        "with which all requests become fallbacks",
        f"give the device a longer deadline; --deadline-ms {retry_ms:.0f} leaves time for a retry",
    )


def _await_response(
    probe: BrokerProbe, topic: str, request: wire.Request, seconds: float
) -> tuple[float, wire.Response] | None:
    """Wait for the response to the request; return it with its time of arrival.

    Pools that do not serve the model respond as well. Their response is returned only if no other
    response comes.
    """
    deadline = time.monotonic() + seconds
    timed_refusal: tuple[float, wire.Response] | None = None

    def is_own_response(message: ReceivedMessage) -> bool:
        if message.topic != topic or message.is_retained:
            return False
        try:
            return wire.decode_response(message.payload).id == request.id
        except WireError:
            return False

    while (
        message := probe.wait_for_message(is_own_response, max(0.0, deadline - time.monotonic()))
    ) is not None:
        response = wire.decode_response(message.payload)
        if response.error != wire.NO_MODEL or request.model == _NO_MODEL[0]:
            return message.arrival, response
        timed_refusal = timed_refusal or (message.arrival, response)
    return timed_refusal


def _explain_missing_response(
    probe: BrokerProbe, settings: DeviceSettings, reason_code: int
) -> Finding:
    """Find the reason for a missing response, as far as the broker's reason codes allow."""
    device = settings.device or ""
    topic = wire.request_topic(device)
    response_topic = wire.response_topic(device)
    if reason_code == DENIED or (
        reason_code == UNKNOWN and not probe.receives_own_message(topic, settings.timeout)
    ):
        return ROUND_TRIP.problem(
            "publish-denied",
            f"the broker does not deliver messages on {topic}: this client may not write it",
            f"allow it in {ACCESS_LIST}: pattern write gw/v1/%u/req; --device must be the name of "
            "the broker's user",
        )
    if reason_code in (NO_SUBSCRIBER, UNKNOWN):
        return WORKER.problem(
            "no-worker",
            f"no worker on this broker answers a request on {topic}",
            f"start one: gatewise cloud BUNDLE --broker URL; {ACCESS_LIST} must let it read "
            f"gw/v1/+/req, and this client {response_topic}",
        )
    return ROUND_TRIP.problem(
        "subscription-denied",
        f"the request has a subscriber, but no response comes within {settings.timeout:g} s: this "
        f"client may not read {response_topic}, or the worker may not write it or hangs",
        f"allow both in {ACCESS_LIST}: pattern read gw/v1/%u/rsp, and for workers topic write "
        "gw/v1/+/rsp",
    )


def _explain_lost_connection(
    reason_code: int, n_bytes: int, max_packet_bytes: int | None
) -> Finding:
    """Find out why the broker ended the connection when the request was sent."""
    if reason_code == SESSION_TAKEN:
        return ROUND_TRIP.problem(
            "session-taken",
            "another client with this certificate took over the connection",
            "stop the device's service while the doctor runs",
        )
    is_too_large = reason_code == PACKET_TOO_LARGE or (
        max_packet_bytes is not None and max_packet_bytes < n_bytes
    )
    if is_too_large:
        limit = "" if max_packet_bytes is None else f"; its limit is {max_packet_bytes}"
        return ROUND_TRIP.problem(
            "packet-limit",
            f"the broker closes the connection on a packet of {n_bytes} bytes{limit}",
            "raise its packet limit (mosquitto: max_packet_size), or pack a bundle with a "
            "smaller request (--max-message)",
        )
    problem_text = f"the broker closed the connection on a request of {n_bytes} bytes"
    remedy = "read the broker's log, and check its packet limit"
    return ROUND_TRIP.problem("connection-lost", problem_text, remedy)


def _check_response(
    response: wire.Response, request: wire.Request, expected_class: int | None
) -> Finding:
    """Compare the worker's answer with the bundle's expected answer."""
    model_text = f"{request.model} {request.version}"
    if request.model == _NO_MODEL[0]:
        return WORKER.ok("a worker responds; give a bundle to check its model")
    if response.error == wire.NO_MODEL:
        return WORKER.problem(
            "no-model",
            f"the worker that responded does not serve {model_text}",
            "start a worker with this bundle, or give the device the bundle of the worker: "
            + (response.detail or "see its log"),
        )
    if response.error is not None:
        remedy = (
            "run more workers, or a longer queue" if response.error == wire.BUSY else "read its log"
        )
        problem_text = f"the worker responds with the error {response.error}: {response.detail}"
        return WORKER.problem(f"cloud-{response.error}", problem_text, remedy)
    label = int(response.labels[0])
    if label != expected_class:
        return WORKER.problem(
            "model-differs",
            f"for a sample row the worker's {model_text} answers class {label}, the bundle "
            f"{expected_class}",
            "two bundles have the same name and version: pack one with another version",
        )
    return WORKER.ok(f"a worker serves {model_text} and gives the bundle's answer")
