import math
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_sim.report.drawings.bars import draw_bars, legend
from gatewise_sim.report.drawings.bins import joined
from gatewise_sim.report.drawings.classes import draw_classes
from gatewise_sim.report.drawings.frontier import Mark, draw_frontier
from gatewise_sim.report.drawings.latency import Curve, draw_latency
from gatewise_sim.report.drawings.marks import FILLS, STYLES, pattern_definitions, shape
from gatewise_sim.report.drawings.placing import Box, Label, between, place_labels
from gatewise_sim.report.drawings.timeline import draw_timeline
from gatewise_sim.report.drawings.times import TimeScale
from gatewise_sim.report.svg import Linear, Log, tag, text_width, ticks

SVG = "{http://www.w3.org/2000/svg}"


def bin_of(begin: float, end: float, **more) -> dict:
    n = end - begin
    usual = {"instances": n, "edge": 0.8 * n, "cloud": 0.2 * n, "fallback": 0.0, "error": 0.0}
    times = {"p50_ms": 50.0, "p95_ms": 80.0, "accuracy": 0.97, "edge_accuracy": 0.93}
    return {"begin": begin, "end": end, **usual, **times, **more}


# -- scales --------------------------------------------------------------------------------------


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 12))
def test_ticks_are_round_and_inside(lo, span, about):
    hi = lo + span
    marks = ticks(lo, hi, about)
    assert len(marks) <= 2 * about + 2
    assert all(lo - 1e-6 * span <= t <= hi + 1e-6 * span for t in marks)
    assert marks == sorted(marks)


@given(st.floats(1e-3, 1e5), st.floats(1.01, 1e4))
def test_scales_map_the_ends_to_the_ends(lo, factor):
    hi = lo * factor
    for scale in (Linear(lo, hi, 10, 90), Log(lo, hi, 10, 90)):
        assert scale(lo) == pytest.approx(10)
        assert scale(hi) == pytest.approx(90)
        assert 10 <= scale((lo * hi) ** 0.5) <= 90


@given(st.floats(1e-3, 1e5), st.floats(1.5, 1e6))
def test_a_logarithmic_axis_has_labels_within(lo, factor):
    found = Log(lo, lo * factor, 0, 1).decades()
    assert all(lo * 0.999 <= v <= lo * factor * 1.001 for v in found)
    assert factor < 2.6 or found


def test_elements_escape_text_and_attributes():
    assert tag("text", 'a<b>"', title='"&') == '<text title="&#34;&amp;">a&lt;b&gt;&#34;</text>'


@given(
    st.floats(1.0, 3e6),
    st.integers(0, 86_399),
    st.floats(0, 0.9),
    st.floats(0.05, 1.0),
    st.integers(3, 14),
)
def test_moments_on_an_axis_are_few_and_differ(seconds, day_begins, at, share, about):
    scale = TimeScale(seconds, day_begins)
    begin = at * seconds
    end = begin + share * (seconds - begin)
    found = scale.ticks(begin, end, about)
    assert len(found) <= 2 * about + 1
    assert all(begin - 1e-3 <= t <= end + 1e-3 for t in found)


def test_a_day_that_begins_at_noon_has_round_times_of_day():
    scale = TimeScale(86_400, day_begins=12.5 * 3600)
    found = scale.ticks(0, 86_400, 5)
    assert [scale.label(t) for t in found] == ["18:00", "24:00", "06:00", "12:00"]


# -- labels --------------------------------------------------------------------------------------


def boxes(written: list) -> list[Box]:
    """Where texts are, as wide as they may be."""
    found = []
    for item in written:
        element = ET.fromstring(item)
        if element.tag == "text":
            x, y, style = float(element.get("x")), float(element.get("y")), element.get("class")
            wide = text_width(element.text, bold=True)
            left = x - wide if "end" in style else x - wide / 2 if "middle" in style else x
            found.append(Box(left, y - 10, left + wide, y + 3))
    return found


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(60, 320), st.floats(30, 270)), min_size=1, max_size=7))
def test_labels_never_overlap_and_stay_inside(places):
    frame = Box(50, 20, 330, 290)
    labels = [Label("a label here"[: 4 + k], x, y, "system") for k, (x, y) in enumerate(places)]
    found = boxes(place_labels(labels, frame=frame, avoid=[]))
    assert len(found) == len(labels)
    for box in found:
        assert box.outside(frame) < 0.02
    for one, other in combinations(found, 2):
        assert one.shared(other) < 0.5


def test_a_label_goes_where_no_line_is():
    line = between([(0, 100), (300, 100)])
    (box,) = boxes(
        place_labels([Label("word", 150, 100, "edge")], frame=Box(0, 0, 300, 200), avoid=line)
    )
    assert not any(box.holds(x, y) for x, y in line)


# -- fills ---------------------------------------------------------------------------------------


def test_every_pattern_that_a_fill_asks_for_is_defined():
    defined = {f"url(#{p.get('id')})" for p in ET.fromstring(pattern_definitions())}
    asked = {f.attributes["fill"] for f in FILLS.values() if f.pattern}
    assert asked == defined


def test_what_meets_in_one_bar_differs_by_more_than_colour():
    groups = [
        ("device", "network", "the cloud", "waiting"),
        ("request", "response", "protocol"),
        ("radio", "features", "stages", "idle"),
        ("edge", "cloud", "fallback", "error"),
        ("data", "workers", "energy", "requests", "devices"),
    ]
    for parts in groups:
        for one, other in pairwise(parts):  # neighbours
            assert FILLS[one].pattern != FILLS[other].pattern or FILLS[one].colour != (
                FILLS[other].colour
            )
        assert len({(FILLS[p].colour, FILLS[p].pattern) for p in parts}) == len(parts)


def test_every_leg_has_a_shape_of_its_own():
    kinds = [kind for _, kind in STYLES.values()]
    assert len(set(kinds)) == len(kinds)
    drawn = {shape(key, 0.0, 0.0).split("class")[0] for key in STYLES}
    assert len(drawn) == len(STYLES)


# -- bins ----------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=60), st.floats(1, 100))
def test_joined_bins_keep_what_they_count(widths, shortest):
    edges = [0.0]
    for w in widths:
        edges.append(edges[-1] + w)
    bins = [bin_of(a, b) for a, b in pairwise(edges)]
    found = joined(bins, shortest)
    for name in ("instances", "edge", "cloud"):
        assert math.fsum(b[name] for b in found) == pytest.approx(sum(b[name] for b in bins))
    assert math.fsum(b["stepped"] for b in found) == pytest.approx(edges[-1])
    assert all(b["accuracy"] == pytest.approx(0.97) for b in found)
    assert [b["begin"] for b in found] == sorted(b["begin"] for b in found)


def test_nothing_is_joined_across_the_begin_of_an_outage():
    bins = [bin_of(k, k + 1.0, accuracy=0.9 if 5 <= k < 8 else 1.0) for k in range(12)]
    found = joined(bins, 100.0, [5, 8])
    assert [(b["begin"], b["end"], b["accuracy"]) for b in found] == [
        (0, 5, 1.0),
        (5, 8, pytest.approx(0.9)),
        (8, 12, 1.0),
    ]


# -- drawings ------------------------------------------------------------------------------------

POINTS = [{"cost": c, "accuracy": 0.99 - 0.6 * 2.0 ** (-c / 4), "offload_rate": 0} for c in
          (2.0, 8.0, 20.0, 64.0)]  # fmt: skip
FRONTIER = {"points": POINTS, "hull": [], "active": POINTS[2]}
NAMES = {"system": "Gatewise", "edge_only": "All edge", "cloud_only": "All cloud",
         "confidence": "Confidence", "random": "Random", "oracle": "Oracle"}  # fmt: skip


def inside(drawn: str, width: float) -> ET.Element:
    """Check that nothing is drawn beyond the edges, texts included."""
    svg = ET.fromstring(drawn)
    _, _, wide, tall = map(float, svg.get("viewBox").split())
    assert wide == width
    clipped = {e for group in svg.iter(f"{SVG}clipPath") for e in group}
    for e in svg.iter():
        if e in clipped or e.get("clip-path"):
            continue
        assert not any("nan" in value or "inf" in value for value in e.attrib.values())
        for name, most in (("x", wide), ("x1", wide), ("x2", wide), ("cx", wide), ("y", tall),
                           ("y1", tall), ("y2", tall), ("cy", tall)):  # fmt: skip
            assert -0.01 <= float(e.get(name, 0)) <= most + 0.01, ET.tostring(e)
        if e.tag == f"{SVG}rect":
            assert float(e.get("x", 0)) + float(e.get("width")) <= wide + 0.01
            assert float(e.get("height")) >= 0
    return svg


@pytest.mark.parametrize("width", [330.0, 440.0])
def test_the_frontier_has_a_mark_with_an_interval_for_each_leg(width):
    marks = [
        Mark(key, name, (20.0 + k, 19.0 + k, 21.0 + k), (0.96 + 0.001 * k, 0.95, 0.97))
        for k, (key, name) in enumerate(NAMES.items())
    ]
    svg = inside(draw_frontier(FRONTIER, marks, width=width, name="f"), width)
    texts = [t.text for t in svg.iter(f"{SVG}text")]
    assert set(NAMES.values()) <= set(texts)
    whiskers = [p for p in svg.iter(f"{SVG}path") if "whisker" in p.get("class")]
    assert len(whiskers) == 2 * len(marks)
    assert "Gatewise: 96.0 % accurate at cost 20" in svg.find(f"{SVG}desc").text


def test_a_frontier_without_labels_says_so():
    svg = inside(draw_frontier(FRONTIER, [], width=330, name="f"), 330)
    assert "not known without labels" in svg.find(f"{SVG}desc").text


@given(st.lists(st.floats(0, 1e9), min_size=5, max_size=5).filter(lambda c: sum(c) > 1e-3))
def test_shares_of_a_distribution_rise_from_none_to_all(counts):
    shares = Curve("system", "x", [1, 2, 4, 8, 16, 32], counts, 1, 1).shares()
    assert shares[0][1] == 0
    assert shares[-1][1] == 1
    assert all(a[1] <= b[1] + 1e-12 for a, b in pairwise(shares))


def test_a_latency_that_is_the_same_for_all_is_drawn():
    one = Curve("edge_only", "All edge", [0.05, 0.0631], [10.0], 0.06, 0.06)
    svg = inside(draw_latency([one], deadline_ms=500, width=330, name="l"), 330)
    assert "half within 0.06 ms" in svg.find(f"{SVG}desc").text


def test_bars_are_as_long_as_their_parts_together():
    rows = [("system", "Gatewise", {"radio": 1.0, "idle": 3.0}), ("edge_only", "All edge", {})]
    svg = inside(draw_bars(rows, title="J", unit="J", width=330, name="b"), 330)
    one, other = (float(r.get("width")) for r in svg.iter(f"{SVG}rect"))
    assert other == pytest.approx(3 * one, rel=0.01)
    assert "radio" in legend({"radio": "1 J"})


def test_a_timeline_shades_what_was_down_and_names_it():
    bins = [bin_of(k * 60.0, k * 60.0 + 60) for k in range(20)]
    for b in bins[5:8]:
        b.update(cloud=0.0, fallback=12.0, accuracy=0.93)
    faults = [
        {"what": "cloud", "begin": 300, "end": 480, "count": 1},
        {"what": "workers", "begin": 310, "end": 490, "count": 2},
    ]
    drawn = draw_timeline(
        bins, faults, TimeScale(1200), begin=0, end=1200, title="t", width=330, name="t"
    )
    svg = inside(drawn, 330)
    bands = [r for r in svg.iter(f"{SVG}rect") if "band" in (r.get("class") or "")]
    assert len(bands) == 2
    texts = [t.text for t in svg.iter(f"{SVG}text")]
    assert "cloud down" in texts
    assert "2 workers down" not in texts  # there is no room for it beside the other
    assert "2 workers down 5:10 to 8:10" in svg.find(f"{SVG}desc").text


def test_a_part_of_a_timeline_holds_nothing_from_beyond_it():
    bins = [bin_of(0, 1000), *(bin_of(1000 + k, 1001 + k) for k in range(50)), bin_of(1050, 9000)]
    drawn = draw_timeline(
        bins, [], TimeScale(9000), begin=990, end=1070, title="t", width=330, name="t"
    )
    svg = inside(drawn, 330)
    for line in svg.iter(f"{SVG}polyline"):
        xs = [float(p.split(",")[0]) for p in line.get("points").split()]
        assert min(xs) >= 49.9
        assert max(xs) <= 330 - 17.9


def test_a_timeline_without_truth_and_without_offloads_has_the_answers():
    nothing = dict.fromkeys(("accuracy", "edge_accuracy", "p50_ms", "p95_ms"))
    drawn = draw_timeline(
        [bin_of(0, 10, **nothing)], [], TimeScale(10), begin=0, end=10, title="t", width=330,
        name="t",
    )  # fmt: skip
    texts = [t.text for t in inside(drawn, 330).iter(f"{SVG}text")]
    assert not any("accuracy" in t for t in texts)
    assert any(t.startswith("answers a") for t in texts)


def test_classes_with_long_names_and_without_truth():
    rows = [
        {"label": "<a very long label & more>", "offload_rate": 0.5, "accuracy": None,
         "edge_accuracy": None, "instances": 3.0},
        {"label": "b", "offload_rate": 0.0, "accuracy": None, "edge_accuracy": None,
         "instances": 3.0},
    ]  # fmt: skip
    svg = inside(draw_classes(rows, width=330, name="c"), 330)
    assert "<a very long label & more>: 50.0 % offloaded" in svg.find(f"{SVG}desc").text
