"""A device that is updated, and kills itself before one of its changes to the disk.

Run as a process by test_kills; prints its version when the update is over.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from gatewise_edge import Device, MqttLink
from gatewise_edge.update import Store, Updater
from gatewise_export.bundle.bundle import Bundle

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.truncate")


def say(line: str) -> None:
    """Print a line whole, whichever thread it is on."""
    os.write(1, f"{line}\n".encode())


def main() -> None:
    settings = json.loads(sys.argv[1])
    left, lock = settings["changes"], threading.Lock()

    def before(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        writes = (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if (event not in CHANGES and not writes) or settings["store"] not in str(args[0]):
            return
        with lock:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    store = Store(settings["store"], public_key=settings["pub"])
    path = store.start() or settings["first"]
    bundle = Bundle.open(path, public_key=settings["pub"], for_device=True)
    link = MqttLink(settings["broker"], device="pi-1")
    over = threading.Event()

    def progress(step: str) -> None:
        say(step)
        if step in ("done", "refused"):
            over.set()

    updater = Updater(
        link,
        store,
        model="small",
        public_key=settings["pub"],
        hosts=[settings["host"]],
        ca_file=settings["ca_file"],
        first=settings["first"],
        trial_answers=1,
        progress=progress,
    )
    if left >= 0:
        sys.addaudithook(before)
    with Device(bundle, link=link, observe=updater.observe) as device, updater:
        updater.start(device)
        say(f"started {bundle.manifest.version}")
        end = time.monotonic() + settings["wait"]
        # "known": it was taken already, and the process before this one died thereafter
        while not (over.wait(0.02) or updater.counters["known"]):
            if time.monotonic() > end:
                sys.exit("nothing was announced")
        while store.state().trial:
            device.answer([1.0, 0, 0, 0, 0, 0])
        say(f"version {device.bundle.manifest.version}")


if __name__ == "__main__":
    main()
