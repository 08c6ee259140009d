"""A repository with its keys, a web server that can misbehave, and a device that is updated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gatewise_edge import Device
from gatewise_edge.update import Store, Updater, UpdateSettings
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.repository.release import OfferedRelease
from gatewise_export.repository.repository import Repository
from tests.edge.virtual_time import Clock
from tests.support.waiting import wait_until

PATIENCE = 60.0
EASY = [1.0, 0, 0, 0, 0, 0]


class Server:
    """A folder over HTTP on a free port of the loopback.

    `behave` has a function for each path, or "" for all, that gets the handler in place of the
    file; `asked` are the paths so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.behave: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # clients that go away

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        behave = self.behave.get(handler.path) or self.behave.get("")
        if behave is not None:
            behave(handler)
            return
        path = self.folder / handler.path.lstrip("/")
        content = path.read_bytes() if path.is_file() else b""
        handler.send_response(200 if path.is_file() else 404)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def fetched(self, what: str) -> list[str]:
        """Names of the targets of a version that were fetched, in order."""
        part = f"/targets/small/{what}/"
        return [path.split(".", 1)[1] for path in self.asked if path.startswith(part)]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Fleet:
    """An operator's repository, and versions of the small bundle."""

    def __init__(self, folder: Path, make_bundle: Callable[..., Bundle]) -> None:
        self.repository = Repository.init(folder / "repo")
        self.folder = self.repository.folder
        self.trust = self.repository.root_file
        self._make = make_bundle

    def add(self, version: str, bundle: Bundle | None = None, **how: Any) -> None:
        self.repository.add((bundle or self._make(f"v{version}", version=version)).path, **how)

    def publish(self, version: str, rollout: float = 1.0) -> OfferedRelease:
        if f"small/{version}" not in map(str, self.repository.offers()):
            self.add(version)
        return self.repository.publish(f"small/{version}", rollout)


class Running:
    """A device with its updater, as `gatewise edge` makes them.

    The first `failed` bundles of the store are passed over, as those that did not open.
    """

    def __init__(self, store: Store, fleet: Fleet, first: Path, **how: Any) -> None:
        self.store = store
        path = next(iter(store.start()[how.pop("failed", 0) :]), first)
        defaults = {
            "urls": [fleet.folder.as_uri()],
            "trust": fleet.trust,
            "device": "pi-1",
            "trial_answers": 3,
            "trial_seconds": 0.0,
            "gap": 0.0,
        }
        deadline_ms = how.pop("deadline_ms", 5e3)
        special = {key: how.pop(key) for key in ("link", "clock") if key in how}
        settings = UpdateSettings(first=first, **(defaults | how))
        self.updater = Updater(store, settings, **special)
        names = Bundle.open(first, for_device=True).manifest.feature_names
        opened = Bundle.open(path, for_device=True)
        self.device = Device(
            opened, link=special.get("link"), observe=self.updater.observe, deadline_ms=deadline_ms,
            row_names=names,
        )  # fmt: skip
        self.updater.start(self.device)

    @property
    def version(self) -> str:
        return self.device.bundle.manifest.version

    def news(self) -> None:
        """Tell it that there is news, as a message does."""
        self.updater.receive_announcement(b"")

    def settled(self) -> None:
        """Wait until a check has ended that began after now."""

        reasons = ("checks", "metadata", "fetch", "store", "bundle", "self-test")

        def ended() -> int:
            return sum(self.updater.counters[name] for name in reasons)

        # One may be under way.
        for _ in range(2):
            before = ended()
            self.news()
            wait_until(lambda n=before: ended() > n, "a check", PATIENCE)

    def reaches(self, version: str) -> None:
        """Wait until it runs a version, and its trial has begun if there is one."""
        self.news()

        def there() -> bool:
            on_trial = self.store.state.on_trial
            return self.version == version and self.updater._trial.running == on_trial

        wait_until(there, f"version {version}", PATIENCE)

    def counts(self, what: str, number: int = 1) -> None:
        """Wait until a counter of the updater has reached a number."""
        wait_until(lambda: self.updater.counters[what] >= number, what, PATIENCE)

    def refuses(self, reason: str, version: str) -> None:
        """Wait until one more check has failed; it answers with what it had."""
        before = self.updater.counters[reason]
        self.news()
        self.counts(reason, before + 1)
        assert self.updater.trouble
        assert self.version == version
        assert self.device.answer(EASY).route == "edge"

    def fails(self) -> None:
        """Observe errors until the version on trial is left."""
        before = self.updater.counters["rolled_back"]
        for _ in range(5):
            self.updater.observe(ValueError())
        self.counts("rolled_back", before + 1)

    def passes(self) -> None:
        """Answer until the trial has ended."""

        def over() -> bool:
            self.device.answer(EASY)
            return not self.store.state.on_trial

        wait_until(over, "the trial", PATIENCE)

    def close(self) -> None:
        self.updater.close()
        self.device.close()


@pytest.fixture
def fleet(tmp_path: Path, make_bundle: Callable[..., Bundle]) -> Fleet:
    return Fleet(tmp_path, make_bundle)


@pytest.fixture
def first(make_bundle: Callable[..., Bundle]) -> Path:
    return make_bundle("first").path


@pytest.fixture
def server(fleet: Fleet) -> Iterator[Server]:
    server = Server(fleet.folder)
    yield server
    server.close()


@pytest.fixture
def at_8(run: Callable[..., Running], fleet: Fleet, server: Server) -> Running:
    """A device at version 8, proved, that has seen the newest metadata."""
    fleet.publish("8")
    device = run(urls=[server.url], timeout=1.0)
    device.reaches("8")
    device.passes()
    return device


@pytest.fixture
def run(tmp_path: Path, fleet: Fleet, first: Path) -> Iterator[Callable[..., Running]]:
    """Start the device; again, after `close`, with the same store."""
    made: list[Running] = []

    def run(**how: Any) -> Running:
        store = Store(tmp_path / "store", pause=how.pop("pause", 600.0))
        made.append(Running(store, fleet, first, **how))
        return made[-1]

    yield run
    for running in made:
        running.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def on_trial(run, fleet, server, clock):
    """A device that tries version 8 and would have to answer often."""
    fleet.publish("8")
    device = run(urls=[server.url], trial_answers=20, clock=clock)
    device.reaches("8")
    return device
