"""Server that imports the packages of AFABench once and forks for each script of its pipeline.

    python warm_interpreter.py SOCKET LOG

The pipeline starts hundreds of scripts, and most of them take longer to import than to run. A
client sends a script and its arguments as a line of JSON and receives the exit status. The server
appends the CPU seconds of each script to LOG.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import sys
import traceback
from pathlib import Path

#: Packages that the pipeline's scripts import, slow ones and those of this project.
IMPORTS = (
    *("hydra", "lightning", "pandas", "polars", "sklearn.metrics", "torchrl", "wandb"),
    *("afabench.common.classifiers", "afabench.common.datasets.datasets"),
    "gatewise_training.cascades.staged",
)

#: Stand-in for the interpreter; without the module ``site`` (-S) it starts in a few ms.
CLIENT = """#!{python} -S
import json, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({socket!r})
    connection.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    sys.exit(int(connection.makefile().readline()))
"""


def serve(socket_path: str, log_path: str) -> None:
    """Serve clients one at a time until the process is killed."""
    for name in IMPORTS:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(socket_path)
        server.listen()
        while True:
            connection, _address = server.accept()
            with connection:
                arguments = json.loads(connection.makefile().readline())
                pid = os.fork()
                if pid == 0:
                    os._exit(_run_script(arguments))
                _pid, status, usage = os.wait4(pid, 0)
                with Path(log_path).open("a") as log:
                    print(json.dumps([usage.ru_utime + usage.ru_stime, *arguments]), file=log)
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _run_script(arguments: list[str]) -> int:
    """Run a script in this process like the interpreter; return its exit status."""
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).parent)
    status = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as exit_request:
        status = (
            exit_request.code
            if isinstance(exit_request.code, int)
            else int(exit_request.code is not None)
        )
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    serve(*sys.argv[1:])
