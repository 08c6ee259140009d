"""Public names from the heavy half of ``gatewise_export``, which packs and converts."""

from gatewise.errors import not_installed

try:
    from gatewise_export import pack, to_c, to_onnx, verify
except ModuleNotFoundError as error:
    raise not_installed(error, "export") from error

__all__ = ["pack", "to_c", "to_onnx", "verify"]
