"""Messages to and from child processes, and how these processes end."""

import os
import queue
import subprocess
import sys
import textwrap

import pytest

from gatewise_cloud.child_process import ChildProcess, close_all
from tests.support.processes import is_running
from tests.support.waiting import wait_until

#: Seconds to wait for a message on a loaded machine.
TIMEOUT_S = 60.0
#: Prints each line of its input.
ECHO = "import sys\nfor line in sys.stdin: print(line, flush=True)"
IGNORES_SIGTERM = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("{}", flush=True)
    time.sleep(600)
"""


def start_python(code: str, **options: object) -> tuple[ChildProcess, queue.Queue]:
    messages: queue.Queue = queue.Queue()
    child = ChildProcess(
        "the child",
        [sys.executable, "-c", textwrap.dedent(code)],
        on_message=lambda _, document: messages.put(document),
        **options,
    )
    return child, messages


def test_a_child_exchanges_messages_until_it_is_closed():
    child, messages = start_python('print("plain text"); print("[1]")\n' + ECHO)
    with child:
        child.send({"x": 2})
        assert messages.get(timeout=TIMEOUT_S) == {"x": 2}
        assert child.is_alive
    assert not is_running(child.pid)
    child.close()
    assert messages.get(timeout=TIMEOUT_S) is None


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ('print("first\\ngatewise: no luck", file=sys.stderr); sys.exit(2)', "no luck"),
        ('print(\'{"error": "no luck"}\')', "no luck"),
        ("sys.exit(3)", "ended with status 3"),
    ],
)
def test_failure_gives_the_last_line_the_error_message_or_the_status(code, failure):
    child, messages = start_python(f"import sys; {code}")
    with child:
        assert messages.get(timeout=TIMEOUT_S) is None
        child.send({"too": "late"})
        assert child.wait_for_failure() == failure


@pytest.mark.parametrize("follows_input", [True, False])
def test_close_kills_a_child_that_ignores_sigterm(follows_input):
    child, messages = start_python(IGNORES_SIGTERM, follows_input=follows_input)
    assert messages.get(timeout=TIMEOUT_S) == {}
    child.close(0.2)  # seconds until it is killed
    assert not is_running(child.pid)
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)  # the guard of its process group ended as well


@pytest.mark.slow
def test_close_all_ends_several_children():
    children = [
        start_python("import sys, time; sys.stdin.read(); time.sleep(0.5)")[0] for _ in range(4)
    ]
    close_all(children)
    assert not any(is_running(child.pid) for child in children)


@pytest.mark.slow
@pytest.mark.parametrize(
    "child_expression",
    [
        "EmbeddedBroker()",
        "MosquittoBroker()",
        "ChildProcess('sleep', ['sleep', '600'], follows_input=False)",
    ],
)
def test_a_child_ends_when_its_owner_is_killed(child_expression):
    code = f"""
        import time
        from gatewise_cloud import EmbeddedBroker, MosquittoBroker
        from gatewise_cloud.child_process import ChildProcess
        child = {child_expression}
        print(child.pid, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            pid = int(owner.stdout.readline())
            assert is_running(pid)
        finally:
            owner.kill()
    wait_until(lambda: not is_running(pid))
