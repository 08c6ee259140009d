"""Findings of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

CheckName = Literal["installation", "bundle", "broker", "round trip", "worker"]
State = Literal["ok", "problem", "note"]

#: Phrase in remedies that need other rights.
ACCESS_LIST: Final = "the access list (gatewise broker init writes one)"
#: Remedy if the clock is wrong.
SET_CLOCK: Final = "set the clock: timedatectl set-ntp true, or add a clock with a battery"


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one check."""

    check: CheckName
    state: State
    #: Identifier of the problem or note, for programs; empty if the check passes.
    code: str
    #: Description in one line.
    text: str
    #: Advice; empty if there is nothing to do.
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """One of the doctor's checks, which makes findings with its `name`."""

    name: CheckName

    def ok(self, text: str) -> Finding:
        """Make the finding of a check that passes."""
        return Finding(self.name, "ok", "", text)

    def problem(self, code: str, text: str, remedy: str) -> Finding:
        """Make the finding of a check that fails."""
        return Finding(self.name, "problem", code, text, remedy)

    def note(self, code: str, text: str, remedy: str = "") -> Finding:
        """Make a finding that is not a problem, but important for the user."""
        return Finding(self.name, "note", code, text, remedy)


INSTALLATION: Final = Check("installation")
BUNDLE: Final = Check("bundle")
BROKER: Final = Check("broker")
ROUND_TRIP: Final = Check("round trip")
WORKER: Final = Check("worker")
