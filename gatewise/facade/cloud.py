"""Public names from ``gatewise_cloud``."""

from gatewise.errors import not_installed

try:
    from gatewise_cloud import Worker
except ModuleNotFoundError as error:
    raise not_installed(error, "cloud") from error

__all__ = ["Worker"]
