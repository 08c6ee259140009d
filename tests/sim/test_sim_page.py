import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from gatewise_sim.report import words
from gatewise_sim.report.drawings.frontier import draw_frontier
from gatewise_sim.report.legs import measure
from gatewise_sim.report.page import _marks, render

SVG = "{http://www.w3.org/2000/svg}"


def drawings(html: str) -> list[ET.Element]:
    """What is drawn, without samples of fills and their definitions."""
    found = [ET.fromstring(part) for part in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
    return [svg for svg in found if svg.get("aria-hidden") is None]


def test_the_page_asks_nobody_for_anything(report):
    html = render(report)
    assert "default-src &#39;none&#39;" in html
    outside = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!#)([^"')\s>]+)""", html)
    assert outside == []
    assert "<script" not in html
    assert set(re.findall(r"https?://[^\"'\s<>]+", html)) == {"http://www.w3.org/2000/svg"}


def test_the_saving_is_the_headline_in_words(report):
    assert (
        "<h1>67 % less feature cost and 80 % fewer bytes than always asking the cloud, "
        "at 98.5 % accuracy against 99.0 %.</h1>"
        in render(report).replace("\N{NO-BREAK SPACE}", " ")
    )


def test_every_drawing_is_well_formed_and_can_be_read_aloud(report):
    found = drawings(render(report))
    assert len(found) == 2 * 5  # for wide places, and for phones
    ids = [e.get("id") for svg in found for e in svg.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    for svg in found:
        assert svg.get("role") == "img"
        assert svg.find(f"{SVG}title").text
        assert svg.find(f"{SVG}desc").text
        assert all(ref in ids for ref in svg.get("aria-labelledby").split())


def test_nothing_is_drawn_outside_of_its_drawing(report):
    for svg in drawings(render(report)):
        _, _, width, height = map(float, svg.get("viewBox").split())
        for element in svg.iter():
            if element.get("clip-path") or element.tag == f"{SVG}clipPath":
                continue
            for x in ("x", "x1", "x2", "cx"):
                assert 0 <= float(element.get(x, 0)) <= width, ET.tostring(element)
            for y in ("y", "y1", "y2", "cy"):
                assert 0 <= float(element.get(y, 0)) <= height, ET.tostring(element)
            assert not any("nan" in value for value in element.attrib.values())


def test_names_from_the_data_are_escaped(report):
    report["dataset"] = "<b>&x"
    report["stages"][0]["buys"] = ["<i>"]
    html = render(report)
    assert "<b>&x" not in html
    assert "&lt;b&gt;&amp;x" in html
    assert "<i>" not in html


def test_lost_instances_are_said_at_the_top(report):
    assert 'class="warn"' not in render(report)
    report["passes"]["system"]["lost"] = 3
    report["passes"]["cloud_only"]["fallback"] = 7
    html = render(report)
    assert html.count('class="warn"') == 1
    assert "Gatewise: 3 of 200 instances got no answer" in html
    assert "All cloud: the cloud was not in time for 7 of 200" in html
    assert html.index("got no answer") < html.index("Accuracy against cost")


def test_a_difference_from_the_estimator_is_said(report):
    assert "exactly those" in render(report)
    report["expected"]["differing"]["routes"] = 2
    assert "2 another route" in render(report)


def test_a_run_that_measured_nothing_still_has_a_page(report, legs, truth, manifest):
    silent = {key: replace(leg, outcomes=[]) for key, leg in legs.items()}
    html = render({**report, **measure(silent, truth, manifest)})
    assert "Gatewise: 200 of 200 instances got no answer" in html
    assert "<h1>No instance was answered.</h1>" in html


@pytest.mark.parametrize(
    ("saved", "sent", "ours", "said"),
    [
        (0.5, 40, 0.98, "50 % less feature cost and 60 % fewer bytes than"),
        (-0.1, 130, 0.98, "10 % more feature cost and 30 % more bytes than"),
        (0.5, 40, 0.99, "at the same accuracy of 99.0 %."),
        (0.5, 40, 0.97, "at 97.0 % accuracy against 99.0 %."),
    ],
)
def test_the_headline_calls_a_loss_a_loss(saved, sent, ours, said):
    line = words.headline(
        {
            "answers": {"edge": 1, "cloud": 0, "fallback": 0},
            "cost_reduction": saved,
            "bytes": {"system": sent, "cloud_only": 100},
            "accuracy": {"system": ours, "cloud_only": 0.99},
        }
    )
    assert said in line


def test_labels_keep_clear_of_each_other(report):
    for key in ("system", "edge_only", "cloud_only"):  # all three marks in one place
        report["cost"]["full"][key] = 20.0
        report["accuracy"][key] = 0.98
    drawn = draw_frontier(report["frontier"], _marks(report), width=330, name="x")
    svg = ET.fromstring(drawn)
    labels = [t for t in svg.iter(f"{SVG}text") if "direct" in t.get("class")]
    places = [(float(t.get("x")), float(t.get("y")), "end" in t.get("class")) for t in labels]
    assert len(set(places)) == 3 + 1  # and the operating point
