from gatewise_sim.fleet.progress import Listeners, ProgressListener, Snapshot


class Listener:
    def __init__(self):
        self.events = []

    def __getattr__(self, name):
        return lambda *given: self.events.append((name, *given))


def test_all_listeners_get_the_same_events_in_order():
    one, two = Listener(), Listener()
    events = [
        ("begin", "t", 5.0, None),
        ("policy", "k", "n"),
        ("advance", Snapshot(at=1.0)),
        ("fault", "cloud", False, 2.0),
        ("end", "over"),
    ]
    to = Listeners(one, None, Listeners(), two)
    assert isinstance(to, ProgressListener)
    for name, *given in events:
        getattr(to, name)(*given)
    assert one.events == two.events == events
