"""Over-the-air updates: fetch an announced bundle, check it, activate it, watch its trial."""

from __future__ import annotations

import hashlib
import logging
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol, Self

from gatewise.errors import GatewiseError, InputError
from gatewise_edge.device.answer import Answer
from gatewise_edge.errors import SelfTestError
from gatewise_edge.link.topics import manifest_topic
from gatewise_edge.update.announcement import Announcement, decode
from gatewise_edge.update.errors import UpdateError
from gatewise_edge.update.fetch import Fetcher
from gatewise_edge.update.store import Store, Version
from gatewise_edge.update.trial import Trial, Verdict
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.signing import PublicKey

__all__ = ["Adopting", "Updater", "Watching"]

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 300.0
#: Tries of a file that turns out to be another one, and starts of one that ends the process.
_MOST_TRIES: Final = 3


class Adopting(Protocol):
    """The part of a :class:`gatewise_edge.Device` that an updater uses."""

    @property
    def bundle(self) -> Bundle: ...

    @property
    def deadline_ms(self) -> float: ...

    def adopt(self, bundle: Bundle) -> None: ...


class Watching(Protocol):
    """The part of a :class:`gatewise_edge.MqttLink` that an updater uses."""

    def watch(self, topic: str, take: Callable[[bytes], None]) -> None: ...

    def set_status(self, detail: str) -> None: ...


class Updater:
    """Keep a device's bundle at the version that its operator announces.

    Make it before the link is opened, then the device, then :meth:`start`; see
    :mod:`gatewise_edge.update`. The announced file is fetched and checked, the device proves it by
    its self-test and goes on with it. The version before stays beside it, and comes back if the new
    one fails in its first answers (:class:`gatewise_edge.update.trial.Trial`) or ends the process.
    An announcement of a bundle that is still here needs no download.

    Parameters
    ----------
    link : MqttLink
        Not open yet.
    store : Store
    model : str
        Name of the model; its topic is watched.
    public_key : str, Path or bytes
        Announcements and bundles must be signed by it.
    hosts, ca_file, allow_files, most_bytes, timeout
        As of :class:`gatewise_edge.update.fetch.Fetcher`.
    first : str or Path, optional
        The bundle that the device was set up with, to come back to.
    trial_answers : int, default 20
        Answers after which a new version is trusted.
    spread : float, default 0
        Wait up to so many seconds before fetching, so that a fleet does not come all at once.
    progress : callable, optional
        Called with the name of each step, such as ``fetch``, ``adopt`` and ``done``.
    clock : callable, default time.monotonic
        Seconds.

    Raises
    ------
    InputError
        If a key, host or file cannot be used, or the link is open.
    """

    def __init__(
        self,
        link: Watching,
        store: Store,
        *,
        model: str,
        public_key: str | Path | bytes,
        hosts: Iterable[str],
        first: str | Path | None = None,
        ca_file: str | Path | None = None,
        allow_files: bool = False,
        most_bytes: int = 256 << 20,
        trial_answers: int = 20,
        spread: float = 0.0,
        timeout: float = 20.0,
        progress: Callable[[str], None] = lambda step: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.model = model
        self._link = link
        self._key = PublicKey(public_key)
        self._first = None if first is None else Path(first)
        self._fetcher = Fetcher(
            hosts,
            ca_file=ca_file,
            allow_files=allow_files,
            most_bytes=most_bytes,
            timeout=timeout,
            clock=clock,
        )
        self._spread = spread
        self._progress = progress
        self._clock = clock
        self._trial = Trial(trial_answers, self._decide, clock=clock)
        self._condition = threading.Condition()
        self._counts: Counter[str] = Counter()
        self._wanted: Announcement | None = None
        self._not_before = 0.0
        self._tries = 0
        self._verdict: tuple[Verdict, str] | None = None
        self._stopping = False
        self._serial = store.state().serial
        self._device: Adopting | None = None
        self._thread: threading.Thread | None = None
        link.watch(manifest_topic(model), self.take)

    # -- life ------------------------------------------------------------------------------

    def start(self, device: Adopting) -> None:
        """Begin to update a device that runs the store's bundle, or the first one.

        Raises
        ------
        UpdateError
            If another process keeps the store.
        """
        self.store.lock()
        self._device = device
        self._serial = self.store.state().serial
        if self.store.state().trial:
            self._trial.begin(device.deadline_ms)
        self._publish_status()
        self._thread = threading.Thread(target=self._run, name="gatewise-update", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; a fetch under way stays in part. May be called twice."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._trial.end()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            try:
                self.store.stopped()
            except UpdateError as error:
                _LOG.error("%s", error)
        self.store.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> dict[str, int]:
        """Counts so far.

        ``announced`` (valid and new), ``known`` (the last one again), and by their reason those
        refused: ``malformed``, ``forged``, ``other-name``, ``replayed``; ``taken``, ``failed`` (for
        good), ``retries``, ``passed``, ``rolled_back``; ``bytes`` fetched.
        """
        names = [
            "announced", "known", "malformed", "forged", "other-name", "replayed", "taken",
            "failed", "retries", "passed", "rolled_back",
        ]  # fmt: skip
        with self._condition:
            return {name: self._counts[name] for name in names} | {"bytes": self._fetcher.received}

    # -- what comes in ---------------------------------------------------------------------

    def take(self, payload: bytes) -> None:
        """Handle an announcement; on the network's thread."""
        if not payload:  # a retained message was cleared
            return
        try:
            announced = decode(payload, self._key, name=self.model)
            with self._condition:
                self._admit(announced)
        except UpdateError as error:
            _LOG.warning("announcement refused: %s", error)
            self._count(error.reason)

    def _admit(self, announced: Announcement) -> None:
        last = self._serial if self._wanted is None else self._wanted.serial
        if announced.serial < last:
            raise UpdateError("replayed", f"{announced} is older than the last one, {last}")
        if announced.serial == last:  # brokers repeat it on every connection
            self._counts["known"] += 1
            return
        self._counts["announced"] += 1
        self._wanted, self._tries = announced, 0
        self._not_before = self._clock() + random.uniform(0.0, self._spread)
        self._condition.notify_all()

    def observe(self, end: Answer | Exception) -> None:
        """Observe each answer of the device, or the error in its place."""
        self._trial.observe(end)

    def _decide(self, verdict: Verdict, why: str) -> None:
        with self._condition:
            self._verdict = verdict, why
            self._condition.notify_all()

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                if isinstance(task, Announcement):
                    self._update(task)
                else:
                    self._end_trial(*task)
            except Exception:
                # Later announcements must still be handled.
                _LOG.exception("the update failed unexpectedly")
                if isinstance(task, Announcement):
                    self._later(task)

    def _next(self) -> Announcement | tuple[Verdict, str] | None:
        with self._condition:
            while not self._stopping:
                if self._verdict is not None:
                    verdict, self._verdict = self._verdict, None
                    return verdict
                if self._wanted is None:
                    self._condition.wait()
                elif (left := self._not_before - self._clock()) > 0:
                    self._condition.wait(left)
                else:
                    return self._wanted
            return None

    def _update(self, announced: Announcement) -> None:
        self._progress("announced")
        try:
            self._install(announced)
        except UpdateError as error:
            if error.reason == "stopped":
                return
            if error.again and (
                error.reason not in ("hash", "size") or self._tries < _MOST_TRIES - 1
            ):
                _LOG.warning("%s is not here yet: %s", announced, error)
                self._later(announced)
                return
            _LOG.error("%s is refused: %s", announced, error)
            self._count("failed")
            self.store.refuse(Version.from_announcement(announced))
            self._settle(announced)
            self.store.tidy(keep_partial="")
            self._progress("refused")
            return
        self._count("taken")
        self._settle(announced)
        self._progress("done")

    def _install(self, announced: Announcement) -> None:
        device, version = self._device, Version.from_announcement(announced)
        assert device is not None
        current = self.store.state().current
        if current is not None and current.sha256 == version.sha256:
            self.store.confirm(version)
            return
        part = self._obtain(announced)
        self._progress("prove")
        bundle = self._checked(part, announced)
        if part != self.store.path(version.sha256):
            self._progress("keep")
            bundle = self._checked(self.store.keep(part, version.sha256), announced)
        if self.store.begin(version) >= _MOST_TRIES:
            raise UpdateError("bundle", f"{announced} ended the process {_MOST_TRIES} times")
        self._progress("adopt")
        before = device.bundle
        self._trial.end()
        try:
            device.adopt(bundle)
        except SelfTestError as error:
            raise UpdateError("self-test", str(error)) from None
        except (BundleError, InputError) as error:
            raise UpdateError("bundle", str(error)) from None
        self._progress("switch")
        try:
            self.store.switch(version)
        except UpdateError:
            device.adopt(before)
            raise
        with self._condition:
            self._verdict = None  # of the version before
        self._trial.begin(device.deadline_ms)
        self._progress("status")
        self._publish_status()
        self._progress("tidy")
        self.store.tidy(keep_partial="")
        _LOG.info("%s is active, on trial", announced)

    def _obtain(self, announced: Announcement) -> Path:
        """The announced file: from the store, from the first bundle, or fetched."""
        if self.store.holds(announced.sha256):
            return self.store.path(announced.sha256)
        part = self.store.partial / f"{announced.sha256}.part"
        if self._first is not None and self._first.is_file():
            with self._first.open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == announced.sha256
            if same:
                shutil.copyfile(self._first, part)
                return part
        self._progress("fetch")
        self.store.tidy(keep_partial=announced.sha256)
        part = self._fetcher.fetch(
            announced, self.store.partial, stop=lambda: self._outdated(announced)
        )
        self._progress("fetched")
        return part

    def _outdated(self, announced: Announcement) -> bool:
        return self._stopping or self._wanted is not announced

    def _checked(self, path: Path, announced: Announcement) -> Bundle:
        try:
            bundle = Bundle.open(path, public_key=self._key.raw, for_device=True)
        except BundleError as error:
            raise UpdateError("bundle", str(error)) from None
        manifest = bundle.manifest
        if (manifest.name, manifest.version) != (announced.name, announced.version):
            found = f"{manifest.name}/{manifest.version}"
            raise UpdateError("bundle", f"{announced} turns out to be {found}")
        if manifest.cloud is not None and not bundle.absent():
            raise UpdateError(
                "bundle",
                f"{announced} holds {manifest.cloud.file}, which devices do not keep: announce "
                "what `gatewise pack --for device` writes",
            )
        return bundle

    def _end_trial(self, verdict: Verdict, why: str) -> None:
        state = self.store.state()
        if not state.trial or state.current is None:
            return
        if verdict == "passed":
            self.store.passed()
            self._count("passed")
            _LOG.info("%s has passed: %s", state.current, why)
            self._progress("passed")
            return
        _LOG.error("%s has failed, the version before comes back: %s", state.current, why)
        self._roll_back()

    def _roll_back(self) -> None:
        assert self._device is not None
        back = self.store.roll_back()
        path = self._first if back is None else self.store.path(back.sha256)
        self._count("rolled_back")
        if path is None:
            _LOG.error("the bundle before is not known here: it comes back on the next start")
        else:
            try:
                self._device.adopt(Bundle.open(path, public_key=self._key.raw, for_device=True))
                self.store.tidy(keep_partial="")
            except GatewiseError as error:
                _LOG.error("%s does not come back: %s", path, error)
        self._publish_status()
        self._progress("rolled-back")

    # -- parts -----------------------------------------------------------------------------

    def _later(self, announced: Announcement) -> None:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self._tries) * random.uniform(0.5, 1.5)
        with self._condition:
            if self._wanted is announced:
                self._tries += 1
                self._not_before = self._clock() + pause
            self._counts["retries"] += 1
        self._progress("retry")

    def _settle(self, announced: Announcement) -> None:
        with self._condition:
            self._serial = max(self._serial, announced.serial)
            if self._wanted is announced:
                self._wanted = None

    def _publish_status(self) -> None:
        assert self._device is not None
        manifest = self._device.bundle.manifest
        self._link.set_status(f"{manifest.name}/{manifest.version}")

    def _count(self, what: str) -> None:
        with self._condition:
            self._counts[what] += 1
