"""``python -m gatewise_sim.live.run_with_parent``: a command that ends with its owner.

The first line on standard input is ``{"arguments": ["cloud", ...]}``. Runs ``gatewise`` with
them and, when standard input closes, asks it to finish as SIGTERM does. The owner holds the
other end of that pipe, so that even one that was killed leaves nothing running behind. What a
cloud worker needs is loaded before that line is read: an owner may hold it back, and then has a
worker that begins almost at once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading

from gatewise.cli import main

__all__: list[str] = []


def _arguments() -> list[str]:
    # The descriptor itself: a thread inside the buffer of sys.stdin would block the exit.
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            sys.exit(1)
        line += more
    arguments: list[str] = json.loads(line)["arguments"]
    return arguments


def _follow_owner() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # the command says what is missing, and what to do
        importlib.import_module("gatewise_cloud.service._child")
    arguments = _arguments()
    threading.Thread(target=_follow_owner, name="tether", daemon=True).start()
    sys.exit(main(arguments))
