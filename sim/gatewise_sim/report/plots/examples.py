"""Pictures of example instances, where the features are the pixels of one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gatewise_sim.report.document import ExampleInstance
from gatewise_sim.report.plots.style import COLOURS, draw

_PIXEL: Final = re.compile(r"pixel_(\d+)_(\d+)")
_LEVELS: Final = 8  # of grey
_SIDE: Final = 120.0


def pictures_plot(examples: Sequence[ExampleInstance], names: Sequence[str]) -> Markup | None:
    """Draw each instance, and below it the pixels that were acquired; None without pixels."""
    pixels = [tuple(map(int, m.groups())) for n in names if (m := _PIXEL.fullmatch(n))]
    if not examples or len(pixels) != len(names) or not names:
        return None
    high = max((v for e in examples for v in e.values if v is not None), default=1.0) or 1.0

    def paint(drawing: Figure) -> None:
        panels = drawing.subplots(2, len(examples), squeeze=False)
        for example, whole, acquired in zip(examples, *panels, strict=True):
            _paint_picture(whole, example, pixels, high, None)
            _paint_picture(acquired, example, pixels, high, set(example.acquired))
            whole.set_title(f"{example.label}, {example.answered_by}", pad=4)
            acquired.set_title(f"cost {example.cost:.3g}", pad=4)

    texts = [
        f"{e.label} answered by {e.answered_by} from {len(e.acquired)} pixels" for e in examples
    ]
    return draw(
        paint,
        "examples",
        "Easy and hard instances",
        description=f"{'; '.join(texts)}.",
        width=_SIDE * len(examples),
        height=2 * (_SIDE + 22),
    )


def _paint_picture(
    axes: Axes,
    example: ExampleInstance,
    pixels: Sequence[tuple[int, ...]],
    high: float,
    acquired: set[int] | None,
) -> None:
    """Paint the pixels in ink, and a grey ground where a pixel was not acquired."""
    inked: dict[int, list[Rectangle]] = {}
    missing = []
    for k, ((row, column), value) in enumerate(zip(pixels, example.values, strict=True)):
        square = Rectangle((column, row), 1, 1)
        if acquired is not None and k not in acquired:
            missing.append(square)
        elif level := round(_LEVELS * (value or 0.0) / high):
            inked.setdefault(level, []).append(square)
    for level, squares in sorted(inked.items()):
        colour = COLOURS["ink"]
        axes.add_collection(
            PatchCollection(squares, facecolor=colour, edgecolor="none", alpha=level / _LEVELS)
        )
    axes.add_collection(PatchCollection(missing, facecolor=COLOURS["line"], edgecolor="none"))
    axes.set_xlim(0, 1 + max(column for _, column in pixels))
    axes.set_ylim(1 + max(row for row, _ in pixels), 0)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(COLOURS["line"])
