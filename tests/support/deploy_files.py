"""Files in deploy/, and checks of their commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gatewise.cli import build

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
#: Settings of `gatewise broker init` for the containers, as in the README.
CONTAINER = {
    "at": "/mosquitto/config",
    "data": "/mosquitto/data",
    "plugin": "/usr/lib/mosquitto_dynamic_security.so",
    "bind_ids": False,
}


def read(path: str | Path) -> list[Any]:
    """Read the documents of a YAML file in deploy/."""
    documents = yaml.safe_load_all((DEPLOY / path).read_text())
    return [document for document in documents if document is not None]


def check_command(words: list[str]) -> None:
    """Assert that every option of a `gatewise` command line exists."""
    name, *arguments = words
    command: Any = build(name)
    if arguments and arguments[0] in getattr(command, "commands", {}):
        command = command.commands[arguments[0]]
    options = {word for p in command.params for word in (*p.opts, *p.secondary_opts)}
    used = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    assert used <= options, f"{name}: {used - options} do not exist"
