"""Store of a device's bundles: the release that passed its trial, and the one on trial.

::

    <folder>/state.json, state.copy.json     which is which, each with a checksum
    <folder>/bundles/<digest>/               a release's files, with its release.json
    <folder>/partial/<digest>/               one that is being fetched
    <folder>/metadata/                       the repository's, verified
    <folder>/lock                            held by the one process that updates

A folder of a release is named by the SHA-256 of its ``release.json``, which lists the hash of every
other file, so that the files alone show whether it is whole. It gets its name by a rename once it
is whole. If a copy of the state is cut off or damaged, the other one is used. If both are lost, no
release is removed, because the folders are found by their hashes. If the store cannot be written,
that is logged, and the device runs the releases in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import field
from msgspec.structs import replace

from gatewise.documents import (
    Amount,
    DocumentError,
    Finite,
    Meta,
    Record,
    convert,
    decode_json,
    encode_json,
    plain_values,
)
from gatewise.file_lock import lock_file
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.storage import replace_file, sync_folder
from gatewise_export.repository.release import RELEASE, Release, UpdateError, has_file

_LOG = logging.getLogger(__name__)
_MOST_REFUSED: Final = 16
#: Starts of a release on trial without an answer, until it is put off.
_MOST_STARTS: Final = 5
_SPARE_SPACE: Final = 8 << 20
_COPIES: Final = ("state.json", "state.copy.json")
_MOST_BYTES: Final = 64 << 10
Count = Annotated[int, Meta(ge=0)]


class State(Record, frozen=True):
    """What is kept over restarts. Releases are named by the SHA-256 of their ``release.json``.

    `number` rises with each writing; `device` is a random id, for staged rollouts of a device
    without a name. `active`, `proved`, `previous`: the release to run, the last one that passed its
    trial, and the one that had before; empty: the bundle that the device was set up with. If the
    first two differ, the active one is on trial, of which `good`, `bad`, `seconds` and `starts` are
    the answers in time, late ones and errors, running time, and starts since the last answer; of
    `answers_before`, seen before it was taken, `bad_before` were late or errors.
    `waiting`: a release that did not come to its first answer; `wait`: the running time until it is
    tried again; `waits`: how often it has been put off. `refused`: releases that failed here, the
    latest last. `seen`: see :data:`gatewise_export.repository.client.Seen`.
    """

    number: Count = 0
    device: str = field(default_factory=lambda: secrets.token_hex(8))
    active: str = ""
    proved: str = ""
    previous: str = ""
    good: Count = 0
    bad: Count = 0
    seconds: Amount = 0.0
    starts: Count = 0
    bad_before: Count = 0
    answers_before: Count = 0
    waiting: str = ""
    wait: Finite = 0.0
    waits: Count = 0
    refused: tuple[str, ...] = ()
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def on_trial(self) -> bool:
        """Whether the active release is on trial."""
        return self.active != self.proved

    @property
    def kept(self) -> list[str]:
        """The active release and a proved one, in the order in which to try them."""
        digests = [self.active, self.proved if self.on_trial else self.previous]
        return [digest for digest in digests if digest]


class _Copy(Record, frozen=True):
    """The state and its checksum, as in a file."""

    state: State
    sha256: str


def read_state(folder: Path) -> tuple[State, bool]:
    """Read the newer of the whole copies; also whether a state was lost."""
    states, lost = [], False
    for name in _COPIES:
        try:
            with (folder / name).open("rb") as file:
                states.append(_read(file.read(_MOST_BYTES + 1)))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, DocumentError):
            _LOG.error("%s is not used: it is damaged, or cannot be read", folder / name)
            lost = True
    if not states:
        return State(), lost
    return max(states, key=lambda state: state.number), False


def write_state(folder: Path, state: State) -> None:
    """Write both copies, one after the other; raises OSError."""
    # Converted as on reading: a whole number of seconds becomes a float with another text.
    state = convert(plain_values(state), State)
    text = encode_json(_Copy(state, _checksum(state)), indent=1)
    for name in _COPIES:
        replace_file(folder / name, text)


def _checksum(state: State) -> str:
    return hashlib.sha256(json.dumps(plain_values(state), sort_keys=True).encode()).hexdigest()


def _read(text: bytes) -> State:
    copy = decode_json(text, _Copy, "state.json")
    if _checksum(copy.state) != copy.sha256:
        raise DocumentError("state.json", "sha256", "does not fit: the file is damaged")
    return copy.state


class Store:
    """A folder with the last two releases of a device, readable by its owner alone.

    A release that does not come to its first answer is put off for `pause` seconds of running time,
    then for twice as long, and so on. `bundles` and `partial` are the folders of whole releases and
    of those being fetched; `trouble` says why it cannot be written.
    """

    def __init__(self, folder: str | Path, *, pause: float = 600.0) -> None:
        self.folder = Path(folder)
        self.bundles, self.partial = self.folder / "bundles", self.folder / "partial"
        self.trouble: str | None = None
        self._pause = pause
        self._lock: int | None = None
        try:
            for path in (self.folder, self.bundles, self.partial):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._note(error)
        self.state, self._lost = read_state(self.folder)

    def save(self, **changes: Any) -> bool:
        """Change the state; return whether the disk has the change."""
        self.state = replace(self.state, number=self.state.number + 1, **changes)
        try:
            write_state(self.folder, self.state)
        except OSError as error:
            self._note(error)
            return False
        self.trouble = None
        return True

    def refuse(self, digest: str, **changes: Any) -> None:
        """Note that a release failed here, so that it is not tried again."""
        self.save(refused=(*self.state.refused, digest)[-_MOST_REFUSED:], **changes)

    def start(self) -> list[Path]:
        """Undamaged bundles to start with, the best first."""
        state = self.state
        if state.on_trial and state.starts >= _MOST_STARTS:
            _LOG.error("%s gave no answer in %d starts", state.active, state.starts)
            wait = self._pause * 2.0 ** min(state.waits, 16)
            self.save(
                active=state.proved,
                waiting=state.active,
                wait=wait,
                waits=state.waits + 1,
                starts=0,
            )
        elif state.on_trial:
            self.save(starts=state.starts + 1)
        return [self.path(digest) for digest in self.state.kept if self.is_whole(digest)]

    def path(self, digest: str) -> Path:
        """Folder of a release, which need not exist."""
        return self.bundles / digest

    def digest(self, bundle: Path) -> str:
        """Digest of a bundle's release; empty if the bundle is not in this store."""
        return bundle.name if bundle.parent == self.bundles else ""

    def is_whole(self, digest: str) -> bool:
        """Whether the store has a release with all its files as they were signed."""
        path = self.path(digest)
        if not has_file(path / RELEASE, digest):
            return False
        damaged = self.release(digest).damaged_file(path)
        if damaged is not None:
            _LOG.error("%s: %s is damaged", path, damaged)
        return damaged is None

    def release(self, digest: str) -> Release:
        """Read the ``release.json`` of a release in the store."""
        return Release.from_json((self.path(digest) / RELEASE).read_bytes())

    def fill(
        self, digest: str, release: Release, first: Path | None, fetch: Callable[[str, Path], None]
    ) -> None:
        """Complete a release begun in :attr:`partial`: its ``release.json`` is there.

        Files that another release or the first bundle holds are copied, others fetched by
        ``fetch(name, path)``. What is left of other releases in :attr:`partial` is removed. Raises
        UpdateError.
        """
        fresh = self.partial / digest
        try:
            # room for all of it, before anything is fetched
            for path in self.partial.iterdir():
                if path != fresh:
                    shutil.rmtree(path, ignore_errors=True)
            missing = {
                name: spec
                for name, spec in release.files.items()
                if not has_file(fresh / name, spec.sha256)
            }
            needed = sum(spec.size for spec in missing.values()) + _SPARE_SPACE
            free = shutil.disk_usage(fresh).free
            if missing and free < needed:
                raise UpdateError(
                    "store",
                    f"no room for {release} in {self.folder}: {needed} bytes are needed, with "
                    f"{_SPARE_SPACE} to spare, and {free} free",
                )
            # a file that the device holds already is not fetched again
            for name, spec in missing.items():
                path = fresh / name
                content = self._copy_of(name, spec.sha256, first)
                if content is None:
                    fetch(name, path)
                else:
                    path.write_bytes(content)
            if release.damaged_file(fresh) is not None:
                raise UpdateError("store", f"{release} was damaged on the disk")
            # on the disk, and only then under its name
            for path in [*fresh.iterdir(), fresh]:
                sync_folder(path)
            if self.path(digest).exists():  # it was damaged
                old = self.partial / f"{digest}.old"
                shutil.rmtree(old, ignore_errors=True)
                os.rename(self.path(digest), old)
            os.rename(fresh, self.path(digest))
            sync_folder(self.bundles)
        except OSError as error:
            self._note(error)
            raise UpdateError("store", str(self.trouble)) from None

    def _copy_of(self, name: str, sha256: str, first: Path | None) -> bytes | None:
        """Content of a file in another release or in the first bundle, if they have it."""
        for folder in self.bundles.iterdir():
            with contextlib.suppress(OSError):
                content = (folder / name).read_bytes()
                if hashlib.sha256(content).hexdigest() == sha256:
                    return content
        if first is not None:
            with contextlib.suppress(BundleError):
                bundle = Bundle.open(first, for_device=True)
                spec = bundle.manifest.files.get(name)
                if spec is not None and spec.sha256 == sha256:
                    return bundle.read(name)
        return None

    def tidy(self) -> None:
        """Remove all but two releases, unless the state was lost."""
        if self._lost or self.trouble:
            return
        for path in [*self.bundles.iterdir(), *self.partial.iterdir()]:
            if path.parent == self.partial or path.name not in self.state.kept:
                shutil.rmtree(path, ignore_errors=True)

    def lock(self) -> None:
        """Become the one process that updates; UpdateError if another one is.

        A store that cannot be written needs no lock.
        """
        if self._lock is not None:
            return
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            self._note(error)
            return
        try:
            lock_file(descriptor, waits=False)
        except OSError:
            os.close(descriptor)
            raise UpdateError("store", f"store {self.folder} is kept by another process") from None
        self._lock = descriptor

    def unlock(self) -> None:
        """Let another process update. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _note(self, error: OSError) -> None:
        trouble = f"store {self.folder} cannot be written: {error.strerror}"
        if trouble != self.trouble:
            _LOG.error("%s", trouble)
        self.trouble = trouble
