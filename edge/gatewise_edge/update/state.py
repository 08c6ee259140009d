"""The state of updates on the disk: two copies, each with a checksum.

A copy that is cut off, or in which a bit has flipped, is not used; the other one is. Where both
are lost, nothing is removed: what the folder holds is found by its hashes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.json_reader import JsonField
from gatewise_export.bundle.storage import replace_file

_LOG = logging.getLogger(__name__)
_COPIES: Final = ("state.json", "state.copy.json")
_MOST_BYTES: Final = 64 << 10


@dataclass(frozen=True)
class State:
    """What is kept over restarts. Releases are named by the SHA-256 of their ``release.json``.

    `number` rises with each writing; `device` is a random id, for staged rollouts of a device
    without a name. `active`, `proved`, `previous`: the release to run, the last one that passed its
    trial, and the one that had before; empty: the bundle that the device was set up with. If the
    first two differ, the active one is on trial, of which `good`, `bad`, `seconds` and `starts` are
    the answers in time, late ones and errors, running time, and starts since the last answer.
    `waiting`: a release that did not come to its first answer; `wait`: the running time until it is
    tried again; `waits`: how often it has been put off. `refused`: releases that failed here, the
    latest last. `seen`: see :data:`gatewise_export.repository.client.Seen`.
    """

    number: int = 0
    device: str = field(default_factory=lambda: secrets.token_hex(8))
    active: str = ""
    proved: str = ""
    previous: str = ""
    good: int = 0
    bad: int = 0
    seconds: float = 0.0
    starts: int = 0
    waiting: str = ""
    wait: float = 0.0
    waits: int = 0
    refused: tuple[str, ...] = ()
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def on_trial(self) -> bool:
        """Whether the active release has still to prove itself."""
        return self.active != self.proved

    @property
    def kept(self) -> list[str]:
        """The active release and one that has proved itself, the best to run first."""
        found = [self.active, self.proved if self.on_trial else self.previous]
        return [digest for digest in found if digest]


def read_state(folder: Path) -> tuple[State, bool]:
    """Read the newer of the whole copies; also whether a state was lost."""
    found, lost = [], False
    for name in _COPIES:
        try:
            with (folder / name).open("rb") as file:
                found.append(_read(file.read(_MOST_BYTES + 1)))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ManifestError):
            _LOG.error("%s is not used: it is damaged, or cannot be read", folder / name)
            lost = True
    if not found:
        return State(), lost
    return max(found, key=lambda state: state.number), False


def write_state(folder: Path, state: State) -> None:
    """Write both copies, one after the other; raises OSError."""
    content = {"state": asdict(state), "sha256": _checksum(asdict(state))}
    text = json.dumps(content, indent=1).encode()
    for name in _COPIES:
        replace_file(folder / name, text)


def _checksum(state: object) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _read(text: bytes) -> State:
    document = JsonField.parse(text)
    state = document["state"]
    if _checksum(state.value) != document["sha256"].value:
        document["sha256"].fail("does not fit: the file is damaged")
    state.keys([f.name for f in fields(State)])
    refused = tuple(state["refused"].value)
    seen = {role: (version, keys) for role, (version, keys) in state["seen"].value.items()}
    return State(**(state.value | {"refused": refused, "seen": seen}))
