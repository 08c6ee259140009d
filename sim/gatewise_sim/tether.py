"""``python -m gatewise_sim.tether COMMAND ...``: a command that ends with its owner.

Runs ``gatewise COMMAND ...`` and, when standard input closes, asks it to finish as SIGTERM
does. The owner holds the other end of that pipe, so that even one that was killed leaves
nothing running behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from gatewise_sim.cli import main

__all__: list[str] = []


def _follow_owner() -> None:
    # The descriptor itself: a thread inside sys.stdin's buffer would block the exit.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_follow_owner, name="tether", daemon=True).start()
    sys.exit(main())
