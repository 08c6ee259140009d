import pytest

from gatewise_sim.view import Several, Silent, Snapshot, Watch
from gatewise_sim.view.tracker import Tracker


class Listener:
    def __init__(self):
        self.heard = []

    def begin(self, title, seconds, total):
        self.heard.append(("begin", title, seconds, total))

    def leg(self, key, name):
        self.heard.append(("leg", key, name))

    def update(self, snapshot):
        self.heard.append(("update", snapshot))

    def fault(self, what, up, at):
        self.heard.append(("fault", what, up, at))

    def end(self, text):
        self.heard.append(("end", text))


def tell_all(watch: Watch) -> list:
    watch.begin("t", 5.0, None)
    watch.leg("k", "n")
    watch.update(Snapshot(at=1.0))
    watch.fault("cloud", False, 2.0)
    watch.end("over")
    return [
        ("begin", "t", 5.0, None),
        ("leg", "k", "n"),
        ("update", Snapshot(at=1.0)),
        ("fault", "cloud", False, 2.0),
        ("end", "over"),
    ]


def test_several_hear_the_same_in_the_same_order():
    one, two = Listener(), Listener()
    said = tell_all(Several(one, None, Silent(), two))
    assert one.heard == two.heard == said


@pytest.mark.parametrize("kind", [Silent, Several, Listener, Tracker])
def test_they_are_all_watches(kind):
    assert isinstance(kind(), Watch)
    tell_all(kind())


def test_a_snapshot_needs_no_more_than_a_time():
    assert Snapshot(at=3.0).answered == 0
    with pytest.raises(AttributeError):
        Snapshot(at=3.0).at = 4.0
