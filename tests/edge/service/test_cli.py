"""``gatewise edge`` reads instances, writes lines, and ends properly in all cases."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gatewise.cli import main
from gatewise_edge.link import wire
from tests.support.mqtt_clients import MqttClient
from tests.support.processes import run_in_process, run_python
from tests.support.small_bundle import answer_to
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # processes and brokers start

# Rows as a table with another order of the columns: stage 0 stops for the first row, stage 1 for
# the second, and the third is offloaded.
HEADER = "target,f,e,d,c,b,a"
ROWS = ["x,0,0,0,0,0,1", "x,0,0,0,-1,0,0.1", "x,0,-1,0,0.1,0,0.1"]
#: Row for which stage 0 stops, as a JSON line.
SURE_LINE = "[1,0,0,0,0,0]\n"
#: Row that is offloaded, as a JSON line.
UNSURE_LINE = "[0,0,0,0,1,0]\n"

#: A module with three sources of rows.
PYTHON_ROWS = """
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
    path.write_text("\n".join([HEADER, *ROWS]) + "\n")
    return path


@pytest.fixture
def start_edge(bundle, command, tmp_path):
    """Start the command with the small bundle in another process."""
    (tmp_path / "my_rows.py").write_text(PYTHON_ROWS)
    return lambda *options: command("edge", bundle.path, *options, folder=tmp_path)


def read_answers(completed) -> list[dict]:
    return [json.loads(line) for line in completed.stdout.splitlines()]


def test_rows_of_a_csv_file_are_answered_without_a_broker(bundle, rows_path):
    completed = run_in_process("edge", bundle.path, "--data", rows_path)
    assert completed.returncode == 0, completed.stderr
    lines = read_answers(completed)
    assert [line["row"] for line in lines] == [0, 1, 2]
    assert [line["label"] for line in lines] == ["yes", "no", "yes"]
    assert [line["reason"] for line in lines] == ["stopped", "stopped", "no-link"]
    # a 1 and b 0.5; in addition c 2 and its group 10
    assert [line["cost"] for line in lines] == [1.5, 13.5, 13.5]
    assert "columns that are not features are ignored: target" in completed.stderr
    assert "3 instances: 2 edge, 0 cloud, 1 fallback, 0 errors; mean cost 9.5" in completed.stderr
    completed = run_in_process(
        "edge", bundle.path, "--data", rows_path, "--limit", 2, "--policy", "edge-only"
    )
    assert [line["route"] for line in read_answers(completed)] == ["edge", "edge"]


def test_json_lines_are_answered_with_a_broker_and_a_summary(bundle, broker, make_peer):
    peer = make_peer()
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
    wait_until(lambda: ("pi-9", "offline") in peer.statuses)


def test_partial_rows_are_answered_by_stages_that_have_their_features(bundle, tmp_path):
    """The first stage reads a and b, and the second stage c."""
    path = tmp_path / "few.csv"
    path.write_text("when,a,id,b\nnoon,1,7,0\nnight,0.1,8,0\n")
    completed = run_in_process("edge", bundle.path, "--data", path, "--keep", "id,when")
    first_line, second_line = read_answers(completed)
    assert (first_line["kept"], first_line["label"]) == ({"id": "7", "when": "noon"}, "yes")
    assert (second_line["kept"]["id"], second_line["route"]) == ("8", "fallback")
    assert second_line["reason"] == "missing:c"
    assert "has no column c, d, e, f: missing in every row" in completed.stderr


def test_every_line_gets_an_answer_or_an_error(bundle):
    # The last line begins with a byte that is not UTF-8.
    input_lines = 'nonsense\n{"a": 1, "b": 0, "id": [3]}\n{"id": 4}\n{"b": 1, "id": 5}\n\udcff[1]\n'
    input_lines = input_lines.encode("utf-8", "surrogateescape").decode("latin-1")
    completed = run_in_process("edge", bundle.path, "--keep", "id", stdin_text=input_lines)
    lines = read_answers(completed)
    assert completed.returncode == 1
    assert [line["row"] for line in lines] == [0, 1, 2, 3, 4]
    assert ["error" in line for line in lines] == [True, False, True, True, True]
    kept_cells = [line.get("kept") for line in lines]
    assert kept_cells == [None, {"id": [3]}, {"id": 4}, {"id": 5}, None]
    assert "none of the features" in lines[2]["error"]
    assert "column 'a' is missing" in lines[3]["error"]


def test_lines_are_written_to_a_file_and_published_on_a_topic(bundle, broker, rows_path, tmp_path):
    answers_path, topic = tmp_path / "answers.jsonl", "gw/v1/pi-8/answers"
    subscriber = MqttClient(broker.url, topic)
    options = ("--data", rows_path, "--broker", broker.url, "--device", "pi-8", "--keep", "target")
    started_at = time.time()
    for n_runs in (1, 2):
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
    assert started_at - 1 <= times[0] <= times[-1] <= time.time()  # the lines' times are rounded
    assert {line["kept"]["target"] for line in written_lines} == {"x"}
    subscriber.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
        ("--data rows.csv --keep nope", "has no such column"),
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
    bundle, rows_path, options, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("my_rows.py").write_text(PYTHON_ROWS)
    Path("other.csv").write_text("x,y\n1,2\n")
    Path("updates.toml").write_text("update_spread = 5.0\n")
    Path("unknown.toml").write_text("hops = 5\n")
    assert main(["edge", str(bundle.path), *options.split()]) == 2
    output, error_text = capsys.readouterr()
    assert (output, len(error_text.splitlines())) == ("", 1)
    assert message in error_text
    assert main(["edge", str(tmp_path / "none")]) == 2
    assert "none does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signal_number", "expected_status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)]
)
def test_signal_ends_the_command_properly(
    start_edge, broker, make_peer, signal_number, expected_status
):
    peer = make_peer()
    process = start_edge("--broker", broker.url, "--device", "pi-3")
    process.write(UNSURE_LINE)
    assert json.loads(process.line())["route"] == "cloud"
    process.process.send_signal(signal_number)
    exit_status, output, log = process.finish()
    assert (exit_status, output) == (expected_status, "")
    assert "1 instances: 0 edge, 1 cloud" in log
    assert "Traceback" not in log
    wait_until(lambda: ("pi-3", "offline") in peer.statuses, "the status offline")


def test_command_ends_when_the_reader_of_its_output_ends(start_edge):
    process = start_edge()
    process.write(SURE_LINE)
    process.line()
    process.process.stdout.close()
    process.write(SURE_LINE * 3)
    process.process.stdin.close()
    log = process.process.stderr.read()
    assert process.process.wait(60) == 0
    assert "Traceback" not in log
    assert "BrokenPipe" not in log


def test_rows_and_sensors_of_a_python_module_are_answered(bundle, tmp_path, monkeypatch):
    (tmp_path / "my_rows.py").write_text(PYTHON_ROWS)
    monkeypatch.syspath_prepend(tmp_path)
    completed = run_in_process("edge", bundle.path, "--data", "my_rows:rows", folder=tmp_path)
    assert [line["label"] for line in read_answers(completed)] == ["yes", "no"], completed.stderr
    options = ("--data", "my_rows:sensors", "--limit", 3, "--interval", 0.01)
    completed = run_in_process("edge", bundle.path, *options, folder=tmp_path)
    lines = read_answers(completed)
    assert [(line["label"], line["acquired"]) for line in lines] == [("yes", 2)] * 3


def test_signal_interrupts_a_generator_that_waits(start_edge, tmp_path):
    process = start_edge("--data", "my_rows:slow")
    assert json.loads(process.line())["route"] == "edge"
    wait_until((tmp_path / "waiting").exists, "the generator to wait")
    process.process.send_signal(signal.SIGTERM)
    status, _, log = process.finish()
    assert status == 0
    assert "1 instances: 1 edge" in log
    assert (tmp_path / "finally").exists()


def test_instances_that_were_read_are_answered_before_the_end(start_edge, broker, make_peer):
    """SIGTERM comes while the first of three instances waits for the cloud."""
    requests = []

    def stop_process(request):
        if not requests:  # not on the retry, because a second signal would end it at once
            process.process.send_signal(signal.SIGTERM)
        requests.append(request)
        return []

    make_peer(stop_process)
    process = start_edge("--broker", broker.url, "--deadline-ms", 1500, "--json")
    process.write(UNSURE_LINE + 2 * SURE_LINE)
    status, output, log = process.finish()
    assert status == 0, log
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
    options = ("--broker", broker.url, "--parallel", n_parallel, "--deadline-ms", 20_000)
    completed = run_in_process("edge", bundle.path, *options, stdin_text=UNSURE_LINE * n_parallel)
    assert completed.returncode == 0, completed.stderr
    outcomes = [(line["route"], line["reason"]) for line in read_answers(completed)]
    assert outcomes == [("cloud", "offloaded")] * n_parallel


@pytest.mark.parametrize("parallel", [1, 4])
def test_full_disk_loses_lines_but_does_not_end_the_answers(bundle, parallel, caplog):
    options = ("--out", "/dev/full", "--parallel", parallel, "--json")
    completed = run_in_process("edge", bundle.path, *options, stdin_text=SURE_LINE * 40)
    assert completed.returncode == 0
    assert caplog.text.count("/dev/full cannot be written: No space left") == 1
    summary = json.loads(completed.stdout)["summary"]
    assert (summary["answers"]["edge"], summary["lines_lost"]) == (40, 40)


def test_full_disk_behind_standard_output_does_not_end_the_answers(bundle, tmp_path):
    command = (sys.executable, "-m", "gatewise", "edge", bundle.path)
    with Path("/dev/full").open("w") as full_device:
        completed = subprocess.run(
            command, input=SURE_LINE * 40, stdout=full_device, stderr=subprocess.PIPE, text=True
        )
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.count("standard output cannot be written: No space left") == 1
    assert "40 instances: 40 edge" in completed.stderr


def test_command_runs_if_no_memory_may_be_writable_and_executable(bundle):
    """The systemd unit sets this with MemoryDenyWriteExecute."""
    # From linux/prctl.h: PR_SET_MDWE is 65, PR_GET_MDWE is 66, PR_MDWE_REFUSE_EXEC_GAIN is 1.
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(66, 0, 0, 0, 0) < 0:
        pytest.skip("this kernel has no PR_SET_MDWE (Linux 6.3)")
    code = (
        "import ctypes, sys; assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0\n"
        "from gatewise.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    assert (
        json.loads(run_python(code, "edge", bundle.path, stdin_text=SURE_LINE))["route"] == "edge"
    )


def test_killed_run_is_resumed_after_its_last_answer(start_edge, tmp_path):
    """After several kills each row has exactly one line."""
    n_rows = 3000  # enough for three kills before the end
    data_path, log_path = tmp_path / "many.csv", tmp_path / "answers.jsonl"
    data_path.write_text("\n".join([HEADER, *(ROWS[i % 3] for i in range(n_rows))]) + "\n")
    options = ("--data", data_path, "--resume", log_path, "--out", "/dev/null", "--parallel", 2)

    def count_log_bytes() -> int:
        return log_path.stat().st_size if log_path.exists() else 0

    for _ in range(3):
        min_bytes = count_log_bytes() + 20_000  # about a hundred lines
        killed_run = start_edge(*options)
        wait_until(
            lambda min_bytes=min_bytes, process=killed_run.process: (
                count_log_bytes() > min_bytes or process.poll() is not None
            )
        )
        killed_run.close()
    status, _, messages = start_edge(*options).finish()
    assert status == 0, messages
    assert "are skipped" in messages
    lines = [json.loads(line) for line in log_path.read_text().splitlines()[1:]]
    assert sorted(line["row"] for line in lines) == list(range(n_rows))
    label_of_row = {line["row"]: line["label"] for line in lines}
    assert [label_of_row[i] for i in range(6)] == ["yes", "no", "yes"] * 2
