"""A watched folder of bundles: new ones are served, deleted ones are dropped.

Copy a bundle in, under a name that does not matter, and it is verified and served beside the
others; devices name the version that they ask for. Delete it, and it takes no new request, and
is closed once those that it took are answered. Put a new version in its place, and it is served
for the old one. A bundle that changes but keeps its name and version is refused: a version is one
model.
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
_MOST_FILES = 1000

Mark = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of each file of a bundle."""


@dataclass(slots=True)
class _Seen:
    mark: Mark
    tried: bool = False
    key: ModelKey | None = None
    refusal: str = ""


class BundleWatch:
    """Scans a folder now and then, on a thread of its own.

    Its ``.gwb`` files, and its directories with a ``manifest.json``, are bundles. One is loaded
    when two scans saw it the same, so that one that is being copied in is not read half-way, and
    again at each scan while the server that is to run its model is away.
    `pending` counts the requests for a model that are queued or running.
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
        self._seen: dict[Path, _Seen] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gatewise-watch", daemon=True)

    def start(self) -> None:
        """Load what is there now, then scan in the background."""
        for path, mark in self._bundles().items():
            self._seen[path] = _Seen(mark)
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
        there = self._bundles()
        for path in [path for path in self._seen if path not in there]:
            self._retire(path, self._seen.pop(path).key)
        for path, mark in there.items():
            seen = self._seen.get(path)
            if seen is None:
                self._seen[path] = _Seen(mark)
            elif seen.mark != mark:
                seen.mark, seen.tried, seen.refusal = mark, False, ""
            elif not seen.tried:
                seen.tried = True
                self._load(path, seen)
        for key in self._models.retired:
            if not self._pending(key):
                self._models.drop(key)

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self.scan()
            except Exception:  # whatever lies in the folder, the worker keeps serving
                _LOG.exception("the folder %s could not be scanned", self._folder)

    def _load(self, path: Path, seen: _Seen) -> None:
        try:
            key = self._models.load(path)
        except (GatewiseError, OSError) as error:
            seen.tried = not isinstance(error, BackendBusy)
            if str(error) != seen.refusal:
                _LOG.warning("warning: %s is not served: %s", path.name, error)
                self._counters.add("watched", label="refused")
            seen.refusal = str(error)
        else:
            seen.refusal = ""
            self._counters.add("watched", label="added")
            _LOG.info("serving %s from %s", " ".join(key), path.name)
            self._retire(path, seen.key)  # the version that it had before
            seen.key = key

    def _retire(self, path: Path, key: ModelKey | None) -> None:
        if key is not None:
            self._counters.add("watched", label="removed")
            self._models.retire(key)
            _LOG.info("%s left %s: it takes no new request", " ".join(key), path.name)

    def _bundles(self) -> dict[Path, Mark]:
        """Bundles in the folder, in order of their names, with their marks."""
        found: dict[Path, Mark] = {}
        for path in sorted(self._folder.iterdir())[:_MOST_FILES]:
            try:
                if path.suffix == ".gwb" and path.is_file():
                    found[path] = _mark([path])
                elif path.is_dir() and (path / "manifest.json").is_file():
                    found[path] = _mark(sorted(path.iterdir())[:_MOST_FILES])
            except FileNotFoundError:  # deleted meanwhile
                continue
            except PermissionError:  # loading it says so
                found[path] = ()
        return found


def _mark(files: list[Path]) -> Mark:
    stats = [(file.name, file.stat()) for file in files]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
