"""Names of ``gatewise_cloud`` in the facade."""

from gatewise.errors import not_installed

try:
    from gatewise_cloud import Worker
except ModuleNotFoundError as error:
    raise not_installed(error, "cloud") from error

__all__ = ["Worker"]
