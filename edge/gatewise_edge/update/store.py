"""The bundles that a device keeps, and which of them is active.

::

    <folder>/state.json              the active version, the one before it, the last serial
    <folder>/bundles/<sha256>.gwb    the last two versions, named by their hash
    <folder>/partial/                what is being fetched
    <folder>/lock                    held by the one process that updates

Everything that must change together stands in ``state.json``, which is replaced by one rename of
a file that is on the disk already. A bundle's file gets its name by a rename, too, and only when
it is whole and proved. So a process that is killed, or a device that loses power, at any moment
leaves either the old state or the new one, and files that the state does not name: those are
removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from gatewise.errors import InputError
from gatewise_edge.update.announcement import LARGEST_SERIAL, Announcement
from gatewise_edge.update.errors import UpdateError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, ManifestError
from gatewise_export.bundle.json_reader import JsonField
from gatewise_export.bundle.storage import sync_folder

__all__ = ["State", "Store", "Version"]

_LOG = logging.getLogger(__name__)
_STATE: Final = "state.json"
_MOST_STATE_BYTES: Final = 64 << 10
_MOST_REFUSED: Final = 16
#: A version on trial may be started so often before it has to have passed.
_MOST_STARTS: Final = 3


@dataclass(frozen=True)
class Version:
    """A version that was taken, or refused: its names, announcement's serial and file's hash."""

    name: str
    version: str
    serial: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"

    @classmethod
    def from_announcement(cls, announcement: Announcement) -> Version:
        """Version that an announcement names."""
        a = announcement
        return cls(a.name, a.version, a.serial, a.sha256)


@dataclass(frozen=True)
class State:
    """The content of ``state.json``; a version of None is the bundle the device was set up with.

    `serial` is the last one taken or refused for good: only greater ones are considered. While the
    current version is on `trial`, `starts` counts the processes started with it. `refused` are
    those that failed here, the latest last. `trying` is the serial of the update being installed,
    `tries` how often that was begun.
    """

    current: Version | None = None
    previous: Version | None = None
    serial: int = 0
    trial: bool = False
    starts: int = 0
    refused: tuple[Version, ...] = ()
    trying: int = 0
    tries: int = 0


class Store:
    """A folder with the last two versions of a device's bundle, readable by its owner alone.

    With a `public_key` bundles must be signed by it. Raises InputError if the folder cannot be
    made.
    """

    def __init__(self, folder: str | Path, *, public_key: str | Path | bytes | None = None) -> None:
        self.folder = Path(folder)
        self._public_key = public_key
        self._lock: int | None = None
        try:
            for path in (self.folder, self.bundles, self.partial):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"store {self.folder} cannot be made: {error.strerror}") from None

    @property
    def bundles(self) -> Path:
        """Where whole bundles are."""
        return self.folder / "bundles"

    @property
    def partial(self) -> Path:
        """Where files are that are being fetched; on the same file system."""
        return self.folder / "partial"

    # -- reading ---------------------------------------------------------------------------

    def state(self) -> State:
        """Read the state; the empty one if there is none, or it cannot be read."""
        try:
            with (self.folder / _STATE).open("rb") as file:
                return _read_state(file.read(_MOST_STATE_BYTES + 1))
        except FileNotFoundError:
            return State()
        except (OSError, ManifestError) as error:
            _LOG.error("%s cannot be read: %s", self.folder / _STATE, error)
            return State()

    def active(self) -> Path | None:
        """The bundle to run, whole and verified: the current one, else the previous, else None."""
        state = self.state()
        for version in (state.current, state.previous):
            if version is None:
                return None
            if self.holds(version.sha256):
                return self.path(version.sha256)
            _LOG.error("%s in the store is damaged or gone", version)
        return None

    def start(self) -> Path | None:
        """The bundle to start with: :meth:`active`, after a check of earlier starts.

        A version on trial that was started three times and has not passed probably ends the
        process; the previous one comes back.
        """
        state = self.state()
        if state.trial and state.current is not None:
            if state.starts >= _MOST_STARTS:
                _LOG.error("%s did not pass in %d starts", state.current, state.starts)
                self.roll_back()
            else:
                self._write(replace(state, starts=state.starts + 1))
        return self.active()

    def path(self, sha256: str) -> Path:
        """Where a bundle of this hash is, or would be."""
        return self.bundles / f"{sha256}.gwb"

    def holds(self, sha256: str) -> bool:
        """Whether a bundle is here, whole and, if there is a key, signed."""
        path = self.path(sha256)
        try:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    return False
            Bundle.open(path, public_key=self._public_key, for_device=True)
        except (OSError, BundleError) as error:
            if not isinstance(error, FileNotFoundError):
                _LOG.error("%s: %s", path, error)
            return False
        return True

    # -- writing ---------------------------------------------------------------------------

    def lock(self) -> None:
        """Become the one process that updates and tidy up; UpdateError if another one is."""
        if self._lock is not None:
            return
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UpdateError("store", f"store {self.folder}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise UpdateError("store", f"store {self.folder} is kept by another process") from None
        self._lock = descriptor
        self.tidy()

    def unlock(self) -> None:
        """Let another process update. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def keep(self, part: Path, sha256: str) -> Path:
        """Move a checked file to the bundles."""
        target = self.path(sha256)
        try:
            os.replace(part, target)
            sync_folder(self.bundles)
        except OSError as error:
            raise UpdateError("store", f"{target}: {error.strerror}", again=True) from None
        return target

    def switch(self, version: Version) -> None:
        """Activate a stored version, on trial; the one before it stays beside it."""
        state = self.state()
        self._write(
            replace(
                state,
                current=version,
                previous=state.current,
                serial=max(state.serial, version.serial),
                trial=True,
                starts=0,
                tries=0,
            )
        )

    def confirm(self, version: Version) -> None:
        """Note that the active bundle was announced once more."""
        state = self.state()
        self._write(replace(state, current=version, serial=max(state.serial, version.serial)))

    def begin(self, version: Version) -> int:
        """Note that a version is about to be run; how often that was begun before in vain."""
        state = self.state()
        tries = state.tries if state.trying == version.serial else 0
        self._write(replace(state, trying=version.serial, tries=tries + 1))
        return tries

    def passed(self) -> None:
        """Note that the active version has passed its trial."""
        self._write(replace(self.state(), trial=False, starts=0))

    def stopped(self) -> None:
        """Note that the process ends in good order: this start does not count against a trial."""
        state = self.state()
        if state.trial and state.starts:
            self._write(replace(state, starts=0))

    def refuse(self, version: Version) -> None:
        """Note that a version fails here, so that its announcement is never tried again."""
        state = self.state()
        refused = (*state.refused, version)[-_MOST_REFUSED:]
        serial = max(state.serial, version.serial)
        self._write(replace(state, serial=serial, refused=refused, tries=0))

    def roll_back(self) -> Version | None:
        """Activate the previous version, or the first bundle (None); the current one has failed."""
        state = self.state()
        if state.current is None:
            return None
        self._write(
            replace(
                state,
                current=state.previous,
                previous=None,
                trial=False,
                starts=0,
                refused=(*state.refused, state.current)[-_MOST_REFUSED:],
            )
        )
        return state.previous

    def tidy(self, *, keep_partial: str | None = None) -> None:
        """Remove files that the state does not name; of partial ones keep that of one hash."""
        state = self.state()
        kept = {v.sha256 for v in (state.current, state.previous) if v is not None}
        files = [p for p in self.bundles.iterdir() if p not in map(self.path, kept)]
        files += [
            path
            for path in self.partial.iterdir()
            if path.stem in kept or keep_partial not in (None, path.stem)
        ]
        files += list(self.folder.glob(f".{_STATE}.*"))
        for path in files:
            with contextlib.suppress(OSError):
                path.unlink()

    def _write(self, state: State) -> None:
        fresh = self.folder / f".{_STATE}.{os.getpid()}"
        text = json.dumps({"store": 1, **asdict(state)}, indent=1) + "\n"
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self.folder / _STATE)
            sync_folder(self.folder)
        except OSError as error:
            raise UpdateError(
                "store", f"{self.folder / _STATE} cannot be written: {error.strerror}", again=True
            ) from None


def _read_state(text: bytes) -> State:
    document = JsonField.parse(text)
    document.keys(("store", *(f.name for f in fields(State))))
    document["store"].integer(1, 1)
    return State(
        current=_version(document.get("current")),
        previous=_version(document.get("previous")),
        serial=document["serial"].integer(0, LARGEST_SERIAL),
        trial=document["trial"].value is True,
        starts=document["starts"].integer(0, 1 << 30),
        trying=document["trying"].integer(0, LARGEST_SERIAL),
        tries=document["tries"].integer(0, 1 << 30),
        refused=tuple(
            v for v in map(_version, document["refused"].items(0, _MOST_REFUSED)) if v is not None
        ),
    )


def _version(field: JsonField | None) -> Version | None:
    if field is None:
        return None
    field.keys(("name", "version", "serial", "sha256"))
    digest: Any = field["sha256"].text(64)
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        field["sha256"].fail("must be 64 hexadecimal digits")
    return Version(
        field["name"].text(64),
        field["version"].text(64),
        field["serial"].integer(1, LARGEST_SERIAL),
        digest,
    )
