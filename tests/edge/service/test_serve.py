"""The loop of a running device: the times at which instances begin, and its totals."""

from __future__ import annotations

from types import SimpleNamespace

from gatewise_edge.sensors.instance_source import InstanceSource
from gatewise_edge.service import serve

#: Any time in seconds since 1970.
EPOCH_S = 1.7e9


def test_instances_begin_at_least_an_interval_apart(monkeypatch):
    """This holds after an answer or a source that took longer than the interval."""
    now = [0.0]
    start_times = []
    stop_request = SimpleNamespace(signal_name="")
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: EPOCH_S + now[0])
    monkeypatch.setattr(serve, "time", clock)

    def pause(seconds: float) -> None:
        now[0] += max(0.0, seconds)

    def read_rows():
        for number in range(7):
            now[0] += 0.5 if number == 4 else 0.0  # the source is silent for that time
            yield [(None, {})]

    stop_request.pause = pause
    source = InstanceSource(read_rows())
    for number, _, fields in serve._due_instances(source, stop_request, None, 0.25, frozenset()):
        assert fields["at"] == EPOCH_S + now[0]
        start_times.append(now[0])
        now[0] += 1.0 if number == 1 else 0.0625  # the time to answer
    # The answer to instance 1 takes until 1.25, and instance 4 comes 0.5 s after 1.75. All other
    # instances begin 0.25 s after the one before. All times are exact in binary.
    assert start_times == [0.0, 0.25, 1.25, 1.5, 2.25, 2.5, 2.75]


def test_traceback_of_an_unexpected_error_is_logged_once(caplog):
    def fail(instance: str) -> None:
        raise KeyError(instance)

    logged_failures: set[str] = set()
    for instance in "aabab":
        error = serve._answer_or_error(fail, instance, logged_failures)
        assert (type(error), error.args) == (KeyError, (instance,))
    assert caplog.text.count("Traceback") == 2
    for number in range(1000):
        serve._answer_or_error(fail, str(number), logged_failures)
    assert caplog.text.count("Traceback") == 100


def test_quantiles_are_observed_latencies():
    totals = serve.AnswerTotals(deadline_ms=10.0)
    for latency_ms in (4.0, 1.0, 3.0, 2.0):
        totals.add(SimpleNamespace(route="edge", cost=1.0, latency_ms=latency_ms))
    assert totals.summary()["latency_ms"] == {"p50": 2.0, "p95": 4.0, "p99": 4.0}
    assert totals.summary()["late_answers"] == 0
    assert "after the deadline" not in totals.summary_text()


def test_answers_after_the_deadline_are_in_the_summary():
    totals = serve.AnswerTotals(deadline_ms=2.0)
    for latency_ms in (2.0, 2.1, 300.0):
        totals.add(SimpleNamespace(route="fallback", cost=1.0, latency_ms=latency_ms))
    assert totals.summary()["late_answers"] == 2
    assert totals.summary_text().endswith("; 2 answers after the deadline")
