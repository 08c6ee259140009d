"""Tests of the HTML page of a run: its contents, escaping and lack of external requests."""

from __future__ import annotations

import html as escaping
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from markupsafe import Markup
from msgspec.structs import replace

from gatewise_sim.report.document import RowCheck, StageResult, Transport
from gatewise_sim.report.plots import run_plots, timeline
from gatewise_sim.report.plots.run_plots import frontier_limits
from gatewise_sim.report.plots.timeline import timeline_plot
from gatewise_sim.report.policy_result import AnswerCounts, ClassResult, LatencyHistogram
from gatewise_sim.report.run_page import render_page
from tests.sim.report.reports import make_live_report, make_report


def read_visible_text(page: str) -> str:
    """Read the visible text of a page, with single spaces."""
    html = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    html = re.sub(r"</?(span|b)\b[^>]*>", "", html)  # these separate no words
    unescaped_text = escaping.unescape(re.sub(r"<[^>]+>", " ", html)).replace(
        "\N{NO-BREAK SPACE}", " "
    )
    return re.sub(r"\s+", " ", unescaped_text)


def parse_plots(html: str) -> list[ET.Element]:
    """Parse the plots of a page, which must be well-formed."""
    svg_texts = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    # A browser knows the prefix xlink, but an XML parser needs its declaration.
    return [ET.fromstring(svg_text.replace("xlink:href", "href")) for svg_text in svg_texts]


@pytest.fixture
def without_plots(monkeypatch):
    """Omit the plots, because drawing each one takes a tenth of a second."""
    for module in (run_plots, timeline):
        monkeypatch.setattr(module, "draw_svg", lambda *_, **__: Markup("<svg/>"))


@pytest.fixture(scope="module")
def page() -> str:
    """A page with all its parts."""
    return render_page(make_report(money=30.0))


@pytest.mark.slow
def test_sections_of_the_page_are_in_order(page):
    assert re.findall(r'<h2 id="[^"]+">([^<]+)', page) == [
        "Accuracy against cost",
        "Time to the answer",
        "Resources per answer",
        "Tables",
    ]
    assert "<h1>" in page[: page.index("Before you rely on it")]


@pytest.mark.slow
def test_page_makes_no_request(page):
    assert "default-src 'none'" in page
    assert re.findall(r"https?://[^\"'\s<>]+", page) == []
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!#)([^"')\s>]+)""", page) == []


def test_ids_are_unique_and_references_exist(page):
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    references = re.findall(r"url\(#([^)]+)\)", page) + re.findall(r'href="#([^"]+)"', page)
    for label_ids in re.findall(r'aria-labelledby="([^"]+)"', page):
        references += label_ids.split()
    assert set(references) <= set(ids)


def test_headings_and_regions_are_named_for_screen_readers(page):
    levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(level <= previous_level + 1 for previous_level, level in pairwise(levels))
    regions = re.findall(r'<\w+[^>]*role="region"[^>]*>', page)
    assert regions
    assert all("aria-label" in region for region in regions)


def test_plots_are_well_formed_and_have_descriptions(page):
    plots = parse_plots(page)
    assert len(plots) == 3  # accuracy against cost, latencies, and the run over time
    for plot in plots:
        assert plot.get("role") == "img"
        assert plot.find("{*}title").text
        assert len(plot.find("{*}desc").text) > 30  # a sentence
        svg_text = ET.tostring(plot, "unicode")
        colours = re.findall(r"(?:fill|stroke|color)(?:: |=\")([^;\"]+)", svg_text)
        assert colours
        assert all(re.fullmatch(r"none|var\(--[\w-]+\)", colour) for colour in colours)
        assert "font-family" not in svg_text  # the page's own font


def test_page_names_the_policies_and_the_outage(page):
    for policy in make_report().policies:
        assert page.count(policy.name) >= 4  # in a plot and in tables
    assert "Shaded: cloud was down from 0:20 to 0:30 h." in read_visible_text(page)


@pytest.mark.usefixtures("without_plots")
def test_outage_is_described_by_the_time_of_day():
    text = read_visible_text(render_page(make_report(settings={"day_start": "11:40"})))
    assert "down from 12:00 to 12:10 (0:20 to 0:30 h after the start)." in text


@pytest.mark.usefixtures("without_plots")
def test_operating_points_are_in_the_plot_or_counted():
    report = make_report()
    (min_cost, max_cost), (min_accuracy, max_accuracy) = frontier_limits(report)
    assert all(
        min_cost < point.cost < max_cost and min_accuracy < point.accuracy < max_accuracy
        for point in report.frontier.points
    )
    assert min_cost == 0
    assert "below the plot" not in read_visible_text(render_page(report))
    inaccurate_point = replace(report.frontier.points[0], cost=0.0, accuracy=0.1)
    wider_frontier = replace(report.frontier, points=(inaccurate_point, *report.frontier.points))
    report_below = replace(report, frontier=wider_frontier)
    # The plot does not extend to a point that is far below the others.
    assert frontier_limits(report_below)[1][0] > 0.5
    assert "on validation rows (3 of 10 are below the plot). The ring" in read_visible_text(
        render_page(report_below)
    )


@pytest.mark.usefixtures("without_plots")
def test_agreement_of_operating_points_is_not_called_accuracy():
    report = make_report()
    assert "agree with the high-cost model" not in render_page(report)
    agreement = replace(report.frontier, measured="agreement")
    html = render_page(replace(report, frontier=agreement))
    assert "agree with the high-cost model, not accuracies" in html


def test_timeline_without_answers_is_drawn():
    no_routes = dict.fromkeys(("edge", "cloud", "fallback", "error"), 0.0)
    no_figures = dict.fromkeys(("accuracy", "edge_accuracy", "p95_ms"))
    report = make_report()
    bins = [
        replace(time_bin, **no_routes, **no_figures, instances=0.0)
        for time_bin in report.system.timeline
    ]
    assert timeline_plot(make_report(system={"timeline": tuple(bins)}))


@pytest.mark.slow
def test_markup_in_names_is_escaped():
    name = "</title><script>alert(1)</script>&\"'$"
    classes = tuple(
        replace(class_result, label=name) for class_result in make_report().system.classes
    )
    report = make_report(
        system={"name": name, "classes": classes},
        settings={"workload": name, "<b>": name},
        dataset=name, method=name, command=name, notes=(name,), troubles=(name,),
        transport=Transport(kind="virtual", broker=name, link=name),
        stages=(
            StageResult(name=name, columns=1, acquires=(name,), price=1.0, answers=1, share=0.1),
        ),
    )  # fmt: skip
    page = render_page(report)
    assert "<script" not in page
    assert name in escaping.unescape(page)
    assert parse_plots(page)


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("report", "expected_texts"),
    [
        (
            make_report(accuracy=None),
            ["The rows have no labels, so the plot cannot show the policies"],
        ),
        (make_report(keys=("system",)), ["90.0 % right;"]),
        (make_report(keys=("system", "edge_only"), faults=()), ["There was no outage."]),
        (make_report(system={"timeline": (), "classes": ()}), ["Answers by route"]),
        (make_live_report(), ["exactly the label, route and cost", "Run live, 2026"]),
        (
            replace(
                make_live_report(),
                checked=RowCheck(compared=9, differing={"labels": 0, "routes": 2}),
            ),
            ["2 have another route than the bundle's stages"],
        ),
    ],
)
def test_page_has_the_parts_of_the_run(report, expected_texts):
    text = read_visible_text(render_page(report))
    for expected_text in expected_texts:
        assert expected_text in text
    assert "nan" not in text.lower().split()


def test_run_without_answers_has_a_page():
    answer_counts = AnswerCounts(edge=0, cloud=0, fallback=0, late=0, lost=1000)
    no_answers = {
        "answers": answer_counts, "latency_ms": {}, "breakdown_ms": {}, "reasons": {},
        "histogram": LatencyHistogram(),
    }  # fmt: skip
    report = make_report(system={"timeline": (), "classes": ()}, faults=())
    report = replace(
        report, policies=tuple(replace(policy, **no_answers) for policy in report.policies)
    )
    text = read_visible_text(render_page(report))
    assert "No instance was answered." in text
    assert "1,000 of 1,000 instances have no answer" in text


@pytest.mark.usefixtures("without_plots")
def test_page_lists_only_the_most_offloaded_of_many_classes():
    offloaded_class = ClassResult(
        label="A", instances=5.0, offload_rate=0.5, accuracy=0.9, edge_accuracy=0.8, precision=None
    )
    absent_class = replace(
        offloaded_class, label="none", instances=0.0, offload_rate=None, accuracy=None
    )
    text = read_visible_text(
        render_page(make_report(system={"classes": (*[offloaded_class] * 60, absent_class)}))
    )
    assert "the 40 of 61 classes with the highest offload rates" in text
