"""``gatewise edge`` as a process: rows in, lines out, and a good end whatever comes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

HEADER = "target,f,e,d,c,b,a"
ROWS = ["x,0,0,0,0,0,1", "x,0,0,0,-1,0,0.1", "x,0,-1,0,0.1,0,0.1"]
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from gatewise_sim.cli import main; sys.exit(main(sys.argv[1:]))",
    "edge",
]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([HEADER, *ROWS]) + "\n")
    return path


def run(*args: object, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, args)], input=given, capture_output=True, text=True, timeout=60
    )


def lines(done: subprocess.CompletedProcess[str]) -> list[dict]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_csv_file_without_a_broker(bundle, rows):
    done = run(bundle.path, "--data", rows)
    assert done.returncode == 0, done.stderr
    told = lines(done)
    assert [t["row"] for t in told] == [0, 1, 2]
    assert [t["label"] for t in told] == ["yes", "no", "yes"]
    assert [t["reason"] for t in told] == ["stopped", "stopped", "no-link"]
    assert [t["cost"] for t in told] == [1.5, 13.5, 13.5]
    assert "columns that are no features are left out: target" in done.stderr
    assert "3 instances: 2 edge, 0 cloud, 1 fallback, 0 errors; mean cost 9.5" in done.stderr


def test_json_lines_a_broker_and_a_summary(bundle, broker, make_peer):
    peer = make_peer()
    given = '[1, 0, 0, 0, 0, 0]\n\n{"a":0.1,"b":0,"c":0.1,"d":0,"e":-1,"f":0}\n[0,0,0,0,1,0]\n'
    done = run(bundle.path, "--broker", broker.url, "--device", "pi-9", "--json", given=given)
    assert done.returncode == 0, done.stderr
    *told, last = lines(done)
    assert [t["route"] for t in told] == ["edge", "cloud", "cloud"]
    assert [t["label"] for t in told] == ["yes", "no", "yes"]
    summary = last["summary"]
    assert summary["answers"] == {"edge": 1, "cloud": 2, "fallback": 0}
    assert summary["counters"]["answered"] == 2
    assert summary["latency_ms"]["p50"] > 0
    assert {s for s in peer.statuses if s[0] == "pi-9"} >= {("pi-9", "offline")}


def test_limit_and_policy(bundle, rows):
    done = run(bundle.path, "--data", rows, "--limit", 2, "--policy", "edge-only")
    assert [t["route"] for t in lines(done)] == ["edge", "edge"]


def test_every_line_gets_an_answer_or_an_error(bundle):
    given = "nonsense\n[1,0,0,0,0,0]\n[null,0,0,0,0,0]\n\udcff[1]\n"
    done = subprocess.run(
        [*COMMAND, str(bundle.path)],
        input=given.encode("utf-8", "surrogateescape"),
        capture_output=True,
        timeout=60,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [t["row"] for t in told] == [0, 1, 2, 3]
    assert ["error" in t for t in told] == [True, False, True, True]
    assert "feature 'a' is missing" in told[2]["error"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--data", "none.csv"], "none.csv does not exist"),
        (["--data", "rows.xlsx"], "give a .csv file"),
        (["--deadline-ms", "0"], "deadline_ms is 0.0"),
        (["--policy", "cloud"], "policy 'cloud'; choose one of"),
        (["--limit", "0"], "limit"),
        (["--broker", "localhost"], "must begin with mqtt://"),
        (["--broker", "mqtt://localhost", "--device", "a/b"], "device id"),
        (["--broker", "mqtt://127.0.0.1:1"], "broker mqtt://127.0.0.1:1 cannot be used"),
        (["--broker", "mqtt://h", "--ca-file", "none.pem"], "ca_file"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(bundle, args, says):
    done = run(bundle.path, *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def test_a_missing_column_or_bundle(bundle, tmp_path):
    short = tmp_path / "short.csv"
    short.write_text("a,b,c,d,f\n1,2,3,4,5\n")
    for args, says in (
        ([bundle.path, "--data", short], "has no column 'e', which the bundle needs"),
        ([tmp_path / "none"], "none does not exist"),
    ):
        done = run(*args)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("stop", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_end_it_in_good_order(bundle, broker, make_peer, tools, stop, status):
    peer = make_peer()
    with subprocess.Popen(
        [*COMMAND, str(bundle.path), "--broker", broker.url, "--device", "pi-3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("[0,0,0,0,1,0]\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["route"] == "cloud"
        process.send_signal(stop)
        out, err = process.communicate(timeout=20)
    assert process.returncode == status
    assert out == ""
    assert "1 instances: 0 edge, 1 cloud" in err
    assert "Traceback" not in err
    # By its own hand: the last will comes only where nobody said goodbye.
    tools.wait_for(lambda: ("pi-3", "offline") in peer.statuses, "the farewell")


def test_a_reader_that_leaves(bundle):
    with subprocess.Popen(
        [*COMMAND, str(bundle.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("[1,0,0,0,0,0]\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write("[1,0,0,0,0,0]\n" * 3)
        process.stdin.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(20)
    assert process.returncode == 0
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
