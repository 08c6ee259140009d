"""Files in deploy/, and checks of their commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gatewise.cli import build_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
#: Settings of `gatewise broker init` for the containers, as in the README.
CONTAINER_SETTINGS = {
    "at": "/mosquitto/config",
    "data": "/mosquitto/data",
    "plugin": "/usr/lib/mosquitto_dynamic_security.so",
    "bind_ids": False,
}


def read_documents(path: str | Path) -> list[Any]:
    """Read the documents of a YAML file in deploy/."""
    documents = yaml.safe_load_all((DEPLOY / path).read_text())
    return [document for document in documents if document is not None]


def check_command(command_words: list[str]) -> None:
    """Assert that every option of a `gatewise` command line exists."""
    name, *arguments = command_words
    command: Any = build_command(name)
    if arguments and arguments[0] in getattr(command, "commands", {}):
        command = command.commands[arguments[0]]
    known_options = {
        word
        for parameter in command.params
        for word in (*parameter.opts, *parameter.secondary_opts)
    }
    used_options = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    assert used_options <= known_options, f"{name}: {used_options - known_options} do not exist"
