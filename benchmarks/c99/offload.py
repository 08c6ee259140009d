"""Offloads of the generated C client to a real worker, over a link with delays and cuts."""

from __future__ import annotations

import random
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gatewise_export.bundle.bundle import Bundle
from gatewise_export.c99.board_libraries import write_library

#: Names of the states of m_wire.h, at the position of their numbers.
STATES = ("idle", "waiting", "answered", "refused", "timeout", "unsent")
ANSWERED = STATES.index("answered")
#: Deadline of a request in offload_program.c.
DEADLINE_MS = 200
#: More warnings than for models, because an application compiles the client with its own flags.
STRICT_FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-O2")


class FaultyLink:
    """TCP relay to a port with delays of 0 to 20 ms and a cut every 0.2 to 1.2 s.

    Delays are far below :data:`DEADLINE_MS`, and at most one cut hits most requests. The worker
    therefore answers either the first or the second publication.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._random = random.Random(0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.n_cuts = 0
        self._sockets: list[socket.socket] = []
        self._is_open = True

    def __enter__(self) -> Self:
        for function in (self._accept, self._cut):
            threading.Thread(target=function, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while self._is_open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._port))
            self._sockets += [client, broker]
            for source, sink in ((client, broker), (broker, client)):
                # without this option, the relay itself would delay small packets
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(65536):
                # most chunks pass at once, like the packets of a good link
                time.sleep(self._random.choice((0, 0, 0, 0.005, 0.02)))
                sink.sendall(chunk)

    def _cut(self) -> None:
        while self._is_open:
            time.sleep(self._random.uniform(0.2, 1.2))
            # replace the list first, because new connections must survive until the next cut
            cut_sockets, self._sockets = self._sockets, []
            self.n_cuts += bool(cut_sockets)
            for connection in cut_sockets:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()


def measure_offload(bundle: Bundle, rows: NDArray[np.float32], *, json: bool) -> dict[str, Any]:
    """Offload hard rows from C; count the outcomes and the wrong answers."""
    from gatewise_cloud import MosquittoBroker, Worker
    from gatewise_export.packing.verification import graph_decisions

    expected = graph_decisions(bundle, rows).labels
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        write_library(bundle, folder, "cmake", name="m")
        program = Path(__file__).parent / "offload_program.c"
        files = [program, folder / "src/m.c", folder / "src/m_wire.c"]
        flags = (*STRICT_FLAGS, f"-DM_WIRE_JSON={int(json)}", "-I", folder / "include")
        libraries = ("-lmosquitto", "-lm")
        subprocess.run(["cc", *flags, *files, "-o", folder / "offload", *libraries], check=True)
        with MosquittoBroker() as broker, Worker(bundle.path, broker.url):
            port = int(re.findall(r":(\d+)", broker.url)[-1])
            with FaultyLink(port) as link:
                completed_process = subprocess.run(
                    [folder / "offload", "127.0.0.1", str(link.port), "board-1"],
                    input=rows.tobytes(),
                    capture_output=True,
                    check=True,
                )
    # five int32 per row; see offload_program.c
    outcomes = np.frombuffer(completed_process.stdout, np.int32).reshape(-1, 5)
    states, labels, durations_ms, n_published, n_received = outcomes.T
    is_answered = states == ANSWERED
    return {
        "rows": len(rows),
        "outcomes": len(outcomes),
        "kinds": dict(Counter(STATES[state] if state >= 0 else "stage" for state in states)),
        "wrong_answers": int((labels != expected)[is_answered].sum()),
        "cuts": link.n_cuts,
        "retried": int((n_published == 2).sum()),
        "published_more_than_twice": int((n_published > 2).sum()),
        # an answered row has received one message, any other row none
        "messages_after_the_end": int((n_received - is_answered).clip(0).sum()),
        "largest_ms": int(durations_ms.max()),
        "median_ms_of_answers": float(np.median(durations_ms[is_answered])),
        "deadline_ms": DEADLINE_MS,
    }
