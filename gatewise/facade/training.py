"""Public names from ``gatewise_training``."""

from gatewise.errors import not_installed

try:
    from gatewise_training import AdaptGBRT as AdaptGBRT
    from gatewise_training import AdaptLin as AdaptLin
    from gatewise_training import AdaptLstsq as AdaptLstsq
    from gatewise_training import BudgetForest as BudgetForest
    from gatewise_training import BudgetPrune as BudgetPrune
    from gatewise_training import CEGBClassifier as CEGBClassifier
    from gatewise_training import CEGBRanker as CEGBRanker
    from gatewise_training import CEGBRegressor as CEGBRegressor
    from gatewise_training import ConfidenceCascade as ConfidenceCascade
    from gatewise_training import FrontierDisplay as FrontierDisplay
    from gatewise_training import GreedyMiser as GreedyMiser
    from gatewise_training import L1Cascade as L1Cascade
    from gatewise_training import OnnxModel as OnnxModel
    from gatewise_training import OutcomeCascade as OutcomeCascade
    from gatewise_training import Outcomes as Outcomes
    from gatewise_training import PairCascade as PairCascade
    from gatewise_training import StagedCascade as StagedCascade
    from gatewise_training import TableEncoder as TableEncoder
except ModuleNotFoundError as error:
    raise not_installed(error, "train") from error
