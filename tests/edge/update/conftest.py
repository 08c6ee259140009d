"""Fixtures: a repository with its keys, a web server with faults, and a device with an updater."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gatewise_edge import Device
from gatewise_edge.update import Store, Updater, UpdateSettings
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.repacking import repack
from gatewise_export.repository.release import OfferedRelease
from gatewise_export.repository.repository import Repository
from tests.support.small_bundle import SURE_ROW
from tests.support.waiting import wait_until

#: Seconds to wait for an event on a loaded machine.
TIMEOUT_S = 60.0
#: Errors in a row that fail a trial, which needs three of them.
N_FAILING_ERRORS = 5


class Server:
    """A web server for a folder, on a free port of the loopback interface.

    `handlers` maps a path, or "" for all paths, to a function that handles the request instead of
    sending the file. `requested_paths` lists the paths of all requests.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requested_paths: list[str] = []
        self.handlers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.respond(self)

            def log_message(self, *_: object) -> None:
                pass

        class QuietServer(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # clients disconnect early

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        # The server looks every 20 ms whether it must stop.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        self.requested_paths.append(handler.path)
        handle = self.handlers.get(handler.path) or self.handlers.get("")
        if handle is not None:
            handle(handler)
            return
        path = self.folder / handler.path.lstrip("/")
        content = path.read_bytes() if path.is_file() else b""
        handler.send_response(200 if path.is_file() else 404)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def requested_files(self, version: str) -> list[str]:
        """Names of the files of a version that were requested, in order."""
        prefix = f"/targets/small/{version}/"
        # A path ends with HASH.NAME.
        return [path.split(".", 1)[1] for path in self.requested_paths if path.startswith(prefix)]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Fleet:
    """An operator's repository of versions of the small bundle."""

    def __init__(self, folder: Path, make_bundle: Callable[..., Bundle]) -> None:
        self.repository = Repository.init(folder / "repo")
        self.folder = self.repository.folder
        self.trust = self.repository.root_file
        self._make_bundle = make_bundle

    def add(
        self,
        version: str,
        bundle: Bundle | None = None,
        *,
        private_key: Path | None = None,
        hardware: Sequence[str] = (),
    ) -> None:
        bundle = bundle or self._make_bundle(f"v{version}", version=version)
        if private_key is not None:
            repack(bundle.path, bundle.path, sign=private_key)
        self.repository.add(bundle.path, hardware=hardware)

    def publish(self, version: str, rollout: float = 1.0) -> OfferedRelease:
        if f"small/{version}" not in map(str, self.repository.offers()):
            self.add(version)
        return self.repository.publish(f"small/{version}", rollout)


class UpdatedDevice:
    """A device with its updater, made like those of `gatewise edge`.

    The first `n_skipped` bundles of the store are skipped, as if they did not open.
    """

    def __init__(self, store: Store, fleet: Fleet, first_path: Path, **options: Any) -> None:
        self.store = store
        n_skipped = options.pop("n_skipped", 0)
        bundle_path = next(iter(store.start()[n_skipped:]), first_path)
        # A trial ends after three answers, and each announcement causes a check at once.
        default_options = {
            "urls": [fleet.folder.as_uri()],
            "trust": fleet.trust,
            "device": "pi-1",
            "trial_answers": 3,
            "trial_seconds": 0.0,
            "min_interval": 0.0,
        }
        deadline_ms = options.pop("deadline_ms", 5e3)  # met also on a loaded machine
        link_and_clock = {key: options.pop(key) for key in ("link", "clock") if key in options}
        settings = UpdateSettings(first_bundle=first_path, **(default_options | options))
        self.updater = Updater(store, settings, **link_and_clock)
        row_names = Bundle.open(first_path, for_device=True).manifest.feature_names
        bundle = Bundle.open(bundle_path, for_device=True)
        self.device = Device(
            bundle, link=link_and_clock.get("link"), observe=self.updater.observe,
            deadline_ms=deadline_ms, row_names=row_names,
        )  # fmt: skip
        self.updater.start(self.device)

    @property
    def version(self) -> str:
        return self.device.bundle.manifest.version

    def announce(self) -> None:
        """Announce a release to the updater, like a message of the broker."""
        self.updater.receive_announcement(b"")

    def wait_for_check(self) -> None:
        """Wait until a check that began after this call has ended."""

        # Each check adds to "checks" if it succeeds, else to the reason of its failure.
        counter_names = ("checks", "metadata", "fetch", "store", "bundle", "self-test")

        def count_checks() -> int:
            return sum(self.updater.counters[name] for name in counter_names)

        # Wait for two checks, because one may have begun before.
        for _ in range(2):
            n_checks_before = count_checks()
            self.announce()
            wait_until(
                lambda n_checks=n_checks_before: count_checks() > n_checks, "a check", TIMEOUT_S
            )

    def wait_for_version(self, version: str) -> None:
        """Announce a release, and wait until the device runs `version`, on trial or not."""
        self.announce()

        def runs_version() -> bool:
            is_on_trial = self.store.state.is_on_trial
            return self.version == version and self.updater._trial.is_running == is_on_trial

        wait_until(runs_version, f"version {version}", TIMEOUT_S)

    def wait_for_count(self, counter_name: str, min_count: int = 1) -> None:
        """Wait until a counter of the updater has reached a count."""
        wait_until(
            lambda: self.updater.counters[counter_name] >= min_count, counter_name, TIMEOUT_S
        )

    def wait_for_refusal(self, reason: str, version: str) -> None:
        """Wait until a check has failed, and test that the device still runs `version`."""
        n_failures_before = self.updater.counters[reason]
        self.announce()
        self.wait_for_count(reason, n_failures_before + 1)
        assert self.updater.trouble
        assert self.version == version
        assert self.device.answer(SURE_ROW).route == "edge"

    def fail_trial(self) -> None:
        """Observe errors until the version on trial is rolled back."""
        n_rollbacks_before = self.updater.counters["rolled_back"]
        for _ in range(N_FAILING_ERRORS):
            self.updater.observe(ValueError())
        self.wait_for_count("rolled_back", n_rollbacks_before + 1)

    def pass_trial(self) -> None:
        """Answer until the trial has ended."""

        def has_ended() -> bool:
            self.device.answer(SURE_ROW)
            return not self.store.state.is_on_trial

        wait_until(has_ended, "the trial", TIMEOUT_S)

    def close(self) -> None:
        self.updater.close()
        self.device.close()


@pytest.fixture
def fleet(tmp_path: Path, make_bundle: Callable[..., Bundle]) -> Fleet:
    return Fleet(tmp_path, make_bundle)


@pytest.fixture
def first_path(make_bundle: Callable[..., Bundle]) -> Path:
    return make_bundle("first").path


@pytest.fixture
def server(fleet: Fleet) -> Iterator[Server]:
    server = Server(fleet.folder)
    yield server
    server.close()


@pytest.fixture
def device_at_8(
    run_device: Callable[..., UpdatedDevice], fleet: Fleet, server: Server
) -> UpdatedDevice:
    """A device that runs version 8 after its trial, and has the newest metadata."""
    fleet.publish("8")
    device = run_device(urls=[server.url], timeout=1.0)
    device.wait_for_version("8")
    device.pass_trial()
    return device


@pytest.fixture
def run_device(
    tmp_path: Path, fleet: Fleet, first_path: Path
) -> Iterator[Callable[..., UpdatedDevice]]:
    """Start a device; further calls start devices with the same store."""
    devices: list[UpdatedDevice] = []

    def run_device(**options: Any) -> UpdatedDevice:
        first_pause_s = options.pop("first_pause_s", 600.0)  # the default of a store
        store = Store(tmp_path / "store", first_pause_s=first_pause_s)
        devices.append(UpdatedDevice(store, fleet, first_path, **options))
        return devices[-1]

    yield run_device
    for device in devices:
        device.close()


@pytest.fixture
def device_on_trial(run_device, fleet, server, clock):
    """A device with version 8 on trial, which needs 20 answers to pass."""
    fleet.publish("8")
    device = run_device(urls=[server.url], trial_answers=20, clock=clock)
    device.wait_for_version("8")
    return device
