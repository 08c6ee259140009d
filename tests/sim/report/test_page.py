"""Tests of the page of a run: completeness, escaping, and the absence of requests."""

from __future__ import annotations

import html as escaping
import re
import xml.etree.ElementTree as ET

import pytest
from markupsafe import Markup
from msgspec.structs import replace

from gatewise_sim.report.document import (
    AnswerCounts,
    ClassResult,
    LatencyHistogram,
    RowCheck,
    StageResult,
    Transport,
)
from gatewise_sim.report.plots import run_plots, timeline
from gatewise_sim.report.plots.run_plots import frontier_limits
from gatewise_sim.report.plots.timeline import timeline_plot
from gatewise_sim.report.run_page import render
from tests.sim.report.reports import drawings, live, made_up


def text(page: str) -> str:
    """What a reader reads."""
    page = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    page = re.sub(r"</?(span|b)\b[^>]*>", "", page)
    plain = escaping.unescape(re.sub(r"<[^>]+>", " ", page)).replace("\N{NO-BREAK SPACE}", " ")
    return re.sub(r"\s+", " ", plain)


@pytest.fixture
def without_plots(monkeypatch):
    """Pages of words alone: plots take a tenth of a second each."""
    for module in (run_plots, timeline):
        monkeypatch.setattr(module, "draw", lambda *_, **__: Markup("<svg/>"))


@pytest.fixture(scope="module")
def page() -> str:
    return render(made_up(money=30.0))


@pytest.mark.slow
def test_sections_of_the_page_are_in_order(page):
    assert re.findall(r'<h2 id="[^"]+">([^<]+)', page) == [
        "Accuracy against cost",
        "Time to the answer",
        "What an answer takes",
        "Tables",
    ]
    assert "<h1>" in page[: page.index("Before you rely on it")]


def test_page_makes_no_request(page):
    assert "default-src 'none'" in page
    assert re.findall(r"https?://[^\"'\s<>]+", page) == []
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!#)([^"')\s>]+)""", page) == []


def test_ids_are_unique_and_references_exist(page):
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    wanted = re.findall(r"url\(#([^)]+)\)", page) + re.findall(r'href="#([^"]+)"', page)
    for group in re.findall(r'aria-labelledby="([^"]+)"', page):
        wanted += group.split()
    assert set(wanted) <= set(ids)


def test_plots_are_well_formed_and_have_descriptions(page):
    found = drawings(page)
    assert len(found) == 3
    for svg in found:
        assert svg.get("role") == "img"
        assert svg.find("{*}title").text
        assert len(svg.find("{*}desc").text) > 30
        assert "#0" not in ET.tostring(svg, "unicode")  # a colour that is no CSS variable
        assert "DejaVu" not in ET.tostring(svg, "unicode")


def test_policies_and_an_outage_are_named(page):
    for policy in made_up().policies:
        assert page.count(policy.name) >= 4
    assert "Shaded: cloud was down from 0:20 to 0:30 h." in text(page)


@pytest.mark.usefixtures("without_plots")
def test_outage_is_described_by_the_time_of_day():
    found = text(render(made_up(settings={"day_start": "11:40"})))
    assert "down from 12:00 to 12:10 (0:20 to 0:30 h after the start)." in found


@pytest.mark.slow
def test_operating_points_are_in_the_plot_or_counted():
    report = made_up()
    (left, right), (low, high) = frontier_limits(report)
    assert all(left < p.cost < right and low < p.accuracy < high for p in report.frontier.points)
    assert left == 0
    assert "below the plot" not in text(render(report))
    cheap = replace(report.frontier.points[0], cost=0.0, accuracy=0.1)
    points = replace(report.frontier, points=(cheap, *report.frontier.points))
    far = replace(report, frontier=points)
    assert frontier_limits(far)[1][0] > 0.5
    assert "on validation rows (3 of 10 are below the plot). The ring" in text(render(far))


def test_timeline_without_answers_is_drawn():
    none = dict.fromkeys(("edge", "cloud", "fallback", "error"), 0.0)
    unknown = dict.fromkeys(("accuracy", "edge_accuracy", "p50_ms", "p95_ms"))
    report = made_up()
    bins = [replace(b, **none, **unknown, instances=0.0) for b in report.system.timeline]
    assert timeline_plot(made_up(system={"timeline": tuple(bins)}))


@pytest.mark.slow
def test_markup_in_names_is_escaped():
    evil = "</title><script>alert(1)</script>&\"'$"
    classes = tuple(replace(c, label=evil) for c in made_up().system.classes)
    report = made_up(
        system={"name": evil, "classes": classes},
        settings={"workload": evil, "<b>": evil},
        dataset=evil, method=evil, command=evil, notes=(evil,), troubles=(evil,),
        transport=Transport(kind="virtual", broker=evil, link=evil),
        stages=(
            StageResult(name=evil, columns=1, acquires=(evil,), price=1.0, answers=1, share=0.1),
        ),
    )  # fmt: skip
    found = render(report)
    assert "<script" not in found
    assert evil in escaping.unescape(found)
    assert drawings(found)


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("report", "parts"),
    [
        (made_up(accuracy=None), ["The rows have no labels, so the plot cannot show the policies"]),
        (made_up(keys=("system",)), ["90.0 % right;"]),
        (made_up(keys=("system", "edge_only"), faults=()), ["There was no outage."]),
        (made_up(system={"timeline": (), "classes": ()}), ["Answers by route"]),
        (live(), ["exactly the label, route and cost", "Run live, 2026"]),
        (
            replace(live(), checked=RowCheck(compared=9, differing={"labels": 0, "routes": 2})),
            ["2 have another route than the bundle's stages"],
        ),
    ],
)
def test_page_has_the_parts_of_the_run(report, parts):
    found = text(render(report))
    for part in parts:
        assert part in found
    assert "nan" not in found.lower().split()


def test_run_without_answers_has_a_page():
    lost = AnswerCounts(edge=0, cloud=0, fallback=0, late=0, lost=1000)
    nothing = {
        "answers": lost, "latency_ms": {}, "breakdown_ms": {}, "reasons": {},
        "histogram": LatencyHistogram(),
    }  # fmt: skip
    report = made_up(system={"timeline": (), "classes": ()}, faults=())
    report = replace(report, policies=tuple(replace(p, **nothing) for p in report.policies))
    found = text(render(report))
    assert "No instance was answered." in found
    assert "1,000 of 1,000 instances have no answer" in found


@pytest.mark.usefixtures("without_plots")
def test_page_lists_only_the_most_offloaded_of_many_classes():
    some = ClassResult(
        label="A", instances=5.0, offload_rate=0.5, accuracy=0.9, edge_accuracy=0.8, precision=None
    )
    none = replace(some, label="none", instances=0.0, offload_rate=None, accuracy=None)
    found = text(render(made_up(system={"classes": (*[some] * 60, none)})))
    assert "the 40 classes of 61 with most offloads" in found
