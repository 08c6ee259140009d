"""Names of ``gatewise_training`` in the facade."""

from gatewise.errors import not_installed

try:
    from gatewise_training import (
        AdaptGBRT,
        AdaptLin,
        AdaptLstsq,
        BlockFeatures,
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
except ModuleNotFoundError as error:
    raise not_installed(error, "train") from error

__all__ = [
    "AdaptGBRT",
    "AdaptLin",
    "AdaptLstsq",
    "BlockFeatures",
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
