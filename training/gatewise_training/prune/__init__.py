"""Prune a forest exactly under feature cost: the whole frontier from one problem.

BudgetPrune (Nan, Wang & Saligrama, NIPS 2016) and its predecessor "Optimally pruning decision tree
ensembles with feature cost" (2016). :mod:`.problem` sets up the problem. :mod:`.solvers.mincut`
solves it exactly at one price, :mod:`.path` at all prices at once. :mod:`.solvers.lp`,
:mod:`.solvers.dantzig_wolfe` and :mod:`.solvers.primal_dual` are the papers' own methods, and
:mod:`.tree_by_tree` and :mod:`.feature_dropping` fill the gaps between the exact prunings.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
