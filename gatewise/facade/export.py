"""Names of the heavy half of ``gatewise_export`` in the facade: packing and conversion."""

from gatewise_export import pack, to_c, to_onnx, verify

__all__ = ["pack", "to_c", "to_onnx", "verify"]
