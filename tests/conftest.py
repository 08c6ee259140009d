"""What every test relies on."""

from __future__ import annotations

import signal

# A shell that starts the tests in the background has them ignore SIGINT, and so would every
# process that they start; Ctrl-C is among the things tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
