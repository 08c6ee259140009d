"""A watched folder of bundles: new ones are served, deleted ones are dropped.

A bundle that is copied in, under any name, is verified and served in addition to the others;
devices name the version that they request. A bundle that is deleted takes no new request, and is
closed once its last request is answered. A new version under the same file name replaces the old
one. A bundle that changes but keeps its name and version is refused: a version is one model.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gatewise.errors import GatewiseError, InputError
from gatewise_cloud.errors import BackendBusy
from gatewise_cloud.worker.batcher import ModelKey
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.served_models import ServedModels

_LOG = logging.getLogger("gatewise_cloud")
_MAX_FILES = 1000

Mark = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of each file of a bundle."""


@dataclass(slots=True)
class _Entry:
    """A bundle of the folder, as the last scans saw it."""

    mark: Mark
    is_tried: bool = False
    key: ModelKey | None = None
    refusal: str = ""


class BundleWatch:
    """Scans a folder every few `seconds`, on a thread of its own.

    Its ``.gwb`` files, and its directories with a ``manifest.json``, are bundles. One is loaded
    after two scans without a change, so that half a copy is not read, and again at each scan while
    the server that runs its model is away. `pending` counts the requests for a model that are
    queued or running.
    """

    def __init__(
        self,
        folder: Path,
        models: ServedModels,
        pending: Callable[[ModelKey], int],
        counters: Counters,
        *,
        seconds: float = 2.0,
    ) -> None:
        if not folder.is_dir():
            raise InputError(f"the folder to watch, {folder}, does not exist: make it first")
        self._folder = folder
        self._models = models
        self._pending = pending
        self._counters = counters
        self._seconds = seconds
        self._entries: dict[Path, _Entry] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gatewise-watch", daemon=True)

    def start(self) -> None:
        """Load the bundles of the folder, then scan in the background."""
        for path, mark in self._bundles().items():
            self._entries[path] = _Entry(mark)
        self.scan()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the scans."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def scan(self) -> None:
        """Load new bundles, retire deleted ones, drop those without requests."""
        marks = self._bundles()
        for path in [path for path in self._entries if path not in marks]:
            self._retire(path, self._entries.pop(path).key)
        for path, mark in marks.items():
            entry = self._entries.get(path)
            if entry is None:
                self._entries[path] = _Entry(mark)
            elif entry.mark != mark:
                entry.mark = mark
                entry.is_tried = False
                entry.refusal = ""
            elif not entry.is_tried:
                entry.is_tried = True
                self._load(path, entry)
        for key in self._models.retired:
            if not self._pending(key):
                self._models.drop(key)

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self.scan()
            except Exception:  # whatever lies in the folder, the worker keeps serving
                _LOG.exception("the folder %s could not be scanned", self._folder)

    def _load(self, path: Path, entry: _Entry) -> None:
        try:
            key = self._models.load(path)
        except (GatewiseError, OSError) as error:
            entry.is_tried = not isinstance(error, BackendBusy)
            if str(error) != entry.refusal:
                _LOG.warning("warning: %s is not served: %s", path.name, error)
                self._counters.add("watched", label="refused")
            entry.refusal = str(error)
        else:
            entry.refusal = ""
            self._counters.add("watched", label="added")
            _LOG.info("serving %s from %s", " ".join(key), path.name)
            self._retire(path, entry.key)  # the version that it had before
            entry.key = key

    def _retire(self, path: Path, key: ModelKey | None) -> None:
        if key is not None:
            self._counters.add("watched", label="removed")
            self._models.retire(key)
            _LOG.info("%s left %s: it takes no new request", " ".join(key), path.name)

    def _bundles(self) -> dict[Path, Mark]:
        """Bundles in the folder, in order of their names, with their marks."""
        marks: dict[Path, Mark] = {}
        for path in sorted(self._folder.iterdir())[:_MAX_FILES]:
            try:
                if path.suffix == ".gwb" and path.is_file():
                    marks[path] = _mark([path])
                elif path.is_dir() and (path / "manifest.json").is_file():
                    marks[path] = _mark(sorted(path.iterdir())[:_MAX_FILES])
            except FileNotFoundError:  # deleted meanwhile
                continue
            except PermissionError:  # loading it reports the error
                marks[path] = ()
        return marks


def _mark(files: list[Path]) -> Mark:
    stats = [(file.name, file.stat()) for file in files]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
