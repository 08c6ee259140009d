"""Cost-aware classification across edge devices and the cloud.

A device answers the easy instances and sends the hard ones to the cloud, within a budget.
``import gatewise as gw`` provides the names that most programs need. Each name imports its package
on first use, so that a device never imports code that only training needs.

>>> import gatewise as gw
>>> gw.FeatureCosts.uniform(3).price([0, 2])
2.0
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
