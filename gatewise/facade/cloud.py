"""Names of ``gatewise_cloud`` in the facade."""

from gatewise_cloud import Worker

__all__ = ["Worker"]
