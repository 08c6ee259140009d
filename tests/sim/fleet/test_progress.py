import pytest

from gatewise_sim.fleet.progress import Listeners, ProgressListener, Snapshot


class Listener:
    def __init__(self):
        self.events = []

    def begin(self, title, seconds, expected):
        self.events.append(("begin", title, seconds, expected))

    def policy(self, key, name):
        self.events.append(("policy", key, name))

    def advance(self, snapshot):
        self.events.append(("advance", snapshot))

    def fault(self, what, up, at):
        self.events.append(("fault", what, up, at))

    def end(self, text):
        self.events.append(("end", text))


def report_all(to: ProgressListener) -> list:
    to.begin("t", 5.0, None)
    to.policy("k", "n")
    to.advance(Snapshot(at=1.0))
    to.fault("cloud", False, 2.0)
    to.end("over")
    return [
        ("begin", "t", 5.0, None),
        ("policy", "k", "n"),
        ("advance", Snapshot(at=1.0)),
        ("fault", "cloud", False, 2.0),
        ("end", "over"),
    ]


def test_all_listeners_get_the_same_events_in_order():
    one, two = Listener(), Listener()
    sent = report_all(Listeners(one, None, Listeners(), two))
    assert one.events == two.events == sent


@pytest.mark.parametrize("kind", [Listeners, Listener])
def test_they_are_progress_listeners(kind):
    assert isinstance(kind(), ProgressListener)
    report_all(kind())


def test_a_snapshot_needs_no_more_than_a_time():
    assert Snapshot(at=3.0).answered == 0
    with pytest.raises(AttributeError):
        Snapshot(at=3.0).at = 4.0
