import io
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, Group

from gatewise_sim.fleet.progress import Snapshot
from gatewise_sim.view.draw import ASCII, UNICODE, bar, board, spark
from gatewise_sim.view.state import Picture, State
from gatewise_sim.view.tracker import Tracker


def some(upto: int = 60) -> Picture:
    """A day of which so many hundredths are over; the cloud is away from 12h00m to 12h30m."""
    state = State()
    state.begin("digits: 200 devices, 2 workers, link 4g", 86_400.0, 100_000, 0.0)
    state.leg("edge_only", "All edge", 0.0)
    state.update(Snapshot(at=86_400, answered=100_000, edge=100_000, right=91_000, done=1.0), 1.0)
    state.leg("system", "Gatewise", 1.0)
    for begin, end in ((43_200.0, 45_000.0), (64_800.0, 68_000.0)):
        state.fault("cloud", False, begin)
        state.fault("cloud", True, end)
    cloud = fallback = 0
    for k in range(1, upto + 1):
        down = 50 < k <= 52
        fallback, cloud = fallback + 200 * down, cloud + 200 * (not down)
        state.update(
            Snapshot(
                at=864.0 * k,
                answered=1000 * k,
                edge=800 * k,
                cloud=cloud,
                fallback=fallback,
                right=970 * k,
                p50_ms=40.0,
                p95_ms=None if down else 100.0 + k,
                in_flight=7,
                workers_up=0 if down else 2,
                devices_up=200,
                done=k / 100,
            ),
            1.0 + 0.1 * k,
        )
    return state.picture(1.0 + 0.1 * upto)


def plain(picture: Picture, width: int, height: int, marks=UNICODE) -> list[str]:
    return [line.plain for line in board(picture, width, height, marks)]


def shown(picture: Picture, width: int, height: int, **console) -> str:
    out = io.StringIO()
    terminal = Console(
        file=out, force_terminal=True, width=width, height=height, highlight=False, **console
    )
    terminal.print(Group(*board(picture, width, height)))
    return out.getvalue()


def test_a_terminal_of_80_by_24_shows_it_all():
    text = "\n".join(plain(some(), 80, 23))
    for said in (
        "Gatewise   digits: 200 devices", "60 %", "4 s left", "at 14h24m of 24h00m",
        "8,640 times real time", "60,000 answered of about 100,000, 10,000 a second",
        "fallback", "error", "accuracy so far 97.00 %", "offloaded 20.0 %", "latency p50 40 ms",
        "p95 160 ms", "in flight 7", "workers up 2", "devices up 200", "max 160 ms", "24h00m",
        "cloud down from 18h00m to 18h53m, to come", "cloud was down from 12h00m to 12h30m",
        "done: All edge, 100,000 answered, 91.00 % right",
    ):  # fmt: skip
        assert said in text, said
    assert len(text.splitlines()) <= 23


@pytest.mark.parametrize("marks", [UNICODE, ASCII])
@pytest.mark.parametrize(
    "size", [(80, 24), (200, 60), (60, 20), (40, 12), (20, 5), (10, 2), (1, 1)]
)
def test_no_line_is_longer_and_there_are_no_more_than_fit(size, marks):
    width, height = size
    for upto in (0, 1, 51, 60, 100):
        lines = plain(some(upto), width, height, marks)
        assert 1 <= len(lines) <= height
        assert all(cell_len(line) <= width for line in lines)
        if marks is ASCII:
            assert all(line.isascii() for line in lines)


@pytest.mark.slow  # a real run
def test_all_that_a_real_run_tells_fits(small):
    from gatewise_sim.experiment.simulation import simulate

    pictures = []
    tracker = Tracker(news=lambda picture, clock: pictures.append(picture))
    simulate(
        small.bundle,
        small.rows,
        small.truth,
        watch=tracker,
        jobs=1,
        devices=20,
        seconds=86_400.0,
        outages="cloud:12:00-13:00",
    )
    assert len(pictures) > 12  # the legs alone
    for picture in pictures:
        for width, height in ((80, 23), (120, 40), (50, 14), (24, 6)):
            lines = shown(picture, width, height, no_color=True, color_system=None).splitlines()
            assert lines == plain(picture, width, height)
            assert len(lines) <= height
            assert all(cell_len(line) <= width for line in lines)
    last = "\n".join(plain(pictures[-1], 80, 23))
    assert "ended after" in last
    assert "cloud was down from 12h00m to 13h00m" in last
    assert last.count("done: ") == 6


def test_what_matters_most_is_left_where_room_is_short():
    assert "60 %" in plain(some(), 40, 2)[0]
    five = "\n".join(plain(some(), 60, 5))
    assert "Gatewise" in five
    assert "60,000 answered" in five


def test_the_lines_are_what_a_terminal_shows():
    rendered = shown(some(), 80, 24, no_color=True, color_system=None)
    assert rendered.splitlines() == plain(some(), 80, 24)


def test_colour_says_nothing_that_words_do_not(monkeypatch):
    coloured = shown(some(), 80, 24, color_system="standard")
    assert "\x1b[32m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    bare = shown(some(), 80, 24, color_system="standard")
    assert not [n for n in range(30, 48) if f"\x1b[{n}m" in bare or f";{n}m" in bare]
    without = re.sub(r"\x1b\[[0-9;]*m", "", bare)
    assert without == re.sub(r"\x1b\[[0-9;]*m", "", coloured)


def test_a_fault_going_on_comes_first_and_is_written_large():
    text = "\n".join(plain(some(51), 80, 23))
    assert text.index("cloud DOWN since 12h00m, until 12h30m") < text.index("to come")
    assert "workers up 0" in text


def test_the_outage_is_seen_where_it_was():
    lines = plain(some(), 80, 23)
    fallback = next(line for line in lines if line.startswith("fallback"))[11:].split("max")[0]
    faults = next(line for line in lines if line.startswith("faults"))[11:]
    assert abs(fallback.index("█") - faults.index("━")) <= 1
    assert faults.index("?") > len(fallback.rstrip())


def test_where_parts_come_in_any_order_a_fault_has_no_tense():
    state = State()
    state.begin("a day", 86_400.0, None, 0.0)
    state.fault("cloud", False, 43_200.0)
    state.fault("cloud", True, 43_800.0)
    news = Snapshot(at=60_000, answered=9, edge=9, done=0.5, piece=(80_000.0, 80_600.0))
    state.update(news, 1.0)
    lines = plain(state.picture(1.0), 80, 24)
    assert "fault: cloud down from 12h00m to 12h10m" in lines
    assert "?" not in next(line for line in lines if line.startswith("faults"))


def test_an_end_says_how_it_went():
    state = State()
    state.begin("t", 10.0, None, 0.0)
    state.update(Snapshot(at=10.0, answered=5, edge=5, done=1.0), 1.0)
    state.end("nothing lost", 2.0)
    assert "ended after 2 s: nothing lost" in plain(state.picture(9.0), 80, 24)
    assert plain(Picture(), 80, 24)[1] == "about to begin"


@pytest.mark.parametrize("marks", [UNICODE, ASCII])
def test_names_of_any_script_fit(marks):
    state = State()
    state.begin("\N{CJK UNIFIED IDEOGRAPH-96FB}" * 60, 10.0, None, 0.0)
    lines = plain(state.picture(0.0), 30, 10, marks)
    assert all(cell_len(line) <= 30 for line in lines)
    assert all(map(str.isascii, lines)) == (marks is ASCII)


def test_markup_in_names_is_no_markup():
    state = State()
    state.begin("[red]x[/red]", 10.0, None, 0.0)
    assert "[red]x[/red]" in shown(state.picture(0.0), 80, 24)


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(1, 80))
def test_a_bar_is_as_long_as_its_share(share, width):
    for marks, parts in ((UNICODE, 8), (ASCII, 1)):
        drawn = bar(share, width, marks)
        assert len(drawn) <= width
        assert bool(drawn) == (share > 0)
        assert abs(len(drawn) - share * width) <= 1
        assert math.isclose(len(bar(1.0, width, marks)), width)
        assert parts == len(marks.bars)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.none() | st.floats(0, 1e9), max_size=60), st.floats(0, 1e9))
def test_a_sparkline_has_one_mark_a_value(values, top):
    drawn = spark(values, top)
    assert len(drawn) == len(values)
    assert all((c == " ") == (v is None) for c, v in zip(drawn, values, strict=True))
