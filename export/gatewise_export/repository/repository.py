"""Write a repository of releases: a folder of static files that any web server can serve.

::

    <folder>/metadata/    1.root.json, ..., timestamp.json (signed TUF metadata)
    <folder>/targets/     <model>/<version>/<sha256>.<file>

The metadata of each role is signed with Ed25519 keys from another folder, which is never served.
``root`` lists the keys of all roles, ``targets`` lists the files, and ``snapshot`` and
``timestamp`` list the current versions. The last two expire after some days, so that a device
notices when it is cut off from updates. A change to releases writes files before the metadata that
lists them, and ``timestamp.json`` last, so that a killed writer leaves the releases unchanged. A
change of keys writes the new root after ``timestamp.json``.
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
    FULL_ROLLOUT,
    RELEASE_FILE,
    OfferedRelease,
    Release,
    check_rollout,
    checked_name,
    read_offers,
)

ROLES: Final = ("root", "targets", "snapshot", "timestamp")
#: Days until the metadata of a role expires.
LIFETIME_DAYS: Final = {"root": 730.0, "targets": 365.0, "snapshot": 14.0, "timestamp": 7.0}
#: Days before their expiry at which root and targets are signed again.
RENEWAL_DAYS: Final = 90.0


class StaleVersionError(InputError):
    """The repository is at `version`, but a change was made for the `expected` version."""

    def __init__(self, expected: int | None, version: int) -> None:
        super().__init__(
            f"the repository has changed meanwhile: it is at version {version}, not {expected}"
        )
        self.expected = expected
        self.version = version


class Repository:
    """A repository of releases and the keys that sign it; :meth:`init` creates one.

    `keys` is a folder with the private keys in PEM files NAME.key, by default ``<folder>.keys``. A
    change needs the keys of the roles that it signs. Raises InputError if the repository is
    missing, or if its metadata or a key is not valid.
    """

    def __init__(
        self, folder: str | Path, keys: str | Path | None = None, *, load: bool = True
    ) -> None:
        self.folder = Path(folder)
        default_keys = self.folder.with_name(f"{self.folder.name}.keys")
        self.keys = default_keys if keys is None else Path(keys)
        self._metadata_folder = self.folder / "metadata"
        self._metadata: dict[str, Metadata[Any]] = {}  # by role
        if load:
            self._load_metadata()

    @property
    def root_file(self) -> Path:
        """File of the newest root metadata, which new devices trust."""
        return self._metadata_folder / f"{self._metadata['root'].signed.version}.root.json"

    @property
    def version(self) -> int:
        """Version of the targets metadata, which each change increments."""
        return int(self._metadata["targets"].signed.version)

    def roles(self) -> list[dict[str, Any]]:
        """Version, expiry, threshold and key ids of each role."""
        role_keys = self._metadata["root"].signed.roles
        return [
            {
                "role": role,
                "version": metadata.signed.version,
                "expires": metadata.signed.expires.isoformat(),
                "threshold": role_keys[role].threshold,
                "keys": list(role_keys[role].keyids),
            }
            for role, metadata in self._metadata.items()
        ]

    @classmethod
    def init(
        cls,
        folder: str | Path,
        keys: str | Path | None = None,
        *,
        n_root_keys: int = 1,
        threshold: int = 1,
    ) -> Self:
        """Create a repository without releases, and its keys.

        `threshold` of the `n_root_keys` root keys must sign the root metadata. Keys that are in the
        folder of keys stay and are not used. Raises InputError if the repository already exists or
        a key cannot be written.
        """
        repository = cls(folder, keys, load=False)
        if not 1 <= threshold <= n_root_keys:
            raise InputError(
                f"a threshold of {threshold} with {n_root_keys} keys; use 1 to {n_root_keys}"
            )
        if any(repository._metadata_folder.glob("*.root.json")):
            raise InputError(f"{folder} already has a repository: name another folder")
        repository.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        root = Root(consistent_snapshot=True)
        for role in ROLES:
            for _ in range(n_root_keys if role == "root" else 1):
                root.add_key(repository._make_key(role).public_key, role)
        root.roles["root"].threshold = threshold
        for role, signed in zip(ROLES, (root, Targets(), Snapshot(), Timestamp()), strict=True):
            signed.version = 0  # _write_metadata makes it 1
            repository._metadata[role] = Metadata(signed)
        for path in (repository._metadata_folder, repository.folder / "targets"):
            path.mkdir(parents=True, exist_ok=True)
        with repository._locked(load=False):
            repository._write_metadata("root", "targets", "snapshot", "timestamp")
        return repository

    # -- reading ---------------------------------------------------------------------------

    def offers(self) -> list[OfferedRelease]:
        """Get all releases, in the order of preference."""
        return read_offers(self._metadata["targets"].signed)

    def preferred_release(self, model: str) -> OfferedRelease | None:
        """Release of a model that devices prefer; None if no release is offered."""
        return next(
            (offer for offer in self.offers() if offer.rollout and offer.model == model), None
        )

    def find(self, name: str) -> OfferedRelease:
        """Get a release by its name, ``model/version``, or by a version that only one model has.

        Raises InputError if no release or several releases have the name.
        """
        matching_offers = [offer for offer in self.offers() if name in (str(offer), offer.version)]
        if len(matching_offers) != 1:
            names = ", ".join(map(str, self.offers())) or "none"
            number_words = "several releases" if matching_offers else "no release"
            raise InputError(f"{number_words} named {name!r}; the repository holds: {names}")
        return matching_offers[0]

    def release(self, offer: OfferedRelease) -> Release:
        """Read the ``release.json`` of an offer."""
        return Release.from_json(self._target_path(offer.path, offer.digest).read_bytes())

    # -- changing --------------------------------------------------------------------------

    def add(self, bundle: str | Path, *, hardware: Sequence[str] = ()) -> Release:
        """Add a bundle as a release, which is not offered to devices yet.

        The release omits the high-cost model. Raises BundleError if the bundle cannot be read, and
        InputError if the version exists with other files.
        """
        with self._locked(), tempfile.TemporaryDirectory() as temporary_folder:
            # pack the bundle without its high-cost model, with a target for each file
            device_bundle = repack(bundle, Path(temporary_folder) / "bundle", for_device=True)
            manifest = device_bundle.manifest
            content_of_file = {
                path.name: path.read_bytes() for path in device_bundle.path.iterdir()
            }
            model = checked_name("model", manifest.name)
            release_path = f"{model}/{checked_name('version', manifest.version)}"
            targets = {
                name: TargetFile.from_data(f"{release_path}/{name}", content, ["sha256"])
                for name, content in content_of_file.items()
            }
            # describe the release, which may already exist
            release = Release(
                release=1,  # version of the format
                model=manifest.name,
                version=manifest.version,
                files={
                    name: FileSpec(target.hashes["sha256"], target.length)
                    for name, target in targets.items()
                },
                features=manifest.device_input_names,
                runtime=manifest.min_runtime_version,
                hardware=tuple(hardware),
            )
            if release.files.get(RELEASE_FILE) is not None:
                raise BundleError(
                    f"bundle {bundle}: no model file can have the name {RELEASE_FILE}"
                )
            content_of_file[RELEASE_FILE] = release.to_json()
            release_target = TargetFile.from_data(
                f"{release_path}/{RELEASE_FILE}", content_of_file[RELEASE_FILE], ["sha256"]
            )
            existing_target = self._metadata["targets"].signed.targets.get(release_target.path)
            if existing_target is not None:
                if existing_target.hashes == release_target.hashes:
                    return release
                raise InputError(
                    f"{release_path} has other files already; give the bundle another version"
                )
            # write the files before the metadata that lists them
            release_target.unrecognized_fields["custom"] = {"serial": 0, "rollout": 0}
            for name, file_target in (targets | {RELEASE_FILE: release_target}).items():
                path = self._target_path(file_target.path, file_target.hashes["sha256"])
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, content_of_file[name])
                self._metadata["targets"].signed.targets[file_target.path] = file_target
            self._write_metadata("targets", "snapshot", "timestamp")
        return release

    def publish(
        self, name: str, rollout: float = 1.0, *, expected_version: int | None = None
    ) -> OfferedRelease:
        """Offer a release, ``model/version``, to a share of the devices, as the preferred one.

        Raises InputError if the release does not exist, or if the share is not above 0 and at
        most 1. Raises StaleVersionError if the repository is not at the `expected_version`.
        """
        check_rollout(rollout)
        with self._locked():
            self._check_version(expected_version)
            offer = self.find(name)
            # devices prefer the highest serial, and 0 stands for a release that was never offered
            other_serials = [
                model_offer.serial
                for model_offer in self.offers()
                if model_offer.model == offer.model and model_offer != offer
            ]
            serial = offer.serial
            if not serial or serial < max(other_serials, default=0):
                serial = 1 + max(other_serials, default=0)
            return self._set_offer(offer, serial, max(1, round(rollout * FULL_ROLLOUT)))

    def rollback(
        self, name: str | None = None, *, expected_version: int | None = None
    ) -> OfferedRelease:
        """Withdraw a release, ``model/version``, so that devices return to the previous release.

        The default is the preferred release of the only model. Withdrawing a withdrawn release
        changes nothing. Raises InputError if the release does not exist, or if `name` is missing
        and several models are offered. Raises StaleVersionError if the repository is not at the
        `expected_version`.
        """
        with self._locked():
            self._check_version(expected_version)
            if name is None:
                # reversed, so that a model's preferred release overwrites the others
                offers = reversed(self.offers())
                preferred_offers = {offer.model: offer for offer in offers if offer.rollout}
                if len(preferred_offers) != 1:
                    raise InputError(
                        "name the release to withdraw"
                        if preferred_offers
                        else "no release is offered"
                    )
                name = str(*preferred_offers.values())
            offer = self.find(name)
            return self._set_offer(offer, offer.serial, 0) if offer.rollout else offer

    def refresh(self) -> dict[str, datetime]:
        """Sign snapshot and timestamp again, and also root and targets if they expire soon.

        Returns the expiry of each role that expires soon and has too few keys in the folder.
        """
        renewal_time = datetime.now(UTC) + timedelta(days=RENEWAL_DAYS)
        with self._locked():
            unsigned_expiries: dict[str, datetime] = {}
            due_roles = []
            for role in ("targets", "root"):
                expires = self._metadata[role].signed.expires
                if expires >= renewal_time:
                    continue
                try:
                    self._read_signers(role)
                    due_roles.append(role)
                except InputError:
                    unsigned_expiries[role] = expires
            self._write_metadata(
                *(role for role in due_roles if role == "targets"), "snapshot", "timestamp"
            )
            self._write_metadata(*(role for role in due_roles if role == "root"))
        return unsigned_expiries

    def rotate_key(self, role: str, *, revoke: str | None = None) -> str:
        """Replace a key of a role, sign the role's metadata again, and return the new key's id.

        `revoke` is the id of the old key, by default of the role's first key.
        """
        if role not in ROLES:
            raise InputError(f"unknown role {role!r}; choose one of {', '.join(ROLES)}")
        with self._locked():
            root = self._metadata["root"].signed
            old_key_id = revoke or root.roles[role].keyids[0]
            if old_key_id not in root.roles[role].keyids:
                raise InputError(
                    f"{old_key_id} is not a key of {role}: gatewise repo status --json lists them"
                )
            root_signers = self._read_signers("root")
            role_signers = self._read_signers(role)
            new_key = self._make_key(role).public_key
            root.revoke_key(old_key_id, role)
            root.add_key(new_key, role)
            # the old keys also sign, because the metadata must be valid under both roots
            if role == "targets":
                self._write_metadata("targets", extra_signers=role_signers)
            if role != "root":
                self._write_metadata("snapshot", "timestamp", extra_signers=role_signers)
            # root last, because a killed writer then leaves metadata that the old root accepts
            self._write_metadata("root", extra_signers=root_signers)
            for path in self.keys.glob("*.key"):
                if read_signer(path).public_key.keyid == old_key_id:
                    path.rename(path.with_suffix(".revoked"))
        return new_key.keyid

    # -- parts -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self, *, load: bool = True) -> Iterator[None]:
        """Lock the repository against other writers, and read its current metadata."""
        with (self.folder / ".lock").open("w") as lock:
            lock_file(lock.fileno())
            if load:
                self._load_metadata()
            yield

    def _check_version(self, version: int | None) -> None:
        if version not in (None, self.version):
            raise StaleVersionError(version, self.version)

    def _load_metadata(self) -> None:
        """Read the current metadata, and check its signatures against the keys in root."""

        def read_metadata(name: str) -> Metadata[Any]:
            return Metadata.from_file(str(self._metadata_folder / name))

        try:
            root_versions = [
                int(path.name.split(".")[0]) for path in self._metadata_folder.glob("*.root.json")
            ]
            if not root_versions:
                raise InputError(f"{self.folder} is not a repository: gatewise repo init makes one")
            root = read_metadata(f"{max(root_versions)}.root.json")
            timestamp = read_metadata("timestamp.json")
            snapshot = read_metadata(f"{timestamp.signed.snapshot_meta.version}.snapshot.json")
            targets = read_metadata(f"{snapshot.signed.meta['targets.json'].version}.targets.json")
            self._metadata = dict(zip(ROLES, (root, targets, snapshot, timestamp), strict=True))
            for role, metadata in self._metadata.items():
                root.signed.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
        except (RepositoryError, DeserializationError, OSError, ValueError, KeyError) as error:
            raise InputError(f"repository {self.folder} cannot be used: {error}") from None

    def _make_key(self, role: str) -> CryptoSigner:
        key_number = 1
        while list(self.keys.glob(f"{role}-{key_number}.*")):
            key_number += 1
        path, _ = keygen(self.keys / f"{role}-{key_number}")
        return read_signer(path)

    def _read_signers(self, role: str) -> list[CryptoSigner]:
        """Read the keys of a role; raise InputError if there are fewer than its threshold."""
        role_keys = self._metadata["root"].signed.roles[role]
        signers = [read_signer(path) for path in sorted(self.keys.glob("*.key"))]
        signers = [signer for signer in signers if signer.public_key.keyid in role_keys.keyids]
        if len(signers) < role_keys.threshold:
            raise InputError(
                f"{self.keys} has {len(signers)} keys of {role}, but "
                f"{role_keys.threshold} must sign"
            )
        return signers

    def _write_metadata(self, *roles: str, extra_signers: Sequence[CryptoSigner] = ()) -> None:
        """Write the next version of each role, signed by the role's keys and `extra_signers`."""
        now = datetime.now(UTC).replace(microsecond=0)
        for role in roles:
            metadata = self._metadata[role]
            metadata.signed.version += 1
            metadata.signed.expires = now + timedelta(days=LIFETIME_DAYS[role])
            version = metadata.signed.version
            metadata.signatures.clear()
            for signer in [*extra_signers, *self._read_signers(role)]:
                metadata.sign(signer, append=True)
            content = metadata.to_bytes()
            meta_file = MetaFile.from_data(version, content, ["sha256"])
            if role == "targets":
                self._metadata["snapshot"].signed.meta["targets.json"] = meta_file
            elif role == "snapshot":
                self._metadata["timestamp"].signed.snapshot_meta = meta_file
            file_name = "timestamp.json" if role == "timestamp" else f"{version}.{role}.json"
            replace_file(self._metadata_folder / file_name, content)

    def _target_path(self, path: str, digest: str) -> Path:
        """Path of a target's file, with the hash in its name."""
        folder, _, name = path.rpartition("/")
        return self.folder / "targets" / folder / f"{digest}.{name}"

    def _set_offer(self, offer: OfferedRelease, serial: int, rollout_parts: int) -> OfferedRelease:
        """Change the serial and the rollout of a release; return its new offer."""
        target = self._metadata["targets"].signed.targets[offer.path]
        target.unrecognized_fields["custom"] = {"serial": serial, "rollout": rollout_parts}
        self._write_metadata("targets", "snapshot", "timestamp")
        return self.find(str(offer))


def read_signer(path: Path) -> CryptoSigner:
    """Read a private key for signing; raise InputError if it is not valid."""
    return CryptoSigner(Signer(path).key)
