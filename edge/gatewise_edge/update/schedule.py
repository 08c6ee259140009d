"""The times at which a device checks its repository."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from gatewise_edge.update.settings import UpdateSettings

#: Mean pause (s) before a failed check is repeated. It doubles with each further failure, up to the
#: maximum. A short network fault thus barely delays an update, and a device notices within minutes
#: that a server works again.
_FIRST_PAUSE_SECONDS: Final = 2.0
_MAX_PAUSE_SECONDS: Final = 300.0
#: Largest number of times that a pause is doubled. Without it, 2.0 ** n_failures could overflow.
_MAX_DOUBLINGS: Final = 30


class CheckSchedule:
    """The time of the next check, `next_at`, in seconds on `clock`.

    Every time is drawn at random, so that the devices of a fleet do not check all at once.
    `n_failures` is the number of checks that failed in a row.
    """

    def __init__(self, settings: UpdateSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self.next_at = clock() + random.uniform(0.0, settings.announcement_spread)
        self._last_at = -settings.min_interval  # the first announcement need not wait
        self.n_failures = 0

    def plan_regular_check(self) -> None:
        """Plan the next check; call this at the beginning of a check."""
        self._last_at = self._clock()
        self.next_at = self._last_at + self._settings.interval * random.uniform(0.75, 1.25)

    def plan_announced_check(self) -> None:
        """Plan a check after an announcement."""
        drawn_at = self._clock() + random.uniform(0.0, self._settings.announcement_spread)
        earliest_at = self._last_at + self._settings.min_interval
        self.next_at = min(self.next_at, max(drawn_at, earliest_at))

    def note_success(self) -> None:
        """Let the next failure be the first one."""
        self.n_failures = 0

    def plan_retry(self) -> None:
        """Plan a check after a failure."""
        pause_s = _FIRST_PAUSE_SECONDS * 2.0 ** min(self.n_failures, _MAX_DOUBLINGS)
        pause_s = min(pause_s, _MAX_PAUSE_SECONDS, self._settings.interval)
        self.n_failures += 1
        self.next_at = min(self.next_at, self._clock() + pause_s * random.uniform(0.5, 1.5))
