"""Public names from ``gatewise_sim``."""

from gatewise.errors import not_installed

try:
    from gatewise_sim import Scenario, simulate
except ModuleNotFoundError as error:
    raise not_installed(error, "sim") from error

__all__ = ["Scenario", "simulate"]
