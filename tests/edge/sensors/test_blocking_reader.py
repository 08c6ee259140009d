"""The thread that reads blocking sensors, while two callers use it."""

from __future__ import annotations

from gatewise_edge.sensors.blocking_reader import BlockingReader


def test_thread_may_be_abandoned_while_the_reader_is_closed(monkeypatch):
    reader = BlockingReader()
    assert reader.run(lambda task: 1, timeout_s=10.0) == 1
    end_thread = reader._tasks.put

    class Tasks:
        def put(self, task):
            end_thread(task)
            reader._thread = None  # as another thread does whose call is late

    monkeypatch.setattr(reader, "_tasks", Tasks())
    reader.close()
    assert not reader.is_busy
