"""Devices and publishers in processes of their own, killed at a change of the disk."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gatewise_edge import Device
from gatewise_edge.update import Store, Updater, UpdateSettings
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.repository.repository import Repository

#: Audited events that change the disk; opening a file for writing is one as well.
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink")
#: Time in which a device that is not killed has to reach its target.
SECONDS = 30.0
ROW = [5.0, 3.4, 1.5, 0.2]


@dataclass(frozen=True)
class Life:
    """A device or a publisher that is killed before one of its changes to the disk.

    `folder` is the store of the device or the repository; `n_changes` the number of changes before
    the kill, None for no kill. A device has its `repository`, the root metadata that it trusts and
    its first bundle, and ends at version `target`; a publisher does `action` with `argument`.
    """

    folder: Path
    n_changes: int | None = None
    repository: Path = Path()
    trust: Path = Path()
    first: Path = Path()
    target: str = ""
    action: str = ""
    argument: str = ""


def live(life: Life, pipe: Connection) -> None:
    """Live in a process; reports the versions of a device, and the number of changes."""
    n_changes = 0
    lock = threading.Lock()

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal n_changes
        is_writing = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
        )
        if not (event in CHANGES or is_writing) or str(life.folder) not in str(arguments[:2]):
            return
        with lock:
            if n_changes == life.n_changes:
                os.kill(os.getpid(), signal.SIGKILL)
            n_changes += 1

    sys.addaudithook(count)
    if life.action:
        publish(Repository(life.folder), life.action, life.argument)
    else:
        _update(life, pipe)
    pipe.send(("changes", n_changes))


def publish(repository: Repository, action: str, argument: str) -> None:
    """Change a repository."""
    if action == "publish":
        repository.publish(f"iris/{argument}")
    elif action == "rollback":
        repository.rollback(f"iris/{argument}")
    elif action == "rotate":
        repository.rotate_key(argument)
    elif action == "add":
        repository.add(argument)
    else:
        repository.refresh()


def _update(life: Life, pipe: Connection) -> None:
    """Be a device until it runs its target, proved, or time is over."""
    store = Store(life.folder, pause=0.05)
    path = next(iter(store.start()), life.first)
    bundle = Bundle.open(path, for_device=True)
    settings = UpdateSettings(
        urls=[life.repository.as_uri()],
        trust=life.trust,
        first=life.first,
        device="pi-1",
        trial_answers=2,
        trial_seconds=0.0,
        interval=0.1,
    )
    updater = Updater(store, settings)
    with Device(bundle, observe=updater.observe) as device, updater:
        device.answer(ROW)
        version = device.bundle.manifest.version
        pipe.send(("started", version))
        updater.start(device)
        end = time.monotonic() + SECONDS
        while version != life.target or store.state.on_trial:
            device.answer(ROW)
            time.sleep(0.002)
            if version != device.bundle.manifest.version:
                version = device.bundle.manifest.version
                pipe.send(("running", version))
            if time.monotonic() > end:
                pipe.send(("late", f"{version}: {updater.trouble}"))
                return
        pipe.send(("reached", version))
