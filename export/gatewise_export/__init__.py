"""From a fitted system to a bundle: ONNX graphs, a manifest, and the proof that they agree."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_export.bundle import Bundle, set_operating_point
    from gatewise_export.c99.writer import to_c
    from gatewise_export.errors import (
        BundleError,
        ConversionError,
        DamagedFileError,
        ManifestError,
        SignatureError,
        VerifyError,
    )
    from gatewise_export.friendly import to_onnx
    from gatewise_export.manifest import Manifest
    from gatewise_export.pack import pack
    from gatewise_export.signing import keygen
    from gatewise_export.skl2onnx_converters import register_converters
    from gatewise_export.verify import VerifyReport, self_test, verify, verify_graphs

__all__ = [
    "Bundle",
    "BundleError",
    "ConversionError",
    "DamagedFileError",
    "Manifest",
    "ManifestError",
    "SignatureError",
    "VerifyError",
    "VerifyReport",
    "keygen",
    "pack",
    "register_converters",
    "self_test",
    "set_operating_point",
    "to_c",
    "to_onnx",
    "verify",
    "verify_graphs",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Bundle": "bundle",
        "BundleError": "errors",
        "ConversionError": "errors",
        "DamagedFileError": "errors",
        "Manifest": "manifest",
        "ManifestError": "errors",
        "SignatureError": "errors",
        "VerifyError": "errors",
        "VerifyReport": "verify",
        "keygen": "signing",
        "pack": "pack",
        "register_converters": "skl2onnx_converters",
        "self_test": "verify",
        "set_operating_point": "bundle",
        "to_c": "c99.writer",
        "to_onnx": "friendly",
        "verify": "verify",
        "verify_graphs": "verify",
    },
)


class _Package(ModuleType):
    """Keeps ``gatewise_export.pack`` the function.

    The import system hangs each module it loads on the package; ``pack`` and ``verify`` are
    names of modules and of the functions in them, and the functions are what is meant.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in __all__):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
