"""Device and publisher processes that are killed before a change to the disk."""

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

#: Audit events that change the disk, in addition to opening a file for writing.
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink")
#: Time limit for a device to reach its target.
TIME_LIMIT_S = 30.0
#: A row of Iris, which the bundles of the task are trained on.
ROW = [5.0, 3.4, 1.5, 0.2]


@dataclass(frozen=True)
class KillableTask:
    """Settings of a device or publisher process that may be killed.

    `folder` is the store of a device or the repository of a publisher. The process is killed after
    `max_changes` changes to the disk, or not at all for None. A device updates from `repository`
    with the root metadata `root_file` and the first bundle `first_bundle`, and ends at version
    `target_version`. A publisher performs `action` with `argument`.
    """

    folder: Path
    max_changes: int | None = None
    repository: Path = Path()
    root_file: Path = Path()
    first_bundle: Path = Path()
    target_version: str = ""
    action: str = ""
    argument: str = ""


def run_task(task: KillableTask, pipe: Connection) -> None:
    """Run a device or a publisher; send the device's versions and the number of changes."""
    n_changes = 0
    lock = threading.Lock()

    def count_change(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal n_changes
        # the arguments of "open" are path, mode and flags; those of the others start with paths
        opens_for_writing = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
        )
        is_in_folder = str(task.folder) in str(arguments[:2])
        if not is_in_folder or not (event in CHANGES or opens_for_writing):
            return
        with lock:
            if n_changes == task.max_changes:
                os.kill(os.getpid(), signal.SIGKILL)
            n_changes += 1

    sys.addaudithook(count_change)
    if task.action:
        change_repository(Repository(task.folder), task.action, task.argument)
    else:
        _update_device(task, pipe)
    pipe.send(("changes", n_changes))


def change_repository(repository: Repository, action: str, argument: str) -> None:
    """Perform one action on a repository."""
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


def _update_device(task: KillableTask, pipe: Connection) -> None:
    """Run a device until its target has passed its trial or the time limit is reached."""
    store = Store(task.folder, first_pause_s=0.05)
    path = next(iter(store.start()), task.first_bundle)
    bundle = Bundle.open(path, for_device=True)
    settings = UpdateSettings(
        urls=[task.repository.as_uri()],
        trust=task.root_file,
        first_bundle=task.first_bundle,
        device="pi-1",
        # a short trial and interval, because the benchmark repeats the update for every change
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
        deadline = time.monotonic() + TIME_LIMIT_S
        while version != task.target_version or store.state.is_on_trial:
            device.answer(ROW)
            time.sleep(0.002)
            if version != device.bundle.manifest.version:
                version = device.bundle.manifest.version
                pipe.send(("running", version))
            if time.monotonic() > deadline:
                pipe.send(("late", f"{version}: {updater.trouble}"))
                return
        pipe.send(("reached", version))
