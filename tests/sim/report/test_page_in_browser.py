"""Tests of the pages in a real browser: layout, accessibility and colours."""

import re
from itertools import pairwise

import pytest
from msgspec.structs import replace

from gatewise_sim.report.document import StageResult
from gatewise_sim.report.run_page import render
from tests.sim.report.reports import DRAWN, live, made_up

pytestmark = pytest.mark.slow  # a real browser

WIDTHS = (360, 700, 800, 1400)

#: Texts of one drawing that lie over each other, in pairs, and those that stick out.
OVERLAPS = """
(() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg[role=img]")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const texts = [...svg.querySelectorAll("text")].map(t => [t, t.getBoundingClientRect()]);
    texts.forEach(([t, a], i) => {
      if (a.left < frame.left - 4 || a.right > frame.right + 14)
        found.push(`${svg.getAttribute("aria-labelledby")}: ${t.textContent} sticks out`);
      for (const [u, b] of texts.slice(i + 1)) {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && tall > 4)
          found.push(`${svg.getAttribute("aria-labelledby")}: ${t.textContent} | ${u.textContent}`);
      }
    });
  }
  return found;
})()
"""

COLOURS = """
(() => {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(
    ["paper", "panel", "ink", "muted", "system", "edge", "cloud", "network", "feature", "waiting",
     "idle", "confidence", "random", "oracle"]
    .map(name => [name, style.getPropertyValue("--" + name).trim()])
  );
})()
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Addresses of pages."""
    folder = tmp_path_factory.mktemp("pages")
    one = made_up().system.classes[1]
    names = tuple(f"a feature with a name {k}" for k in range(6))
    stage = StageResult(name="s", columns=6, acquires=names, price=1.0, answers=9, share=0.1)
    letters = tuple(replace(one, label=chr(65 + k)) for k in range(26))
    reports = {
        "full": made_up(money=30.0),
        "live": live(),
        "plain": made_up(keys=("system",), faults=()),
        "unlabelled": made_up(accuracy=None),
        "stages": made_up(stages=(stage,)),
        "classes": made_up(system={"classes": letters}),
    }
    found = {}
    for name, report in reports.items():
        path = folder / f"{name}.html"
        path.write_text(render(report))
        found[name] = path.as_uri()
    return found


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", ["full", "live", "plain", "unlabelled", "classes"])
def test_page_is_complete_at_every_width(browser, pages, name):
    page = browser.page(pages[name], WIDTHS[0])
    counts = set()
    for width in WIDTHS:
        page.resize(width)
        drawn = page.run(DRAWN)
        counts.add(len(drawn))
        assert all(w > 200 and h > 10 for w, h, *_ in drawn), drawn
        assert page.run("document.documentElement.scrollWidth") == width
        assert page.run(OVERLAPS) == []
    assert len(counts) == 1  # each picture is shown once, whatever the width
    assert counts.pop() >= 2
    assert page.troubles == []
    assert page.requests == []
    page.close()


def test_narrow_page_shows_long_texts_and_scrollable_regions(browser, pages):
    page = browser.page(pages["stages"], 500)
    table = "document.querySelector('.stacked')"
    assert page.run(f"{table}.scrollWidth <= {table}.parentElement.clientWidth")
    cell = f"{table}.querySelector('td.long').getBoundingClientRect()"
    assert page.run(f"{cell}.width > 0.9 * {table}.clientWidth && {cell}.height < 90")
    across = "document.querySelector('.across')"
    assert page.run(f"{across}.scrollWidth > {across}.clientWidth")
    assert "gradient" in page.run(f"getComputedStyle({across}).backgroundImage")
    page.close()


def test_images_and_regions_have_names_for_screen_readers(browser, pages):
    page = browser.page(pages["full"])
    named: dict[str, list[str]] = {}
    for node in page.accessible:
        role = node.get("role", {}).get("value")
        named.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    images = named.get("image", []) + named.get("img", [])
    assert len(images) == len(page.run(DRAWN))
    assert all(len(name) > 40 for name in images)  # title and description
    assert all(named["region"])
    assert len(named["heading"]) >= 9
    assert {"columnheader", "rowheader", "table"} <= set(named)
    levels = page.run("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    page.close()


@pytest.mark.parametrize("dark", [False, True])
def test_colours_have_enough_contrast(browser, pages, dark):
    page = browser.page(pages["full"], dark=dark)
    colours = page.run(COLOURS)
    grounds = [colours.pop("paper"), colours.pop("panel")]
    assert (luminance(grounds[0]) < 0.1) is dark
    for name, colour in colours.items():
        for ground in grounds:
            assert contrast(colour, ground) >= 4.5, (name, colour, ground)
    body = page.run("getComputedStyle(document.body).backgroundColor")
    red, green, blue = map(int, re.findall(r"\d+", body)[:3])
    assert f"#{red:02x}{green:02x}{blue:02x}" == grounds[0]
    # ... and no text has another colour than one of these
    used = page.run("""[...new Set([...document.querySelectorAll('main *:not(svg *)')]
      .filter(e => e.offsetHeight).map(e => getComputedStyle(e).color))]""")
    known = {"rgb({}, {}, {})".format(*(int(c[k : k + 2], 16) for k in (1, 3, 5)))
             for c in colours.values()}  # fmt: skip
    assert set(used) <= known
    page.close()


def test_printed_page_is_light(browser, pages):
    page = browser.page(pages["full"], dark=True, media="print")
    assert luminance(page.run(COLOURS)["paper"]) > 0.9
    assert page.call("Page.printToPDF", printBackground=True)["data"].startswith("JVBER")  # %PDF
    assert page.run("document.documentElement.scrollWidth") == 1200
    page.close()
