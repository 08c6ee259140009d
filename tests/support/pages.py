"""Run of the examples of a documentation page, block after block, in one folder."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from tests.support.ports import free_port
from tests.support.processes import run_in_process
from tests.support.waiting import wait_until

DOCTEST_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: Ports on pages, which tests replace by free ones.
BROKER_PORT = "1883"
SECURE_PORT = "8883"
ENROLMENT_PORT = "8884"
#: Line by which Gatewise, mosquitto or an answering device shows that it is ready.
READY_PATTERN = re.compile(r"ready:|mosquitto version \S+ running|^\{\"row\"", re.M)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line_number: int


def find_blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    text = page.read_text()
    for match in re.finditer(r"^```([\w-]*)\n(.*?)^```", text, re.M | re.S):
        yield Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)


class Shell:
    """A shell in a folder; lines that end with `&` run in the background until it is closed.

    Parameters
    ----------
    folder : Path
        Working directory.
    port : int, optional
        Port that replaces the broker's port 1883.
    secure_port : int, optional
        Port that replaces the secured broker's port 8883.
    runs_here : bool
        Run ``gatewise`` commands without redirections in this process, which saves their imports.
    """

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        secure_port: int | None = None,
        runs_here: bool = False,
    ) -> None:
        scripts = Path(sys.executable).parent
        self.folder = folder
        self.environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
        self.environment["COLUMNS"] = "100"
        self._port = port
        self._secure_port = secure_port
        self._runs_here = runs_here
        self._enrolment_port = free_port()
        self._background_processes: list[subprocess.Popen[str]] = []

    def run(self, text: str) -> str:
        """Run lines and return their standard output; AssertionError if one fails.

        Commands with `&&` between them are run like lines.
        """
        joined_text = re.sub(r"\\\n\s*", "", text).replace(" && ", "\n")
        return "".join(self._run_line(line) for line in joined_text.splitlines() if line.strip())

    def _run_line(self, line: str) -> str:
        command = re.sub(r"\s+#\s.*", "", line).strip()
        if self._port is not None:
            command = command.replace("gatewise broker", f"gatewise broker --port {BROKER_PORT}")
            command = command.replace(BROKER_PORT, str(self._port))
        if self._secure_port is not None:
            option = f"broker init broker --port {self._secure_port}"
            command = command.replace("broker init broker", option)
            command = command.replace(SECURE_PORT, str(self._secure_port))
            command = command.replace(ENROLMENT_PORT, str(self._enrolment_port))
        if command.endswith("&"):
            self._start(command.removesuffix("&").strip())
            return ""
        if self._runs_here and re.fullmatch(r"gatewise [^|&;<>$()`*?]*", command):
            with patch.dict(os.environ, self.environment):
                process = run_in_process(*shlex.split(command)[1:], folder=self.folder)
        else:
            process = subprocess.run(
                ["bash", "-ec", command], cwd=self.folder, env=self.environment,
                capture_output=True, text=True, timeout=280,
            )  # fmt: skip
        end_of_output = f"{process.stdout[-2000:]}\n{process.stderr[-2000:]}"
        assert process.returncode == 0, f"{command}\n{end_of_output}"
        return process.stdout

    def _start(self, command: str) -> None:
        """Start a service, and wait until its output shows that it is ready."""
        log_path = self.folder / f".{len(self._background_processes)}.log"
        with log_path.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-ec", f"exec {command}"], cwd=self.folder, env=self.environment,
                stdout=file, stderr=file, text=True,
            )  # fmt: skip
        self._background_processes.append(process)
        wait_until(
            lambda: READY_PATTERN.search(log_path.read_text()) or process.poll() is not None,
            command,
        )
        assert process.poll() is None, log_path.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for background_process in reversed(self._background_processes):
            background_process.terminate()
            background_process.wait(60)


def run_page(page: Path, shell: Shell | None = None) -> None:
    """Run the ``>>>`` examples of a page and, with a shell, the lines of its ``sh`` blocks.

    A ``text`` block after an ``sh`` block is the expected output, in which ``...`` matches any
    text.
    """
    variables: dict[str, Any] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=DOCTEST_FLAGS)
    output: str | None = None
    for block in find_blocks(page):
        if block.language == "sh" and shell is not None:
            output = shell.run(block.text)
            continue
        if block.language == "text" and output is not None:
            is_as_expected = doctest.OutputChecker().check_output(block.text, output, DOCTEST_FLAGS)
            expectation = f"{page.name}:{block.line_number} expects\n{block.text}"
            assert is_as_expected, f"{expectation}\nbut the output is\n{output}"
        elif ">>>" in block.text:
            examples = doctest.DocTestParser().get_doctest(
                block.text, variables, page.name, str(page), block.line_number
            )
            runner.run(examples, clear_globs=False)
            variables = examples.globs
            assert not runner.failures, f"{page.name}:{block.line_number}"
        output = None
