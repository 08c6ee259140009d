"""Open and check a bundle: a directory, or the same files in one ``.gwb`` zip file.

Nothing in a bundle is trusted. Only the files that its manifest lists are read. Names are plain
file names and links are refused, so that no path leaves the bundle. Sizes are bounded, every hash
is checked before the file is used, and no pickle and no code is loaded. With a public key the
signature (:mod:`.signing`) is checked before the manifest is read. Devices use this module, so that
it needs the standard library, msgspec and numpy alone, and ``cryptography`` only with a key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from gatewise import __version__
from gatewise.acquisition import Acquisition
from gatewise.columns.value_ranges import TrainingRanges
from gatewise.errors import InputError
from gatewise.models.stage import Stage
from gatewise.operating_point import ByClass
from gatewise_export.bundle.arrays import read_arrays
from gatewise_export.bundle.decisions import expected_sample
from gatewise_export.bundle.errors import (
    BundleError,
    DamagedFileError,
    ManifestError,
    SignatureError,
)
from gatewise_export.bundle.flat_models import MAX_BYTES, FlatModel, read_model
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_export.bundle.manifest_records import (
    MANIFEST,
    RANGES,
    SAMPLE,
    FileSpec,
    StageSpec,
)
from gatewise_export.bundle.signing import MANIFEST_CONTEXT, SIGNATURE, PublicKey, Signer
from gatewise_export.bundle.storage import Storage, open_storage, read_signature_file
from gatewise_signals.blocks.block import FunctionBlock, OnnxBlock

MAX_MANIFEST_BYTES = 4 << 20
MAX_SAMPLE_BYTES = 64 << 20
MAX_BLOCK_BYTES = 32 << 20
#: Bytes read at a time from a large file.
CHUNK = 1 << 16
#: Largest file that stays in memory after the check; a larger file is hashed again on reading.
MAX_HELD_BYTES = 4 << 20
ATTEMPTS = 3


class Bundle:
    """A bundle that was read and checked. :meth:`open` makes one from its `storage`.

    Attributes
    ----------
    path : Path
    manifest : Manifest
    signed_by : str or None
        Id of the key with the checked signature; None without a key.

    Examples
    --------
    ``bundle = Bundle.open("bundle")``, then ``bundle.read(bundle.manifest.stages[0].arrays)``
    gives the first stage's model as bytes.
    """

    def __init__(
        self, path: Path, manifest: Manifest, storage: Storage, signed_by: str | None = None
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.signed_by = signed_by
        self._storage = storage
        # contents that were checked on opening, until they are read, so that each is hashed once
        self._checked: dict[str, bytes] = {}

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        public_key: str | Path | bytes | None = None,
        for_device: bool = False,
    ) -> Bundle:
        """Read the manifest and check every file against it.

        Parameters
        ----------
        path : str or Path
            A directory, or a ``.gwb`` file.
        public_key : str, Path or bytes, optional
            Public Ed25519 key: a PEM file, or its content. The bundle must be signed by it.
        for_device : bool, default False
            Allow the high-cost model's file to be absent, because devices do not need it.

        Raises
        ------
        BundleError
            If the bundle is missing, or needs a newer Gatewise.
        SignatureError
            If the bundle is not signed by the key.
        ManifestError
            If the manifest is malformed.
        DamagedFileError
            If a file is missing, leaves the bundle, or differs in size or hash.
        InputError
            If the key cannot be used.
        """
        path = Path(path)
        key = None if public_key is None else PublicKey(public_key)
        storage = open_storage(path)
        text = _manifest_text(path, storage, key)
        try:
            manifest = read_manifest(text)
        except ManifestError as error:
            error.args = (f"bundle {path}: {error}",)
            raise
        _check_runtime(path, manifest.min_runtime_version)
        bundle = cls(path, manifest, storage, None if key is None else key.key_id)
        bundle._check_files(for_device=for_device)
        return bundle

    def absent(self) -> tuple[str, ...]:
        """Names of the files that a bundle for devices may lack, and that are missing."""
        cloud = self.manifest.cloud
        if cloud is None or self._storage.has(cloud.file):
            return ()
        return (cloud.file,)

    def claimed_keys(self) -> tuple[str, ...]:
        """Ids of the keys in the SIGNATURE file; the signatures are not checked.

        Empty without the file. Raises SignatureError if it is malformed, or of another manifest.
        """
        signatures = read_signature_file(self._storage)
        if signatures is None:
            return ()
        with self._storage.reading(MANIFEST) as file:
            text = file.read(MAX_MANIFEST_BYTES)
        covering = tuple(s.key_id for s in signatures if s.covers(text))
        if not covering:
            raise SignatureError(f"bundle {self.path}: {SIGNATURE} is of another manifest")
        return covering

    def read(self, name: str, *, most: int | None = None) -> bytes:
        """Read the listed file `name`, and check its size and hash.

        Raises DamagedFileError if the file is not listed, is missing, differs from the packed one,
        or has more than `most` bytes.
        """
        spec = self.manifest.files.get(name)
        if spec is None:
            raise DamagedFileError(name, f"bundle {self.path}: {name!r} is not in its manifest")
        if most is not None and spec.size > most:
            raise DamagedFileError(
                name, f"bundle {self.path}: {name} has {spec.size} B, more than {most} B"
            )
        content = self._checked.pop(name, None)
        return self._checked_content(name, spec) if content is None else content

    def sample(self) -> dict[str, NDArray[Any]]:
        """Rows for the self-test and their expected outputs at the active operating point.

        Returns
        -------
        dict of ndarray
            ``X`` float32 (n, n_features), all columns in the manifest's order; ``stage_<i>``
            float32 (n, outputs) for stage i of the active operating point and, if it is lazy,
            ``bought_<i>`` bool (n, inputs), the inputs that it acquires; ``exit`` int64 (n,), the
            stage that answers (the number of stages: the cloud); ``label`` int64 (n,), class index;
            ``cost`` float64 (n,); with a high-cost model ``cloud_label`` int64 (n,) and
            ``cloud_probabilities`` float32 (n, n_classes).

        Raises
        ------
        BundleError
            If an array is missing or of another shape or type than the manifest says.
        """
        arrays = read_arrays(self.read(SAMPLE, most=MAX_SAMPLE_BYTES))
        return expected_sample(self.manifest, arrays)

    def ranges(self) -> TrainingRanges | None:
        """Ranges of the training rows, if the bundle has them."""
        manifest = self.manifest
        if RANGES not in manifest.files:
            return None
        signal = manifest.signal
        # an array has one range for all values, a raw window a range per channel
        n_features = 1 if manifest.instance is not None else len(manifest.features)
        n_channels = 0
        if signal is not None:
            n_features = len(signal.graph.feature_names)
            n_channels = len(signal.range_names)
        arrays = read_arrays(self.read(RANGES, most=MAX_SAMPLE_BYTES), RANGES)
        try:
            return TrainingRanges.from_arrays(arrays, n_features, n_channels)
        except InputError as error:
            raise BundleError(f"bundle {self.path}: {RANGES}: {error}") from None

    def read_model(self, spec: StageSpec) -> FlatModel:
        """Read and check the flat model of the stage `spec`, which is no given graph."""
        assert spec.kind != "graph"
        assert spec.arrays is not None
        content = self.read(spec.arrays, most=MAX_BYTES)
        sizes = {"n_inputs": len(spec.inputs), "n_outputs": spec.outputs}
        return read_model(content, spec.kind, spec.arrays, **sizes)

    def read_stage(self, stage: int) -> Stage:
        """Read the stage at index `stage` of the active operating point as training has it."""
        spec = self.manifest.stages[stage]
        features = self.manifest.stage_inputs(stage)
        acquisition: Acquisition = "node" if spec.kind == "lazy" else "stage"
        return Stage(self.read_model(spec), features, spec.link, spec.score, acquisition)

    def read_block_models(self) -> None:
        """Read the networks that are blocks into the manifest's signal."""
        signal = self.manifest.signal
        if signal is None or all(signal.models.values()):
            return
        blocks = [block for block in signal.graph.blocks if isinstance(block, OnnxBlock)]
        models = {block.file: self.read(block.file, most=MAX_BLOCK_BYTES) for block in blocks}
        try:
            signal = signal.with_models(models)
        except InputError as error:
            raise BundleError(f"bundle {self.path}: {error}") from None
        self.manifest = msgspec.structs.replace(self.manifest, signal=signal)

    def with_active(self, point: int) -> Bundle:
        """Get the same bundle at the operating point with index `point`; nothing is written."""
        return self._with_manifest(self.manifest.with_active(point))

    def with_functions(self, functions: Mapping[str, Callable[..., Any]]) -> Bundle:
        """Get the same bundle with `functions` of its blocks by name; InputError if one lacks."""
        signal = self.manifest.signal
        if signal is None or not any(isinstance(b, FunctionBlock) for b in signal.graph.blocks):
            return self
        signal = signal.with_functions(functions)
        return self._with_manifest(msgspec.structs.replace(self.manifest, signal=signal))

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """Functions of blocks by the block's name."""
        signal = self.manifest.signal
        return {} if signal is None else signal.functions

    def __repr__(self) -> str:
        return f"Bundle({self.manifest.name!r} {self.manifest.version}, {str(self.path)!r})"

    def _with_manifest(self, manifest: Manifest) -> Bundle:
        bundle = Bundle(self.path, manifest, self._storage, self.signed_by)
        bundle._checked = self._checked
        return bundle

    def _check_files(self, *, for_device: bool) -> None:
        """Check every file, and keep the contents of small ones for the next reading."""
        manifest = self.manifest
        absent = self.absent()
        if absent and not for_device:
            raise DamagedFileError(
                absent[0],
                f"bundle {self.path}: {absent[0]} is missing: a bundle for devices cannot be used "
                "here",
            )
        # a device writes the graphs of flat arrays itself
        hash_only = {stage.graph for stage in manifest.every_stage if stage.kind != "graph"}
        hash_only |= {manifest.cloud.file} if manifest.cloud is not None else set()
        for name, spec in manifest.files.items():
            if name in absent:
                continue
            if name in hash_only or spec.size > MAX_HELD_BYTES:
                self._check_hash(name, spec)
            else:
                self._checked[name] = self._checked_content(name, spec)

    def _checked_content(self, name: str, spec: FileSpec) -> bytes:
        """Read a file whole; raise DamagedFileError if it is not the packed one."""
        with self._storage.reading(name) as file:
            content = file.read(spec.size + 1)
        self._compare(name, spec, len(content), hashlib.sha256(content).hexdigest())
        return content

    def _check_hash(self, name: str, spec: FileSpec) -> None:
        """Read a file in chunks; raise DamagedFileError if it is not the packed one."""
        digest = hashlib.sha256()
        size = 0
        with self._storage.reading(name) as file:
            while size <= spec.size and (chunk := file.read(CHUNK)):
                size += len(chunk)
                digest.update(chunk)
        self._compare(name, spec, size, digest.hexdigest())

    def _compare(self, name: str, spec: FileSpec, size: int, sha256: str) -> None:
        if size != spec.size or sha256 != spec.sha256:
            property_name = "size" if size != spec.size else "SHA-256"
            raise DamagedFileError(
                name,
                f"bundle {self.path}: {name} is not the file that was packed ({property_name} "
                "differs from the manifest)",
            )


def set_operating_point(
    path: str | Path,
    point: int,
    *,
    sign: str | Path | None = None,
    bounds: tuple[ByClass, ByClass] | None = None,
) -> Bundle:
    """Switch the bundle at `path` to another operating point; only its manifest changes.

    Parameters
    ----------
    path : str or Path
    point : int
        Index into the manifest's operating points.
    sign : str or Path, optional
        Private key, NAME.key; a signed bundle needs it.
    bounds : pair of sequences, optional
        Minimum recall and precision by class of the point; by default those of the manifest.

    Returns
    -------
    Bundle
        The bundle at this point, opened again.

    Raises
    ------
    BundleError
        If the bundle cannot be read, lacks this point, or is signed and `sign` is None.
    SignatureError
        If its present signature by this key is wrong.
    """
    bundle, signer = open_to_sign(path, sign, for_device=True)
    claimed = bundle.claimed_keys()
    if signer is None and claimed:
        raise BundleError(
            f"bundle {path} is signed by key {claimed[0]}: give the key, which must sign the "
            "other operating point as well (--sign NAME.key)"
        )
    manifest = bundle.manifest.with_active(point)
    if bounds is not None:
        manifest = manifest.with_bounds(*bounds)
    text = manifest.to_json()
    signature = None if signer is None else signer.sign(MANIFEST_CONTEXT, text)
    files = manifest.files.keys() - set(bundle.absent())
    bundle._storage.write_manifest(text, signature, files)
    key = None if signer is None else signer.public.raw
    return Bundle.open(path, public_key=key, for_device=True)


def open_to_sign(
    path: str | Path, sign: str | Path | None, *, for_device: bool
) -> tuple[Bundle, Signer | None]:
    """Open a bundle that the key `sign` will sign, if it is not None.

    A present signature by that key is checked, so that an altered bundle gets no valid one.
    """
    signer = None if sign is None else Signer(sign)
    bundle = Bundle.open(path, for_device=for_device)
    if signer is not None and signer.public.key_id in bundle.claimed_keys():
        bundle = Bundle.open(path, public_key=signer.public.raw, for_device=for_device)
    return bundle, signer


def _manifest_text(path: Path, storage: Storage, key: PublicKey | None) -> bytes:
    """Read the manifest's bytes; with a key, demand its signature."""
    for attempt in range(ATTEMPTS):
        with storage.reading(MANIFEST) as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
        if len(text) > MAX_MANIFEST_BYTES:
            raise BundleError(f"bundle {path}: {MANIFEST} is larger than {MAX_MANIFEST_BYTES} B")
        if key is None:
            break
        signatures = read_signature_file(storage)
        if signatures is None:
            raise SignatureError(
                f"bundle {path} is not signed, and must be signed by key {key.key_id}"
            )
        try:
            key.check(signatures, MANIFEST_CONTEXT, text, f"bundle {path}")
            break
        except SignatureError:
            # read again, because the operating point may have changed between the two readings
            if attempt == ATTEMPTS - 1:
                raise
    return text


def _check_runtime(path: Path, min_version: str) -> None:
    def numbers(version: str) -> tuple[int, ...]:
        return tuple(int(n) for n in re.findall(r"\d+", version)[:3])

    if numbers(min_version) > numbers(__version__):
        raise BundleError(
            f"bundle {path} needs gatewise {min_version} or newer; this is {__version__}: update it"
        )
