"""Child processes: their lines, their end, and the end of their owner."""

import os
import queue
import subprocess
import sys
import textwrap

import pytest

from gatewise_cloud.child_process import ChildProcess, close_all
from tests.support.processes import running
from tests.support.waiting import wait_until

SECONDS = 60.0
ECHO = "import sys\nfor line in sys.stdin: print(line, flush=True)"
DEAF = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("{}", flush=True)
    time.sleep(600)
"""


def start(code: str, **options: object) -> tuple[ChildProcess, queue.Queue]:
    messages: queue.Queue = queue.Queue()
    child = ChildProcess(
        "the child",
        [sys.executable, "-c", textwrap.dedent(code)],
        on_message=lambda _, document: messages.put(document),
        **options,
    )
    return child, messages


def test_messages_both_ways_until_it_is_closed():
    child, messages = start('print("for people"); print("[1]")\n' + ECHO)
    with child:
        child.send({"x": 2})
        assert messages.get(timeout=SECONDS) == {"x": 2}
        assert child.alive
    assert not running(child.pid)
    child.close()
    assert messages.get(timeout=SECONDS) is None


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ('print("first\\ngatewise: no luck", file=sys.stderr); sys.exit(2)', "no luck"),
        ('print(\'{"error": "no luck"}\')', "no luck"),
        ("sys.exit(3)", "ended with status 3"),
    ],
)
def test_a_failure_is_its_last_line_its_own_message_or_its_status(code, failure):
    child, messages = start(f"import sys; {code}")
    with child:
        assert messages.get(timeout=SECONDS) is None
        child.send({"too": "late"})
        assert child.failure() == failure


@pytest.mark.parametrize("follows_input", [True, False])
def test_a_child_that_does_not_end_is_killed(follows_input):
    child, messages = start(DEAF, follows_input=follows_input)
    assert messages.get(timeout=SECONDS) == {}
    child.close(0.2)
    assert not running(child.pid)
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)  # its guard left with it


def test_several_children_end_at_the_same_time():
    children = [start("import sys, time; sys.stdin.read(); time.sleep(0.5)")[0] for _ in range(4)]
    close_all(children)
    assert not any(running(child.pid) for child in children)


@pytest.mark.parametrize(
    "child",
    [
        "EmbeddedBroker()",
        "MosquittoBroker()",
        "ChildProcess('sleep', ['sleep', '600'], follows_input=False)",
    ],
)
def test_a_child_ends_when_its_owner_is_killed(child):
    code = f"""
        import time
        from gatewise_cloud import EmbeddedBroker, MosquittoBroker
        from gatewise_cloud.child_process import ChildProcess
        child = {child}
        print(child.pid, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            pid = int(owner.stdout.readline())
            assert running(pid)
        finally:
            owner.kill()
    wait_until(lambda: not running(pid))
