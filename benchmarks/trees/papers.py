"""Numbers that the papers on budgeted trees print in tables and text."""

from __future__ import annotations

from typing import NamedTuple


class PaperPoint(NamedTuple):
    """Mean cost of a pruning, and its error on test rows."""

    cost: float
    error: float


#: ICML 2015, table 1: percentage of the features and test error at 1, 10, 20 and 40 trees.
BUDGETRF: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "mbne_tiny": {
        "rf-gini": ((27.32, 0.1278), (85.06, 0.0803), (94.83, 0.0730), (98.42, 0.0693)),
        "rf-entropy": ((20.67, 0.1230), (75.54, 0.0775), (90.35, 0.0713), (97.54, 0.068)),
        "stumps": ((16.4, 0.1241), (57.8, 0.0786), (73.57, 0.0721), (86.78, 0.0689)),
    },
    "forest": {
        "rf-gini": ((22.57, 0.2107), (63.04, 0.1307), (70.76, 0.1238), (76.63, 0.1196)),
        "rf-entropy": ((21.68, 0.2045), (63.56, 0.1313), (72.37, 0.1239), (79.34, 0.1200)),
        "stumps": ((11.37, 0.2122), (23.21, 0.1364), (25.92, 0.1232), (29.01, 0.1156)),
    },
    "cifar10": {
        "rf-gini": ((3.8, 0.4284), (30.35, 0.3604), (49.85, 0.3349), (72.20, 0.3106)),
        "rf-entropy": ((3.46, 0.4267), (28.34, 0.3561), (46.45, 0.3296), (68.47, 0.3080)),
        "stumps": ((2.62, 0.4264), (21.09, 0.3600), (35.45, 0.3332), (54.24, 0.3125)),
    },
}

#: NIPS 2017 (Adapt), section 5: cost saved without losing 1 % of the top accuracy.
ADAPT_CUTS = {"mbne_tiny": 0.63, "forest-bin": 0.32, "letter-bin": 0.31}

#: Table 1 of 2016.
PRUNED = {
    "mbne_tiny": {
        "unpruned": PaperPoint(37.0671, 0.0725),
        "ensemble-low": PaperPoint(25.2960, 0.0724),
        "per-tree-low": PaperPoint(35.2219, 0.0727),
        "ensemble-high": PaperPoint(16.0018, 0.0766),
        "per-tree-high": PaperPoint(20.4584, 0.0766),
    },
    "forest-bin": {
        "unpruned": PaperPoint(13.9005, 0.1122),
        "ensemble-low": PaperPoint(12.2463, 0.1135),
        "per-tree-low": PaperPoint(12.9604, 0.1137),
        "ensemble-high": PaperPoint(9.0577, 0.1220),
        "per-tree-high": PaperPoint(10.9565, 0.1228),
    },
    "cifar10": {
        "unpruned": PaperPoint(186.5456, 0.3152),
        "ensemble-low": PaperPoint(172.3720, 0.3165),
        "per-tree-low": PaperPoint(173.5255, 0.3158),
        "ensemble-high": PaperPoint(140.6308, 0.3227),
        "per-tree-high": PaperPoint(145.2933, 0.3236),
    },
    "sonar": {
        "unpruned": PaperPoint(49.9715, 0.1539),
        "ensemble-low": PaperPoint(22.5860, 0.1838),
        "per-tree-low": PaperPoint(37.1355, 0.1890),
        "ensemble-high": PaperPoint(8.2349, 0.2121),
        "per-tree-high": PaperPoint(14.0479, 0.2139),
    },
    "statlog_heart": {
        "unpruned": PaperPoint(12.1670, 0.1721),
        "ensemble-low": PaperPoint(8.9133, 0.1711),
        "per-tree-low": PaperPoint(11.7052, 0.1719),
        "ensemble-high": PaperPoint(5.8094, 0.1977),
        "per-tree-high": PaperPoint(9.2301, 0.1973),
    },
}
