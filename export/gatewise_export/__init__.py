"""From a fitted system to a bundle: ONNX graphs, a manifest, and the proof that they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_export.bundle import Bundle, set_operating_point
    from gatewise_export.errors import (
        BundleError,
        ConversionError,
        DamagedFileError,
        ManifestError,
        VerifyError,
    )
    from gatewise_export.manifest import Manifest

__all__ = [
    "Bundle",
    "BundleError",
    "ConversionError",
    "DamagedFileError",
    "Manifest",
    "ManifestError",
    "VerifyError",
    "set_operating_point",
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
        "VerifyError": "errors",
        "set_operating_point": "bundle",
    },
)
