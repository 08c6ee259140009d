"""A pacer's state in a JSON file, written so that a power cut leaves the old one or the new one."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Final

from gatewise.errors import InputError
from gatewise_edge.device.pacer import Pacer
from gatewise_export.bundle.storage import replace_file

_LOG = logging.getLogger(__name__)

#: Seconds between two writes: memory cards wear out.
_EVERY: Final = 60.0


class PacerFile:
    """A pacer's state file, for restarts.

    The pacer continues from the file at once if there is a usable one. One that is damaged or of
    another budget is logged and written anew.
    """

    def __init__(self, pacer: Pacer, path: str | Path) -> None:
        self._pacer = pacer
        self._path = Path(path)
        self._written: float | None = None
        self._failed = False
        self._writing = threading.Lock()
        try:
            pacer.restore(json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, AttributeError, InputError) as error:
            _LOG.warning("pacer state %s is not used: %s", self._path, error)

    def save_when_due(self, now: float) -> None:
        """Write the file in the background if a minute has passed; `now` in seconds, steady."""
        if self._written is None:
            self._written = now
        if now - self._written >= _EVERY:
            self._written = now
            # A memory card may take a second to take it.
            threading.Thread(target=self.save, name="gatewise-pacer", daemon=True).start()

    def save(self) -> None:
        """Write the file. What goes wrong is logged, once: answers matter more."""
        with self._writing:
            try:
                text = json.dumps(self._pacer.state(), allow_nan=False)
                replace_file(self._path, text.encode())
                self._failed = False
            except OSError as error:
                if not self._failed:
                    _LOG.warning("pacer state %s cannot be written: %s", self._path, error)
                self._failed = True
