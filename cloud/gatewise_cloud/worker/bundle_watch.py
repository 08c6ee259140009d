"""Watched folder of bundles, which a worker serves while they are in the folder.

A bundle that is copied into the folder, under any file name, is verified and served in addition to
the others. Devices name the version that they request. A bundle that is deleted accepts no new
requests, and is closed once its last request is answered. A new version under the same file name
replaces the old one. A bundle that changes but keeps its name and version is refused, because a
version stands for one model.
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
#: Largest number of bundles in the folder, and of files in a bundle.
_MAX_FILES = 1000

#: Name, size and modification time of each file of a bundle.
Fingerprint = tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class _WatchedBundle:
    """State of a bundle in the folder after the last scan."""

    fingerprint: Fingerprint
    was_tried: bool = False
    model_key: ModelKey | None = None
    refusal_message: str = ""


class BundleWatch:
    """Thread that scans a folder every `scan_interval_seconds` seconds.

    Bundles are ``.gwb`` files and directories with a ``manifest.json``. A bundle is loaded only
    if it has not changed between two scans, because a changing bundle may be a partial copy. If the
    server that runs its model is unavailable, each scan tries to load it again. Each scan ends with
    `drop_idle_models`, which closes retired models without requests.
    """

    def __init__(
        self,
        folder: Path,
        models: ServedModels,
        drop_idle_models: Callable[[], None],
        counters: Counters,
        *,
        scan_interval_seconds: float = 2.0,
    ) -> None:
        if not folder.is_dir():
            raise InputError(f"the folder to watch, {folder}, does not exist: make it first")
        self._folder = folder
        self._models = models
        self._drop_idle_models = drop_idle_models
        self._counters = counters
        self._scan_interval_seconds = scan_interval_seconds
        self._bundles: dict[Path, _WatchedBundle] = {}
        self._has_warned_of_limit = False
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gatewise-watch", daemon=True)

    def start(self) -> None:
        """Load the bundles of the folder, then scan in the background."""
        for path, fingerprint in self._compute_fingerprints().items():
            self._bundles[path] = _WatchedBundle(fingerprint)
        self.scan()
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the scans."""
        self._stop_event.set()
        if self._thread.ident is not None:
            self._thread.join()

    def scan(self) -> None:
        """Load new bundles, retire deleted ones, and drop retired ones without requests."""
        fingerprints = self._compute_fingerprints()
        for path in [path for path in self._bundles if path not in fingerprints]:
            self._retire(path, self._bundles.pop(path).model_key)
        for path, fingerprint in fingerprints.items():
            bundle = self._bundles.get(path)
            if bundle is None:
                self._bundles[path] = _WatchedBundle(fingerprint)
            elif bundle.fingerprint != fingerprint:
                bundle.fingerprint = fingerprint
                bundle.was_tried = False
                bundle.refusal_message = ""
            elif not bundle.was_tried:
                bundle.was_tried = True
                self._load(path, bundle)
        self._drop_idle_models()

    def _run(self) -> None:
        while not self._stop_event.wait(self._scan_interval_seconds):
            try:
                self.scan()
            except Exception:  # any error, because the worker must keep serving
                _LOG.exception("the folder %s could not be scanned", self._folder)

    def _load(self, path: Path, bundle: _WatchedBundle) -> None:
        """Serve a bundle, and retire the version that it replaces; log a refusal once."""
        try:
            model_key = self._models.load(path)
        except (GatewiseError, OSError) as error:
            bundle.was_tried = not isinstance(error, BackendBusy)
            if str(error) != bundle.refusal_message:
                _LOG.warning("warning: %s is not served: %s", path.name, error)
                self._counters.add("watched", label="refused")
            bundle.refusal_message = str(error)
        else:
            bundle.refusal_message = ""
            self._counters.add("watched", label="added")
            _LOG.info("serving %s from %s", " ".join(model_key), path.name)
            self._retire(path, bundle.model_key)  # the version that this one replaces
            bundle.model_key = model_key

    def _retire(self, path: Path, model_key: ModelKey | None) -> None:
        """If a bundle that left the folder has a model, accept no new requests for it."""
        if model_key is not None:
            self._counters.add("watched", label="removed")
            self._models.retire(model_key)
            _LOG.info("%s left %s: it accepts no new requests", " ".join(model_key), path.name)
            # try refused bundles again: one of them may be a copy of this one
            for bundle in self._bundles.values():
                bundle.was_tried &= not bundle.refusal_message

    def _compute_fingerprints(self) -> dict[Path, Fingerprint]:
        """Find the bundles in the folder, sorted by name, and compute their fingerprints."""
        fingerprints: dict[Path, Fingerprint] = {}
        for path in sorted(self._folder.iterdir()):
            if len(fingerprints) == _MAX_FILES:
                self._warn_of_limit()
                break
            try:
                if path.suffix == ".gwb" and path.is_file():
                    fingerprints[path] = _compute_fingerprint([path])
                elif path.is_dir() and (path / "manifest.json").is_file():
                    fingerprints[path] = _compute_fingerprint(sorted(path.iterdir())[:_MAX_FILES])
            except FileNotFoundError:  # deleted during the scan
                continue
            except PermissionError:  # loading the bundle will report the error
                fingerprints[path] = ()
        return fingerprints

    def _warn_of_limit(self) -> None:
        """Log once that the folder has more bundles than are served."""
        if not self._has_warned_of_limit:
            message = "warning: at most %d bundles of %s are served"
            _LOG.warning(message, _MAX_FILES, self._folder)
        self._has_warned_of_limit = True


def _compute_fingerprint(files: list[Path]) -> Fingerprint:
    file_states = [(file.name, file.stat()) for file in files]
    return tuple((name, state.st_size, state.st_mtime_ns) for name, state in file_states)
