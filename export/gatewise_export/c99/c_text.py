"""Write C text: fill templates, format names, numbers and constant tables, and save files."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise import __version__
from gatewise.errors import InputError
from gatewise.models.leaf_tables import width

WIDTH = 96
#: Sizes of C types in bytes.
SIZES = {
    "int8_t": 1,
    "int16_t": 2,
    "int32_t": 4,
    "uint8_t": 1,
    "uint16_t": 2,
    "uint32_t": 4,
    "float": 4,
}
#: Text in the first line of every generated file; a file without it is never replaced.
MARK = "Written by gatewise"
#: Keywords of C99 (6.4.1), and ``main``, which the example program defines.
RESERVED_WORDS = frozenset(
    re.findall(
        r"\w+",
        "auto break case char const continue default do double else enum extern float for goto if "
        "inline int long main register restrict return short signed sizeof static struct switch "
        "typedef union unsigned void volatile while",
    )
)
#: Start of a template line that names the section below it.
SECTION = "//// "


def filled(file: str, section: str = "", **values: object) -> str:
    """Fill the placeholders ``${name}`` in a template, or in one section of it."""
    return Template(sections(file)[section]).substitute(values)


@functools.cache
def sections(file: str) -> dict[str, str]:
    """Read the sections of a template by name; ``""`` is the text before the first section."""
    text = (resources.files(__package__) / "templates" / file).read_text("ascii")
    head, *bodies = ("\n" + text.removesuffix("\n")).split("\n" + SECTION)
    named = dict(body.split("\n", 1) for body in bodies)
    return {"": head[1:] + "\n"} | {name: body + "\n" for name, body in named.items()}


def needed(texts: Mapping[str, str], calls: str) -> dict[str, str]:
    """Select the C functions and types that `calls` uses, directly or through each other.

    >>> needed({"one": "one() {}", "two": "two() { one(); }", "three": "three() {}"}, "two();")
    {'one': 'one() {}', 'two': 'two() { one(); }'}
    """
    names: set[str] = set()
    unread = [calls]
    while unread:
        text = unread.pop()
        new = {name for name in texts if re.search(rf"\b{name}(\(| \w+;)", text)} - names
        names |= new
        unread += [texts[name] for name in new]
    return {name: text for name, text in texts.items() if name in names}


def unsigned(largest: int) -> str:
    """Name the smallest unsigned C type that holds `largest`; size estimates use its `width`."""
    return f"uint{8 * width(largest)}_t"


def number(value: float) -> str:
    """Format a float32 value as a C constant, exact to the bit (hexadecimal, C99 6.4.4.2).

    >>> number(0.5), number(-3.0), number(float("-inf"))
    ('0x1p-1f', '-0x1.8p+1f', '-INFINITY')
    """
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "-INFINITY" if value < 0 else "INFINITY"
    if value == 0:
        return "-0.0f" if math.copysign(1, value) < 0 else "0.0f"
    mantissa, exponent = float(value).hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}f"


def safe(value: object) -> str:
    """Replace all characters but ASCII letters and digits by ``_``."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in str(value))


def enumerated(prefix: str, values: Sequence[object]) -> str:
    """Write the lines of an enum: one constant per value, numbered from 0, with distinct names.

    >>> print(enumerated("M_CLASS", ["hot-dog", "hot dog"]))
        M_CLASS_HOT_DOG = 0,
        M_CLASS_HOT_DOG_1 = 1
    """
    names: dict[str, None] = {}  # a set in order
    for i, value in enumerate(values):
        name = f"{prefix}_{safe(value).upper()}"
        while name in names:
            name += f"_{i}"
        names[name] = None
    return ",\n".join(f"    {name} = {i}" for i, name in enumerate(names))


def quoted(value: object) -> str:
    r"""Format a text as a C string constant in UTF-8, with octal escapes for non-ASCII bytes.

    >>> print(quoted('a "b" é'))
    "a \042b\042 \303\251"
    """
    plain = set(range(0x20, 0x7F)) - set(b'"\\?')  # ??/ would be a trigraph
    text = "".join(chr(b) if b in plain else f"\\{b:03o}" for b in str(value).encode())
    return f'"{text}"'


class Tables:
    """Constant tables of one C file, in the order in which they were added.

    `aliases` maps typedef names to C types; `nbytes` is the total size of the arrays.
    """

    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        self._parts: list[str] = []
        self._aliases = dict(aliases or {})
        self.nbytes = 0

    def add(self, name: str, values: NDArray[Any], kind: str, about: str = "") -> None:
        """Add an array of floats or integers; an empty one gets a 0, as C needs one element."""
        if about:
            self._parts.append(f"/* {about} */\n")
        flat = np.asarray(values).ravel()
        flat = flat if len(flat) else np.zeros(1, flat.dtype)
        plain = self._aliases.get(kind, kind)
        words = [number(v) if plain == "float" else str(int(v)) for v in flat.tolist()]
        self.nbytes += len(flat) * SIZES[plain]
        lines = []
        line = "   "
        for word in words:
            if len(line) + len(word) + 2 > WIDTH:
                lines.append(line)
                line = "   "
            line += f" {word},"
        lines.append(line)
        self._parts.append(
            f"static const {kind} {name}[{len(flat)}] IN_FLASH = {{\n" + "\n".join(lines) + "\n};\n"
        )

    def struct(self, declaration: str, fields: str) -> None:
        """Add a constant struct with these fields."""
        self.text(f"static const {declaration} IN_FLASH = {{{fields}}};\n")

    def define(self, aliases: Mapping[str, str]) -> None:
        """Add a typedef for each alias."""
        self._aliases |= aliases
        self.text("".join(f"typedef {plain} {alias};\n" for alias, plain in aliases.items()))

    def text(self, code: str) -> None:
        """Add C text after the last table."""
        self._parts.append(code)

    def __str__(self) -> str:
        return "".join(self._parts)


def template_names(prefix: str) -> dict[str, str]:
    """Values of the placeholders that all templates share."""
    names = {"mark": MARK, "version": __version__, "p": prefix, "P": prefix.upper()}
    return names | {key: sections(f"{key}.c")[""] for key in ("float_rules", "flash")}


def identifier(name: str) -> str:
    """Check that a name can begin C identifiers, and return it."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) or name in RESERVED_WORDS:
        raise InputError(
            f"name {name!r} cannot begin C identifiers: use lowercase letters, digits and '_', "
            "start with a letter, and avoid C keywords"
        )
    return name


def identifier_from(title: str) -> str:
    """Make a C identifier from a bundle's name."""
    word = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")[:40]
    return (
        word
        if re.match(r"[a-z]", word) and word not in RESERVED_WORDS
        else f"model_{word}".rstrip("_")
    )


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write files; raise InputError if one would replace a file that Gatewise did not write."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder")
    for file in files:
        path = folder / file
        if path.exists() and MARK not in path.read_text(errors="replace")[:200]:
            raise InputError(
                f"{path} exists and was not written by Gatewise: choose another folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="ascii")
