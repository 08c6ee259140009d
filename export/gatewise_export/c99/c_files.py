"""Files of C: their mark, the prefix of their names, how they are written."""

from __future__ import annotations

import re
from pathlib import Path

from gatewise import __version__
from gatewise.errors import InputError

MARK = "Written by gatewise"
"""In the first line of every file."""
TAKEN = {
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else",
    "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "main", "register",
    "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef",
    "union", "unsigned", "void", "volatile", "while",
}  # fmt: skip


def template_names(prefix: str) -> dict[str, str]:
    """What every template takes: the mark, the version, the prefix of names."""
    return {"mark": MARK, "version": __version__, "p": prefix, "P": prefix.upper()}


def identifier(name: str) -> str:
    """Check that a name can begin names of C."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) or name in TAKEN:
        raise InputError(
            f"name {name!r} cannot begin names of C: take small letters, digits and '_', "
            "beginning with a letter, and no word of the language"
        )
    return name


def identifier_from(title: str) -> str:
    """Make an identifier of a bundle's name."""
    word = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")[:40]
    return word if re.match(r"[a-z]", word) and word not in TAKEN else f"model_{word}".rstrip("_")


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write all files, after looking that none of them would replace another's."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder")
    for file in files:
        path = folder / file
        if path.exists() and MARK not in path.read_text(errors="replace")[:200]:
            raise InputError(f"{path} exists and is not of Gatewise: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="ascii")
