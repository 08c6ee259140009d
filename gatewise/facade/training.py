"""Names of ``gatewise_training`` in the facade."""

from gatewise_training import (
    AdaptGBRT,
    AdaptLin,
    AdaptLstsq,
    BudgetForest,
    BudgetPrune,
    CEGBClassifier,
    CEGBRanker,
    CEGBRegressor,
    ConfidenceCascade,
    FrontierDisplay,
    GreedyMiser,
    L1Cascade,
    OnnxModel,
    PairCascade,
    StagedCascade,
    TableEncoder,
)

__all__ = [
    "AdaptGBRT",
    "AdaptLin",
    "AdaptLstsq",
    "BudgetForest",
    "BudgetPrune",
    "CEGBClassifier",
    "CEGBRanker",
    "CEGBRegressor",
    "ConfidenceCascade",
    "FrontierDisplay",
    "GreedyMiser",
    "L1Cascade",
    "OnnxModel",
    "PairCascade",
    "StagedCascade",
    "TableEncoder",
]
