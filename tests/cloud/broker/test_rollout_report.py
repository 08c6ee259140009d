"""The report on a release, from the statuses of devices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gatewise_cloud.broker.rollout_report import RolloutReport, read_statuses
from gatewise_edge.errors import LinkError
from gatewise_edge.link.endpoint import Endpoint
from gatewise_edge.link.topics import status_topic
from gatewise_export.repository.release import FULL_ROLLOUT, OfferedRelease
from tests.support.raw_broker import RawBroker, publish_packet

#: A release that is offered to all devices.
OFFER = OfferedRelease("small", "8", 2, FULL_ROLLOUT, "0123456789abcdef" * 4)


def make_report(**statuses):
    """Make the report from the statuses of devices, a mapping by device."""
    return RolloutReport.from_statuses(
        {status_topic(device): status for device, status in statuses.items()}, OFFER
    )


def test_devices_are_sorted_by_the_version_and_the_state_that_they_report():
    report = make_report(
        runs="online small/8 seen=5,1,0",
        tries="online small/8 trial",
        refuses="online small/7 refused 0123456789ab seen=9,0,0",
        refused_another="online small/7 refused 111111111111",
        updates="online small/7",
        other_model="online large/8",
        starts="online",
        stopped="offline",
        empty="",
    )
    assert report.running_devices == {"runs", "tries"}
    assert report.trial_devices == {"tries"}
    assert report.refusing_devices == {"refuses"}
    assert report.other_devices == {"refuses", "refused_another", "updates"}
    # a device without a bundle reports nothing yet, as one that is not connected
    assert report.offline_devices == {"starts", "stopped", "empty"}
    assert len(report.offered_devices) == 9


def test_counts_of_each_metric_come_from_its_word():
    report = make_report(
        runs="online small/8 seen=50,3,7 audited=20.5,4.25",
        other="online small/7 audited=10,0 seen=40,0,2",
    )
    assert report.release_counts == {
        "errors": [(3.0, 50.0)],
        "fallbacks": [(7.0, 50.0)],
        "disagreement": [(4.25, 20.5)],
    }
    assert report.other_counts == {
        "errors": [(0.0, 40.0)],
        "fallbacks": [(2.0, 40.0)],
        "disagreement": [(0.0, 10.0)],
    }


def test_a_connection_lost_while_statuses_are_read_is_an_error():
    status = publish_packet(status_topic("pi-1").encode(), b"online small/8")
    with RawBroker() as broker, ThreadPoolExecutor(1) as pool:
        statuses = pool.submit(read_statuses, Endpoint(broker.url))
        broker.send(status + b"\xf0\x00")  # a packet of an unknown type
        with pytest.raises(LinkError, match="was lost"):
            statuses.result(timeout=30)


def test_malformed_counts_and_those_of_no_instance_are_ignored():
    report = make_report(
        few="online small/8 seen=0,0,0 audited=0.5,0",
        cut="online small/8 seen=9 audited=",
        text="online small/8 seen=a,b,c audited=nan,1",
        negative="online small/8 seen=9,-1,2 audited=inf,1",
        too_many="online small/8 seen=9,1e12,1e12 audited=9,1e12",
        none="online small/8",
    )
    assert report.release_counts == {
        "errors": [],
        "fallbacks": [(2.0, 9.0)],  # of the negative errors' device
        "disagreement": [],
    }
    assert len(report.running_devices) == 6


def test_disagreements_may_exceed_the_rounded_number_of_instances_by_a_rounding():
    report = make_report(runs="online small/8 audited=2,2.5")  # 2.5 of 2.5
    assert report.release_counts["disagreement"] == [(2.5, 2.0)]
