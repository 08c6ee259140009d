"""Opening a bundle: a directory, or the same as one ``.gwb`` zip file.

Nothing in a bundle is trusted. Only the files that its manifest lists are read; names are
plain file names and links are refused, so that no path leaves it; sizes are bounded; every
hash is checked before any byte is handed out, and again on each reading. No pickle and no
code is ever loaded. Standard library and numpy alone: a device uses this.

The errors are those of :mod:`gatewise_export.errors`: :class:`BundleError` and its branches
:class:`ManifestError` and :class:`DamagedFileError`.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gatewise_export.arrays import read_arrays
from gatewise_export.errors import BundleError, DamagedFileError, ManifestError
from gatewise_export.manifest import Manifest
from gatewise_export.manifest_reader import MANIFEST, SAMPLE
from gatewise_export.sample import expected
from gatewise_export.storage import Storage, open_storage
from gatewise_training import __version__

__all__ = ["Bundle", "BundleError", "DamagedFileError", "ManifestError", "set_operating_point"]

MOST_MANIFEST_BYTES = 64 << 20
CHUNK = 1 << 20


class Bundle:
    """A bundle that was read and checked.

    Make one with :meth:`open`.

    Attributes
    ----------
    path : Path
    manifest : Manifest

    Examples
    --------
    ``bundle = Bundle.open("bundle")``, then ``bundle.read(bundle.manifest.stages[0].file)``
    gives the first stage's model as bytes: a graph for onnxruntime, or trees.
    """

    def __init__(self, path: Path, manifest: Manifest, storage: Storage) -> None:
        self.path = path
        self.manifest = manifest
        self._storage = storage

    @classmethod
    def open(cls, path: str | Path) -> Bundle:
        """Read the manifest and check every file against it.

        Parameters
        ----------
        path : str or Path
            A directory, or a ``.gwb`` file.

        Raises
        ------
        BundleError
            If there is no bundle, or it needs a newer Gatewise.
        ManifestError
            If the manifest is malformed.
        DamagedFileError
            If a file is missing, leaves the bundle, or differs in size or hash.
        """
        path = Path(path)
        storage = open_storage(path)
        with storage.reading(MANIFEST) as file:
            text = file.read(MOST_MANIFEST_BYTES + 1)
        if len(text) > MOST_MANIFEST_BYTES:
            raise BundleError(f"bundle {path}: {MANIFEST} is larger than {MOST_MANIFEST_BYTES} B")
        manifest = Manifest.from_json(text)
        _check_runtime(path, manifest.min_runtime_version)
        bundle = cls(path, manifest, storage)
        for name in manifest.files:
            bundle._pass_over(name, lambda chunk: None)
        return bundle

    def read(self, name: str) -> bytes:
        """Read a file that the manifest lists, and check its size and hash again.

        Raises
        ------
        DamagedFileError
            If it is not listed, missing, or not what was packed.
        """
        content = io.BytesIO()
        self._pass_over(name, content.write)
        return content.getvalue()

    def sample(self) -> dict[str, NDArray[Any]]:
        """Real rows and every output expected of them, at the operating point in force.

        Returns
        -------
        dict of ndarray
            ``X`` float32 (n, n_features), all columns in the manifest's order; ``stage_<i>``
            float32 (n, outputs) for stage i of the chain in force and, if it is lazy,
            ``bought_<i>`` bool (n, inputs), which of its inputs it buys; ``exit`` int64 (n,), the
            stage that answers (the number of stages: the cloud); ``label`` int64 (n,), class
            index; ``cost`` float64 (n,); with a high-cost model ``cloud_label`` int64 (n,) and
            ``cloud_probabilities`` float32 (n, n_classes).

        Raises
        ------
        BundleError
            If an array is missing or of another shape or type than the manifest says.
        """
        return expected(self.manifest, read_arrays(self.read(SAMPLE)))

    def with_active(self, point: int) -> Bundle:
        """Get the same bundle at another operating point, without writing anything."""
        return Bundle(self.path, self.manifest.with_active(point), self._storage)

    def __repr__(self) -> str:
        return f"Bundle({self.manifest.name!r} {self.manifest.version}, {str(self.path)!r})"

    def _pass_over(self, name: str, take: Callable[[bytes], object]) -> None:
        spec = self.manifest.files.get(name)
        if spec is None:
            raise DamagedFileError(name, f"bundle {self.path}: {name!r} is not in its manifest")
        digest, size = hashlib.sha256(), 0
        with self._storage.reading(name) as file:
            while chunk := file.read(min(CHUNK, spec.size + 1 - size)):
                size += len(chunk)
                if size > spec.size:
                    break
                digest.update(chunk)
                take(chunk)
        if size != spec.size or digest.hexdigest() != spec.sha256:
            raise DamagedFileError(
                name,
                f"bundle {self.path}: {name} is not the file that was packed "
                f"({'size' if size != spec.size else 'SHA-256'} differs from the manifest)",
            )


def set_operating_point(path: str | Path, point: int) -> Bundle:
    """Put another operating point in force: rewrites the manifest, and no graph.

    Parameters
    ----------
    path : str or Path
        A bundle, directory or ``.gwb``.
    point : int
        Index into the manifest's operating points.

    Returns
    -------
    Bundle
        The bundle opened anew.

    Raises
    ------
    BundleError
        If the bundle cannot be read, or has no such point.
    """
    bundle = Bundle.open(path)
    text = bundle.manifest.with_active(point).to_json().encode()
    bundle._storage.write_manifest(text)
    return Bundle.open(path)


def _check_runtime(path: Path, wanted: str) -> None:
    def numbers(version: str) -> tuple[int, ...]:
        return tuple(int(n) for n in re.findall(r"\d+", version)[:3])

    if numbers(wanted) > numbers(__version__):
        raise BundleError(
            f"bundle {path} needs gatewise {wanted} or newer; this is {__version__}: update it"
        )
