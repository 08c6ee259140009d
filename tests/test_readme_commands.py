"""The README's five commands, in an empty folder, with a real mosquitto."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mosquitto import Mosquitto
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[1]


def commands() -> list[list[str]]:
    """The commands of the README's shell example that begins with ``gatewise init``."""
    (block,) = re.findall(r"```sh\n(gatewise init.*?)```", (ROOT / "README.md").read_text(), re.S)
    return [shlex.split(line, comments=True) for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_a_messy_table_to_a_device_s_answers(tmp_path):
    init, train, verify, cloud, edge = commands()
    assert cloud.pop() == "&"
    folder = tmp_path / "empty"
    folder.mkdir()
    with (folder / "machine_log.csv").open("w") as table:
        script = ROOT / "examples/make_machine_log.py"
        subprocess.run([sys.executable, script], stdout=table, check=True, timeout=60)

    with Mosquitto(tmp_path) as broker:

        def words(command: list[str]) -> list[str]:
            # word by word, but for the broker's port: 1883 may be taken here
            placed = [w.replace("127.0.0.1:1883", f"127.0.0.1:{broker.port}") for w in command]
            return [sys.executable, "-m", *placed]

        def run(command: list[str]) -> tuple[str, str]:
            done = subprocess.run(
                words(command), cwd=folder, capture_output=True, text=True, timeout=500
            )
            assert done.returncode == 0, done.stderr
            return done.stdout, done.stderr

        _, err = run(init)
        advised = shlex.split(err.splitlines()[1])  # what the README runs, but for the objective
        assert advised == [w for w in train if w not in ("--min-recall", "fault=0.7")]
        out, _ = run(train)
        assert "differ in 0 of 250 decisions" in out
        out, _ = run(verify)
        assert "the bundle decides as it must" in out
        log = folder / "cloud.log"
        with log.open("w") as file:
            worker = subprocess.Popen(words(cloud), cwd=folder, stdout=file, stderr=file)
        try:
            wait_until(lambda: "ready:" in log.read_text(), "the worker")
            out, err = run(edge)
        finally:
            worker.terminate()
            worker.wait(60)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["row"] for answer in answers] == list(range(250))
    assert "0 errors" in err
    assert "cloud" in {answer["route"] for answer in answers}
    with (folder / "bundle-test.csv").open(newline="", encoding="utf-8") as file:
        truth = [row["label"] for row in csv.DictReader(file)]
    right = [a["label"] == label for a, label in zip(answers, truth, strict=True)]
    assert sum(right) > 0.85 * len(right)
