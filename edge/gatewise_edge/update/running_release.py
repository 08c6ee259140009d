"""The release that a device runs: how it changes, passes its trial, fails it or is withdrawn."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from gatewise.errors import GatewiseError, InputError
from gatewise_edge.errors import SelfTestError
from gatewise_edge.service.release_status import ReleaseStatus
from gatewise_edge.update.settings import UpdateSettings
from gatewise_edge.update.store import Store
from gatewise_edge.update.trial import Trial
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.repository.release import UpdateError

if TYPE_CHECKING:
    from gatewise_edge.device.device import Device

_LOG = logging.getLogger(__name__)


class RunningRelease:
    """Let a device run releases of a store; only one thread may call the methods.

    A release is identified by its digest, and the first bundle by an empty digest. Each change of
    the release first saves the choice, so that a device that is killed meanwhile starts with the
    new release. Then the device adopts it.

    Attributes
    ----------
    digest : str
        The running release.
    valid_digests : set of str
        Releases that the repository has not withdrawn.
    """

    def __init__(
        self, store: Store, settings: UpdateSettings, trial: Trial, status: ReleaseStatus
    ) -> None:
        self.digest = ""
        self.valid_digests: Set[str] = {store.state.proved, store.state.previous}
        self._store = store
        self._first_bundle_path = Path(settings.first_bundle)
        self._public_key = settings.public_key
        self._trial = trial
        self._status = status
        self._device: Device | None = None

    def begin(self, device: Device) -> bool:
        """Begin with the release that a device started with, and continue its trial.

        Returns
        -------
        bool
            False if the active release, which was not on trial, did not start. It must not be tried
            again before the next start.
        """
        self._device = device
        store = self._store
        state = store.state
        self.digest = store.digest_of(device.bundle.path)
        is_skipped = False
        if self.digest == state.active:
            if state.is_on_trial:
                previous_counts = state.n_bad_before, state.n_answers_before
                self._trial.begin(**state.trial_counts, previous_counts=previous_counts)
            elif self.digest in state.refused:
                other_digests = (digest for digest in state.refused if digest != self.digest)
                store.save(refused=tuple(other_digests))
        elif store.is_complete(state.active) and state.is_on_trial:
            _LOG.error("release %s does not run on this device", state.active)
            store.refuse(state.active, active=state.proved)
        elif store.is_complete(state.active):
            # it ran before, so a wrong option or a sensor may be the cause
            _LOG.error("release %s did not start; the next start tries it again", state.active)
            is_skipped = True
        self._status.begin(device)
        return not is_skipped

    @property
    def name(self) -> str:
        """Model and version of the running bundle."""
        assert self._device is not None
        return self._device.bundle.manifest.release

    def adopt(self, digest: str, release_name: str) -> None:
        """Run a complete release, on trial unless it has passed a trial before.

        If the release does not run, the previous one continues.

        Raises
        ------
        UpdateError
            If the choice cannot be saved, or if the bundle is not the release of this name, cannot
            be read, or fails its self-test.
        """
        device = self._device
        assert device is not None
        state_before = self._store.state
        previous_counts = self._trial.previous_counts
        self._save_new_release(digest, previous_counts)
        self._trial.end()
        try:
            bundle = self._open_bundle(digest)
            if bundle.manifest.release != release_name:
                raise UpdateError("bundle", f"the files of {release_name} are those of {bundle!r}")
            device.adopt(bundle)
        except (SelfTestError, BundleError, InputError, UpdateError) as error:
            self._store.refuse(
                digest,
                active=state_before.active,
                n_starts=state_before.n_starts,
                **state_before.trial_counts,
            )
            if self._store.state.is_on_trial:
                # continue with the counts from before the check
                self._trial.begin(**state_before.trial_counts, previous_counts=previous_counts)
            self._status.publish()
            reason = "self-test" if isinstance(error, SelfTestError) else "bundle"
            raise UpdateError(reason, f"{release_name} is refused: {error}") from None
        self.digest = digest
        if self._store.state.is_on_trial:
            self._trial.begin()
        self._status.begin(device)
        self._store.remove_old_releases()
        _LOG.info("%s is active%s", release_name, ", on trial" if self._trial.is_running else "")

    def _save_new_release(self, digest: str, previous_counts: tuple[int, int]) -> None:
        """Save that the device runs a release, with the counts of the one before.

        Without a saved choice, only the proved release may run. Raises UpdateError.
        """
        state_before = self._store.state
        n_bad_before, n_answers_before = previous_counts
        is_saved = self._store.save(
            active=digest,
            n_good=0,
            n_bad=0,
            trial_seconds=0.0,
            n_starts=1,
            n_bad_before=n_bad_before,
            n_answers_before=n_answers_before,
            **self._withdrawal_changes(digest),
        )
        if not is_saved and digest != state_before.proved:
            self._store.save(active=state_before.active)
            raise UpdateError("store", str(self._store.trouble))

    def end_passed_trial(self) -> None:
        """Record that the active release has passed its trial."""
        self._trial.end()
        state = self._store.state
        self._store.save(
            proved=state.active, previous=state.proved, n_starts=0, postponed="", n_postponements=0
        )
        self._status.publish()
        self._store.remove_old_releases()
        _LOG.info("%s has passed its trial", self.name)

    def roll_back(self) -> None:
        """Replace a release that failed its trial with the last one that passed."""
        self._trial.end()
        _LOG.error("%s failed its trial: %s", self.name, self._trial)
        self._store.refuse(self.digest, active=self._store.state.proved)
        self._return_to([self._store.state.proved])

    def leave_if_withdrawn(self) -> bool:
        """Run an earlier release if the running one was withdrawn; return whether it was."""
        if not self.digest or self.digest in self.valid_digests:
            return False
        self._trial.end()
        state = self._store.state
        _LOG.warning("%s was withdrawn", self.name)
        digests = (state.proved, state.previous)
        self._return_to([digest for digest in digests if digest in self.valid_digests])
        return True

    def forget_withdrawn(self) -> None:
        """Change the state so that no later start runs a withdrawn release."""
        if changes := self._withdrawal_changes(self._store.state.active):
            self._store.save(**changes)

    def _withdrawal_changes(self, active: str) -> dict[str, str]:
        """Changes of the state with which later starts run `active` or a valid release."""
        state = self._store.state
        valid_digests = {"", active, *self.valid_digests}
        return {
            name: "" for name in ("proved", "previous") if getattr(state, name) not in valid_digests
        }

    def _return_to(self, digests: Sequence[str]) -> None:
        """Run the first of the releases `digests` that opens, or else the first bundle.

        This needs no network, and works on a disk that cannot be written.
        """
        assert self._device is not None
        for digest in dict.fromkeys([*digests, ""]):
            try:
                bundle = self._open_bundle(digest)
                choice = {"active": digest, "proved": digest, "n_starts": 0}
                self._store.save(**self._withdrawal_changes(digest) | choice)
                self._device.adopt(bundle)
            except GatewiseError as error:
                _LOG.error("cannot return to %s: %s", digest or self._first_bundle_path, error)
                continue
            self.digest = digest
            self._store.remove_old_releases()
            break
        self._status.begin(self._device)

    def _open_bundle(self, digest: str) -> Bundle:
        path = self._store.path(digest) if digest else self._first_bundle_path
        return Bundle.open(path, public_key=self._public_key, for_device=True)
