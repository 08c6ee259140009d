"""Learn a cascade under a budget: gates, low-cost models, budgeted trees and frontiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_training.adapt.gbrt import AdaptGBRT
    from gatewise_training.adapt.l1 import L1Cascade
    from gatewise_training.adapt.lin import AdaptLin
    from gatewise_training.adapt.lstsq import AdaptLstsq
    from gatewise_training.budget_forest import BudgetForest
    from gatewise_training.budget_prune import BudgetPrune
    from gatewise_training.cegb.classifier import CEGBClassifier
    from gatewise_training.cegb.ranker import CEGBRanker
    from gatewise_training.cegb.regressor import CEGBRegressor
    from gatewise_training.confidence import ConfidenceCascade
    from gatewise_training.costs import CloudPrices, FeatureCosts
    from gatewise_training.frontier import Frontier, FrontierDisplay, OperatingPoint
    from gatewise_training.greedy_miser import GreedyMiser
    from gatewise_training.high_cost import HighCostModel
    from gatewise_training.staged import StagedCascade

__version__ = "0.1.0"

__all__ = [
    "AdaptGBRT",
    "AdaptLin",
    "AdaptLstsq",
    "BudgetForest",
    "BudgetPrune",
    "CEGBClassifier",
    "CEGBRanker",
    "CEGBRegressor",
    "CloudPrices",
    "ConfidenceCascade",
    "FeatureCosts",
    "Frontier",
    "FrontierDisplay",
    "GreedyMiser",
    "HighCostModel",
    "L1Cascade",
    "OperatingPoint",
    "StagedCascade",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AdaptGBRT": "adapt.gbrt",
        "AdaptLin": "adapt.lin",
        "AdaptLstsq": "adapt.lstsq",
        "BudgetForest": "budget_forest",
        "BudgetPrune": "budget_prune",
        "CEGBClassifier": "cegb.classifier",
        "CEGBRanker": "cegb.ranker",
        "CEGBRegressor": "cegb.regressor",
        "CloudPrices": "costs",
        "ConfidenceCascade": "confidence",
        "FeatureCosts": "costs",
        "Frontier": "frontier",
        "FrontierDisplay": "frontier",
        "GreedyMiser": "greedy_miser",
        "HighCostModel": "high_cost",
        "L1Cascade": "adapt.l1",
        "OperatingPoint": "frontier",
        "StagedCascade": "staged",
    },
)
