"""The drawings of the report pages: SVG from plain numbers, colours from the style sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_sim.report.drawings.bars import draw_bars, legend
    from gatewise_sim.report.drawings.classes import draw_classes
    from gatewise_sim.report.drawings.frontier import Mark, draw_frontier
    from gatewise_sim.report.drawings.latency import Curve, draw_latency
    from gatewise_sim.report.drawings.marks import FILLS, NAMES, Fill, pattern_definitions
    from gatewise_sim.report.drawings.picture import Picture, pictured
    from gatewise_sim.report.drawings.timeline import draw_timeline

__all__ = [
    "FILLS",
    "NAMES",
    "Curve",
    "Fill",
    "Mark",
    "Picture",
    "draw_bars",
    "draw_classes",
    "draw_frontier",
    "draw_latency",
    "draw_timeline",
    "legend",
    "pattern_definitions",
    "pictured",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Curve": "latency",
        "FILLS": "marks",
        "Fill": "marks",
        "Mark": "frontier",
        "NAMES": "marks",
        "Picture": "picture",
        "draw_bars": "bars",
        "draw_classes": "classes",
        "draw_frontier": "frontier",
        "draw_latency": "latency",
        "draw_timeline": "timeline",
        "legend": "bars",
        "pattern_definitions": "marks",
        "pictured": "picture",
    },
)
