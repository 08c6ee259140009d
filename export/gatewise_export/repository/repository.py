"""The operator's side of updates: a folder of static files that any web server can serve.

::

    <folder>/metadata/    1.root.json, ..., timestamp.json: signed, see the TUF specification
    <folder>/targets/     <model>/<version>/<sha256>.<file>

Roles are signed by Ed25519 keys in a folder of their own, which is never served: ``root`` names
the keys of all roles, ``targets`` the files, ``snapshot`` and ``timestamp`` what is current; these
two expire soon, so that a device notices when it is kept from news. Files are written before what
names them and ``timestamp.json`` last: a writer that is killed leaves the repository as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import (
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)
from tuf.api.serialization import DeserializationError

from gatewise.errors import InputError
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.manifest import FileSpec
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.signing import keygen
from gatewise_export.bundle.storage import sync_folder, write_file
from gatewise_export.repository.release import (
    RELEASE,
    WHOLE,
    OfferedRelease,
    Release,
    check_name,
    read_offers,
)

__all__ = ["LIFETIMES", "ROLES", "Repository"]

ROLES: Final = ("root", "targets", "snapshot", "timestamp")
#: Days until the metadata of a role expires.
LIFETIMES: Final = {"root": 730.0, "targets": 365.0, "snapshot": 14.0, "timestamp": 7.0}


class Repository:
    """A repository of releases and the keys that sign it.

    Parameters
    ----------
    folder : str or Path
        Of a repository that :meth:`init` made.
    keys : str or Path, optional
        Folder of private keys, NAME.key as ``gatewise keygen`` writes them; by default
        ``<folder>.keys``. Each change needs those of the roles that it signs.

    Raises
    ------
    InputError
        If there is no repository, its metadata do not verify, or a key cannot be read.
    """

    def __init__(self, folder: str | Path, keys: str | Path | None = None) -> None:
        self.folder = Path(folder)
        self.keys = _keys_folder(self.folder, keys)
        self._load()

    # -- reading ---------------------------------------------------------------------------

    @property
    def root_file(self) -> Path:
        """The newest root metadata: what a new device is given to trust."""
        return self._metadata / f"{self._root.signed.version}.root.json"

    @property
    def version(self) -> int:
        """Version of the targets metadata: rises with each change."""
        return self._targets.signed.version

    def offers(self) -> list[OfferedRelease]:
        """The releases, the wanted ones first."""
        return read_offers(self._targets.signed)

    def latest(self, model: str | None = None) -> OfferedRelease:
        """Get the release that is offered before all others.

        Raises InputError if none is offered, or there are several models and none is named.
        """
        models = {o.model for o in self.offers()}
        if model is None and len(models) > 1:
            raise InputError(f"which model: {', '.join(sorted(models))}?")
        offered = [o for o in self.offers() if o.rollout and model in (None, o.model)]
        if not offered:
            raise InputError("no release is offered")
        return offered[0]

    def release(self, offer: OfferedRelease) -> Release:
        """Read the ``release.json`` of an offer."""
        return Release.from_json(self._target_path(offer.path, offer.digest).read_bytes())

    def roles(self) -> list[dict[str, Any]]:
        """Version, expiry, threshold and key ids of each role."""
        table = []
        for role, metadata in zip(ROLES, self._all(), strict=True):
            needed = self._root.signed.roles[role]
            table.append(
                {
                    "role": role,
                    "version": metadata.signed.version,
                    "expires": metadata.signed.expires.isoformat(),
                    "threshold": needed.threshold,
                    "keys": list(needed.keyids),
                }
            )
        return table

    # -- changing --------------------------------------------------------------------------

    @classmethod
    def init(
        cls,
        folder: str | Path,
        keys: str | Path | None = None,
        *,
        root_keys: int = 1,
        threshold: int = 1,
    ) -> Self:
        """Make a repository without releases, and its keys.

        `threshold` of the `root_keys` must sign the root metadata. Raises InputError if there is a
        repository or a key already.
        """
        folder = Path(folder)
        if not 1 <= threshold <= root_keys:
            raise InputError(f"a threshold of {threshold} with {root_keys} keys; give 1 to all")
        if (folder / "metadata").exists():
            raise InputError(f"{folder} holds a repository already")
        made = cls.__new__(cls)
        made.folder, made.keys = folder, _keys_folder(folder, keys)
        for path in (made._metadata, made._targets_folder):
            path.mkdir(parents=True, exist_ok=True)
        made.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        root = Root(consistent_snapshot=True)
        for role in ROLES:
            for _ in range(root_keys if role == "root" else 1):
                root.add_key(made._new_key(role).public_key, role)
        root.roles["root"].threshold = threshold
        made._root = Metadata(root)
        made._targets = Metadata(Targets())
        made._snapshot = Metadata(Snapshot())
        made._timestamp = Metadata(Timestamp())
        for metadata in made._all():
            metadata.signed.version = 0  # the first writing makes it 1
        with made._changing(fresh=True):
            made._write_root([])
            made._write("targets", "snapshot", "timestamp")
        return made

    def add(
        self,
        bundle: str | Path,
        *,
        hardware: Sequence[str] = (),
        sign: str | Path | None = None,
    ) -> Release:
        """Add a bundle's files as a release, not offered to any device yet.

        The high-cost model is left out; `sign` is the key that signs the manifest, as of
        ``gatewise pack``. Raises BundleError if the bundle cannot be read, InputError if this
        version is there with other files.
        """
        with self._changing(), tempfile.TemporaryDirectory() as temporary:
            packed = repack(bundle, Path(temporary) / "bundle", sign=sign, for_device=True)
            manifest = packed.manifest
            files = {path.name: path.read_bytes() for path in packed.path.iterdir()}
            where = (
                f"{check_name('model', manifest.name)}/{check_name('version', manifest.version)}"
            )
            targets = {
                name: TargetFile.from_data(f"{where}/{name}", content, ["sha256"])
                for name, content in files.items()
            }
            release = Release(
                manifest.name,
                manifest.version,
                {n: FileSpec(t.hashes["sha256"], t.length) for n, t in targets.items()},
                manifest.column_names,
                manifest.min_runtime_version,
                tuple(hardware),
            )
            if release.files.get(RELEASE) is not None:
                raise BundleError(f"bundle {bundle}: {RELEASE} is no name for a model")
            files[RELEASE] = release.to_json()
            target = TargetFile.from_data(f"{where}/{RELEASE}", files[RELEASE], ["sha256"])
            known = self._targets.signed.targets.get(target.path)
            if known is not None:
                if known.hashes == target.hashes:
                    return release
                raise InputError(f"{where} is there with other files: give it another version")
            target.unrecognized_fields["custom"] = {"serial": 0, "rollout": 0}
            for name, each in (targets | {RELEASE: target}).items():
                path = self._target_path(each.path, each.hashes["sha256"])
                path.parent.mkdir(parents=True, exist_ok=True)
                _replace(path, files[name])
                self._targets.signed.targets[each.path] = each
            self._write("targets", "snapshot", "timestamp")
        return release

    def publish(self, name: str, rollout: float = 1.0) -> OfferedRelease:
        """Offer a release, ``model/version``, to a share of the devices, before all others.

        Raises InputError if there is no such release, or the share is not above 0 and at most 1.
        """
        if not 0 < rollout <= 1:
            raise InputError(f"a rollout of {rollout:g}; give a share above 0, at most 1 (100%)")
        with self._changing():
            offer = self._find(name)
            others = [o for o in self.offers() if o.model == offer.model and o != offer]
            serial = offer.serial
            if not serial or any(o.serial > serial for o in others):
                serial = 1 + max((o.serial for o in others), default=0)
            return self._offer(offer, serial, max(1, round(rollout * WHOLE)))

    def rollback(self, model: str | None = None) -> OfferedRelease:
        """Withdraw the release that is offered before all others; devices leave it.

        Raises InputError if none is offered, or there are several models and none is named.
        """
        with self._changing():
            latest = self.latest(model)
            return self._offer(latest, latest.serial, 0)

    def refresh(self) -> None:
        """Sign what expires soon anew; nothing else changes."""
        with self._changing():
            self._write("snapshot", "timestamp")

    def rotate_key(self, role: str, *, revoke: str | None = None) -> str:
        """Replace a key of a role by a new one and sign its metadata anew.

        `revoke` is the id of the old key; by default the role's first. Returns the new key's id.
        """
        if role not in ROLES:
            raise InputError(f"role {role!r}; choose one of {', '.join(ROLES)}")
        with self._changing():
            root = self._root.signed
            old = revoke or root.roles[role].keyids[0]
            if old not in root.roles[role].keyids:
                raise InputError(f"{old} is no key of {role}")
            before, of_role = self._signers("root"), self._signers(role)
            fresh = self._new_key(role).public_key
            root.revoke_key(old, role)
            root.add_key(fresh, role)
            # Signed by the old keys, too: it holds under the root before and under the next one.
            if role == "targets":
                self._write("targets", also=of_role)
            if role != "root":
                self._write("snapshot", "timestamp", also=of_role)
            self._write_root(before)
            for path in self.keys.glob("*.key"):
                if _signer(path).public_key.keyid == old:
                    path.rename(path.with_suffix(".revoked"))
        return fresh.keyid

    # -- parts -----------------------------------------------------------------------------

    @property
    def _metadata(self) -> Path:
        return self.folder / "metadata"

    @property
    def _targets_folder(self) -> Path:
        return self.folder / "targets"

    def _all(self) -> tuple[Metadata[Any], ...]:
        """The metadata in the order of :data:`ROLES`."""
        return self._root, self._targets, self._snapshot, self._timestamp

    def _target_path(self, path: str, digest: str) -> Path:
        folder, _, name = path.rpartition("/")
        return self._targets_folder / folder / f"{digest}.{name}"

    def _find(self, name: str) -> OfferedRelease:
        found = [o for o in self.offers() if name in (str(o), o.version)]
        if len(found) != 1:
            there = ", ".join(map(str, self.offers())) or "none"
            how = "several releases" if found else "no release"
            raise InputError(f"{how} named {name!r}; the repository holds: {there}")
        return found[0]

    def _offer(self, offer: OfferedRelease, serial: int, rollout: int) -> OfferedRelease:
        target = self._targets.signed.targets[offer.path]
        target.unrecognized_fields["custom"] = {"serial": serial, "rollout": rollout}
        self._write("targets", "snapshot", "timestamp")
        return self._find(str(offer))

    @contextlib.contextmanager
    def _changing(self, *, fresh: bool = False) -> Iterator[None]:
        """Hold the repository for one writer, with what the one before it has written."""
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not fresh:
                self._load()
            yield

    def _load(self) -> None:
        """Read the current metadata and check them against the root's keys."""
        try:
            numbers = [int(p.name.split(".")[0]) for p in self._metadata.glob("*.root.json")]
            if not numbers:
                raise InputError(f"{self.folder} holds no repository: gatewise repo init")
            self._root = Metadata[Root].from_file(str(self._metadata / f"{max(numbers)}.root.json"))
            root = self._root.signed
            self._timestamp = Metadata[Timestamp].from_file(str(self._metadata / "timestamp.json"))
            version = self._timestamp.signed.snapshot_meta.version
            path = self._metadata / f"{version}.snapshot.json"
            self._snapshot = Metadata[Snapshot].from_file(str(path))
            version = self._snapshot.signed.meta["targets.json"].version
            path = self._metadata / f"{version}.targets.json"
            self._targets = Metadata[Targets].from_file(str(path))
            for role, metadata in zip(ROLES, self._all(), strict=True):
                root.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
        except (RepositoryError, DeserializationError, OSError, ValueError, KeyError) as error:
            raise InputError(f"repository {self.folder} cannot be used: {error}") from None

    def _new_key(self, role: str) -> CryptoSigner:
        number = 1
        while list(self.keys.glob(f"{role}-{number}.*")):
            number += 1
        path, _ = keygen(self.keys / f"{role}-{number}")
        return _signer(path)

    def _signers(self, role: str) -> list[CryptoSigner]:
        """The role's keys that are here; InputError if they are too few."""
        needed = self._root.signed.roles[role]
        signers = [_signer(path) for path in sorted(self.keys.glob("*.key"))]
        signers = [s for s in signers if s.public_key.keyid in needed.keyids]
        if len(signers) < needed.threshold:
            raise InputError(
                f"{self.keys} holds {len(signers)} keys of {role}; {needed.threshold} must sign"
            )
        return signers

    def _write_root(self, before: list[CryptoSigner]) -> None:
        """Sign the next root by its keys and by those of the root `before` it."""
        signed = self._root.signed
        signed.version += 1
        signed.expires = _expiry("root")
        self._root.signatures.clear()
        for signer in [*before, *self._signers("root")]:
            self._root.sign(signer, append=True)
        _replace(self._metadata / f"{signed.version}.root.json", self._root.to_bytes())

    def _write(self, *roles: str, also: Sequence[CryptoSigner] = ()) -> None:
        """Sign the next version of roles, `also` by more keys, and write them in this order."""
        for role in roles:
            metadata: Metadata[Any] = getattr(self, f"_{role}")
            metadata.signed.version += 1
            metadata.signed.expires = _expiry(role)
            version = metadata.signed.version
            metadata.signatures.clear()
            for signer in [*self._signers(role), *also]:
                metadata.sign(signer, append=True)
            content = metadata.to_bytes()
            about = MetaFile.from_data(version, content, ["sha256"])
            if role == "targets":
                self._snapshot.signed.meta["targets.json"] = about
            elif role == "snapshot":
                self._timestamp.signed.snapshot_meta = about
            name = "timestamp.json" if role == "timestamp" else f"{version}.{role}.json"
            _replace(self._metadata / name, content)


def _keys_folder(folder: Path, keys: str | Path | None) -> Path:
    return folder.with_name(f"{folder.name}.keys") if keys is None else Path(keys)


def _expiry(role: str) -> datetime:
    now = datetime.now(UTC).replace(microsecond=0)
    return now + timedelta(days=LIFETIMES[role])


def _signer(path: Path) -> CryptoSigner:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"key {path} cannot be used: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"key {path} is no Ed25519 key; `gatewise keygen` makes one")
    return CryptoSigner(key)


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_file(fresh, content)
        os.replace(fresh, path)
        sync_folder(path.parent)
    finally:
        fresh.unlink(missing_ok=True)
