"""Exact pruning of a forest under feature cost, for all prices of cost at once.

The methods are BudgetPrune (Nan, Wang & Saligrama, NIPS 2016) and its predecessor, "Optimally
pruning decision tree ensembles with feature cost" (2016). :mod:`.problem` sets up the problem.
:mod:`.solvers.mincut` solves it exactly at one price, and :mod:`.path` at all prices.
:mod:`.solvers.lp`, :mod:`.solvers.dantzig_wolfe` and :mod:`.solvers.primal_dual` are the papers'
own solvers. :mod:`.other_prunings` has the papers' baselines, whose prunings fill the gaps between
the exact ones.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
