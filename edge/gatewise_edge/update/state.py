"""State of a device's updates in two files, so that one survives if the other is damaged.

Each file has the whole state and its checksum. They are written one after the other, and the newer
undamaged one is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import field

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
from gatewise_export.bundle.storage import replace_file

_LOG = logging.getLogger(__name__)
#: File names of the state.
_STATE_FILES: Final = ("state.json", "state.copy.json")
#: Largest number of bytes to read of a state file. A state has a few kilobytes, but a damaged file
#: may have any size.
_MAX_STATE_BYTES: Final = 64 << 10
_Count = Annotated[int, Meta(ge=0)]


class State(Record, frozen=True):
    """State of the updates, which is kept over restarts.

    A release is identified by its digest. An empty digest stands for the bundle with which the
    device was set up. The active release is on trial if it is not the proved one.

    Attributes
    ----------
    revision : int
        Number of the state's last write.
    device : str
        Random id, for staged rollouts to a device without an id.
    active : str
        Release to run.
    proved, previous : str
        Last release that passed its trial, and the one that passed before it.
    n_good, n_bad : int
        Answers in time of the release on trial, and its late answers and errors.
    trial_seconds : float
        Running time of the release on trial.
    n_starts : int
        Starts of the release on trial since its last answer.
    n_bad_before, n_answers_before : int
        Late answers and errors of the release that ran before the trial, and all its answers.
    postponed : str
        Release that gave no answer in several starts.
    postponed_s : float
        Running time in seconds until the device tries `postponed` again.
    n_postponements : int
        Number of times that `postponed` was postponed.
    refused : tuple of str
        Releases that failed on this device, the latest last.
    seen_versions : dict
        See :data:`gatewise_export.repository.client.SeenVersions`.
    """

    revision: _Count = 0
    device: str = field(default_factory=lambda: secrets.token_hex(8))
    active: str = ""
    proved: str = ""
    previous: str = ""
    n_good: _Count = 0
    n_bad: _Count = 0
    trial_seconds: Amount = 0.0
    n_starts: _Count = 0
    n_bad_before: _Count = 0
    n_answers_before: _Count = 0
    postponed: str = ""
    postponed_s: Finite = 0.0
    n_postponements: _Count = 0
    refused: tuple[str, ...] = ()
    seen_versions: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def is_on_trial(self) -> bool:
        """Whether the active release is on trial."""
        return self.active != self.proved

    @property
    def trial_counts(self) -> dict[str, Any]:
        """Counts with which :meth:`.Trial.begin` continues the trial."""
        names = ("n_good", "n_bad", "trial_seconds")
        return {name: getattr(self, name) for name in names}

    @property
    def digests(self) -> list[str]:
        """Releases to keep in the store, in the order in which a start tries them."""
        digests = [self.active, self.proved if self.is_on_trial else self.previous]
        return [digest for digest in digests if digest]


class _StateDocument(Record, frozen=True):
    """Content of a state file."""

    state: State
    sha256: str


def read_state(folder: Path) -> tuple[State, bool]:
    """Read the newer undamaged state file; return its state, and whether the state was lost."""
    states = []
    has_damaged_file = False
    for file_name in _STATE_FILES:
        try:
            with (folder / file_name).open("rb") as file:
                states.append(_decode_state(file.read(_MAX_STATE_BYTES + 1)))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, DocumentError):
            _LOG.error("%s is ignored: it is damaged or cannot be read", folder / file_name)
            has_damaged_file = True
    if not states:
        return State(), has_damaged_file
    return max(states, key=lambda state: state.revision), False


def write_state(folder: Path, state: State) -> None:
    """Write both state files, one after the other; raise OSError."""
    # Convert the state as reading does, because 1 and 1.0 have different checksums.
    state = convert(plain_values(state), State)
    content = encode_json(_StateDocument(state, _checksum(state)), indent=1)
    for file_name in _STATE_FILES:
        replace_file(folder / file_name, content)


def _checksum(state: State) -> str:
    return hashlib.sha256(json.dumps(plain_values(state), sort_keys=True).encode()).hexdigest()


def _decode_state(content: bytes) -> State:
    document = decode_json(content, _StateDocument, "state.json")
    if _checksum(document.state) != document.sha256:
        raise DocumentError("state.json", "sha256", "does not match: the file is damaged")
    return document.state
