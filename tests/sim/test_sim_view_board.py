"""The board of a real simulation on a real (pseudo) terminal, to its end and cut short."""

import json
import re
import urllib.request

import pytest

pytestmark = pytest.mark.slow  # real runs in processes of their own

LONG = ("--devices", "400", "--time", "1day", "--outage", "cloud:12:00-13:00", "--no-baselines")
SHORT = ("--devices", "100", "--time", "6h", "--outage", "cloud:3:00-3:30", "--no-baselines")


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal")
    names = small.bundle.manifest.feature_names
    lines = [",".join([*names, "label"])]
    for row, label in zip(small.rows.tolist(), small.truth.tolist(), strict=True):
        lines.append(",".join([*(f"{v:g}" for v in row), str(label)]))
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def simulate(folder, small):
    """A function that starts ``gatewise simulate`` on a terminal."""
    from tests.sim.terminal import Session

    sessions = []

    def start(*args, **how):
        base = ("simulate", str(small.bundle.path), "--data", "rows.csv", "--jobs", "1")
        sessions.append(Session(*base, *args, cwd=folder, **how))
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()


def share(screen) -> int:
    found = re.search(r"(\d+) %(  |$)", screen.text)
    return int(found[1]) if found else 0


def whole(screen, *, cursor: bool = True) -> None:
    """Each row of the routes is there once, to its last column; the cursor stands clear."""
    for route in ("edge", "cloud", "fallback", "error"):
        rows = [line for line in screen.lines if line.startswith(f"  {route} ")]
        assert len(rows) == 1, screen.text
        assert re.search(r"\d+\.\d %\s+[\d,]+$", rows[0]), screen.text
    if cursor:
        assert screen.cursor
        assert screen.x == 0
        assert not screen.lines[screen.y]


def test_a_run_to_its_end_leaves_its_last_frame_and_a_clean_terminal(simulate):
    session = simulate(*SHORT, "--json", "--out", "whole")
    session.until(lambda screen: 0 < share(screen) < 100)
    assert not session.screen.cursor
    assert session.wait() == 0
    report = json.loads(session.out)
    whole(session.screen)
    text = session.screen.text
    assert f"{report['instances']:,} answered" in text
    assert "ended after" in text
    assert "cloud was down from 3h00m to 3h30m" in text
    fallback = next(line for line in session.screen.lines if line.startswith("  fallback "))
    assert fallback.endswith(f" {report['answers']['fallback']:,}")
    assert session.screen.colours


def test_ctrl_c_leaves_a_clean_terminal_and_no_half_lines(simulate):
    session = simulate(*LONG, "--out", "cut")
    session.until(lambda screen: 0 < share(screen) < 60)
    session.type("\x03")
    assert session.wait() == 130
    whole(session.screen)
    assert "Traceback" not in session.screen.text
    assert "0h00m" in session.screen.text
    assert session.out == ""


def test_a_window_that_changes_its_size_is_drawn_anew_and_no_colour_is_no_colour(simulate):
    session = simulate(*LONG, "--out", "resized", width=100, height=40, NO_COLOR="1")
    session.until(lambda screen: 0 < share(screen) < 50)
    assert not session.screen.colours
    session.resize(50, 40)  # long lines are two now, and push the board up
    session.until(lambda screen: any(line.startswith("latency p50") for line in screen.lines))
    whole(session.screen, cursor=False)
    session.resize(100, 20)
    session.until(
        lambda screen: any(re.search(r"accuracy.*latency p50", line) for line in screen.lines)
    )
    session.type("\x03")
    assert session.wait() == 130
    whole(session.screen)


def test_a_dumb_terminal_gets_plain_lines(simulate):
    session = simulate(*SHORT, "--out", "dumb", TERM="dumb", width=200)
    assert session.wait() == 0
    assert "model: 100 devices" in session.screen.text
    assert "ended after" in session.screen.text
    assert "done: Gatewise" in session.screen.text


def test_the_page_stays_until_ctrl_c_and_then_all_is_well(simulate):
    session = simulate(*SHORT, "--serve", "--out", "served")
    session.until(lambda screen: "until Ctrl-C" in screen.text)
    url = re.search(r"http://127\.0\.0\.1:\d+/", session.screen.text)[0]
    with urllib.request.urlopen(f"{url}report.html", timeout=60) as answer:
        assert b"<html" in answer.read()
    with urllib.request.urlopen(f"{url}state.json", timeout=60) as answer:
        assert json.load(answer)["final"]
    session.type("\x03")
    assert session.wait() == 0
    assert session.screen.cursor
    assert "Traceback" not in session.screen.text
