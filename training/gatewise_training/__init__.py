"""Learn a cascade under a budget: gates, low-cost models, budgeted trees and frontiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_training.adapt.gbrt import AdaptGBRT
    from gatewise_training.adapt.lin import AdaptLin
    from gatewise_training.costs import CloudPrices, FeatureCosts
    from gatewise_training.frontier import Frontier, FrontierDisplay, OperatingPoint
    from gatewise_training.high_cost import HighCostModel
    from gatewise_training.staged import StagedCascade

__version__ = "0.1.0"

__all__ = [
    "AdaptGBRT",
    "AdaptLin",
    "CloudPrices",
    "FeatureCosts",
    "Frontier",
    "FrontierDisplay",
    "HighCostModel",
    "OperatingPoint",
    "StagedCascade",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AdaptGBRT": "adapt.gbrt",
        "AdaptLin": "adapt.lin",
        "CloudPrices": "costs",
        "FeatureCosts": "costs",
        "Frontier": "frontier",
        "FrontierDisplay": "frontier",
        "HighCostModel": "high_cost",
        "OperatingPoint": "frontier",
        "StagedCascade": "staged",
    },
)
