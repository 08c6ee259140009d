"""Several rows share a request, and each still gets exactly one answer before its deadline."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gatewise.costs import request_bytes
from gatewise.errors import InputError
from gatewise_edge.device.answer import DecisionPoint
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import PendingInstance
from gatewise_edge.errors import SensorError
from gatewise_edge.link import wire
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.link.messages import MAX_GROUP_ROWS, MAX_TTL_MS, max_rows
from gatewise_edge.link.offload import RoundTrip
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_edge.link.wire import MAX_PAYLOAD
from tests.edge.virtual_time import Clock, answer_in_virtual_time
from tests.support.small_bundle import (
    HARD_ROW,
    SURE_ROW,
    FakeLink,
    answer_to,
    cloud_answers,
    refuse,
    respond,
)
from tests.support.waiting import wait_until

#: Deadline that is met also on a loaded machine.
LONG_DEADLINE_MS = 20_000


def make_unsure_row(feature_e: float) -> list[float]:
    """Make a hard row; the sign of feature e decides the cloud's answer."""
    return [0.1, 0, 0.1, 0, feature_e, 0]


def test_max_rows_fit_one_request_and_one_response():
    assert max_rows(10, 2) == MAX_GROUP_ROWS
    for n_columns, n_classes in ((3000, 2), (10, 5000), (32000, 2), (2, 30000)):
        n_rows = max_rows(n_columns, n_classes)
        assert 1 <= n_rows < MAX_GROUP_ROWS
        assert request_bytes(n_columns, rows=n_rows) <= MAX_PAYLOAD
        # All other fields have their largest size.
        response = wire.Response(
            id=bytes(16),
            model="m" * 64,
            version="v" * 64,
            labels=np.zeros(n_rows, np.int64),
            probabilities=np.ones((n_rows, n_classes), np.float32),
            worker_us=2**40,
        )
        assert len(wire.encode_response(response)) <= MAX_PAYLOAD


def test_answer_many_answers_every_row(bundle):
    link = InProcessLink(cloud_answers)
    rows = np.random.default_rng(0).normal(0, 0.4, (700, 6)).astype(np.float32)
    rows[5, 0] = np.nan
    with Device(bundle, link=link, deadline_ms=LONG_DEADLINE_MS) as device:
        answers = device.answer_many(rows)
        counters = device.counters
    assert isinstance(answers[5], SensorError)
    with Device(bundle, link=InProcessLink(cloud_answers), deadline_ms=LONG_DEADLINE_MS) as device:
        for row_number, answer in enumerate(answers):
            if row_number != 5:
                single_answer = device.answer(rows[row_number])
                for field in ("label", "route", "stage", "cost", "reason"):
                    assert getattr(answer, field) == getattr(single_answer, field)
                np.testing.assert_array_equal(answer.probabilities, single_answer.probabilities)
    # Many rows shared a request.
    assert counters["cloud"] > 8 * counters["sent"] > 0
    assert counters["errors"] == 1


def test_answer_many_checks_all_rows_before_it_begins_one(bundle):
    link = FakeLink()
    with Device(bundle, link=link) as device:
        for rows in ([[0.0] * 5], HARD_ROW, "text"):  # five features of six; one row
            with pytest.raises(InputError):
                device.answer_many(rows)
        assert device.answer_many(np.empty((0, 6))) == []
        assert link.sent_payloads == []


def test_row_that_fails_does_not_affect_the_other_rows_or_their_request(bundle):
    rows = np.array(
        [HARD_ROW, make_unsure_row(1.0), HARD_ROW, SURE_ROW, make_unsure_row(1.0)], np.float32
    )
    point_numbers = iter(range(99))

    def policy(point: DecisionPoint) -> str:
        if next(point_numbers) == 2:  # the third decision
            raise ZeroDivisionError
        return "stop" if point.stops else "offload"

    with Device(bundle, link=FakeLink(), policy=policy) as device:
        answers = device.answer_many(rows)
        assert isinstance(answers.pop(2), ZeroDivisionError)
        assert [(answer.route, answer.label) for answer in answers] == [
            ("cloud", "no"), ("cloud", "yes"), ("edge", "yes"), ("cloud", "yes"),
        ]  # fmt: skip
        counters = device.counters
    assert (counters["errors"], counters["cloud"], counters["sent"]) == (1, 3, 1)


def test_rows_share_one_request_with_the_deadline_of_the_first_row(bundle):
    clock = Clock()
    sent_calls = []
    link = FakeLink(lambda *arguments: sent_calls.append(arguments))
    with Device(bundle, link=link, deadline_ms=1000, clock=clock) as device:
        pool = ThreadPoolExecutor(1)
        answers = pool.submit(device.answer_many, [HARD_ROW, SURE_ROW, make_unsure_row(1.0)])
        wait_until(lambda: sent_calls)
        request = wire.decode_request(sent_calls[0][0])
        # The device keeps 5 ms for itself.
        assert (request.n_rows, request.ttl_ms) == (2, 995)
        respond(*sent_calls[0])
        assert [answer.label for answer in answers.result()] == ["no", "yes", "yes"]
        pool.shutdown()


def test_each_row_of_a_request_that_is_not_sent_gets_a_fallback(bundle):
    link = FakeLink()
    link.accepts = False
    with Device(bundle, link=link, offload_rules=OffloadRules(max_offloads="2/h")) as device:
        answers = device.answer_many([HARD_ROW, make_unsure_row(1.0), HARD_ROW])
        assert [answer.reason for answer in answers] == ["unsent", "unsent", "offload-limit"]


def test_time_to_live_is_bounded_if_the_deadline_is_days_away(bundle):
    link = FakeLink()
    with Device(bundle, link=link, deadline_ms=2 * MAX_TTL_MS) as device:
        assert device.answer(HARD_ROW).route == "cloud"
    assert wire.decode_request(link.sent_payloads[0]).ttl_ms == MAX_TTL_MS


def test_refusal_wakes_the_waiting_thread_for_the_retry(bundle):
    def refuse_once(payload, receive):
        if len(link.sent_payloads) > 1:
            respond(payload, receive)
            return
        refusal = wire.Response.refusal(wire.decode_request(payload), "busy")
        # After 20 ms the device waits.
        threading.Timer(0.02, receive, [wire.encode_response(refusal)]).start()

    link = FakeLink(refuse_once)
    with Device(bundle, link=link, deadline_ms=5000) as device:
        # With this deviation no retry was planned when the request was sent.
        device._uplink._offloads.round_trip = RoundTrip(smoothed_s=0.05, deviation_s=9.0)
        assert device.answer(HARD_ROW).route == "cloud"
    assert len(link.sent_payloads) == 2


#: Rows that arrive in the simulation below.
N_ROWS = 60


@pytest.mark.parametrize("seed", range(10))
def test_each_row_has_one_answer_by_its_deadline_for_any_cloud(bundle, seed):
    rng = np.random.default_rng(seed)
    clock = Clock()
    responses_in_flight = []  # time of delivery, a drawn number, and the arguments of `send`

    def send_to_cloud(payload, receive):
        n_copies = rng.choice([0, 1, 1, 1, 2])  # lost, answered, answered twice
        delays = rng.exponential(0.05, n_copies)  # seconds; half of the deadline on average
        responses_in_flight.extend(
            (clock.now + delay, rng.random(), payload, receive) for delay in delays
        )

    def deliver_response(drawn_number, payload, receive):
        """Refuse one request in five, and answer the others."""
        request = wire.decode_request(payload)
        if drawn_number < 0.2:
            code = "busy" if drawn_number < 0.1 else "failed"
            receive(wire.encode_response(wire.Response.refusal(request, code)))
        else:
            respond(payload, receive)

    observed_outcomes = []
    rules = OffloadRules(max_in_flight=4)
    with Device(
        bundle,
        link=FakeLink(send_to_cloud),
        clock=clock,
        observe=observed_outcomes.append,
        deadline_ms=100,
        offload_rules=rules,
    ) as device:
        # A row comes every 10 ms on average, so that about ten are pending at a time.
        arrivals = list(clock.now + np.cumsum(rng.exponential(0.01, N_ROWS)))
        signs = rng.choice([-1.0, 1.0], N_ROWS)
        outcomes = []
        started_at = []
        while arrivals or any(isinstance(outcome, PendingInstance) for outcome in outcomes):
            # Set the clock to the next event.
            wake_times = [
                outcome.wake_at for outcome in outcomes if isinstance(outcome, PendingInstance)
            ]
            delivery_times = [response[0] for response in responses_in_flight]
            clock.now = max(clock.now, min([*arrivals[:1], *wake_times, *delivery_times]))
            if arrivals and arrivals[0] <= clock.now:
                arrivals.pop(0)
                started_at.append(clock.now)
                outcomes.append(device.begin(make_unsure_row(signs[len(outcomes)])))
            due_responses = [
                response for response in responses_in_flight if response[0] <= clock.now
            ]
            for response in due_responses:
                responses_in_flight.remove(response)
                deliver_response(*response[1:])
            for row, outcome in enumerate(outcomes):
                if isinstance(outcome, PendingInstance):
                    outcomes[row] = device.advance(outcome)
                    # The device keeps 5 ms of the deadline for itself.
                    assert clock.now <= started_at[row] + 0.095 + 1e-9
        counters = device.counters
    assert len(observed_outcomes) == N_ROWS == counters["cloud"] + counters["fallback"]
    for answer, sign in zip(outcomes, signs, strict=True):
        # Stage 1, which reads a positive c, answers the fallbacks.
        assert answer.class_index == (sign > 0 if answer.route == "cloud" else 1)
    n_settled = sum(counters[name] for name in ("answered", "refused", "timeouts", "unsent"))
    assert n_settled == counters["sent"]


# -- the log -----------------------------------------------------------------------------------


def test_refused_request_ends_when_the_link_refuses_its_retry(bundle, clock):
    link = FakeLink(refuse)
    with Device(bundle, link=link, clock=clock) as device:
        instance = device.begin(HARD_ROW)
        clock.now = instance.wake_at
        link.accepts = False
        answer = device.advance(instance)
        counters = device.counters
    assert (answer.route, answer.reason) == ("fallback", "cloud:busy")
    assert (counters["sent"], counters["retries"], counters["refused"]) == (1, 0, 1)


def test_missing_model_is_logged_only_when_no_worker_has_it(bundle, clock, caplog):
    def refuse_first_copy(payload, receive):
        request = wire.decode_request(payload)
        refusal = wire.Response.refusal(request, "no-model")
        receive(
            wire.encode_response(refusal if len(link.sent_payloads) == 1 else answer_to(request))
        )

    link = FakeLink(refuse_first_copy)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        answer = answer_in_virtual_time(device, clock)
    assert (answer.route, len(link.sent_payloads)) == ("cloud", 2)
    assert "does not serve" not in caplog.text


def test_pool_in_which_some_workers_lack_the_model_is_logged_once_a_minute(bundle, clock, caplog):
    def refuse_every_other_request(payload, receive):
        request = wire.decode_request(payload)
        has_model = len(link.sent_payloads) % 3 == 0  # two refusals are for one instance
        receive(
            wire.encode_response(
                answer_to(request) if has_model else wire.Response.refusal(request, "no-model")
            )
        )

    link = FakeLink(refuse_every_other_request)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        routes = [answer_in_virtual_time(device, clock).route for _ in range(6)]
        assert routes == ["fallback", "cloud"] * 3
        assert caplog.text.count("does not serve small 7") == 1
        clock.now += 61.0
        answer_in_virtual_time(device, clock)
        assert caplog.text.count("does not serve small 7") == 2


def test_silent_cloud_is_logged_once_and_so_is_its_return(bundle, clock, caplog):
    caplog.set_level("INFO")
    is_silent = True

    def respond_if_not_silent(payload, receive):
        if not is_silent:
            receive(wire.encode_response(answer_to(wire.decode_request(payload))))

    link = FakeLink(respond_if_not_silent)
    with Device(bundle, link=link, deadline_ms=100, clock=clock) as device:
        for _ in range(8):  # five requests without a reply open the breaker
            assert answer_in_virtual_time(device, clock).route == "fallback"
        assert caplog.text.count("the cloud does not reply") == 1
        assert "replies again" not in caplog.text
        is_silent = False
        clock.now += 2.0  # longer than the first pause of the breaker
        assert answer_in_virtual_time(device, clock).route == "cloud"
    assert caplog.text.count("the cloud does not reply") == 1
    assert caplog.text.count("the cloud replies again") == 1
