"""Matplotlib figures as SVG that takes colours and fonts from the page around it.

A figure is drawn with a placeholder for each colour of the style sheet; in the SVG the placeholder
is the CSS variable itself, so that one drawing serves light, dark and print. One unit of a figure
is one CSS pixel at its natural size. The same figure gives the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, Final, Literal

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from gatewise.formats import Format
from gatewise_sim.report.document import Figure as Measured

#: Width of a plot, in px.
_WIDTH: Final = 860.0
#: Shortest length of an axis of shares.
_SHORTEST: Final = 0.05

#: Matplotlib keyword arguments that style a line or a mark.
Look = dict[str, Any]

_INKS: Final = ("ink", "muted", "line", "panel")
_PARTS: Final = ("system", "edge", "cloud", "network", "feature", "waiting", "idle")
_OTHER_POLICIES: Final = ("confidence", "random", "oracle")
#: CSS variable to its placeholder in a figure; the policies' keys are among them.
COLOURS: Final = {
    name: f"#0{number:x}00fe" for number, name in enumerate((*_INKS, *_PARTS, *_OTHER_POLICIES))
}
COLOURS["edge_only"] = COLOURS["edge"]
COLOURS["cloud_only"] = COLOURS["cloud"]

#: A marker for each policy, so that policies can be told apart without colour.
MARKERS: Final = {
    "system": "D",
    "edge_only": "^",
    "cloud_only": "s",
    "confidence": "o",
    "random": "X",
    "oracle": "P",
}

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
    name: str,
    title: str,
    *,
    description: str,
    height: float = 270.0,
) -> Markup:
    """Draw a figure as inline SVG.

    Its ids begin with `name`; `title` and `description` are for screen readers.
    """
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure((_WIDTH / 72, height / 72), layout="constrained")
        paint(figure)
        text = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=no_metadata)
    return _inline(text.getvalue(), name, title, description)


def head(axes: Axes, text: str) -> None:
    """Write the name of a y axis above it, where it takes no width."""
    axes.set_title(text, pad=8)


def percent_ticks(axis: Axis) -> None:
    """Write the ticks of shares as percentages."""
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g} %"))


def limit_to_shares(axes: Axes, axis: Literal["x", "y"]) -> None:
    """Limit an axis of shares to 0 to 1, because matplotlib's margin would extend it."""
    low, high = getattr(axes, f"get_{axis}lim")()
    getattr(axes, f"set_{axis}lim")(*widened(max(0.0, low), min(1.0, high)))


class _SpacedTicks(LogLocator):
    """Ticks at 1, 2 and 5, or at 1 alone where that would be too many."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Compute the positions of the ticks from `vmin` to `vmax`."""
        is_narrow = vmin > 0 and vmax / vmin < 300.0
        self.set_params(subs=(1.0, 2.0, 5.0) if is_narrow else (1.0,))
        return super().tick_values(vmin, vmax)


def log_ticks(axis: Axis, form: Format) -> None:
    """Set few ticks on a logarithmic axis, labelled without exponents."""
    axis.set_major_locator(_SpacedTicks(numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))


def error_lengths(figure: Measured) -> list[list[float]] | None:
    """Distances from a figure to the ends of its interval, in matplotlib's form."""
    if figure.low is None or figure.high is None:
        return None
    return [[figure.value - figure.low], [figure.high - figure.value]]


def error_bars(axes: Axes, x: Measured, y: Measured, key: str, *, label: str, size: float) -> None:
    """Plot a figure against another with both intervals, in the look of the policy `key`.

    Marks are outlines of different shapes and sizes, so that all can be seen where they overlap.
    """
    axes.errorbar(
        [x.value],
        [y.value],
        xerr=error_lengths(x),
        yerr=error_lengths(y),
        fmt=MARKERS[key],
        markersize=size,
        color=COLOURS[key],
        fillstyle="none",
        markeredgewidth=1.7,
        elinewidth=1.2,
        label=label,
        clip_on=False,
    )


def _font_size(font: re.Match[str]) -> str:
    """Keep the size of a font and drop its family, so that the page's is used."""
    return f"-size{font[1]}" if font[1] else ""


def _inline(svg: str, name: str, title: str, description: str) -> Markup:
    svg = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="([^"]+)"', svg)
    assert box is not None
    body = svg[svg.index(">") + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r"font-family: [^;\"]*;?|(?<=font)(: [\d.]+px)[^;\"]*", _font_size, body)
    # matplotlib names some clip paths by an object's address, which differs from run to run.
    for number, clip in enumerate(dict.fromkeys(re.findall(r'<clipPath id="(\w+)"', body))):
        body = body.replace(clip, f"clip-{number}")
    body = re.sub(r'(id="|url\(#|href="#)', rf"\1{name}-", body)
    for hexadecimal, css in _CSS.items():
        body = body.replace(hexadecimal, css)
    opening = Markup(
        '<svg viewBox="{box}" role="img" aria-labelledby="{name}-title {name}-text">'
        '<title id="{name}-title">{title}</title><desc id="{name}-text">{description}</desc>'
    ).format(box=box[1], name=name, title=title, description=description)
    return opening + Markup(re.sub(r"\s*\n\s*", "\n", body))


def widened(low: float, high: float) -> tuple[float, float]:
    """Widen an axis of shares to 5 percentage points; one within 0 to 1 stays within."""
    missing = _SHORTEST - (high - low)
    if missing <= 0:
        return low, high
    top = max(high, min(1.0, high + missing / 2))
    bottom = top - _SHORTEST
    if low >= 0:
        bottom = max(bottom, 0.0)
    return bottom, bottom + _SHORTEST
