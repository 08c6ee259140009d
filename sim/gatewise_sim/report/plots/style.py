"""Matplotlib figures as inline SVG with the colours and fonts of the page.

A figure is drawn with a placeholder for each colour of the style sheet. In the SVG the CSS variable
replaces the placeholder, so that one plot works in light mode, dark mode and print. One point of a
figure is one CSS pixel. The same figure gives the same bytes.
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
from gatewise_sim.report.policy_result import Estimate

#: Width of a plot in px, that of the page's text.
_WIDTH: Final = 860.0
#: Smallest range of an axis of shares, so that differences by chance do not look large.
_MIN_SHARE_SPAN: Final = 0.05

#: Keyword arguments of matplotlib for the style of a line or a mark.
ArtistOptions = dict[str, Any]

_PAGE_COLOURS: Final = ("ink", "muted", "line", "panel")
_SERIES_COLOURS: Final = ("system", "edge", "cloud", "network", "feature", "waiting", "idle")
_OTHER_POLICIES: Final = ("confidence", "random", "oracle")
#: Placeholder of each CSS variable: a colour that matplotlib does not use otherwise. The policies
#: edge_only and cloud_only have those of edge and cloud.
COLOURS: Final = {
    name: f"#0{index:x}00fe"
    for index, name in enumerate((*_PAGE_COLOURS, *_SERIES_COLOURS, *_OTHER_POLICIES))
}
COLOURS["edge_only"] = COLOURS["edge"]
COLOURS["cloud_only"] = COLOURS["cloud"]

#: Marker of each policy, which distinguishes policies without colour.
MARKERS: Final = {
    "system": "D",
    "edge_only": "^",
    "cloud_only": "s",
    "confidence": "o",
    "random": "X",
    "oracle": "P",
}

_MATPLOTLIB_SETTINGS: Final[Any] = {
    "svg.fonttype": "none",  # keep text as text, in the font of the page
    "svg.hashsalt": "gatewise",  # the same ids in each run
    "figure.dpi": 72,  # one point is one pixel
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
_CSS_BY_COLOUR: Final = {
    hexadecimal: f"var(--{name})" for name, hexadecimal in reversed(COLOURS.items())
}


def draw_svg(
    paint: Callable[[Figure], None],
    id_prefix: str,
    title: str,
    *,
    description: str,
    height: float = 270.0,
) -> Markup:
    """Draw a figure as inline SVG.

    The ids of its elements begin with `id_prefix`. Screen readers use `title` and `description`.
    """
    with matplotlib.rc_context(_MATPLOTLIB_SETTINGS):
        figure = Figure((_WIDTH / 72, height / 72), layout="constrained")
        paint(figure)
        svg_file = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(svg_file, format="svg", transparent=True, metadata=no_metadata)
    return _inline_svg(svg_file.getvalue(), id_prefix, title, description)


def title_y_axis(axes: Axes, text: str) -> None:
    """Write the name of a y axis above the axis, to save width."""
    axes.set_title(text, pad=8)


def percent_ticks(axis: Axis) -> None:
    """Label the ticks of an axis of shares as percentages."""
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g} %"))


def limit_to_shares(axes: Axes, axis: Literal["x", "y"]) -> None:
    """Limit an axis of shares to the range 0 to 1, which matplotlib's margins would exceed."""
    low, high = getattr(axes, f"get_{axis}lim")()
    getattr(axes, f"set_{axis}lim")(*widen_range(max(0.0, low), min(1.0, high)))


class _SpacedTicks(LogLocator):
    """Ticks at multiples 1, 2 and 5 of powers of ten, or only at 1 on a long axis."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Compute the positions of the ticks from `vmin` to `vmax`."""
        is_narrow = vmin > 0 and vmax / vmin < 300.0
        self.set_params(subs=(1.0, 2.0, 5.0) if is_narrow else (1.0,))
        return super().tick_values(vmin, vmax)


def log_ticks(axis: Axis, formatter: Format) -> None:
    """Set a few ticks on a logarithmic axis, with labels without exponents."""
    axis.set_major_locator(_SpacedTicks(numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda tick, _: formatter(tick)))


def error_lengths(estimate: Estimate) -> list[list[float]] | None:
    """Compute the lengths of error bars from the interval of a figure, as matplotlib needs them."""
    if estimate.low is None or estimate.high is None:
        return None
    return [[estimate.value - estimate.low], [estimate.high - estimate.value]]


def error_bars(
    axes: Axes, x: Estimate, y: Estimate, policy_key: str, *, label: str, size: float
) -> None:
    """Plot a point with both intervals, in the style of the policy `policy_key`.

    The markers are outlines of different shapes and sizes, so that overlapping ones stay visible.
    """
    axes.errorbar(
        [x.value],
        [y.value],
        xerr=error_lengths(x),
        yerr=error_lengths(y),
        fmt=MARKERS[policy_key],
        markersize=size,
        color=COLOURS[policy_key],
        fillstyle="none",
        markeredgewidth=1.7,
        elinewidth=1.2,
        label=label,
        clip_on=False,
    )


def _font_size(font_match: re.Match[str]) -> str:
    """Keep the size of a font and remove its family, so that the font of the page applies."""
    return f"-size{font_match[1]}" if font_match[1] else ""


def _inline_svg(svg: str, id_prefix: str, title: str, description: str) -> Markup:
    svg = svg[svg.index("<svg") :]
    view_box = re.search(r'viewBox="([^"]+)"', svg)
    assert view_box is not None
    body = svg[svg.index(">") + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r"font-family: [^;\"]*;?|(?<=font)(: [\d.]+px)[^;\"]*", _font_size, body)
    # matplotlib names some clip paths by the address of an object, which is not reproducible.
    for clip_number, clip_id in enumerate(dict.fromkeys(re.findall(r'<clipPath id="(\w+)"', body))):
        body = body.replace(clip_id, f"clip-{clip_number}")
    body = re.sub(r'(id="|url\(#|href="#)', rf"\1{id_prefix}-", body)
    for colour, css_variable in _CSS_BY_COLOUR.items():
        body = body.replace(colour, css_variable)
    opening_tag = Markup(
        '<svg viewBox="{box}" role="img" aria-labelledby="{name}-title {name}-text">'
        '<title id="{name}-title">{title}</title><desc id="{name}-text">{description}</desc>'
    ).format(box=view_box[1], name=id_prefix, title=title, description=description)
    return opening_tag + Markup(re.sub(r"\s*\n\s*", "\n", body))


def widen_range(low: float, high: float) -> tuple[float, float]:
    """Widen the range of an axis of shares to at least 5 percentage points, within 0 to 1."""
    lacking_width = _MIN_SHARE_SPAN - (high - low)
    if lacking_width <= 0:
        return low, high
    top = max(high, min(1.0, high + lacking_width / 2))
    bottom = top - _MIN_SHARE_SPAN
    if low >= 0:
        bottom = max(bottom, 0.0)
    return bottom, bottom + _MIN_SHARE_SPAN
