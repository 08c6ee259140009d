"""The signed metadata of a repository: read and checked, signed anew, written in order."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from gatewise.errors import InputError
from gatewise_export.bundle.signing import Signer, keygen
from gatewise_export.bundle.storage import replace_file

ROLES: Final = ("root", "targets", "snapshot", "timestamp")
#: Days until the metadata of a role expires.
LIFETIMES: Final = {"root": 730.0, "targets": 365.0, "snapshot": 14.0, "timestamp": 7.0}


class SignedMetadata:
    """The metadata of a repository, and the keys that sign them."""

    def __init__(
        self, folder: str | Path, keys: str | Path | None = None, *, load: bool = True
    ) -> None:
        self.folder = Path(folder)
        beside = self.folder.with_name(f"{self.folder.name}.keys")
        self.keys = beside if keys is None else Path(keys)
        self._files = self.folder / "metadata"
        self._signed: dict[str, Metadata[Any]] = {}  # by role
        if load:
            self._load()

    @property
    def root_file(self) -> Path:
        """The newest root metadata: what a new device is given to trust."""
        return self._files / f"{self._signed['root'].signed.version}.root.json"

    @property
    def version(self) -> int:
        """Version of the targets metadata: rises with each change."""
        return int(self._signed["targets"].signed.version)

    def roles(self) -> list[dict[str, Any]]:
        """Version, expiry, threshold and key ids of each role."""
        needed = self._signed["root"].signed.roles
        return [
            {
                "role": role,
                "version": metadata.signed.version,
                "expires": metadata.signed.expires.isoformat(),
                "threshold": needed[role].threshold,
                "keys": list(needed[role].keyids),
            }
            for role, metadata in self._signed.items()
        ]

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
        made = cls(folder, keys, load=False)
        if not 1 <= threshold <= root_keys:
            raise InputError(f"a threshold of {threshold} with {root_keys} keys; give 1 to all")
        if made._files.exists():
            raise InputError(f"{folder} holds a repository already")
        for path in (made._files, made.folder / "targets"):
            path.mkdir(parents=True, exist_ok=True)
        made.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        root = Root(consistent_snapshot=True)
        for role in ROLES:
            for _ in range(root_keys if role == "root" else 1):
                root.add_key(made._new_key(role).public_key, role)
        root.roles["root"].threshold = threshold
        for role, signed in zip(ROLES, (root, Targets(), Snapshot(), Timestamp()), strict=True):
            signed.version = 0  # the first writing makes it 1
            made._signed[role] = Metadata(signed)
        with made._changing(load=False):
            made._write("root", "targets", "snapshot", "timestamp")
        return made

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
            root = self._signed["root"].signed
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
            self._write("root", also=before)
            for path in self.keys.glob("*.key"):
                if read_signer(path).public_key.keyid == old:
                    path.rename(path.with_suffix(".revoked"))
        return fresh.keyid

    # -- parts -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self, *, load: bool = True) -> Iterator[None]:
        """Hold the repository for one writer, with what the one before it has written."""
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if load:
                self._load()
            yield

    def _load(self) -> None:
        """Read the current metadata and check them against the root's keys."""

        def read(name: str) -> Metadata[Any]:
            return Metadata.from_file(str(self._files / name))

        try:
            numbers = [int(p.name.split(".")[0]) for p in self._files.glob("*.root.json")]
            if not numbers:
                raise InputError(f"{self.folder} holds no repository: gatewise repo init")
            root, timestamp = read(f"{max(numbers)}.root.json"), read("timestamp.json")
            snapshot = read(f"{timestamp.signed.snapshot_meta.version}.snapshot.json")
            targets = read(f"{snapshot.signed.meta['targets.json'].version}.targets.json")
            self._signed = dict(zip(ROLES, (root, targets, snapshot, timestamp), strict=True))
            for role, metadata in self._signed.items():
                root.signed.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
        except (RepositoryError, DeserializationError, OSError, ValueError, KeyError) as error:
            raise InputError(f"repository {self.folder} cannot be used: {error}") from None

    def _new_key(self, role: str) -> CryptoSigner:
        number = 1
        while list(self.keys.glob(f"{role}-{number}.*")):
            number += 1
        path, _ = keygen(self.keys / f"{role}-{number}")
        return read_signer(path)

    def _signers(self, role: str) -> list[CryptoSigner]:
        """The role's keys that are here; InputError if they are too few."""
        needed = self._signed["root"].signed.roles[role]
        signers = [read_signer(path) for path in sorted(self.keys.glob("*.key"))]
        signers = [s for s in signers if s.public_key.keyid in needed.keyids]
        if len(signers) < needed.threshold:
            raise InputError(
                f"{self.keys} holds {len(signers)} keys of {role}; {needed.threshold} must sign"
            )
        return signers

    def _write(self, *roles: str, also: Sequence[CryptoSigner] = ()) -> None:
        """Sign the next version of roles, by the keys `also` too, and write them in this order."""
        now = datetime.now(UTC).replace(microsecond=0)
        for role in roles:
            metadata = self._signed[role]
            metadata.signed.version += 1
            metadata.signed.expires = now + timedelta(days=LIFETIMES[role])
            version = metadata.signed.version
            metadata.signatures.clear()
            for signer in [*also, *self._signers(role)]:
                metadata.sign(signer, append=True)
            content = metadata.to_bytes()
            about = MetaFile.from_data(version, content, ["sha256"])
            if role == "targets":
                self._signed["snapshot"].signed.meta["targets.json"] = about
            elif role == "snapshot":
                self._signed["timestamp"].signed.snapshot_meta = about
            name = "timestamp.json" if role == "timestamp" else f"{version}.{role}.json"
            replace_file(self._files / name, content)


def read_signer(path: Path) -> CryptoSigner:
    """Read a private key; InputError if it cannot sign."""
    return CryptoSigner(Signer(path).key)
