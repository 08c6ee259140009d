"""Gatewise: a device answers the easy instances, the cloud the hard ones, within a budget.

``import gatewise as gw`` offers the names that most programs need; each loads its package on
first use, so that a device never loads what only training needs.

>>> import gatewise as gw
>>> gw.FeatureCosts.uniform(3).price([0, 2])
2.0
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
