"""Names of ``gatewise_sim`` in the facade."""

from gatewise_sim import Scenario, simulate

__all__ = ["Scenario", "simulate"]
