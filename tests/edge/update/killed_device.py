"""A device with an updater that kills itself before one of its changes to the disk.

test_kills runs it as a process. It reports its version at the start and after the update.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gatewise_edge import Device
from gatewise_edge.update import Store, Updater, UpdateSettings
from gatewise_export.bundle.bundle import Bundle

#: Audit events of Python that change the disk, in addition to opening a file for writing.
CHANGE_EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink")

#: Row for which stage 0 of the small bundle stops, so that it needs no cloud.
SURE_ROW = [1.0, 0, 0, 0, 0, 0]


def run_device(settings: dict[str, Any], pipe: Connection) -> None:
    """Run the device until the version has passed its trial or a timeout.

    It kills itself after `n_changes` changes to its store, or never if the number is negative.
    """
    n_changes_left = settings["n_changes"]
    lock = threading.Lock()

    def count_change(event: str, arguments: tuple[object, ...]) -> None:
        """Kill the process before the change that is one too many."""
        nonlocal n_changes_left
        # The arguments of "open" are path, mode and flags.
        is_writing = (
            event == "open"
            and isinstance(arguments[2], int)
            and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        # Other events begin with one or two paths.
        if (event not in CHANGE_EVENTS and not is_writing) or settings["store"] not in str(
            arguments[:2]
        ):
            return
        with lock:
            n_changes_left -= 1
            if n_changes_left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    if n_changes_left >= 0:
        sys.addaudithook(count_change)
    # Short pauses and a short trial, because a test runs dozens of devices.
    store = Store(settings["store"], first_pause_s=0.1)
    bundle_path = next(iter(store.start()), Path(settings["first"]))
    bundle = Bundle.open(bundle_path, for_device=True)
    updater = Updater(
        store,
        UpdateSettings(
            urls=[settings["url"]],
            trust=settings["trust"],
            first_bundle=settings["first"],
            device="pi-1",
            trial_answers=2,
            trial_seconds=0.0,
            interval=0.2,
        ),
    )
    with Device(bundle, observe=updater.observe) as device, updater:
        device.answer(SURE_ROW)
        pipe.send(f"started {bundle.manifest.version}")
        updater.start(device)
        deadline = time.monotonic() + settings["timeout_s"]
        while device.bundle.manifest.version != settings["version"] or store.state.is_on_trial:
            device.answer(SURE_ROW)
            time.sleep(0.002)  # so that the updater's thread gets the processor
            if time.monotonic() > deadline:
                pipe.send(f"version {settings['version']} does not run: {updater.trouble}")
                sys.exit(1)
        pipe.send(f"version {device.bundle.manifest.version}")
