"""The status of a device: the counts of the release that it runs."""

from __future__ import annotations

from gatewise_edge.device.device import Device
from gatewise_edge.service.release_status import ReleaseStatus
from gatewise_edge.update import Store
from tests.edge.virtual_time import Clock
from tests.support.small_bundle import HARD_ROW, SURE_ROW, FakeLink


def test_counts_begin_again_with_each_release(make_bundle, tmp_path):
    statuses = []
    link = FakeLink()
    link.set_status = statuses.append
    status = ReleaseStatus(link, Store(tmp_path / "store"), Clock())
    with Device(make_bundle("first"), link=link, audit=1.0) as device:
        status.begin(device)
        device.answer_many([SURE_ROW, SURE_ROW, HARD_ROW])  # the cloud calls each of them no
        status.publish()
        device.adopt(make_bundle("second", version="8"))
        status.begin(device)
        device.answer(SURE_ROW)
        status.publish()
    assert statuses == [
        "small/7",
        "small/7 seen=3,0,0 audited=3,2.0",
        "small/8",
        "small/8 seen=1,0,0 audited=1,1.0",
    ]
