"""Test the HTML pages of runs in a browser: layout, accessibility and colours.

The CSS classes and variables in this file are those of gatewise_sim/report/page.css.
"""

import pytest
from msgspec.structs import replace

from gatewise_sim.report.document import StageResult
from gatewise_sim.report.run_page import render_page
from tests.sim.report.reports import make_live_report, make_report

pytestmark = pytest.mark.slow  # starts a browser

#: Widths (CSS pixels) of a phone, of both sides of a change of the layout, and of a large window.
WIDTHS = (360, 700, 800, 1400)

#: Width, height and horizontal edges of each visible plot.
PLOT_BOXES = """
[...document.querySelectorAll("svg[role=img]")]
  .map(svg => svg.getBoundingClientRect())
  .filter(box => box.width > 0)
  .map(box => [box.width, box.height, box.left, box.right])
"""

#: Pairs of overlapping texts of a plot, and texts that extend beyond their plot. The box of a text
#: is a few pixels larger than its letters, so small overlaps are allowed: 4 px on the left, 14 px
#: on the right, where the page has a margin, and 4 px between lines.
OVERLAPS = """
(() => {
  const faults = [];
  for (const svg of document.querySelectorAll("svg[role=img]")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const name = svg.getAttribute("aria-labelledby");
    const texts = [...svg.querySelectorAll("text")]
      .map(text => [text.textContent, text.getBoundingClientRect()]);
    texts.forEach(([words, box], index) => {
      if (box.left < frame.left - 4 || box.right > frame.right + 14)
        faults.push(`${name}: ${words} is outside`);
      for (const [otherWords, other] of texts.slice(index + 1)) {
        const width = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const height = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (width > 1 && height > 4)
          faults.push(`${name}: ${words} | ${otherWords}`);
      }
    });
  }
  return faults;
})()
"""

#: Colours of the page by the name of their CSS variable, of all variables of :root.
COLOURS = """
(() => {
  const style = getComputedStyle(document.documentElement);
  const names = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules])
    .filter(rule => rule.selectorText === ":root")
    .flatMap(rule => [...rule.style])
    .filter(name => name.startsWith("--"));
  return Object.fromEntries(
    names.map(name => [name.slice(2), style.getPropertyValue(name).trim()])
  );
})()
"""
#: Variables of the colours behind texts, and of the colour of lines, which no text has.
BACKGROUNDS = ("paper", "panel")
LINES = "line"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """URLs of pages by name."""
    folder = tmp_path_factory.mktemp("pages")
    class_result = make_report().system.classes[1]
    feature_names = tuple(f"a feature with a name {number}" for number in range(6))
    stage = StageResult(
        name="s", columns=6, acquires=feature_names, price=1.0, answers=9, share=0.1
    )
    classes = tuple(replace(class_result, label=chr(65 + number)) for number in range(26))
    reports = {
        "full": make_report(money=30.0),
        "live": make_live_report(),
        "plain": make_report(keys=("system",), faults=()),
        "unlabelled": make_report(accuracy=None),
        "stages": make_report(stages=(stage,)),
        "classes": make_report(system={"classes": classes}),
    }
    urls = {}
    for name, report in reports.items():
        path = folder / f"{name}.html"
        path.write_text(render_page(report))
        urls[name] = path.as_uri()
    return urls


def compute_luminance(colour: str) -> float:
    """Compute the relative luminance of a colour as WCAG defines it."""
    channels = [int(colour[offset : offset + 2], 16) / 255 for offset in (1, 3, 5)]
    linear_channels = [
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in channels
    ]
    return 0.2126 * linear_channels[0] + 0.7152 * linear_channels[1] + 0.0722 * linear_channels[2]


def compute_contrast(colour: str, background: str) -> float:
    """Compute the contrast ratio of two colours as WCAG defines it."""
    dark_luminance, light_luminance = sorted(
        (compute_luminance(colour), compute_luminance(background))
    )
    return (light_luminance + 0.05) / (dark_luminance + 0.05)


def test_narrow_page_shows_long_texts_and_scrollable_regions(browser, pages):
    page = browser.open_page(pages["stages"], 500)  # a width in pixels, too small for the tables
    table = "document.querySelector('.stacked')"
    assert page.evaluate(f"{table}.scrollWidth <= {table}.parentElement.clientWidth")
    cell = f"{table}.querySelector('td.long-text').getBoundingClientRect()"
    # the long text has the whole width, and so only a few lines
    assert page.evaluate(f"{cell}.width > 0.9 * {table}.clientWidth && {cell}.height < 90")
    region = "document.querySelector('.wide-plot')"
    assert page.evaluate(f"{region}.scrollWidth > {region}.clientWidth")
    assert "gradient" in page.evaluate(f"getComputedStyle({region}).backgroundImage")
    page.close()


def test_pages_are_complete_at_every_width(browser, pages):
    for name in ("full", "live", "plain", "unlabelled", "classes"):
        page = browser.open_page(pages[name], WIDTHS[0])
        plot_counts = set()
        for width in WIDTHS:
            page.resize(width)
            plots = page.evaluate(PLOT_BOXES)
            plot_counts.add(len(plots))
            # no plot is squeezed to nothing, not even on a phone
            assert all(plot_width > 200 and height > 10 for plot_width, height, *_ in plots), plots
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate(OVERLAPS) == []
        assert len(plot_counts) == 1, name  # the same plots are shown at every width
        assert plot_counts.pop() >= 2  # a page without labels has one less than others
        assert page.console_messages == []
        page.close()


def write_rgb(colour: str) -> str:
    """Write a colour as a browser does in a computed style."""
    return "rgb({}, {}, {})".format(*(int(colour[offset : offset + 2], 16) for offset in (1, 3, 5)))


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_colours_follow_the_preference_and_have_enough_contrast(browser, pages, is_dark):
    page = browser.open_page(pages["full"], is_dark=is_dark)
    colours = page.evaluate(COLOURS)
    assert (compute_luminance(colours["paper"]) < 0.1) is is_dark
    body_colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert body_colour == write_rgb(colours["paper"])
    backgrounds = [colours.pop(name) for name in BACKGROUNDS]
    del colours[LINES]
    assert {"ink", "muted", "oracle"} <= colours.keys()
    for name, colour in colours.items():
        for background in backgrounds:
            # WCAG 2.2 AA, for text of any size
            assert compute_contrast(colour, background) >= 4.5, (name, colour, background)
    # texts have no other colours
    text_colours = page.evaluate("""[...new Set([...document.querySelectorAll('main *:not(svg *)')]
      .filter(element => element.offsetHeight)
      .map(element => getComputedStyle(element).color))]""")
    assert set(text_colours) <= set(map(write_rgb, colours.values()))
    page.close()


def test_printed_page_is_light(browser, pages):
    width = 1200  # pixels
    page = browser.open_page(pages["full"], width, is_dark=True, media="print")
    assert compute_luminance(page.evaluate(COLOURS)["paper"]) > 0.9
    assert page.call("Page.printToPDF", printBackground=True)["data"].startswith("JVBER")  # %PDF
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()
