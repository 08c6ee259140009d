import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

from gatewise_sim.live.children import Child

SECONDS = 20.0


def eventually(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return False


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # a zombie has ended
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


def start(tmp_path, code: str) -> tuple[Child, queue.SimpleQueue]:
    """A child that runs `code` as a module."""
    (tmp_path / "module_under_test.py").write_text(textwrap.dedent(code))
    said: queue.SimpleQueue = queue.SimpleQueue()
    launcher = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import module_under_test"
    (tmp_path / "launch.py").write_text(launcher)
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        child = Child("the child", "launch", lambda _, document: said.put(document))
    finally:
        del os.environ["PYTHONPATH"]
    return child, said


def test_lines_of_json_are_heard_and_the_rest_is_not(tmp_path):
    code = 'print("for people"); print("[1]"); print(\'{"a": 1}\')'
    child, said = start(tmp_path, code)
    with child:
        assert said.get(timeout=SECONDS) == {"a": 1}
        assert said.get(timeout=SECONDS) is None


def test_what_is_told_arrives_and_closing_ends_it(tmp_path):
    child, said = start(tmp_path, "import sys\nfor line in sys.stdin: print(line, flush=True)")
    with child:
        child.tell({"x": 2})
        assert said.get(timeout=SECONDS) == {"x": 2}
        assert running(child.pid)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not running(child.pid)
    child.close()


def test_the_last_line_of_a_failure_is_told_with_its_name(tmp_path):
    code = 'import sys; print("gatewise: no luck", file=sys.stderr); sys.exit(2)'
    child, said = start(tmp_path, code)
    with child:
        assert said.get(timeout=SECONDS) is None
        child.tell({"too": "late"})
        assert str(child.failure()) == "the child: no luck"


def test_one_that_does_not_listen_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("gatewise_sim.live.children._CLOSE_SECONDS", 0.2)
    code = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("{}", flush=True)
        time.sleep(600)
    """
    child, said = start(tmp_path, code)
    with child:
        assert said.get(timeout=SECONDS) == {}
    assert not running(child.pid)


def test_a_command_ends_with_an_owner_that_is_killed():
    owner_code = """
        import time
        from gatewise_sim.live.children import Child
        def hear(child, document):
            print(child.pid, flush=True)
        child = Child("b", "gatewise_sim.live.run_with_parent", hear)
        child.tell({"arguments": ["broker", "--port", "0", "--json"]})
        time.sleep(600)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(owner_code)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert running(pid)
    finally:
        owner.kill()
        owner.communicate()
    assert eventually(lambda: not running(pid))


def test_a_tethered_command_finishes_in_good_order():
    said: queue.SimpleQueue = queue.SimpleQueue()
    arguments = ["broker", "--port", "0", "--json", "--embedded"]
    with Child("b", "gatewise_sim.live.run_with_parent", lambda _, d: said.put(d)) as child:
        child.tell({"arguments": arguments})
        ready = said.get(timeout=SECONDS)
        assert ready["kind"] == "embedded"
        assert json.dumps(ready)
        os.kill(child.pid, signal.SIGTERM)
        assert said.get(timeout=SECONDS) is None
