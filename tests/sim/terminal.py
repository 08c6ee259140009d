"""A terminal for a child process: a pseudo terminal, and a screen that understands what is sent."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

_PATIENCE = 120.0
_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")

#: A session leader that opens a terminal has it as its own: Ctrl-C comes from there.
_OWN = """\
import os, runpy, sys
os.close(os.open(os.ttyname(2), os.O_RDWR))
sys.argv = ["gatewise", *sys.argv[1:]]
from gatewise.cli import main
sys.exit(main())
"""


class Screen:
    """Lines of text as a terminal shows them."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows = [[" "] * width for _ in range(height)]
        self.x = self.y = 0
        self.cursor = True
        self.colours: set[str] = set()
        self._rest = ""

    def feed(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
                continue
            found = _CONTROL.match(text, at)
            if found is None:  # the rest is still to come
                assert len(text) - at < 20, repr(text[at : at + 30])
                self._rest = text[at:]
                return
            self._control(*found.groups())
            at = found.end()

    def _put(self, char: str) -> None:
        if char == "\n":
            if self.y < self.height - 1:
                self.y += 1
            else:
                self.rows = [*self.rows[1:], [" "] * self.width]
        elif char == "\r":
            self.x = 0
        else:
            assert char.isprintable(), repr(char)
            if self.x == self.width:
                self.x = 0
                self._put("\n")
            self.rows[self.y][self.x] = char
            self.x += 1

    def _control(self, number: str, letter: str) -> None:
        match letter, number:
            case "A", _:
                self.y = max(self.y - int(number or 1), 0)
            case "K", "2":
                self.rows[self.y] = [" "] * self.width
            case "J", "2":
                self.rows = [[" "] * self.width for _ in range(self.height)]
            case "H", "":
                self.x = self.y = 0
            case "h" | "l", "?25":
                self.cursor = letter == "h"
            case "m", _:
                self.colours |= {n for n in number.split(";") if n[:1] in "349" and len(n) == 2}
            case _:
                raise AssertionError(f"unknown control {number}{letter}")

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.rows]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip()


class Session:
    """The ``gatewise`` command with standard error on a terminal, standard output in a pipe."""

    def __init__(
        self, *args: str, cwd: Path, width: int = 80, height: int = 24, **env: str
    ) -> None:
        self._master, slave = os.openpty()
        self.screen = Screen(width, height)
        self._size(width, height)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        clean = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWN, *args],
            cwd=cwd,
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=slave,
            start_new_session=True,
            env={**clean, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **env},
        )
        os.close(slave)
        assert self.process.stdout is not None
        self._out: list[bytes] = []
        self._reader = threading.Thread(
            target=lambda out: self._out.append(out.read()), args=(self.process.stdout,)
        )
        self._reader.start()

    def _size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def resize(self, width: int, height: int) -> None:
        """Make the window another one, which breaks the lines that it shows anew."""
        self._size(width, height)
        old, self.screen = self.screen, Screen(width, height)
        self.screen.feed("\r\n".join(old.lines[: old.y + 1]))
        self.screen.cursor, self.screen.colours = old.cursor, old.colours

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, true: Callable[[Screen], object]) -> None:
        """Read until the screen shows something."""
        deadline = time.monotonic() + _PATIENCE
        while not true(self.screen):
            assert time.monotonic() < deadline, self.screen.text
            assert self._read(), f"ended ({self.process.poll()}):\n{self.screen.text}"

    def wait(self) -> int:
        """Read to the end; gives the exit status."""
        deadline = time.monotonic() + _PATIENCE
        while self._read():
            assert time.monotonic() < deadline, self.screen.text
        return self.process.wait(_PATIENCE)

    @property
    def out(self) -> str:
        """All of standard output, at the end."""
        self._reader.join(_PATIENCE)
        return b"".join(self._out).decode()

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        try:
            some = os.read(self._master, 1 << 16)
        except OSError:  # nobody holds the other end any more
            return False
        self.screen.feed(self._decode(some))
        return bool(some)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(_PATIENCE)
        self._reader.join(_PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.close(self._master)
