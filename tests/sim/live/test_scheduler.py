"""The scheduler with real devices and a cloud in the same process."""

import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge.device.installed import InstalledBundle
from gatewise_edge.link.link import InProcessLink
from gatewise_sim.live.metered import AnswerBox, LiveAnswer, MeteredLink
from gatewise_sim.live.scheduler import Deliveries, DeviceSlot, LogicalDevice, Schedule, Scheduler

pytestmark = pytest.mark.slow


class Slow:
    """A link that delivers after a while, on a thread of its own; never without one."""

    def __init__(self, inner: InProcessLink, seconds: float | None) -> None:
        self.ready = True
        self._inner = inner
        self._seconds = seconds

    def open(self, receive) -> None:
        self._inner.open(receive)

    def send(self, payload: bytes) -> bool:
        if self._seconds is not None:
            threading.Timer(self._seconds, self._inner.send, (payload,)).start()
        return True

    def close(self) -> None:
        self._inner.close()


@pytest.fixture(scope="module")
def cloud(small):
    model = CloudModel.from_bundle(small.bundle)
    yield model
    model.close()


@pytest.fixture
def fleet(small, cloud):
    """A function that makes a scheduler of so many devices, each with a link of its own."""
    made: list[LogicalDevice] = []

    def make(devices: int, seconds: float | None = 0.0, **options) -> SimpleNamespace:
        shared = InstalledBundle.load(small.bundle, offloads=True)
        box, deliveries, slots = AnswerBox(), Deliveries(), []
        for index in range(devices):
            near = InProcessLink(cloud.answer)
            inner = near if seconds == 0.0 else Slow(near, seconds)
            name = f"{index:08x}"
            link = MeteredLink(inner, name, box, lambda index=index: deliveries.put(index))
            made.append(LogicalDevice(shared, link=link, **{"deadline_ms": 5000.0, **options}))
            slots.append(DeviceSlot(name, made[-1], link))
        scheduler = Scheduler(slots, small.rows, box, deliveries)

        def run(device, row, time=None, pause: float = 0.0) -> list[LiveAnswer]:
            schedule = Schedule(
                number=np.arange(len(row)) + 100,
                device=np.asarray(device),
                row=np.asarray(row),
                time=None if time is None else np.asarray(time, np.float64),
                pause=pause,
            )
            scheduler.run(schedule, began=begin())
            outcomes, _ = box.take()
            return sorted(outcomes, key=lambda outcome: outcome.number)

        return SimpleNamespace(run=run, scheduler=scheduler, slots=slots)

    yield make
    for device in made:
        device.close()


def begin() -> float:
    return time.monotonic() + 0.01


def test_many_devices_answer_each_instance_once(fleet, small, routes):
    made = fleet(7)
    row = np.arange(len(small.rows))
    outcomes = made.run(row % 7, row, row * 1e-4)
    assert [o.number for o in outcomes] == (row + 100).tolist()
    assert [o.time for o in outcomes] == pytest.approx((row * 1e-4).tolist(), abs=1e-9)
    assert [o.label for o in outcomes] == routes.label.tolist()
    assert [o.cost for o in outcomes] == routes.cost.tolist()
    assert [o.route == "cloud" for o in outcomes] == routes.offload.tolist()
    assert len(made.scheduler.behind) == len(row)
    assert min(made.scheduler.behind) >= 0


def test_an_instance_begins_whatever_else_its_device_waits_for(fleet, routes):
    made = fleet(1, seconds=0.4)
    hard = np.flatnonzero(routes.offload)[:20]
    outcomes = made.run(np.zeros(20, int), hard, np.linspace(0.0, 0.1, 20))
    assert {o.route for o in outcomes} == {"cloud"}
    # One after the other they would take eight seconds.
    assert sum(o.latency_ms for o in outcomes) >= 20 * 400.0
    ends = [o.time + o.latency_ms / 1000.0 for o in outcomes]
    assert max(ends) < 20 * 0.4


def test_a_delivery_ends_an_instance_before_its_next_look(fleet, routes):
    """Its request would be looked at again a quarter of the deadline later at the earliest."""
    made = fleet(2, seconds=0.05, deadline_ms=60_000.0)
    hard = np.flatnonzero(routes.offload)[:2]
    outcomes = made.run([0, 1], hard, [0.0, 0.0])
    assert {o.route for o in outcomes} == {"cloud"}
    assert max(o.latency_ms for o in outcomes) < 15_000.0


def test_without_a_response_the_deadline_ends_it_and_the_request_is_sent_twice(fleet, routes):
    made = fleet(1, seconds=None, deadline_ms=1000.0)
    hard = np.flatnonzero(routes.offload)[:3]
    outcomes = made.run([0, 0, 0], hard, [0.0, 0.05, 0.1])
    assert [o.route for o in outcomes] == ["fallback"] * 3
    assert [o.reason for o in outcomes] == ["timeout"] * 3
    assert [o.label for o in outcomes] == routes.local_label[hard].tolist()
    assert all(o.latency_ms >= 990.0 for o in outcomes)
    sizes = routes.sizes
    assert [o.bytes.payload_up for o in outcomes] == [2 * sizes.request(900)] * 3
    assert made.slots[0].link.awaited == 6


def test_in_turn_a_device_begins_when_it_has_answered(fleet, routes):
    made = fleet(2, seconds=0.05)
    hard = np.flatnonzero(routes.offload)[:6]
    outcomes = made.run([0, 1, 0, 1, 0, 0], hard, pause=0.02)
    for device in (0, 1):
        mine = [o for o in outcomes if [0, 1, 0, 1, 0, 0][o.number - 100] == device]
        for before, after in pairwise(mine):
            assert after.time >= before.time + before.latency_ms / 1000.0 + 0.02
    assert min(o.time for o in outcomes) >= 0.0


def test_a_row_that_cannot_be_answered_is_an_error_and_the_others_go_on(fleet, small):
    made = fleet(1)
    rows = small.rows[:3].copy()
    rows[1] = np.nan
    made.scheduler.rows = rows
    outcomes = made.run([0, 0, 0], [0, 1, 2], [0.0, 0.001, 0.002])
    assert [o.route == "error" for o in outcomes] == [False, True, False]
    assert (outcomes[1].label, outcomes[1].stage) == (-1, -1)
    assert outcomes[1].reason
    assert made.slots[0].device.counters["errors"] == 1


def test_parts_of_a_latency_add_up(fleet, routes):
    made = fleet(1, seconds=0.05)
    hard, easy = np.flatnonzero(routes.offload)[0], np.flatnonzero(~routes.offload)[0]
    sent, kept = made.run([0, 0], [hard, easy], [0.0, 0.01])
    assert sent.device_ms > 0
    assert sent.cloud_ms > 0
    assert sent.device_ms + sent.cloud_ms + 50.0 <= sent.latency_ms
    assert kept.device_ms == kept.latency_ms
    assert kept.cloud_ms == 0


def test_devices_share_their_stages_and_nothing_else(fleet):
    first, second = (slot.device for slot in fleet(2).slots)
    assert first._installed is second._installed
    assert first._uplink is not second._uplink
