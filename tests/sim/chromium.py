"""A real browser without a screen, by the DevTools protocol over a pipe: no port, no library.

Plain helper; the fixture is ``browser`` in ``conftest.py``.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PATIENCE = 120.0


def find_chromium() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def _pipe() -> tuple[int, int]:
    """Ends of a pipe out of the way of the numbers that the browser wants."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


class Chromium:
    """A browser process; :meth:`page` opens a page in it."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="gatewise-chromium-")
        reads, self._write = _pipe()
        self._read, writes = _pipe()
        # The browser reads commands from file descriptor 3 and writes to 4; the shell that puts
        # them there becomes the browser.
        plumbing = f'exec "$0" "$@" 3<&{reads} 4>&{writes} {reads}<&- {writes}>&-'
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-breakpad",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._folder}",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", plumbing, program, *flags],
            pass_fds=(reads, writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reads)
        os.close(writes)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for what it gives; events on the way are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._next(f"an answer to {method}")
            if got.get("id") == self._number:
                assert "error" not in got, f"{method}: {got['error']}"
                return got["result"]
            self.events.append(got)

    def until(self, method: str, session: str) -> None:
        """Wait for an event of a page."""
        while not any(e.get("method") == method and e.get("sessionId") == session
                      for e in self.events):  # fmt: skip
            self.events.append(self._next(method))

    def _next(self, what: str) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            left = end - time.monotonic()
            assert left > 0, f"waited {_PATIENCE} s in vain for {what}"
            if select.select([self._read], [], [], left)[0]:
                some = os.read(self._read, 1 << 16)
                assert some, f"the browser ended, status {self._process.poll()}"
                self._buffer += some
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def page(self, url: str, width: int = 1200, **how: Any) -> Page:
        """Open a page, loaded."""
        return Page(self, url, width, **how)

    def close(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(20)
        except ProcessLookupError:
            pass
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._folder, ignore_errors=True)


class Page:
    """A page of a browser, `width` CSS pixels wide."""

    def __init__(
        self,
        browser: Chromium,
        url: str,
        width: int,
        *,
        dark: bool = False,
        media: str = "screen",
    ) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width)
        self.call("Emulation.setScrollbarsHidden", hidden=True)  # as on phones
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", media=media,
                  features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip
        self._url = url
        failed = self.call("Page.navigate", url=url).get("errorText")
        assert failed is None, f"{url}: {failed}"
        browser.until("Page.loadEventFired", self._session)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                        awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    @property
    def accessible(self) -> list[dict[str, Any]]:
        """The tree that screen readers see, without what they skip."""
        self.call("Accessibility.enable")
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [n for n in nodes if not n.get("ignored")]

    @property
    def troubles(self) -> list[str]:
        """What the page wrote to the console, and what it broke."""
        kinds = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        self.run("1")  # all that came before is known then
        return [json.dumps(e["params"]) for e in self._events if e["method"] in kinds]

    @property
    def requests(self) -> list[str]:
        """Where it sent requests to, itself apart."""
        asked = [e["params"]["request"]["url"] for e in self._events
                 if e["method"] == "Network.requestWillBeSent"]  # fmt: skip
        return [url for url in asked if url != self._url]

    @property
    def _events(self) -> list[dict[str, Any]]:
        return [e for e in self._browser.events if e.get("sessionId") == self._session]

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
