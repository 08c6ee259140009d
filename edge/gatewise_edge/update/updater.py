"""Over-the-air updates: fetch the release on offer, check it, run it, and leave one that fails."""

from __future__ import annotations

import logging
import platform
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from gatewise import __version__
from gatewise.errors import GatewiseError, InputError
from gatewise_edge.device.answer import Answer
from gatewise_edge.errors import SelfTestError
from gatewise_edge.link.topics import manifest_topic
from gatewise_edge.service.release_status import ReleaseStatus
from gatewise_edge.update.settings import UpdateSettings
from gatewise_edge.update.store import Store
from gatewise_edge.update.trial import Trial
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.repository.client import RepositoryClient
from gatewise_export.repository.fetcher import BoundedFetcher
from gatewise_export.repository.release import OfferedRelease, UpdateError

if TYPE_CHECKING:
    from gatewise_edge.device.device import Device
    from gatewise_edge.link.mqtt import MqttLink

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 300.0
#: Seconds between two writings of a trial's counts.
_SAVES: Final = 5.0
_COUNTS: Final = (
    "announced",
    "checks",
    "metadata",
    "fetch",
    "store",
    "bundle",
    "self-test",
    "taken",
    "repaired",
    "passed",
    "rolled_back",
    "withdrawn",
)


class Updater:
    """Keep a device at the release that its repository offers it.

    Make it before the link is opened, then the device, then :meth:`start`; see
    :mod:`gatewise_edge.update`. It checks at intervals, and after a message on the model's topic,
    whose content is not used. A new release is on trial first. The release that passed its trial
    last is kept, and runs again if the new one fails (:class:`gatewise_edge.update.trial.Trial`).
    Nothing here blocks answering.

    Parameters
    ----------
    store : Store
        Where releases and the state are kept.
    settings : UpdateSettings
        Where releases come from, and how often and how carefully they are taken.
    link : MqttLink, optional
        Not open yet; without one nothing is announced.
    clock : callable, default time.monotonic
        Seconds, steady.
    **options
        Fields of `settings`, which take precedence.

    Raises
    ------
    InputError
        If `trust`, a URL, a certificate or the link cannot be used.
    BundleError
        If the first bundle cannot be read.
    """

    def __init__(
        self,
        store: Store,
        settings: UpdateSettings | None = None,
        *,
        link: MqttLink | None = None,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        settings = UpdateSettings(**options) if settings is None else replace(settings, **options)
        self.store = store
        self._settings = settings
        self._first = Path(settings.first)
        self._id = settings.device or store.state.device
        manifest = Bundle.open(settings.first, for_device=True).manifest
        self.model = manifest.name
        features = settings.features
        self._features = tuple(manifest.acquired_names if features is None else features)
        self._clock = clock
        self._trial = Trial(settings.trial_answers, settings.trial_seconds, clock=clock)
        self._fetcher = BoundedFetcher(
            ca_file=settings.ca_file,
            timeout=settings.timeout,
            cancelled=lambda: self._trial.verdict == "failed",
        )
        self._client = RepositoryClient(
            settings.urls,
            store.folder / "metadata",
            trust=settings.trust,
            fetcher=self._fetcher,
            longest=settings.longest,
        )
        self._condition = threading.Condition()
        self._counts: Counter[str] = Counter()
        self._due = clock() + random.uniform(0.0, settings.spread)
        self._checked = -settings.gap
        self._accounted = clock()
        self._status = ReleaseStatus(link, store, settings.report, clock)
        self._failures = 0
        self._noted = False
        self._stopping = False
        self._unfit: set[str] = set()
        self._valid: Set[str] = {store.state.proved, store.state.previous}
        self._running = ""
        self._trouble: str | None = None
        self._device: Device | None = None
        self._thread: threading.Thread | None = None
        if link is not None:
            link.watch(manifest_topic(self.model), self.receive_announcement)

    def start(self, device: Device) -> None:
        """Begin to update a device that runs one of the store's bundles, or the first one."""
        self._device = device
        self._running = self.store.digest(device.bundle.path)
        self._trial.deadline_ms = device.deadline_ms
        state = self.store.state
        if self._running == state.active:
            if state.on_trial:
                before = state.bad_before, state.answers_before
                self._trial.begin(state.good, state.bad, state.seconds, before)
            elif self._running in state.refused:
                refused = tuple(digest for digest in state.refused if digest != self._running)
                self.store.save(refused=refused)
        elif self.store.is_whole(state.active):
            if state.on_trial:
                _LOG.error("%s does not run here", state.active)
                self.store.refuse(state.active, active=state.proved)
            else:  # it ran before: an option may be wrong, or a sensor not ready
                _LOG.error("%s did not start; the next start tries it again", state.active)
                self._unfit.add(state.active)
        self._status.begin(device)
        self._thread = threading.Thread(target=self._run, name="gatewise-update", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread at once; whole files of a release that was being fetched are kept."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._fetcher.cut()
        if self._thread is not None:
            self._thread.join(5.0)
            if self._thread.is_alive():  # in a look-up of a name, which nothing can end
                return
            self._thread = None
            if self._trial.running:
                self.store.save(starts=0, **self._trial.counts)
        self._trial.end()
        self.store.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> dict[str, int]:
        """Counts so far.

        ``announced`` (messages), ``checks`` that ended well, ``taken``, ``repaired``, ``passed``,
        ``rolled_back``, ``withdrawn``, ``bytes`` fetched; by the reason of their
        :class:`.UpdateError` checks and releases that failed.
        """
        with self._condition:
            counts = {name: self._counts[name] for name in _COUNTS}
        return counts | {"bytes": self._fetcher.received}

    @property
    def trouble(self) -> str | None:
        """Why updates or the store do not work now; None: they do."""
        return self.store.trouble or self._trouble

    def receive_announcement(self, payload: bytes) -> None:
        """Plan a check, on the network's thread; the payload is not read."""
        with self._condition:
            self._counts["announced"] += 1
            soon = max(
                self._clock() + random.uniform(0.0, self._settings.spread),
                self._checked + self._settings.gap,
            )
            self._due = min(self._due, soon)
            self._condition.notify_all()

    def observe(self, end: Answer | Exception) -> None:
        """Observe each answer of the device, or the error in its place."""
        if self._trial.observe(end):
            if self._trial.verdict == "failed":
                self._fetcher.interrupt()
            with self._condition:
                self._noted = True
                self._condition.notify_all()

    def _run(self) -> None:
        while self._wait():
            try:
                self._account()
                self._status.publish_when_due()
                if self._trial.verdict == "passed":
                    self._pass()
                elif self._trial.verdict == "failed":
                    self._roll_back()
                elif self._clock() >= self._due:
                    self._check()
            except UpdateError as error:
                self._fail(error)
            except Exception as error:
                _LOG.exception("the update failed unexpectedly")
                self._fail(UpdateError("bundle", f"{type(error).__name__}: {error}"))

    def _wait(self) -> bool:
        """Wait until there is something to do; False: to stop."""
        with self._condition:
            while not (self._stopping or self._noted):
                left = min(self._due, self._status.due) - self._clock()
                if self._trial.running or self.store.state.wait:
                    left = min(left, self._accounted + _SAVES - self._clock())
                if left <= 0:
                    break
                self._condition.wait(left)
            self._noted = False
            return not self._stopping

    def _account(self) -> None:
        """Save the counts of a trial, and the time that a release is still put off."""
        now = self._clock()
        state = self.store.state
        trial = self._trial
        passed = now - self._accounted
        answered = trial.running and trial.good > 0
        if passed < _SAVES and not (answered and state.starts):
            return
        self._accounted = now
        changes: dict[str, float] = trial.counts if trial.running else {}
        changes |= {"wait": max(0.0, state.wait - passed)} if state.wait else {}
        if changes:
            self.store.save(starts=0 if answered else state.starts, **changes)
        if state.wait and not self.store.state.wait:
            self._due = now  # it may be tried again

    def _check(self) -> None:
        """Refresh the metadata, leave a withdrawn release, and run a release that is offered."""
        with self._condition:
            self._checked = self._clock()
            self._due = self._checked + self._settings.interval * random.uniform(0.75, 1.25)
        self.store.lock()
        offers, versions = self._client.refresh(self.store.state.seen)
        if versions != self.store.state.seen:
            self.store.save(seen=versions)
        offers = [offer for offer in offers if offer.model == self.model]
        offered = [offer for offer in offers if offer.is_for(self._id)]
        self._valid = valid = {offer.digest for offer in offers if offer.rollout}
        successor = next(filter(self._may_take, offered), None)
        # A withdrawn release is left before its successor is fetched, which takes time and may
        # fail.
        if successor is None or not self.store.is_whole(successor.digest):
            self._leave_withdrawn(valid)
        try:
            while (offer := next(filter(self._may_take, offered), None)) is not None:
                if self._run_offer(offer):
                    break
        finally:
            self._leave_withdrawn(valid)
            if forgotten := self._without_withdrawn(self.store.state.active):
                self.store.save(**forgotten)
        self._trouble = None
        self._failures = 0
        self._count("checks")

    def _leave_withdrawn(self, valid: Set[str]) -> None:
        """Go back if the release that runs is not among the `valid` ones."""
        if not self._running or self._running in valid:
            return
        self._trial.end()
        state = self.store.state
        _LOG.warning("%s was withdrawn", self._release)
        self._count("withdrawn")
        self._go_back([digest for digest in (state.proved, state.previous) if digest in valid])

    def _without_withdrawn(self, active: str) -> dict[str, str]:
        """Changes of the state that let no start fall back on a withdrawn release."""
        state = self.store.state
        valid = {"", active, *self._valid}
        return {name: "" for name in ("proved", "previous") if getattr(state, name) not in valid}

    def _may_take(self, offer: OfferedRelease) -> bool:
        state = self.store.state
        put_off = state.waiting if state.wait else ""
        return offer.digest not in {*state.refused, *self._unfit, put_off}

    def _run_offer(self, offer: OfferedRelease) -> bool:
        """Run an offer; False: it does not fit this device."""
        whole = self.store.is_whole(offer.digest)
        if whole and self._running == offer.digest:
            return True
        if whole:
            release = self.store.release(offer.digest)
        else:
            release = self._client.release(offer, self.store.partial / offer.digest)
        unfit = release.misfit(
            model=self.model,
            features=self._features,
            runtime=__version__,
            hardware=platform.machine(),
        )
        if unfit is not None:
            _LOG.warning("%s is not taken: %s", offer, unfit)
            self._unfit.add(offer.digest)
            return False
        if not whole:
            fetch = partial(self._client.fetch, release)
            self.store.fill(offer.digest, release, self._first, fetch)
        if self._running == offer.digest:
            self._count("repaired")
        else:
            self._adopt(offer.digest, str(offer))
        return True

    def _adopt(self, digest: str, name: str) -> None:
        """Run a whole release, on trial unless it has passed one before."""
        device = self._device
        before = self.store.state
        assert device is not None
        bad_before, answers_before = self._trial.before
        saved = self.store.save(
            active=digest,
            good=0,
            bad=0,
            seconds=0.0,
            starts=1,
            bad_before=bad_before,
            answers_before=answers_before,
            **self._without_withdrawn(digest),
        )
        if not saved and digest != before.proved:
            self.store.save(active=before.active)
            raise UpdateError("store", str(self.store.trouble))
        self._trial.end()
        try:
            bundle = self._open(digest)
            if bundle.manifest.release != name:
                raise UpdateError("bundle", f"{name} turns out to be {bundle!r}")
            device.adopt(bundle)
        except (SelfTestError, BundleError, InputError, UpdateError) as error:
            self.store.refuse(
                digest,
                active=before.active,
                **{key: getattr(before, key) for key in ("good", "bad", "seconds", "starts")},
            )
            if self.store.state.on_trial:
                self._trial.begin(before.good, before.bad, before.seconds)
            self._status.publish()
            reason = "self-test" if isinstance(error, SelfTestError) else "bundle"
            raise UpdateError(reason, f"{name} is refused: {error}") from None
        self._running = digest
        if self.store.state.on_trial:
            self._trial.begin()
        self._count("taken")
        self._status.begin(device)
        self.store.tidy()
        _LOG.info("%s is active%s", name, ", on trial" if self._trial.running else "")

    def _open(self, digest: str) -> Bundle:
        path = self.store.path(digest) if digest else self._first
        return Bundle.open(path, public_key=self._settings.public_key, for_device=True)

    @property
    def _release(self) -> str:
        """Model and version that run."""
        assert self._device is not None
        return self._device.bundle.manifest.release

    def _pass(self) -> None:
        self._trial.end()
        state = self.store.state
        self.store.save(proved=state.active, previous=state.proved, starts=0, waiting="", waits=0)
        self.store.tidy()
        self._count("passed")
        _LOG.info("%s has passed its trial", self._release)

    def _roll_back(self) -> None:
        """Leave a release that failed its trial for the one that passed before."""
        self._trial.end()
        _LOG.error("%s failed its trial: %s", self._release, self._trial.counts)
        self.store.refuse(self._running, active=self.store.state.proved)
        self._go_back([self.store.state.proved])
        self._count("rolled_back")

    def _go_back(self, digests: Sequence[str]) -> None:
        """Run the first release that opens, or the first bundle; needs no network and no write."""
        assert self._device is not None
        for digest in dict.fromkeys([*digests, ""]):
            try:
                bundle = self._open(digest)
                # Saved first: a device that is killed in between starts with this one.
                changes = {"active": digest, "proved": digest, "starts": 0}
                self.store.save(**self._without_withdrawn(digest) | changes)
                self._device.adopt(bundle)
            except GatewiseError as error:
                _LOG.error("%s does not come back: %s", digest or self._first, error)
                continue
            self._running = digest
            self.store.tidy()
            break
        self._status.begin(self._device)

    def _fail(self, error: UpdateError) -> None:
        """Note a failure, and try again after a pause that doubles."""
        if self._stopping:
            return
        if str(error) != self._trouble:
            _LOG.warning("update: %s", error)
        self._trouble = str(error)
        self._count(error.reason)
        pause = min(
            _LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures, 30), self._settings.interval
        )
        with self._condition:
            self._failures += 1
            self._due = min(self._due, self._clock() + pause * random.uniform(0.5, 1.5))

    def _count(self, what: str) -> None:
        with self._condition:
            self._counts[what] += 1
