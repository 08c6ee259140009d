"""Over-the-air updates: fetch, check and run a release, and return from it if it fails."""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from gatewise import __version__
from gatewise_edge.device.answer import Answer
from gatewise_edge.link.topics import manifest_topic
from gatewise_edge.service.release_status import ReleaseStatus
from gatewise_edge.update.running_release import RunningRelease
from gatewise_edge.update.schedule import CheckSchedule
from gatewise_edge.update.settings import UpdateSettings
from gatewise_edge.update.store import Store
from gatewise_edge.update.trial import Trial
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.repository.client import RepositoryClient
from gatewise_export.repository.fetcher import BoundedFetcher
from gatewise_export.repository.release import OfferedRelease, UpdateError

if TYPE_CHECKING:
    from gatewise_edge.device.device import Device
    from gatewise_edge.link.mqtt_link import MqttLink

_LOG = logging.getLogger(__name__)
#: Seconds between two saves of a trial's counts. A restart loses at most this much of the trial,
#: and writing this rarely causes little flash wear.
_SAVE_SECONDS: Final = 5.0
#: Names of the counters.
_COUNTER_NAMES: Final = (
    "announced", "checks", "metadata", "fetch", "store", "bundle", "self-test", "adopted",
    "repaired", "passed", "rolled_back", "withdrawn",
)  # fmt: skip


class Updater:
    """Run on a device the release that its repository offers.

    Create the updater before the link is opened, then create the device, then call :meth:`start`;
    see :mod:`gatewise_edge.update`. The updater checks the repository at intervals, and when a
    message arrives on the model's topic, whatever its content. A new release first runs on trial
    (:class:`gatewise_edge.update.trial.Trial`). If it fails, the device returns to the last release
    that passed its trial. The updater works on its own thread and never delays an answer.

    Parameters
    ----------
    store : Store
        Store of the releases and of the state.
    settings : UpdateSettings
        Repository, times of the checks, and length of a trial.
    link : MqttLink, optional
        Link that is not open yet. Without a link no announcements are received.
    clock : callable, default time.monotonic
        Returns the time in seconds; must never go backwards.

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
        settings: UpdateSettings,
        *,
        link: MqttLink | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self._settings = settings
        self._device_id = settings.device or store.state.device
        manifest = Bundle.open(settings.first_bundle, for_device=True).manifest
        self.model = manifest.name
        features = settings.features
        self._device_features = tuple(manifest.device_input_names if features is None else features)
        self._clock = clock
        self._trial = Trial(settings.trial_answers, settings.trial_seconds, clock=clock)
        self._fetcher = BoundedFetcher(
            ca_file=settings.ca_file,
            timeout_s=settings.timeout,
            is_cancelled=lambda: self._trial.verdict == "failed",
        )
        self._client = RepositoryClient(
            settings.urls,
            store.folder / "metadata",
            trust=settings.trust,
            fetcher=self._fetcher,
        )
        #: Guards the counts, the schedule and the two flags below, and wakes the thread. Only the
        #: thread changes the digests.
        self._condition = threading.Condition()
        self._counts: Counter[str] = Counter()
        self._schedule = CheckSchedule(settings, clock)
        self._last_save_at = clock()
        self._release_status = ReleaseStatus(link, store, clock)
        self._release = RunningRelease(store, settings, self._trial, self._release_status)
        self._must_act = False  # whether the thread must act on an answer
        self._is_stopping = False
        self._skipped_digests: set[str] = set()  # releases that this process does not try again
        self._trouble: str | None = None
        self._thread: threading.Thread | None = None
        if link is not None:
            link.watch(manifest_topic(self.model), self.receive_announcement)

    def start(self, device: Device) -> None:
        """Begin to update a device that runs a release of the store or the first bundle."""
        self._trial.deadline_ms = device.deadline_ms
        if not self._release.begin(device):
            self._skipped_digests.add(self.store.state.active)
        self._thread = threading.Thread(
            target=self._run_updates, name="gatewise-update", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the thread at once; files of a release that were fetched completely are kept."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
        self._fetcher.stop()
        if self._thread is not None:
            # A fetch ends at once, but the look-up of a host name cannot be interrupted.
            self._thread.join(5.0)
            if self._thread.is_alive():
                return
            self._thread = None
            if self._trial.is_running:
                self.store.save(n_starts=0, **self._trial.counts)
        self._trial.end()
        self.store.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> dict[str, int]:
        """Counts so far, by name.

        ``announced`` counts announcements, ``checks`` successful checks, ``bytes`` fetched bytes.
        ``adopted``, ``repaired``, ``passed``, ``rolled_back`` and ``withdrawn`` count releases. The
        other names are the reasons of an :class:`.UpdateError` and count failures.
        """
        with self._condition:
            counts = {name: self._counts[name] for name in _COUNTER_NAMES}
        return counts | {"bytes": self._fetcher.received_bytes}

    @property
    def trouble(self) -> str | None:
        """Description of the current problem of the updates or the store; None if they work."""
        return self.store.trouble or self._trouble

    def receive_announcement(self, payload: bytes) -> None:
        """Plan a check. The link calls this on its network thread; the payload is not read."""
        with self._condition:
            self._counts["announced"] += 1
            self._schedule.plan_announced_check()
            self._condition.notify_all()

    def observe(self, outcome: Answer | Exception) -> None:
        """Count an answer or an error for the trial; the device calls this for each instance."""
        if self._trial.observe(outcome):
            if self._trial.verdict == "failed":
                self._fetcher.interrupt()
            with self._condition:
                self._must_act = True
                self._condition.notify_all()

    def _run_updates(self) -> None:
        """Do the updater's work on its thread; a recorded error does not stop later work."""
        while self._wait_for_work():
            try:
                self._save_progress()
                self._release_status.publish_when_due()
                if self._trial.verdict == "passed":
                    self._release.end_passed_trial()
                    self._increment("passed")
                elif self._trial.verdict == "failed":
                    self._release.roll_back()
                    self._increment("rolled_back")
                elif self._clock() >= self._schedule.next_at:
                    self._check_repository()
            except UpdateError as error:
                self._record_failure(error)
            except Exception as error:  # the new files are the likely cause
                _LOG.exception("the update failed unexpectedly")
                self._record_failure(UpdateError("bundle", f"{type(error).__name__}: {error}"))

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do; return False if the thread must stop."""
        with self._condition:
            while not (self._is_stopping or self._must_act):
                due_at = min(self._schedule.next_at, self._release_status.due_at)
                if self._trial.is_running or self.store.state.postponed_s:
                    due_at = min(due_at, self._last_save_at + _SAVE_SECONDS)
                seconds_left = due_at - self._clock()
                if seconds_left <= 0:
                    break
                self._condition.wait(seconds_left)
            self._must_act = False
            return not self._is_stopping

    def _save_progress(self) -> None:
        """Save the counts of a trial and the remaining time of a postponement."""
        now = self._clock()
        state = self.store.state
        trial = self._trial
        elapsed_s = now - self._last_save_at
        has_answered = trial.is_running and trial.n_good > 0
        if elapsed_s < _SAVE_SECONDS and not (has_answered and state.n_starts):
            return
        self._last_save_at = now
        changes: dict[str, float] = dict(trial.counts) if trial.is_running else {}
        if state.postponed_s:
            changes["postponed_s"] = max(0.0, state.postponed_s - elapsed_s)
        if changes:
            self.store.save(n_starts=0 if has_answered else state.n_starts, **changes)
        if state.postponed_s and not self.store.state.postponed_s:
            self._schedule.next_at = now  # the release may be tried again

    def _check_repository(self) -> None:
        """Refresh the metadata, leave a withdrawn release, and run a release that is offered."""
        with self._condition:
            self._schedule.plan_regular_check()
        self.store.lock()
        offers, seen_versions = self._client.refresh(self.store.state.seen_versions)
        if seen_versions != self.store.state.seen_versions:
            self.store.save(seen_versions=seen_versions)
        offers = [offer for offer in offers if offer.model == self.model]
        device_offers = [offer for offer in offers if offer.is_for(self._device_id)]
        self._release.valid_digests = {offer.digest for offer in offers if offer.rollout}
        # Leave a withdrawn release before its successor is fetched, because that takes time and
        # may fail.
        successor = next(filter(self._may_try, device_offers), None)
        if successor is None or not self.store.is_complete(successor.digest):
            self._leave_withdrawn_release()
        # Run the first offer that fits this device.
        try:
            while (offer := next(filter(self._may_try, device_offers), None)) is not None:
                if self._run_offer(offer):
                    break
        finally:
            self._leave_withdrawn_release()
            self._release.forget_withdrawn()
        self._trouble = None
        self._schedule.note_success()
        self._increment("checks")

    def _leave_withdrawn_release(self) -> None:
        if self._release.leave_if_withdrawn():
            self._increment("withdrawn")

    def _may_try(self, offer: OfferedRelease) -> bool:
        """Whether a release may run here: it has not failed and is not postponed."""
        state = self.store.state
        postponed_digest = state.postponed if state.postponed_s else ""
        return offer.digest not in {*state.refused, *self._skipped_digests, postponed_digest}

    def _run_offer(self, offer: OfferedRelease) -> bool:
        """Run an offered release; return False if it does not fit this device."""
        is_stored = self.store.is_complete(offer.digest)
        if is_stored and self._release.digest == offer.digest:
            return True
        if is_stored:
            release = self.store.read_release(offer.digest)
        else:
            release = self._client.release(offer, self.store.partial_folder / offer.digest)
        misfit = release.misfit_reason(
            model=self.model,
            features=self._device_features,
            runtime=__version__,
            hardware=platform.machine(),
        )
        if misfit is not None:
            _LOG.warning("%s does not fit this device: %s", offer, misfit)
            self._skipped_digests.add(offer.digest)
            return False
        if not is_stored:
            fetch = partial(self._client.fetch, release)
            first_bundle = Path(self._settings.first_bundle)
            self.store.complete_release(offer.digest, release, first_bundle, fetch)
        if self._release.digest == offer.digest:
            self._increment("repaired")
        else:
            self._release.adopt(offer.digest, str(offer))
            self._increment("adopted")
        return True

    def _record_failure(self, error: UpdateError) -> None:
        """Record a failure, and plan a retry."""
        if self._is_stopping:
            return
        if str(error) != self._trouble:
            _LOG.warning("update: %s", error)
        self._trouble = str(error)
        self._increment(error.reason)
        with self._condition:
            self._schedule.plan_retry()

    def _increment(self, counter_name: str) -> None:
        with self._condition:
            self._counts[counter_name] += 1
