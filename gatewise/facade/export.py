"""Names of ``gatewise_export`` in the facade."""

from gatewise_export import Bundle, BundleError, pack, to_c, to_onnx, verify

__all__ = ["Bundle", "BundleError", "pack", "to_c", "to_onnx", "verify"]
