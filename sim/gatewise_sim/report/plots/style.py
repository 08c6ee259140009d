"""Matplotlib figures as inline SVG with the colours and fonts of the page.

A figure is drawn with a placeholder for each colour of the style sheet. In the SVG the CSS variable
replaces the placeholder, so that one plot works in light mode, dark mode and print. One point of a
figure is one CSS pixel. The same figure gives the same bytes.
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
from gatewise_sim.report.policy_result import Estimate

#: Width of a plot in px, which is the width of the page's text.
_WIDTH_PX: Final = 860.0
#: Points per inch. With this resolution one point of a figure is one pixel.
_DPI: Final = 72
#: Smallest range of an axis of shares, so that differences by chance do not look large.
_MIN_SHARE_SPAN: Final = 0.05

#: Keyword arguments of matplotlib for the style of a line or a mark.
ArtistOptions = dict[str, Any]

_PAGE_COLOURS: Final = ("ink", "muted", "line", "panel")
_SERIES_COLOURS: Final = ("system", "edge", "cloud", "network", "feature", "waiting", "idle")
_BASELINE_COLOURS: Final = ("confidence", "random", "oracle")
#: Placeholder of each CSS variable: a colour that matplotlib does not use otherwise. Its index is
#: one hexadecimal digit, so there may be at most 16 variables. The policies edge_only and
#: cloud_only have the colours of edge and cloud.
COLOURS: Final = {
    name: f"#0{index:x}00fe"
    for index, name in enumerate((*_PAGE_COLOURS, *_SERIES_COLOURS, *_BASELINE_COLOURS))
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
    "figure.dpi": _DPI,
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
#: CSS variable of each placeholder. Some placeholders have two names, and the last one is used. The
#: order is reversed because the style sheet has the names edge and cloud, but not edge_only.
_CSS_BY_PLACEHOLDER: Final = {
    placeholder: f"var(--{name})" for name, placeholder in reversed(COLOURS.items())
}


def draw_svg(
    paint: Callable[[Figure], None],
    id_prefix: str,
    title: str,
    *,
    description: str,
    height_px: float = 270.0,
) -> Markup:
    """Draw a figure, with its content from `paint`, as inline SVG.

    The ids of its elements begin with `id_prefix`, which must be unique in the page. Screen readers
    use `title` and `description`.
    """
    with matplotlib.rc_context(_MATPLOTLIB_SETTINGS):
        figure = Figure((_WIDTH_PX / _DPI, height_px / _DPI), layout="constrained")
        paint(figure)
        svg_file = io.StringIO()
        # A date would differ in each run, and the page needs no other metadata.
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(svg_file, format="svg", transparent=True, metadata=no_metadata)
    return _inline_svg(svg_file.getvalue(), id_prefix, title, description)


def title_y_axis(axes: Axes, text: str) -> None:
    """Write the name of a y axis above the axis, to save width."""
    axes.set_title(text, pad=8)


def set_percent_ticks(axis: Axis) -> None:
    """Label the ticks of an axis of shares as percentages."""
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g} %"))


def limit_y_to_shares(axes: Axes) -> None:
    """Limit a y axis of shares to the range 0 to 1, which matplotlib's margins would exceed."""
    low, high = axes.get_ylim()
    axes.set_ylim(*widen_range(max(0.0, low), min(1.0, high)))


class _SpacedTicks(LogLocator):
    """Ticks at multiples 1, 2 and 5 of powers of ten, or only at 1 on a long axis."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Compute the positions of the ticks from `vmin` to `vmax`."""
        # Two and a half decades have about eight ticks at 1, 2 and 5, which the axis has room for.
        is_narrow = vmin > 0 and vmax / vmin < 300.0
        self.set_params(subs=(1.0, 2.0, 5.0) if is_narrow else (1.0,))
        return super().tick_values(vmin, vmax)


def set_log_ticks(axis: Axis, formatter: Format) -> None:
    """Set a few ticks on a logarithmic axis, with labels without exponents."""
    axis.set_major_locator(_SpacedTicks(numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda tick, _: formatter(tick)))


def _compute_error_bar_lengths(estimate: Estimate) -> list[list[float]] | None:
    """Compute the lengths of an error bar below and above a point; None without an interval."""
    if estimate.low is None or estimate.high is None:
        return None
    return [[estimate.value - estimate.low], [estimate.high - estimate.value]]


def draw_error_bars(
    axes: Axes, x: Estimate, y: Estimate, policy_key: str, *, label: str, size: float
) -> None:
    """Plot a point with both intervals, in the style of the policy `policy_key`.

    The markers are outlines of different shapes and sizes, and therefore visible if they overlap.
    """
    axes.errorbar(
        [x.value],
        [y.value],
        xerr=_compute_error_bar_lengths(x),
        yerr=_compute_error_bar_lengths(y),
        fmt=MARKERS[policy_key],
        markersize=size,
        color=COLOURS[policy_key],
        fillstyle="none",
        markeredgewidth=1.7,
        elinewidth=1.2,
        label=label,
        clip_on=False,  # an accuracy of 1 lies on the edge of the axes
    )


def _keep_font_size(font_match: re.Match[str]) -> str:
    """Keep only the size of a font declaration, so that the page's family of fonts is used."""
    return f"-size{font_match[1]}" if font_match[1] else ""


def _inline_svg(svg: str, id_prefix: str, title: str, description: str) -> Markup:
    """Adapt the SVG that matplotlib wrote to the page: fonts, ids, colours and description."""
    # An element of a page has no XML declaration, and the page determines its width and height.
    svg = svg[svg.index("<svg") :]
    view_box = re.search(r'viewBox="([^"]+)"', svg)
    assert view_box is not None
    body = svg[svg.index(">") + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.S)
    # "font: 11px 'DejaVu Sans', ..." becomes "font-size: 11px", and "font-family: ..." is removed.
    body = re.sub(r"font-family: [^;\"]*;?|(?<=font)(: [\d.]+px)[^;\"]*", _keep_font_size, body)
    # matplotlib names some clip paths by the address of an object, which is not reproducible.
    for clip_number, clip_id in enumerate(dict.fromkeys(re.findall(r'<clipPath id="(\w+)"', body))):
        body = body.replace(clip_id, f"clip-{clip_number}")
    # add the prefix to ids and to the references to them in attributes
    body = re.sub(r'(id="|url\(#|href="#)', rf"\1{id_prefix}-", body)
    for placeholder, css_variable in _CSS_BY_PLACEHOLDER.items():
        body = body.replace(placeholder, css_variable)
    opening_tag = Markup(
        '<svg viewBox="{box}" role="img" aria-labelledby="{name}-title {name}-text">'
        '<title id="{name}-title">{title}</title><desc id="{name}-text">{description}</desc>'
    ).format(box=view_box[1], name=id_prefix, title=title, description=description)
    # Without indents the page is smaller.
    return opening_tag + Markup(re.sub(r"\s*\n\s*", "\n", body))


def widen_range(low: float, high: float) -> tuple[float, float]:
    """Widen the range of an axis of shares on both sides, to at least 5 percentage points.

    The wider range stays within 0 and 1, unless `low` or `high` are already outside.
    """
    missing_width = _MIN_SHARE_SPAN - (high - low)
    if missing_width <= 0:
        return low, high
    top = max(high, min(1.0, high + missing_width / 2))
    bottom = top - _MIN_SHARE_SPAN
    if low >= 0:
        bottom = max(bottom, 0.0)
    return bottom, bottom + _MIN_SHARE_SPAN
