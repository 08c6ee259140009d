"""``gatewise edge`` reads instances, writes lines, and ends properly in all cases."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gatewise_edge.link import wire
from tests.support.mqtt_clients import MqttClient
from tests.support.processes import assert_command_refused, run_in_process, run_python
from tests.support.small_bundle import answer_to
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # processes and brokers start

#: Header of a table, with the features of the small bundle in reverse order.
CSV_HEADER = "target,f,e,d,c,b,a"
#: Rows of the table: stage 0 stops for the first one, and stage 1 for the second. The third one is
#: offloaded. Their labels are yes, no and yes.
CSV_ROWS = ["x,0,0,0,0,0,1", "x,0,0,0,-1,0,0.1", "x,0,-1,0,0.1,0,0.1"]
#: Row for which stage 0 stops, as a JSON line.
SURE_LINE = "[1,0,0,0,0,0]\n"
#: Row that is offloaded, as a JSON line.
UNSURE_LINE = "[0,0,0,0,1,0]\n"

#: A module with three sources of rows. `slow` makes a file when it begins to wait, and another one
#: when it is ended properly.
PYTHON_MODULE = """
import time

def rows():
    yield [1, 0, 0, 0, 0, 0]
    yield {"a": 0.1, "b": 0, "c": -1, "d": 0, "e": 0, "f": 0}

def sensors():
    from gatewise_edge import Sensors
    return Sensors({name: lambda: 1.0 for name in "abcdef"})

def slow():
    yield [1, 0, 0, 0, 0, 0]
    try:
        open("waiting", "w").close()
        time.sleep(600)
    finally:
        open("finally", "w").close()
"""


@pytest.fixture
def rows_path(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([CSV_HEADER, *CSV_ROWS]) + "\n")
    return path


@pytest.fixture
def start_edge(bundle, command, tmp_path):
    """Function that starts the command with the small bundle in another process."""
    (tmp_path / "my_rows.py").write_text(PYTHON_MODULE)
    return lambda *options: command("edge", bundle.path, *options, folder=tmp_path)


def read_answers(completed) -> list[dict]:
    """Read the JSON lines on the standard output of a completed run."""
    return [json.loads(line) for line in completed.stdout.splitlines()]


def test_rows_of_a_csv_file_are_answered_without_a_broker(bundle, rows_path):
    completed = run_in_process("edge", bundle.path, "--data", rows_path)
    assert completed.returncode == 0, completed.stderr
    lines = read_answers(completed)
    assert [line["row"] for line in lines] == [0, 1, 2]
    assert [line["label"] for line in lines] == ["yes", "no", "yes"]
    assert [line["reason"] for line in lines] == ["stopped", "stopped", "no-link"]
    # stage 0 acquires a for 1 and b for 0.5, and stage 1 c for 2 and its group for 10
    assert [line["cost"] for line in lines] == [1.5, 13.5, 13.5]
    assert "columns that are not features are ignored: target" in completed.stderr
    assert "3 instances: 2 edge, 0 cloud, 1 fallback, 0 errors; mean cost 9.5" in completed.stderr


def test_limit_ends_the_answers_and_the_policy_forbids_offloads(bundle, rows_path):
    options = ("--data", rows_path, "--policy", "edge-only", "--limit", 2)
    completed = run_in_process("edge", bundle.path, *options)
    assert [line["route"] for line in read_answers(completed)] == ["edge", "edge"]


def test_libraries_are_not_searched_for_garbage_while_instances_are_answered(
    bundle, rows_path, tmp_path
):
    policy_code = """
import gc, sys

def decide(point):
    print("frozen:", gc.get_freeze_count(), file=sys.stderr)
    return "stop"
"""
    (tmp_path / "my_policy.py").write_text(policy_code)
    options = ("--data", rows_path, "--policy", "my_policy:decide", "--limit", 1)
    completed = run_in_process("edge", bundle.path, *options, folder=tmp_path)
    assert completed.returncode == 0, completed.stderr
    (frozen_line,) = [line for line in completed.stderr.splitlines() if line.startswith("frozen:")]
    # numpy and onnxruntime alone have some 40,000 objects
    assert int(frozen_line.split()[1]) > 10_000


def test_json_lines_are_answered_with_a_broker_and_a_summary(bundle, broker, make_peer):
    worker = make_peer()
    # between them an empty line, which is skipped, and an instance with names, which is offloaded
    input_lines = SURE_LINE + '\n{"a":0.1,"b":0,"c":0.1,"d":0,"e":-1,"f":0}\n' + UNSURE_LINE
    options = ("--broker", broker.url, "--device", "pi-9", "--json")
    completed = run_in_process("edge", bundle.path, *options, stdin_text=input_lines)
    assert completed.returncode == 0, completed.stderr
    *lines, last_line = read_answers(completed)
    assert [line["route"] for line in lines] == ["edge", "cloud", "cloud"]
    assert [line["label"] for line in lines] == ["yes", "no", "yes"]
    summary = last_line["summary"]
    assert summary["answers"] == {"edge": 1, "cloud": 2, "fallback": 0}
    assert summary["counters"]["answered"] == 2
    assert summary["latency_ms"]["p50"] > 0
    wait_until(lambda: ("pi-9", "offline") in worker.statuses, "the status offline")


def test_partial_rows_are_answered_by_stages_that_have_their_features(bundle, tmp_path):
    """Stage 0 reads a and b, which the table has; stage 1 reads c, which the table lacks."""
    path = tmp_path / "partial.csv"
    path.write_text("when,a,id,b\nnoon,1,7,0\nnight,0.1,8,0\n")
    completed = run_in_process("edge", bundle.path, "--data", path, "--keep", "id,when")
    first_line, second_line = read_answers(completed)
    assert (first_line["kept"], first_line["label"]) == ({"id": "7", "when": "noon"}, "yes")
    assert (second_line["kept"]["id"], second_line["route"]) == ("8", "fallback")
    assert second_line["reason"] == "missing:c"
    assert "has no column c, d, e, f: missing in every row" in completed.stderr


def test_every_line_gets_an_answer_or_an_error(start_edge):
    edge = start_edge("--keep", "id")
    input_lines = [
        b"nonsense",
        b'{"a": 1, "b": 0, "id": [3]}',
        b'{"id": 4}',
        b'{"b": 1, "id": 5}',
        b"\xff[1,0,0,0,0,0]",  # the byte 0xff occurs nowhere in UTF-8
    ]
    edge.process.stdin.buffer.write(b"".join(line + b"\n" for line in input_lines))
    exit_status, output, _ = edge.finish()
    lines = [json.loads(line) for line in output.splitlines()]
    assert exit_status == 1
    assert [line["row"] for line in lines] == [0, 1, 2, 3, 4]
    assert ["error" in line for line in lines] == [True, False, True, True, True]
    kept_cells = [line.get("kept") for line in lines]
    assert kept_cells == [None, {"id": [3]}, {"id": 4}, {"id": 5}, None]
    assert "none of the features" in lines[2]["error"]
    assert "column 'a' is missing" in lines[3]["error"]
    assert "not a JSON line" in lines[4]["error"]


def test_lines_are_written_to_a_file_and_published_on_a_topic(bundle, broker, rows_path, tmp_path):
    answers_path, topic = tmp_path / "answers.jsonl", "gw/v1/pi-8/answers"
    subscriber = MqttClient(broker.url, topic)
    options = ("--data", rows_path, "--broker", broker.url, "--device", "pi-8", "--keep", "target")
    started_at = time.time()
    for n_runs in (1, 2):  # the second run appends to the file of the first
        completed = run_in_process(
            "edge", bundle.path, *options, "--out", answers_path, "--publish", topic
        )
        assert (completed.returncode, completed.stdout) == (0, ""), completed.stderr
        written_lines = [json.loads(line) for line in answers_path.read_text().splitlines()]
        assert len(written_lines) == 3 * n_runs
    published_lines = [json.loads(subscriber.get()[1]) for _ in written_lines]
    assert published_lines == written_lines
    times = [line["at"] for line in published_lines]
    assert times == sorted(times)
    # one second earlier, because the times in the lines are rounded
    assert started_at - 1 <= times[0] <= times[-1] <= time.time()
    assert {line["kept"]["target"] for line in written_lines} == {"x"}
    subscriber.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("none", "none does not exist"),  # the bundle
        ("--data none.csv", "none.csv does not exist"),
        ("--data rows.xlsx", "give a .csv, .parquet, .npy or .npz file"),
        ("--data other.csv", "has no column 'a' (and 5 more), which the bundle needs"),
        ("--data my_rows:nothing", "has no 'nothing'"),
        ("--deadline-ms 0", "--deadline-ms"),
        ("--policy cloud", "--policy"),
        ("--limit 0", "limit"),
        ("--broker localhost", "must begin with mqtt://"),
        ("--broker mqtt://localhost --device a/b", "device id"),
        ("--broker mqtt://h --ca-file none.pem", "ca_file"),
        ("--max-offloads often", "give a number per s, min, h or d, such as 60/h"),
        ("--audit 0.02", "an audit needs a link"),
        ("--settings updates.toml", "need --update-host"),
        ("--settings unknown.toml", "hops"),
        ("--ca-file none.pem", "need --broker"),
        ("--resume log", "--resume needs a file as --data"),
        ("--public-key none.pub", "none.pub"),
        ("--publish x", "--publish needs --broker"),
        ("--publish a/# --broker mqtt://h", "cannot publish on topic"),
        ("--publish gw/v1/pi/rsp --broker mqtt://h", "below gw/v1/ use"),
        ("--out /no/such/folder/x", "--out /no/such/folder/x: No such file"),
        ("--keep a,,b", "give names of columns"),
        ("--data rows.csv --keep nope", "--keep nope: rows.csv has no such column"),
        ("--home-assistant ha", "needs --broker"),
        ("--home-assistant ha --broker mqtt://h", "needs --device"),
        ("--home-assistant ha --broker mqtt://h --device a.b", "letters, digits"),
        (
            "--home-assistant ha --broker mqtt://h --device pi --publish gw/v1/pi/answers",
            "omit --publish",
        ),
        ("--update-host models.example.org", "--update-host needs --store"),
        ("--update-host h --store kept", "--update-host needs --trust"),
        ("--update-host h --store kept --trust none", "--trust none"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_status_2(
    bundle, rows_path, options, message, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_rows.py").write_text(PYTHON_MODULE)
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    (tmp_path / "updates.toml").write_text("update_spread = 5.0\n")
    (tmp_path / "unknown.toml").write_text("hops = 5\n")
    arguments = options.split() if options[0] == "-" else ()
    path = bundle.path if arguments else tmp_path / options
    assert message in assert_command_refused("edge", path, *arguments, folder=tmp_path)


@pytest.mark.parametrize(
    ("signal_number", "expected_status"),
    [(signal.SIGTERM, 0), (signal.SIGINT, 130)],  # shells expect 128 + 2 of an interrupted command
)
def test_signal_ends_the_command_properly(
    start_edge, broker, make_peer, signal_number, expected_status
):
    worker = make_peer()
    edge = start_edge("--broker", broker.url, "--device", "pi-3")
    edge.write(UNSURE_LINE)
    assert json.loads(edge.read_line())["route"] == "cloud"
    edge.process.send_signal(signal_number)
    exit_status, output, log = edge.finish()
    assert (exit_status, output) == (expected_status, "")
    assert "1 instances: 0 edge, 1 cloud" in log
    assert "Traceback" not in log
    wait_until(lambda: ("pi-3", "offline") in worker.statuses, "the status offline")


def test_command_ends_when_the_reader_of_its_output_ends(start_edge):
    edge = start_edge()
    edge.write(SURE_LINE)
    edge.read_line()  # so that the command runs before its output is closed
    edge.process.stdout.close()
    edge.write(SURE_LINE * 3)
    edge.process.stdin.close()
    log = edge.process.stderr.read()
    assert edge.process.wait(60) == 0  # seconds, for a busy machine
    assert "Traceback" not in log
    assert "BrokenPipe" not in log


def test_rows_and_sensors_of_a_python_module_are_answered(bundle, tmp_path, monkeypatch):
    (tmp_path / "my_rows.py").write_text(PYTHON_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    completed = run_in_process("edge", bundle.path, "--data", "my_rows:rows", folder=tmp_path)
    assert [line["label"] for line in read_answers(completed)] == ["yes", "no"], completed.stderr
    options = ("--data", "my_rows:sensors", "--limit", 3, "--interval", 0.01)
    completed = run_in_process("edge", bundle.path, *options, folder=tmp_path)
    lines = read_answers(completed)
    # stage 0 stops after it has read the sensors of its two features
    assert [(line["label"], line["acquired"]) for line in lines] == [("yes", 2)] * 3


def test_signal_interrupts_a_generator_that_waits(start_edge, tmp_path):
    edge = start_edge("--data", "my_rows:slow")
    assert json.loads(edge.read_line())["route"] == "edge"
    wait_until((tmp_path / "waiting").exists, "the generator to wait")
    edge.process.send_signal(signal.SIGTERM)
    exit_status, _, log = edge.finish()
    assert exit_status == 0
    assert "1 instances: 1 edge" in log
    assert (tmp_path / "finally").exists()


def test_instances_that_were_read_are_answered_before_the_end(start_edge, broker, make_peer):
    """SIGTERM comes while the first of three instances waits for the cloud."""
    requests = []

    def terminate_without_answer(request):
        """Send SIGTERM to the device on its first request, and answer none."""
        if not requests:  # not on the retry, because a second signal would end it at once
            edge.process.send_signal(signal.SIGTERM)
        requests.append(request)
        return []

    make_peer(terminate_without_answer)
    edge = start_edge("--broker", broker.url, "--deadline-ms", 1500, "--json")
    edge.write(UNSURE_LINE + 2 * SURE_LINE)
    exit_status, output, log = edge.finish()
    assert exit_status == 0, log
    *lines, last_line = [json.loads(line) for line in output.splitlines()]
    assert requests
    assert [line["row"] for line in lines] == [0, 1, 2]
    assert [line["reason"] for line in lines] == ["timeout", "stopped", "stopped"]
    assert last_line["summary"]["instances"] == 3


def test_all_parallel_instances_may_wait_for_the_cloud(bundle, broker, make_peer):
    n_parallel = 40  # more than the 32 requests that a device has in flight by default
    request_by_id: dict[bytes, wire.Request] = {}

    def answer_when_complete(request: wire.Request) -> list[wire.Response]:
        request_by_id[request.id] = request
        is_complete = len(request_by_id) == n_parallel
        return [answer_to(request) for request in request_by_id.values()] if is_complete else []

    make_peer(answer_when_complete)
    # the deadline is so late that all requests arrive before it on a busy machine
    options = ("--broker", broker.url, "--parallel", n_parallel, "--deadline-ms", 20_000)
    completed = run_in_process("edge", bundle.path, *options, stdin_text=UNSURE_LINE * n_parallel)
    assert completed.returncode == 0, completed.stderr
    outcomes = [(line["route"], line["reason"]) for line in read_answers(completed)]
    assert outcomes == [("cloud", "offloaded")] * n_parallel


@pytest.mark.parametrize("n_parallel", [1, 4])
def test_full_disk_loses_lines_but_does_not_end_the_answers(bundle, n_parallel, caplog):
    options = ("--out", "/dev/full", "--parallel", n_parallel, "--json")
    completed = run_in_process("edge", bundle.path, *options, stdin_text=SURE_LINE * 40)
    assert completed.returncode == 1
    assert caplog.text.count("/dev/full cannot be written: No space left") == 1
    summary = json.loads(completed.stdout)["summary"]
    assert (summary["answers"]["edge"], summary["lines_lost"]) == (40, 40)


def test_full_disk_behind_standard_output_does_not_end_the_answers(bundle, tmp_path):
    command = (sys.executable, "-m", "gatewise", "edge", bundle.path)
    with Path("/dev/full").open("w") as full_device:
        completed = subprocess.run(
            command, input=SURE_LINE * 40, stdout=full_device, stderr=subprocess.PIPE, text=True
        )
    assert completed.returncode == 1, completed.stderr
    *_, problem, summary, losses = completed.stderr.splitlines()
    assert "standard output cannot be written: No space left" in problem
    assert "40 instances: 40 edge" in summary
    assert losses == "40 lines lost"


def test_command_runs_if_no_memory_may_be_writable_and_executable(bundle):
    """The systemd unit sets this with MemoryDenyWriteExecute."""
    # From linux/prctl.h: PR_SET_MDWE is 65, PR_GET_MDWE is 66, PR_MDWE_REFUSE_EXEC_GAIN is 1.
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(66, 0, 0, 0, 0) < 0:
        pytest.skip("this kernel has no PR_SET_MDWE (Linux 6.3)")
    code = (
        "import ctypes, sys; assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0\n"
        "from gatewise.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    output = run_python(code, "edge", bundle.path, stdin_text=SURE_LINE)
    assert json.loads(output)["route"] == "edge"


def test_rows_of_an_array_are_resumed(bundle, tmp_path):
    np.save(tmp_path / "rows.npy", np.eye(6)[:3])
    options = ("--data", tmp_path / "rows.npy", "--resume", tmp_path / "answers.jsonl")
    run_in_process("edge", bundle.path, *options, "--limit", 1)
    completed = run_in_process("edge", bundle.path, *options)
    assert [line["row"] for line in read_answers(completed)] == [1, 2], completed.stderr


def test_killed_run_is_resumed_after_its_last_answer(start_edge, tmp_path):
    """After several kills each row has exactly one line."""
    n_rows = 2000  # enough for two kills before the end
    data_path, log_path = tmp_path / "many.csv", tmp_path / "answers.jsonl"
    data_path.write_text("\n".join([CSV_HEADER, *(CSV_ROWS[i % 3] for i in range(n_rows))]) + "\n")
    options = ("--data", data_path, "--resume", log_path, "--out", "/dev/null", "--parallel", 2)

    def count_log_bytes() -> int:
        return log_path.stat().st_size if log_path.exists() else 0

    for _ in range(2):
        min_bytes = count_log_bytes() + 20_000  # about a hundred lines
        killed_run = start_edge(*options)
        wait_until(
            lambda min_bytes=min_bytes, process=killed_run.process: (
                count_log_bytes() > min_bytes or process.poll() is not None
            )
        )
        killed_run.close()
    exit_status, _, messages = start_edge(*options).finish()
    assert exit_status == 0, messages
    assert ": skipped" in messages
    _, *log_lines = log_path.read_text().splitlines()  # the first line names the data
    lines = [json.loads(line) for line in log_lines]
    assert sorted(line["row"] for line in lines) == list(range(n_rows))
    label_of_row = {line["row"]: line["label"] for line in lines}
    # the rows repeat CSV_ROWS
    assert [label_of_row[i] for i in range(6)] == ["yes", "no", "yes"] * 2
