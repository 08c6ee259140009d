"""Fingerprints of the rows that training saw, in a file next to the bundle.

Figures on such rows flatter a model. The file stays where ``gatewise train`` wrote it: it does not
belong to the bundle, and no device gets it. It holds a hash of 64 bits for each row, no values; who
has the file can still test whether a row that they guess was among them.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.bundle import Bundle

SEEN = "seen.npz"
MOST_FILE_BYTES = 1 << 30


def beside(bundle: Path, what: str) -> Path:
    """Get a path next to a bundle: ``bundle-what`` for ``bundle`` and ``bundle.gwb``."""
    name = bundle.stem if bundle.suffix == ".gwb" else bundle.name
    return bundle.parent / f"{name}-{what}"


@dataclass(frozen=True, eq=False)
class SeenRows:
    """Fingerprints of the rows that a bundle's training saw: of each distinct row, sorted.

    `by_chance` is the share of the rows held out that are equal to one that training saw: where
    features take few values, rows are often equal by chance.
    """

    prints: NDArray[np.uint64]
    by_chance: float

    @classmethod
    def fingerprinted(cls, seen: NDArray[np.float32], held_out: NDArray[np.float32]) -> Self:
        """Take fingerprints of rows of shape (n, n_features)."""
        prints = np.unique(_prints(seen))
        return cls(prints, float(_among(held_out, prints).mean()) if len(held_out) else 0.0)

    @classmethod
    def find(cls, bundle: Bundle) -> Self | None:
        """Read the file next to a bundle, if it exists and belongs to this bundle."""
        path = beside(bundle.path, SEEN)
        if not path.is_file():
            return None
        arrays = read_arrays(path.read_bytes(), str(path), most_bytes=MOST_FILE_BYTES)
        if arrays.get("bundle", np.zeros(0)).tolist() != _print_of_files(bundle).tolist():
            return None
        return cls(arrays["prints"], float(arrays["by_chance"].item()))

    def write(self, bundle: Bundle) -> None:
        """Write the file next to a bundle."""
        arrays = {
            "prints": self.prints,
            "by_chance": np.float64(self.by_chance),
            "bundle": _print_of_files(bundle),
        }
        content = write_arrays({name: np.asarray(array) for name, array in arrays.items()})
        beside(bundle.path, SEEN).write_bytes(content)

    def count(self, x: NDArray[np.float32]) -> int:
        """Rows of shape (n, n_features), in the manifest's order, that training saw."""
        return int(_among(x, self.prints).sum())

    def remark(self, count: int, n_rows: int) -> str | None:
        """Say that figures on these rows flatter; None where no more were seen than by chance."""
        # Binomial: n * p rows are equal by chance, with deviation sqrt(n * p * (1 - p)).
        # Up to three deviations more are noise.
        expected = self.by_chance * n_rows
        if count <= expected + 3 * math.sqrt(expected * (1 - self.by_chance)):
            return None
        usual = f" (of rows held out, {self.by_chance:.1%} equal one)" if expected else ""
        return (
            f"Training saw {count:,} of these {n_rows:,} rows{usual}: figures on them flatter the "
            "bundle. The test rows beside it are such as training has not seen."
        )


def _among(x: NDArray[np.float32], prints: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which rows have one of these fingerprints, shape (n,)."""
    return np.isin(_prints(x), prints, kind="sort")  # numpy 2.0's tables of uint64 overflow


def _prints(x: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Hashes of rows; all NaN are one, and so are both zeros."""
    rows = np.ascontiguousarray(x, np.float32) + np.float32(0)
    rows[np.isnan(rows)] = np.nan
    digests = (hashlib.blake2b(row, digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def _print_of_files(bundle: Bundle) -> NDArray[np.uint8]:
    """Hash of a bundle's files, which another operating point leaves as they are."""
    names = sorted((name, spec.sha256) for name, spec in bundle.manifest.files.items())
    return np.frombuffer(hashlib.sha256(repr(names).encode()).digest(), np.uint8)
