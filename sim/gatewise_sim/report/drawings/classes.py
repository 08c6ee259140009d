"""Class by class: how much is offloaded, and what that does for accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from gatewise_sim.report import words
from gatewise_sim.report.drawings.marks import axis_x, shape
from gatewise_sim.report.svg import Linear, document, tag, text_width, ticks

__all__ = ["draw_classes"]

_ROW: Final = 22.0
_TOP: Final = 24.0
_BOTTOM: Final = 24.0
_KEYS: Final = (("edge_only", "device", "edge"), ("system", "Gatewise", "system"))
_LONGEST: Final = 11  # letters of a class's name


def draw_classes(rows: Sequence[Mapping[str, Any]], *, width: float, name: str) -> Markup:
    """Draw a row a class: a bar of the share offloaded; accuracy of the device and of the whole.

    Parameters
    ----------
    rows : sequence of mapping
        ``label, instances, offload_rate, accuracy, edge_accuracy``; the last two may be None.
    width, name
        As :func:`gatewise_sim.report.drawings.picture.pictured` gives them.
    """
    labels = [_short(str(row["label"])) for row in rows]
    left = max(28.0, 8 + max(text_width(label, 12.0) for label in labels))
    known = [r[k] for r in rows for k in ("accuracy", "edge_accuracy") if r[k] is not None]
    bottom = _TOP + _ROW * len(rows)
    end = left + (0.36 if known else 0.9) * (width - left - 20)
    rate = Linear(0.0, max([r["offload_rate"] for r in rows] + [0.01]), left, end - 34)
    drawn = [tag("text", "offloaded", x=left, y=12.0, cls="axis")]
    y = None
    if known:
        pad = max(0.005, 0.05 * (1 - min(known)))
        y = Linear(max(0.0, min(known) - pad), min(1.0, max(known) + pad), end + 14, width - 24)
        at = ticks(y.lo, y.hi, 4)
        shares = [f"{100 * v:.4g} %" for v in at]
        head = text_width("accuracy:", 11.0) + 10
        rest = sum(21 + text_width(text, 11.0, bold=True) for _, text, _ in _KEYS)
        at_x = min(y.start - 8, width - head - rest)
        drawn += [
            *axis_x(y, at, shares, bottom, grid=_TOP - 4),
            tag("text", "accuracy:", x=at_x, y=12.0, cls="axis"),
        ]
        at_x += head
        for key, text, style in _KEYS:
            drawn += [
                shape(key, at_x, 8.0, 5.0),
                tag("text", text, x=at_x + 9, y=12.0, cls=f"direct small-key {style}"),
            ]
            at_x += 21 + text_width(text, 11.0, bold=True)
    for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
        drawn.append(_row(row, label, _TOP + _ROW * (i + 0.5), left, rate, y))
    return document(
        width,
        bottom + (_BOTTOM if known else 6),
        *drawn,
        title="Class by class",
        description="; ".join(_said(row) for row in rows) + ".",
        name=name,
    )


def _row(
    row: Mapping[str, Any], label: str, mid: float, left: float, rate: Linear, y: Linear | None
) -> Markup:
    drawn = [
        tag("title", _said(row)),
        tag("text", label, x=left - 8, y=mid + 4, cls="end"),
        tag("rect", x=left, y=mid - 6, width=max(rate(row["offload_rate"]) - left, 0.5),
            height=12.0, cls="fill system"),
        tag("text", words.percent(row["offload_rate"], 0), x=rate(row["offload_rate"]) + 5,
            y=mid + 4, cls="tick"),
    ]  # fmt: skip
    system, edge = row["accuracy"], row["edge_accuracy"]
    if y is not None and system is not None and edge is not None:
        style = "gain" if system >= edge else "loss"
        drawn.append(tag("line", x1=y(edge), x2=y(system), y1=mid, y2=mid, cls=f"stroke {style}"))
    if y is not None and edge is not None:
        drawn.append(shape("edge_only", y(edge), mid, 5.0))
    if y is not None and system is not None:
        drawn.append(shape("system", y(system), mid, 5.5))
    return tag("g", *drawn)


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _said(row: Mapping[str, Any]) -> str:
    said = f"{row['label']}: {words.percent(row['offload_rate'])} offloaded"
    if row["accuracy"] is not None:
        said += f", {words.percent(row['accuracy'])} accurate"
    if row["edge_accuracy"] is not None:
        said += f", the device alone {words.percent(row['edge_accuracy'])}"
    return said
