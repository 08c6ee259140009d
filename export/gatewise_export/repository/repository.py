"""A repository of releases, which is a folder of static files for any web server.

::

    <folder>/metadata/    1.root.json, ..., timestamp.json: signed, see the TUF specification
    <folder>/targets/     <model>/<version>/<sha256>.<file>

The roles are signed by Ed25519 keys in another folder, which is never served: ``root`` lists the
keys of all roles, ``targets`` the files, ``snapshot`` and ``timestamp`` the current versions. The
last two expire soon, so that a device notices if it is cut off from updates. Files are written
before the metadata that list them, and ``timestamp.json`` last, so that a killed writer leaves the
repository unchanged.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from gatewise.errors import InputError
from gatewise.file_lock import lock_file
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.manifest_records import FileSpec
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.signing import Signer, keygen
from gatewise_export.bundle.storage import replace_file
from gatewise_export.repository.release import (
    RELEASE,
    WHOLE,
    OfferedRelease,
    Release,
    check_name,
    check_rollout,
    read_offers,
)

ROLES: Final = ("root", "targets", "snapshot", "timestamp")
#: Days until the metadata of a role expires.
LIFETIMES: Final = {"root": 730.0, "targets": 365.0, "snapshot": 14.0, "timestamp": 7.0}
#: Days before the expiry of root and targets in which they are signed again.
SOON: Final = 90.0


class StaleVersionError(InputError):
    """A change for the `expected` version of a repository, which is at `version` now."""

    def __init__(self, expected: int | None, version: int) -> None:
        super().__init__(
            f"the repository has changed meanwhile: it is at version {version}, not {expected}"
        )
        self.expected = expected
        self.version = version


class Repository:
    """A repository of releases and the keys that sign it; :meth:`init` creates one.

    `keys` is the folder of private keys, NAME.key in PEM, by default ``<folder>.keys``. A change
    needs the keys of the roles that it signs. Raises InputError if the repository is missing, or
    its metadata or a key is not valid.
    """

    def __init__(
        self, folder: str | Path, keys: str | Path | None = None, *, load: bool = True
    ) -> None:
        self.folder = Path(folder)
        default_keys = self.folder.with_name(f"{self.folder.name}.keys")
        self.keys = default_keys if keys is None else Path(keys)
        self._files = self.folder / "metadata"
        self._signed: dict[str, Metadata[Any]] = {}  # by role
        if load:
            self._load()

    @property
    def root_file(self) -> Path:
        """The newest root metadata, which new devices trust."""
        return self._files / f"{self._signed['root'].signed.version}.root.json"

    @property
    def version(self) -> int:
        """Version of the targets metadata, which rises with each change."""
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

        `threshold` of the `root_keys` must sign the root metadata. Raises InputError if a
        repository or a key exists already.
        """
        repository = cls(folder, keys, load=False)
        if not 1 <= threshold <= root_keys:
            raise InputError(f"a threshold of {threshold} with {root_keys} keys; give 1 to all")
        if repository._files.exists():
            raise InputError(f"{folder} has a repository already")
        for path in (repository._files, repository.folder / "targets"):
            path.mkdir(parents=True, exist_ok=True)
        repository.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        root = Root(consistent_snapshot=True)
        for role in ROLES:
            for _ in range(root_keys if role == "root" else 1):
                root.add_key(repository._new_key(role).public_key, role)
        root.roles["root"].threshold = threshold
        for role, signed in zip(ROLES, (root, Targets(), Snapshot(), Timestamp()), strict=True):
            signed.version = 0  # the first writing makes it 1
            repository._signed[role] = Metadata(signed)
        with repository._changing(load=False):
            repository._write("root", "targets", "snapshot", "timestamp")
        return repository

    # -- reading ---------------------------------------------------------------------------

    def offers(self) -> list[OfferedRelease]:
        """The releases in the order of preference."""
        return read_offers(self._signed["targets"].signed)

    def wanted(self, model: str) -> OfferedRelease | None:
        """Find the release of a model that devices prefer; None if no release is offered."""
        return next((o for o in self.offers() if o.rollout and o.model == model), None)

    def find(self, name: str) -> OfferedRelease:
        """Get the release `name`: ``model/version``, or a version if one model has it.

        Raises InputError if there is none, or there are several.
        """
        matches = [o for o in self.offers() if name in (str(o), o.version)]
        if len(matches) != 1:
            names = ", ".join(map(str, self.offers())) or "none"
            number = "several releases" if matches else "no release"
            raise InputError(f"{number} named {name!r}; the repository holds: {names}")
        return matches[0]

    def release(self, offer: OfferedRelease) -> Release:
        """Read the ``release.json`` of an offer."""
        return Release.from_json(self._target_path(offer.path, offer.digest).read_bytes())

    # -- changing --------------------------------------------------------------------------

    def add(
        self,
        bundle: str | Path,
        *,
        hardware: Sequence[str] = (),
        sign: str | Path | None = None,
    ) -> Release:
        """Add a bundle's files as a release, which is not offered to devices yet.

        The release lacks the high-cost model. `sign` is a private key that signs the manifest.
        Raises BundleError if the bundle cannot be read, and InputError if this version exists with
        other files.
        """
        with self._changing(), tempfile.TemporaryDirectory() as temporary:
            # the bundle without its high-cost model, a target for each file
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
            # the release, which may exist already
            release = Release(
                release=1,
                model=manifest.name,
                version=manifest.version,
                files={n: FileSpec(t.hashes["sha256"], t.length) for n, t in targets.items()},
                features=manifest.acquired_names,
                runtime=manifest.min_runtime_version,
                hardware=tuple(hardware),
            )
            if release.files.get(RELEASE) is not None:
                raise BundleError(f"bundle {bundle}: {RELEASE} is no name for a model")
            files[RELEASE] = release.to_json()
            target = TargetFile.from_data(f"{where}/{RELEASE}", files[RELEASE], ["sha256"])
            present = self._signed["targets"].signed.targets.get(target.path)
            if present is not None:
                if present.hashes == target.hashes:
                    return release
                raise InputError(f"{where} exists with other files: give it another version")
            # files first, the metadata that lists them last
            target.unrecognized_fields["custom"] = {"serial": 0, "rollout": 0}
            for name, file in (targets | {RELEASE: target}).items():
                path = self._target_path(file.path, file.hashes["sha256"])
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, files[name])
                self._signed["targets"].signed.targets[file.path] = file
            self._write("targets", "snapshot", "timestamp")
        return release

    def publish(
        self, name: str, rollout: float = 1.0, *, expected_version: int | None = None
    ) -> OfferedRelease:
        """Offer a release, ``model/version``, to a share of the devices, which prefer it.

        Raises InputError if there is no such release, or the share is not above 0 and at most 1,
        and StaleVersionError if the repository is not at the `expected_version`.
        """
        check_rollout(rollout)
        with self._changing():
            self._expect(expected_version)
            offer = self.find(name)
            others = [o for o in self.offers() if o.model == offer.model and o != offer]
            serial = offer.serial
            if not serial or any(o.serial > serial for o in others):
                serial = 1 + max((o.serial for o in others), default=0)
            return self._offer(offer, serial, max(1, round(rollout * WHOLE)))

    def rollback(
        self, name: str | None = None, *, expected_version: int | None = None
    ) -> OfferedRelease:
        """Withdraw a release, ``model/version``; devices go back to the one before it.

        Without a `name` it is the preferred release of the only model. Nothing changes if it is
        withdrawn already. Raises InputError if there is no such release, or no name and several
        models, and StaleVersionError if the repository is not at the `expected_version`.
        """
        if name is None:
            # in reverse order, so that a model's preferred release replaces the others
            wanted = {o.model: o for o in reversed(self.offers()) if o.rollout}
            if len(wanted) != 1:
                raise InputError(
                    "name the release to withdraw" if wanted else "no release is offered"
                )
            name = str(*wanted.values())
        with self._changing():
            self._expect(expected_version)
            offer = self.find(name)
            return self._offer(offer, offer.serial, 0) if offer.rollout else offer

    def refresh(self) -> dict[str, datetime]:
        """Sign snapshot, timestamp and the roles that expire soon again.

        Returns the expiry of root and targets, if it is soon and too few of their keys are here.
        """
        soon = datetime.now(UTC) + timedelta(days=SOON)
        with self._changing():
            unsigned: dict[str, datetime] = {}
            due = []
            for role in ("targets", "root"):
                expires = self._signed[role].signed.expires
                if expires >= soon:
                    continue
                try:
                    self._signers(role)
                    due.append(role)
                except InputError:
                    unsigned[role] = expires
            self._write(*(r for r in due if r == "targets"), "snapshot", "timestamp")
            self._write(*(r for r in due if r == "root"))  # last, as in rotate_key
        return unsigned

    def rotate_key(self, role: str, *, revoke: str | None = None) -> str:
        """Replace a key of a role by a new one, and sign its metadata again.

        `revoke` is the id of the old key, by default of the role's first. Returns the new key's id.
        """
        if role not in ROLES:
            raise InputError(f"role {role!r}; choose one of {', '.join(ROLES)}")
        with self._changing():
            root = self._signed["root"].signed
            old = revoke or root.roles[role].keyids[0]
            if old not in root.roles[role].keyids:
                raise InputError(f"{old} is not a key of {role}")
            root_signers = self._signers("root")
            role_signers = self._signers(role)
            fresh = self._new_key(role).public_key
            root.revoke_key(old, role)
            root.add_key(fresh, role)
            # the old keys sign as well, so that the metadata is valid under both roots
            if role == "targets":
                self._write("targets", also=role_signers)
            if role != "root":
                self._write("snapshot", "timestamp", also=role_signers)
            self._write("root", also=root_signers)
            for path in self.keys.glob("*.key"):
                if read_signer(path).public_key.keyid == old:
                    path.rename(path.with_suffix(".revoked"))
        return fresh.keyid

    # -- parts -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self, *, load: bool = True) -> Iterator[None]:
        """Lock the repository for one writer, and read its current metadata."""
        with (self.folder / ".lock").open("w") as lock:
            lock_file(lock.fileno())
            if load:
                self._load()
            yield

    def _expect(self, version: int | None) -> None:
        if version not in (None, self.version):
            raise StaleVersionError(version, self.version)

    def _load(self) -> None:
        """Read the current metadata and check them against the root's keys."""

        def read(name: str) -> Metadata[Any]:
            return Metadata.from_file(str(self._files / name))

        try:
            numbers = [int(p.name.split(".")[0]) for p in self._files.glob("*.root.json")]
            if not numbers:
                raise InputError(f"{self.folder} is not a repository: gatewise repo init makes one")
            root = read(f"{max(numbers)}.root.json")
            timestamp = read("timestamp.json")
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
        """Read the role's keys in the folder; InputError if they are too few to sign."""
        needed = self._signed["root"].signed.roles[role]
        signers = [read_signer(path) for path in sorted(self.keys.glob("*.key"))]
        signers = [s for s in signers if s.public_key.keyid in needed.keyids]
        if len(signers) < needed.threshold:
            raise InputError(
                f"{self.keys} has {len(signers)} keys of {role}, and {needed.threshold} must sign"
            )
        return signers

    def _write(self, *roles: str, also: Sequence[CryptoSigner] = ()) -> None:
        """Sign the next version of each role, also by the keys `also`, and write it."""
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

    def _target_path(self, path: str, digest: str) -> Path:
        folder, _, name = path.rpartition("/")
        return self.folder / "targets" / folder / f"{digest}.{name}"

    def _offer(self, offer: OfferedRelease, serial: int, rollout: int) -> OfferedRelease:
        target = self._signed["targets"].signed.targets[offer.path]
        target.unrecognized_fields["custom"] = {"serial": serial, "rollout": rollout}
        self._write("targets", "snapshot", "timestamp")
        return self.find(str(offer))


def read_signer(path: Path) -> CryptoSigner:
    """Read a private key; InputError if it cannot sign."""
    return CryptoSigner(Signer(path).key)
