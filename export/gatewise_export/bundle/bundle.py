"""Open and check a bundle, which is a directory or the same files in one ``.gwb`` zip file.

Bundles are untrusted. Only files that the manifest lists are read. No path leaves the bundle,
because names must be plain file names and links are refused. Sizes are bounded, each hash is
checked before its file is used, and neither pickle nor code is loaded. If the caller gives a public
key, the signature (:mod:`.signing`) is checked before the manifest is parsed. Devices use this
module, so it needs only the standard library, msgspec and numpy; a key also needs ``cryptography``.
"""

from __future__ import annotations

import contextlib
import hashlib
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
from gatewise_export.bundle.flat_models import MAX_MODEL_BYTES, FlatModel, read_model
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_export.bundle.manifest_records import (
    MANIFEST,
    RANGES,
    SAMPLE,
    FileSpec,
    StageSpec,
    Version,
    version_numbers,
)
from gatewise_export.bundle.signing import MANIFEST_CONTEXT, SIGNATURE, PublicKey, Signer
from gatewise_export.bundle.storage import Storage, open_storage, read_signature_file
from gatewise_signals.blocks.block import FunctionBlock, OnnxBlock

#: Largest sizes of the files that are read into memory whole, because bundles are untrusted.
MAX_MANIFEST_BYTES = 4 << 20
MAX_SAMPLE_BYTES = 64 << 20
MAX_BLOCK_BYTES = 32 << 20
#: Bytes per read of a large file.
CHUNK_BYTES = 1 << 16
#: Largest file that stays in memory after the check; a larger file is hashed again when read.
MAX_CACHED_BYTES = 4 << 20
#: Largest number of attempts to read a manifest together with its signature.
MAX_READ_ATTEMPTS = 3


class Bundle:
    """A checked bundle and its `storage`; :meth:`open` reads one from a path.

    Attributes
    ----------
    path : Path
    manifest : Manifest
    signed_by : str or None
        Id of the key whose signature was checked; None if no key was given.

    Examples
    --------
    After ``bundle = Bundle.open("bundle")``,
    ``bundle.read(bundle.manifest.stages[0].arrays)`` returns the first stage's model as bytes.
    """

    def __init__(
        self, path: Path, manifest: Manifest, storage: Storage, signed_by: str | None = None
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.signed_by = signed_by
        self._storage = storage
        # contents that opening has checked; they are kept until they are read, to hash each once
        self._checked_contents: dict[str, bytes] = {}

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
            Public Ed25519 key that must have signed the bundle: a PEM file or its content.
        for_device : bool, default False
            Whether the high-cost model's file may be absent, because devices do not need it.

        Raises
        ------
        BundleError
            If the bundle does not exist, or needs a newer Gatewise.
        SignatureError
            If the key has not signed the bundle.
        ManifestError
            If the manifest is malformed.
        DamagedFileError
            If a file is missing, is not a plain file, or differs in size or hash.
        InputError
            If the key cannot be used.
        """
        path = Path(path)
        key = None if public_key is None else PublicKey(public_key)
        storage = open_storage(path)
        manifest_text = _read_manifest_text(path, storage, key)
        try:
            manifest = read_manifest(manifest_text)
        except ManifestError as error:
            # a bundle for a newer version may have keys that this version does not know
            with contextlib.suppress(msgspec.DecodeError):
                stated_version = msgspec.json.decode(manifest_text, type=_StatedVersion)
                _check_runtime_version(path, stated_version.min_runtime_version)
            error.args = (f"bundle {path}: {error}",)
            raise
        _check_runtime_version(path, manifest.min_runtime_version)
        bundle = cls(path, manifest, storage, None if key is None else key.key_id)
        bundle._check_files(for_device=for_device)
        return bundle

    def absent_files(self) -> tuple[str, ...]:
        """Names of missing files that a bundle for devices may lack."""
        cloud = self.manifest.cloud
        if cloud is None or self._storage.has_file(cloud.file):
            return ()
        return (cloud.file,)

    def claimed_key_ids(self) -> tuple[str, ...]:
        """Ids of the keys in the SIGNATURE file; their signatures are not checked.

        The tuple is empty if the bundle is not signed. Raises SignatureError if the file is
        malformed or signs another manifest.
        """
        signatures = read_signature_file(self._storage)
        if signatures is None:
            return ()
        with self._storage.open_file(MANIFEST) as file:
            manifest_text = file.read(MAX_MANIFEST_BYTES)
        covering_key_ids = tuple(
            signature.key_id for signature in signatures if signature.covers(manifest_text)
        )
        if not covering_key_ids:
            raise SignatureError(f"bundle {self.path}: {SIGNATURE} signs another manifest")
        return covering_key_ids

    def read(self, name: str, *, max_bytes: int | None = None) -> bytes:
        """Read the file `name`, which the manifest must list, and check its size and hash.

        Raises DamagedFileError if the file is not listed, is missing, differs from the packed file,
        or has more than `max_bytes` bytes.
        """
        file_spec = self.manifest.files.get(name)
        if file_spec is None:
            raise DamagedFileError(name, f"bundle {self.path}: {name!r} is not in its manifest")
        if max_bytes is not None and file_spec.size > max_bytes:
            raise DamagedFileError(
                name, f"bundle {self.path}: {name} has {file_spec.size} B, more than {max_bytes} B"
            )
        content = self._checked_contents.pop(name, None)
        return self._checked_content(name, file_spec) if content is None else content

    def sample(self) -> dict[str, NDArray[Any]]:
        """Read the self-test's rows, with the expected outputs at the active operating point.

        Returns
        -------
        dict of ndarray
            - ``X``, float32 (n, n_features): all columns in the manifest's order;
            - ``stage_<i>``, float32 (n, outputs): outputs of stage i of the active operating point;
            - ``bought_<i>``, bool (n, inputs), for a lazy stage: the inputs that it acquires;
            - ``exit``, int64 (n,): the stage that answers, or the number of stages for the cloud;
            - ``label``, int64 (n,): the class index;
            - ``cost``, float64 (n,);
            - ``cloud_label``, int64 (n,), and ``cloud_probabilities``, float32 (n, n_classes), with
              a high-cost model.

        Raises
        ------
        BundleError
            If an array is missing, or its shape or type does not fit the manifest.
        """
        arrays = read_arrays(self.read(SAMPLE, max_bytes=MAX_SAMPLE_BYTES))
        return expected_sample(self.manifest, arrays)

    def ranges(self) -> TrainingRanges | None:
        """Read the ranges of the training rows, if the bundle has them."""
        manifest = self.manifest
        if RANGES not in manifest.files:
            return None
        signal = manifest.signal
        # an array has one range for all values, and a raw window has one range per channel
        n_features = 1 if manifest.instance is not None else len(manifest.features)
        n_channels = 0
        if signal is not None:
            n_features = len(signal.graph.feature_names)
            n_channels = len(signal.range_names)
        arrays = read_arrays(self.read(RANGES, max_bytes=MAX_SAMPLE_BYTES), RANGES)
        try:
            return TrainingRanges.from_arrays(arrays, n_features, n_channels)
        except InputError as error:
            raise BundleError(f"bundle {self.path}: {RANGES}: {error}") from None

    def read_model(self, stage_spec: StageSpec) -> FlatModel:
        """Read and check the flat model of the stage `stage_spec`; refuse a given graph."""
        assert stage_spec.kind != "graph"
        assert stage_spec.arrays is not None
        content = self.read(stage_spec.arrays, max_bytes=MAX_MODEL_BYTES)
        sizes = {"n_inputs": len(stage_spec.inputs), "n_outputs": stage_spec.outputs}
        return read_model(content, stage_spec.kind, stage_spec.arrays, **sizes)

    def read_stage(self, stage_index: int) -> Stage:
        """Read the stage at index `stage_index` of the active operating point."""
        stage_spec = self.manifest.stages[stage_index]
        features = self.manifest.stage_inputs(stage_index)
        acquisition: Acquisition = "node" if stage_spec.kind == "lazy" else "stage"
        return Stage(
            self.read_model(stage_spec), features, stage_spec.link, stage_spec.score, acquisition
        )

    def read_block_models(self) -> None:
        """Load the networks of blocks into the manifest's signal."""
        signal = self.manifest.signal
        if signal is None or all(signal.models.values()):
            return
        blocks = [block for block in signal.graph.blocks if isinstance(block, OnnxBlock)]
        models = {block.file: self.read(block.file, max_bytes=MAX_BLOCK_BYTES) for block in blocks}
        try:
            signal = signal.with_models(models)
        except InputError as error:
            raise BundleError(f"bundle {self.path}: {error}") from None
        self.manifest = msgspec.structs.replace(self.manifest, signal=signal)

    def with_active(self, point_index: int) -> Bundle:
        """Return the bundle at the operating point with index `point_index`, without writing it."""
        return self._with_manifest(self.manifest.with_active(point_index))

    def with_functions(self, functions: Mapping[str, Callable[..., Any]]) -> Bundle:
        """Return the bundle with the `functions` of its blocks, by name.

        Raises InputError if a function is missing.
        """
        signal = self.manifest.signal
        if signal is None or not any(
            isinstance(block, FunctionBlock) for block in signal.graph.blocks
        ):
            return self
        signal = signal.with_functions(functions)
        return self._with_manifest(msgspec.structs.replace(self.manifest, signal=signal))

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions of blocks by block name."""
        signal = self.manifest.signal
        return {} if signal is None else signal.functions

    def __repr__(self) -> str:
        return f"Bundle({self.manifest.name!r} {self.manifest.version}, {str(self.path)!r})"

    def _with_manifest(self, manifest: Manifest) -> Bundle:
        bundle = Bundle(self.path, manifest, self._storage, self.signed_by)
        bundle._checked_contents = self._checked_contents
        return bundle

    def _check_files(self, *, for_device: bool) -> None:
        """Check every file, and keep the contents of small files for the next read."""
        manifest = self.manifest
        absent_files = self.absent_files()
        if absent_files and not for_device:
            raise DamagedFileError(
                absent_files[0],
                f"bundle {self.path}: {absent_files[0]} is missing, as in a bundle for devices: "
                "give the full bundle",
            )
        # only hash graphs of flat arrays, because devices do not read them but write them
        hashed_files = {stage.graph for stage in manifest.every_stage if stage.kind != "graph"}
        hashed_files |= {manifest.cloud.file} if manifest.cloud is not None else set()
        for name, file_spec in manifest.files.items():
            if name in absent_files:
                continue
            if name in hashed_files or file_spec.size > MAX_CACHED_BYTES:
                self._check_hash(name, file_spec)
            else:
                self._checked_contents[name] = self._checked_content(name, file_spec)

    def _checked_content(self, name: str, file_spec: FileSpec) -> bytes:
        """Read a whole file; raise DamagedFileError if it differs from the packed file."""
        with self._storage.open_file(name) as file:
            # read one more byte, which shows that a file is longer than its listed size
            content = file.read(file_spec.size + 1)
        self._check_size_and_hash(
            name, file_spec, len(content), hashlib.sha256(content).hexdigest()
        )
        return content

    def _check_hash(self, name: str, file_spec: FileSpec) -> None:
        """Hash a file in chunks; raise DamagedFileError if it differs from the packed file."""
        digest = hashlib.sha256()
        size_bytes = 0
        with self._storage.open_file(name) as file:
            while size_bytes <= file_spec.size and (chunk := file.read(CHUNK_BYTES)):
                size_bytes += len(chunk)
                digest.update(chunk)
        self._check_size_and_hash(name, file_spec, size_bytes, digest.hexdigest())

    def _check_size_and_hash(
        self, name: str, file_spec: FileSpec, size_bytes: int, sha256: str
    ) -> None:
        if size_bytes != file_spec.size or sha256 != file_spec.sha256:
            property_name = "size" if size_bytes != file_spec.size else "SHA-256"
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
        Private key, NAME.key; required for a signed bundle.
    bounds : pair of sequences, optional
        Minimum recall and precision by class; by default the manifest's bounds stay.

    Returns
    -------
    Bundle
        The reopened bundle.

    Raises
    ------
    BundleError
        If the bundle cannot be read, has no such point, or is signed and `sign` is None.
    SignatureError
        If its current signature by this key is invalid.
    """
    bundle, signer = open_to_sign(path, sign, for_device=True)
    claimed_key_ids = bundle.claimed_key_ids()
    if signer is None and claimed_key_ids:
        raise BundleError(
            f"bundle {path} is signed by key {claimed_key_ids[0]}, which must also sign the new "
            "operating point: give the key (--sign NAME.key)"
        )
    manifest = bundle.manifest.with_active(point)
    if bounds is not None:
        manifest = manifest.with_bounds(*bounds)
    manifest_text = manifest.to_json()
    signature = None if signer is None else signer.sign(MANIFEST_CONTEXT, manifest_text)
    files = manifest.files.keys() - set(bundle.absent_files())
    bundle._storage.write_manifest(manifest_text, signature, files)
    public_key = None if signer is None else signer.public.raw
    return Bundle.open(path, public_key=public_key, for_device=True)


def open_to_sign(
    path: str | Path, sign: str | Path | None, *, for_device: bool
) -> tuple[Bundle, Signer | None]:
    """Open a bundle that the key `sign` will sign; None for a bundle that stays unsigned.

    A current signature by that key is checked, because an altered bundle must not be signed.
    """
    signer = None if sign is None else Signer(sign)
    bundle = Bundle.open(path, for_device=for_device)
    if signer is not None and signer.public.key_id in bundle.claimed_key_ids():
        bundle = Bundle.open(path, public_key=signer.public.raw, for_device=for_device)
    return bundle, signer


def _read_manifest_text(path: Path, storage: Storage, key: PublicKey | None) -> bytes:
    """Read the manifest's bytes; with a key, require and check its signature."""
    for attempt in range(MAX_READ_ATTEMPTS):
        with storage.open_file(MANIFEST) as file:
            manifest_text = file.read(MAX_MANIFEST_BYTES + 1)
        if len(manifest_text) > MAX_MANIFEST_BYTES:
            raise BundleError(f"bundle {path}: {MANIFEST} is larger than {MAX_MANIFEST_BYTES} B")
        if key is None:
            break
        signatures = read_signature_file(storage)
        if signatures is None:
            raise SignatureError(
                f"bundle {path} is not signed, but must be signed by key {key.key_id}"
            )
        try:
            key.check(signatures, MANIFEST_CONTEXT, manifest_text, f"bundle {path}")
            break
        except SignatureError:
            # retry, because the operating point may have changed between the two reads
            if attempt == MAX_READ_ATTEMPTS - 1:
                raise
    return manifest_text


class _StatedVersion(msgspec.Struct):
    """The version that a manifest needs; other keys are ignored."""

    min_runtime_version: Version


def _check_runtime_version(path: Path, min_version: str) -> None:
    if version_numbers(min_version) > version_numbers(__version__):
        raise BundleError(
            f"bundle {path} needs gatewise {min_version} or newer: update gatewise, which is "
            f"{__version__}"
        )
