"""The page of a sweep, and what it prints."""

import re
from functools import cache
from pathlib import Path

import pytest

from gatewise_sim.experiment.sweep.settings import SweptSetting, combinations
from gatewise_sim.report.plots.sweep_plots import sweep_axis
from gatewise_sim.report.sweep.summary import PointResult, summarise
from gatewise_sim.report.sweep.views import print_sweep, sweep_page
from tests.sim.report.reports import check_in_browser, drawings, simulation

OF = {
    "gatewise": "0.1.0",
    "job": {"bundle": "b", "data": "rows.csv", "target": None, "scenario": {"devices": 5}},
    "files": {"rows.csv": "a" * 64},
}


def swept(*sweeps: SweptSetting, errors=(), money=None, command="gatewise simulate b --sweep x"):
    """The document of a sweep; figures follow from the place of each value."""
    points = []
    for at, settings in enumerate(combinations(sweeps)):
        places = [s.values.index(settings[s.name]) for s in sweeps]
        report = simulation(
            accuracy=0.9 + 0.01 * places[0],
            half=0.004,
            cost=5.0 + 3 * places[0] + 2 * places[-1],
            p95=5.0 * 10 ** places[-1],
            money=None if money is None else money * (1 + places[0]),
        )
        failed = at in errors
        points.append(
            PointResult(
                settings, f"{at:032x}", None if failed else report, "it broke" if failed else ""
            )
        )
    return summarise({s.name: s.values for s in sweeps}, points, OF, command)


DEVICES = SweptSetting("devices", (10, 100, 1000))
LINKS = SweptSetting("link", ("wifi", "4g", "nb-iot"))
MANY = SweptSetting("seed", tuple(range(12)))


EVERY = {
    "two": swept(DEVICES, LINKS, money=12.0),
    "one": swept(DEVICES),
    "words": swept(LINKS),
    "single": swept(SweptSetting("devices", (5,))),
    "many lines": swept(DEVICES, MANY),
    "some failed": swept(DEVICES, LINKS, errors=(0, 4)),
    "all failed": swept(DEVICES, errors=(0, 1, 2)),
    "none": swept(SweptSetting("budget", (None, 4.0)), SweptSetting("baselines", (True, False))),
}


page_of = cache(lambda name: sweep_page(EVERY[name]))  # plots take their time


@pytest.mark.slow  # plots
@pytest.mark.parametrize("name", list(EVERY))
def test_every_drawing_is_well_formed_and_can_be_read_aloud(name):
    found = drawings(page_of(name))
    assert len(found) == {"single": 1, "all failed": 0}.get(name, 5)
    ids = [e.get("id") for svg in found for e in svg.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    for svg in found:
        assert svg.find("{*}title").text
        assert svg.find("{*}desc").text


def test_every_point_is_a_mark_and_a_line_of_the_table():
    html = page_of("two")
    numbers = {t.text for t in drawings(html)[0].iter("text")}
    assert set("123456789") <= numbers
    body = html.split('class="held')[1].split("</table>")[0]
    assert body.count("<tr") == 1 + 9
    assert body.count('class="marked"') == 3  # the cheapest of each fleet


def test_a_sweep_on_a_terminal(capsys):
    print_sweep(EVERY["some failed"], Path("out"))
    out = capsys.readouterr().out
    assert "9 points, cheapest first" in out
    assert "91.00 % (90.60 to 91.40 %)" in out
    assert "1 failed: it broke" in out
    assert out.endswith("out/sweep.html\n")
    assert EVERY["some failed"]["answer"] in out


def test_the_answer_is_the_headline_and_failures_are_said():
    html = page_of("some failed")
    document = EVERY["some failed"]
    first = document["answer"].split(". ")[0].replace(" %", "\u00a0%").replace(" ms", "\u00a0ms")
    assert f"<h1>{first}." in html
    assert "devices=10, link=wifi failed: it broke" in html
    assert "None of 3 settings could be simulated." in page_of("all failed")


def test_names_are_escaped():
    document = swept(SweptSetting("workload", ("poisson:1/min", "poisson:2/min")), command="<em>&")
    document["dataset"] = "<i>rows"
    document["points"][0]["error"] = "<u>"
    html = sweep_page(document)
    assert not re.search("<i>|<u>|<em>&", html)
    assert "&lt;em&gt;&amp;" in html


@pytest.mark.parametrize(
    ("sweeps", "name", "numeric", "lines"),
    [
        ((LINKS, DEVICES), "devices", True, ("link=wifi", "link=4g", "link=nb-iot")),
        ((LINKS,), "link", False, ("",)),
        ((SweptSetting("max_loss", (0.02, 0.01)), DEVICES), "devices", True,
         ("max_loss=0.02", "max_loss=0.01")),
        ((SweptSetting("budget", (None, 4.0)), LINKS), "budget", False,
         ("link=wifi", "link=4g", "link=nb-iot")),
    ],
)  # fmt: skip
def test_the_axis_is_a_setting_of_numbers_if_there_is_one(sweeps, name, numeric, lines):
    axis = sweep_axis(swept(*sweeps))
    assert (axis.name, axis.numeric, axis.series) == (name, numeric, lines)
    assert sweep_axis(swept(SweptSetting("devices", (100, 1000, 10)))).values == (10, 100, 1000)
    assert sweep_axis(EVERY["single"]) is None


# -- in a browser --------------------------------------------------------------------------


@pytest.fixture
def url(tmp_path):
    (tmp_path / "sweep.html").write_text(page_of("two"))
    return (tmp_path / "sweep.html").as_uri()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(360, True), (1200, False)])
def test_a_browser_shows_it_without_a_message(browser, url, width, dark):
    check_in_browser(browser, url, width, dark=dark, plots=5)


@pytest.mark.slow
def test_a_table_of_two_settings_fits_a_wide_page(browser, url):
    page = browser.page(url, 1200)
    table = "document.querySelector('.scroll')"
    assert page.run(f"{table}.scrollWidth <= {table}.clientWidth")
    page.close()
