"""Matplotlib figures as SVG that takes colours and fonts from the page around it.

A figure is drawn with a placeholder for each colour of the style sheet; in the SVG the placeholder
is the CSS variable itself, so that one drawing serves light, dark and print. One unit of a figure
is one CSS pixel at its natural size. The same figure gives the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, Final

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from gatewise.formats import Format
from gatewise_sim.report.document import Figure as Measured

HALF: Final = 370.0
"""Width of a plot in half a page's width."""

_SHORTEST: Final = 0.05

COLOURS: Final = {
    name: f"#0{number:x}00fe"
    for number, name in enumerate(
        ("ink", "muted", "line", "panel", "system", "edge", "cloud", "network", "feature",
         "waiting", "idle", "confidence", "random", "oracle")
    )
}  # fmt: skip
"""CSS variable to its placeholder in a figure; the policies' keys are among them."""
COLOURS["edge_only"], COLOURS["cloud_only"] = COLOURS["edge"], COLOURS["cloud"]
COLOURS["thresholds"] = COLOURS["muted"]

MARKERS: Final = {
    "system": "D", "edge_only": "^", "cloud_only": "s", "confidence": "o", "random": "X",
    "oracle": "P", "thresholds": "*",
}  # fmt: skip
"""A marker for each policy, so that colour is not all that tells them apart."""

_SETTINGS: Final[Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "gatewise",
    "figure.dpi": 72,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 11,
    "axes.titlesize": 11,
    "text.color": COLOURS["ink"],
    "axes.titlecolor": COLOURS["muted"],
    "axes.titlelocation": "left",
    "axes.labelcolor": COLOURS["muted"],
    "axes.edgecolor": COLOURS["muted"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["line"],
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.4,
    "lines.linewidth": 1.8,
    "lines.solid_joinstyle": "round",
}
_CSS: Final = {hexadecimal: f"var(--{name})" for name, hexadecimal in reversed(COLOURS.items())}


def draw(
    paint: Callable[[Figure], None],
    *,
    name: str,
    title: str,
    description: str,
    width: float = HALF,
    height: float = 270.0,
) -> Markup:
    """Draw a figure as inline SVG."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure((width / 72, height / 72), layout="constrained")
        paint(figure)
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _inline(text.getvalue(), name, title, description)


def head(axes: Axes, text: str) -> None:
    """Write the name of a y axis above it, where it takes no width."""
    axes.set_title(text, pad=8)


def percent_ticks(axis: Axis) -> None:
    """Shares as percentages."""
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g} %"))


def _formatter(form: Format) -> FuncFormatter:
    return FuncFormatter(lambda value, _: form(value))


class _SpacedTicks(LogLocator):
    """Ticks at 1, 2 and 5, or at 1 alone where that would be too many."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Places of the ticks between two ends."""
        few = vmin > 0 and vmax / vmin < 300.0
        self.set_params(subs=(1.0, 2.0, 5.0) if few else (1.0,))
        return super().tick_values(vmin, vmax)


def log_ticks(axis: Axis, form: Format) -> None:
    """Ticks of a logarithmic axis, written plainly."""
    axis.set_major_locator(_SpacedTicks(numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(_formatter(form))


def reach(figure: Measured) -> list[list[float]] | None:
    """How far an interval goes below and above its figure, as matplotlib takes it."""
    if figure.low is None or figure.high is None:
        return None
    return [[figure.value - figure.low], [figure.high - figure.value]]


def error_bars(axes: Axes, x: Measured, y: Measured, look: str, label: str | None = None) -> None:
    """Plot a figure against another with both intervals, in a policy's look.

    Marks are outlines of different shapes: two at one place can both be seen.
    """
    axes.errorbar(
        [x.value], [y.value], xerr=reach(x), yerr=reach(y), fmt=MARKERS[look], markersize=9,
        color=COLOURS[look], markerfacecolor="none", markeredgecolor=COLOURS[look],
        markeredgewidth=1.7, elinewidth=1.2, label=label, clip_on=False,
    )  # fmt: skip


def _font_size(found: re.Match[str]) -> str:
    """A font's size without its family, which is the page's."""
    return f"-size{found[1]}" if found[1] else ""


def _inline(svg: str, name: str, title: str, description: str) -> Markup:
    svg = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="([^"]+)"', svg)
    assert box is not None
    body = svg[svg.index(">") + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r"font-family: [^;\"]*;?|(?<=font)(: [\d.]+px)[^;\"]*", _font_size, body)
    # matplotlib names some clip paths by the address of an object: the same report, other bytes.
    for number, clip in enumerate(dict.fromkeys(re.findall(r'<clipPath id="(\w+)"', body))):
        body = body.replace(clip, f"clip-{number}")
    body = re.sub(r'(id="|url\(#|href="#)', rf"\1{name}-", body)
    for hexadecimal, css in _CSS.items():
        body = body.replace(hexadecimal, css)
    opening = Markup(
        '<svg viewBox="{}" role="img" aria-labelledby="{}-title {}-text">'
        '<title id="{}-title">{}</title><desc id="{}-text">{}</desc>'
    ).format(box[1], name, name, name, title, name, description)
    return opening + Markup(re.sub(r"\s*\n\s*", "\n", body))


def widened(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis of shares, five points apart at least, inside 0 to 1 where they were."""
    missing = _SHORTEST - (high - low)
    if missing <= 0:
        return low, high
    over = max(high, min(1.0, high + missing / 2))
    under = over - _SHORTEST
    if low >= 0:
        under = max(under, 0.0)
    return under, under + _SHORTEST
