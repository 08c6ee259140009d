"""The device's client of a repository, which verifies offers and fetches releases.

python-tuf checks signatures, thresholds, expiry and versions, and stores the newest metadata in a
folder. It ignores damaged files in this folder and would then accept older metadata. Therefore the
device's state also stores the newest version of each role with the role's keys. A lower version is
refused while the keys are the same. After a change of keys it is accepted, because an operator
replaces keys to recover from a fast-forward attack.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tuf.api.exceptions import DownloadError, ExpiredMetadataError, RepositoryError
from tuf.api.metadata import Metadata, Root, TargetFile, Targets
from tuf.api.serialization import DeserializationError
from tuf.ngclient import Updater as TufUpdater

from gatewise.documents import DocumentError
from gatewise.errors import InputError
from gatewise_export.repository.fetcher import BoundedFetcher
from gatewise_export.repository.release import (
    MAX_RELEASE_BYTES,
    OfferedRelease,
    Release,
    UpdateError,
    read_offers,
)

#: Time limit for fetching all metadata, which has a few kilobytes.
_METADATA_SECONDS: Final = 60.0
#: Time limit for fetching all files of a release.
_RELEASE_SECONDS: Final = 3600.0
#: Folder in memory for the metadata, used if the disk cannot be written.
_MEMORY_FOLDER: Final = "/dev/shm"

#: The newest version of each role, and the ids of the keys of which a change permits a lower one
#: (empty for root).
SeenVersions = dict[str, tuple[int, str]]


class RepositoryClient:
    """A client that reads a repository and verifies its content.

    `urls` are mirrors; after a failure that may be a mirror's, the client uses the next one.
    `folder` stores the newest metadata. `trust` is the file with the root metadata from the
    device's installation. Raises InputError if a URL is not one of HTTP, HTTPS or a file, or if
    `trust` is not valid root metadata.
    """

    def __init__(
        self,
        urls: Sequence[str],
        folder: Path,
        *,
        trust: str | Path,
        fetcher: BoundedFetcher,
    ) -> None:
        for url in urls:
            if not url.startswith(("https://", "http://", "file://")):
                raise InputError(f"repository {url}: must begin with https://, http:// or file://")
        self._urls = [url.rstrip("/") for url in urls]
        self._folder = folder
        self._fetcher = fetcher
        self._targets: dict[str, TargetFile] = {}
        self._client: TufUpdater | None = None
        try:
            self._trusted_root = Path(trust).read_bytes()
            root_metadata = Metadata[Root].from_bytes(self._trusted_root)
            root_metadata.signed.verify_delegate(
                "root", root_metadata.signed_bytes, root_metadata.signatures
            )
        except OSError as error:
            raise InputError(f"--trust {trust} cannot be read: {error.strerror}") from None
        except (DeserializationError, RepositoryError, AttributeError) as error:
            raise InputError(f"--trust {trust} is not root metadata: {error}") from None

    def refresh(self, seen_versions: SeenVersions) -> tuple[list[OfferedRelease], SeenVersions]:
        """Fetch and verify the current offers; return them with the versions of the metadata.

        If the folder cannot be written, the metadata is stored in memory, because the device must
        still leave a withdrawn release. Raises UpdateError with the reason ``fetch``, ``metadata``
        or ``store``.
        """
        try:
            return self._refresh(seen_versions, self._folder)
        except UpdateError as error:
            if error.reason != "store":
                raise
        memory_folder = _MEMORY_FOLDER if os.path.isdir(_MEMORY_FOLDER) else None
        try:
            with tempfile.TemporaryDirectory(
                prefix="gatewise-", dir=memory_folder
            ) as temporary_folder:
                return self._refresh(seen_versions, Path(temporary_folder))
        except OSError as error:
            raise self._update_error(error, "store") from error

    def _refresh(
        self, seen_versions: SeenVersions, folder: Path
    ) -> tuple[list[OfferedRelease], SeenVersions]:
        """Fetch and verify the metadata into a folder; refuse versions below the known ones."""
        url = self._urls[0]
        try:
            self._fetcher.set_time_limit(_METADATA_SECONDS)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for unfinished_file in folder.glob("tmp*"):  # from a process that was killed
                unfinished_file.unlink()
            client = TufUpdater(
                str(folder),
                f"{url}/metadata/",
                target_base_url=f"{url}/targets/",
                fetcher=self._fetcher,
                bootstrap=self._trusted_root,
            )
            client.refresh()
            versions = self._read_versions(folder)
            # a lower version under the same keys is a rollback (TUF specification, 5.4 to 5.6)
            for role, (version, key_ids) in versions.items():
                seen_version, seen_key_ids = seen_versions.get(role, (0, ""))
                if seen_key_ids == key_ids and version < seen_version:
                    raise RepositoryError(
                        f"{role} {version} is older than the known version {seen_version}"
                    )
            targets = Metadata[Targets].from_file(str(folder / "targets.json")).signed
        except (DownloadError, RepositoryError, DeserializationError, OSError) as error:
            raise self._update_error(error, "metadata") from error
        self._client = client
        self._targets = targets.targets
        return read_offers(targets), versions

    def release(self, offer: OfferedRelease, folder: Path) -> Release:
        """Fetch the ``release.json`` of an offer into a folder."""
        path = folder / "release.json"
        target = self._targets[offer.path]
        if target.length > MAX_RELEASE_BYTES:
            raise UpdateError("bundle", f"{offer}: {target.length} bytes for release.json")
        self._fetcher.set_time_limit(_RELEASE_SECONDS)
        self._download(target, path)
        try:
            release = Release.from_json(path.read_bytes())
        except DocumentError as error:
            raise UpdateError("bundle", f"{offer}: {error}") from None
        if str(release) != str(offer):
            raise UpdateError("bundle", f"{offer} contains the release {release}")
        return release

    def fetch(self, release: Release, name: str, path: Path) -> None:
        """Fetch one file of a release."""
        target = self._targets.get(f"{release}/{name}")
        file_spec = release.files[name]
        expected_size_and_hash = (file_spec.size, file_spec.sha256)
        if target is None or (target.length, target.hashes.get("sha256")) != expected_size_and_hash:
            raise UpdateError(
                "bundle", f"{release}: {name} has another size or hash in the signed metadata"
            )
        self._download(target, path)

    def _download(self, target: TargetFile, path: Path) -> None:
        assert self._client is not None
        try:
            self._client.download_target(target, str(path))
        except (DownloadError, RepositoryError, OSError) as error:
            raise self._update_error(error, "fetch") from error

    def _read_versions(self, folder: Path) -> SeenVersions:
        """Read the versions of the verified metadata in a folder."""
        root = Metadata[Root].from_file(str(folder / "root.json")).signed
        versions: SeenVersions = {"root": (root.version, "")}
        # "If the timestamp and / or snapshot keys have been rotated, then delete the trusted
        # timestamp and snapshot metadata files" (TUF specification, 5.3.11). With this rule, a
        # fleet recovers if an attacker has set versions too high, also the version of targets.
        freshness_key_ids = {*root.roles["timestamp"].keyids, *root.roles["snapshot"].keyids}
        for role in ("timestamp", "snapshot", "targets"):
            metadata: Metadata[Any] = Metadata.from_file(str(folder / f"{role}.json"))
            key_ids = ",".join(sorted(freshness_key_ids | set(root.roles[role].keyids)))
            versions[role] = (metadata.signed.version, key_ids)
        return versions

    def _update_error(self, error: Exception, reason: str) -> UpdateError:
        """Make an UpdateError; if the mirror may be the cause, switch to the next one."""
        if isinstance(error, OSError):  # an error of this device's disk
            return UpdateError("store", f"{error.filename or self._folder}: {error.strerror}")
        url = self._urls[0]
        self._urls.append(self._urls.pop(0))
        if isinstance(error, ExpiredMetadataError):
            cause = f"{error}: the repository has nothing newer, or this device's clock is wrong"
            return UpdateError("metadata", f"{url}: {cause}")
        if isinstance(error, DownloadError):
            return UpdateError("fetch", f"{url}: {error}")
        return UpdateError(reason, f"{url}: {error}")
