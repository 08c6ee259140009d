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
from gatewise.models.leaf_tables import unsigned_bytes

#: Longest line of a table in generated C.
MAX_LINE_LENGTH = 96
#: Sizes of C types in bytes.
TYPE_BYTES = {
    "int8_t": 1,
    "int16_t": 2,
    "int32_t": 4,
    "uint8_t": 1,
    "uint16_t": 2,
    "uint32_t": 4,
    "float": 4,
}
#: Text in the first line of every generated file. Files without it are never replaced.
GENERATED_MARK = "Written by gatewise"
#: Endings of the files that only some models need, after the model's name.
OPTIONAL_ENDINGS = ("_signals.h", "_signals.c", "_signals_selftest.c", "_wire.h", "_wire.c")
#: Keywords of C99 (6.4.1), its headers (7.1.2), which a header of the same name would replace, and
#: ``main``, which the example program defines.
RESERVED_WORDS = frozenset(
    re.findall(
        r"\w+",
        "auto break case char const continue default do double else enum extern float for goto if "
        "inline int long main register restrict return short signed sizeof static struct switch "
        "typedef union unsigned void volatile while "
        "assert complex ctype errno fenv inttypes iso646 limits locale math setjmp signal stdarg "
        "stdbool stddef stdint stdio stdlib string tgmath time wchar wctype",
    )
)
#: Start of a template line that names the section below it.
SECTION_START = "//// "


def fill_template(file_name: str, section: str = "", **placeholders: object) -> str:
    """Fill the placeholders ``${name}`` in a template, or in one section of it."""
    return Template(template_sections(file_name)[section]).substitute(placeholders)


@functools.cache
def template_sections(file_name: str) -> dict[str, str]:
    """Read the sections of a template by name; ``""`` is the text before the first section."""
    text = (resources.files(__package__) / "templates" / file_name).read_text("ascii")
    unnamed_text, *bodies = ("\n" + text.removesuffix("\n")).split("\n" + SECTION_START)
    named_texts = dict(body.split("\n", 1) for body in bodies)
    return {"": unnamed_text[1:] + "\n"} | {name: body + "\n" for name, body in named_texts.items()}


def needed_functions(texts: Mapping[str, str], calling_text: str) -> dict[str, str]:
    """Select the C functions and types that `calling_text` uses, directly or through each other.

    >>> texts = {"one": "one() {}", "two": "two() { one(); }", "three": "three() {}"}
    >>> needed_functions(texts, "two();")
    {'one': 'one() {}', 'two': 'two() { one(); }'}
    """
    names: set[str] = set()
    unread_texts = [calling_text]
    while unread_texts:
        text = unread_texts.pop()
        new_names = {name for name in texts if re.search(rf"\b{name}(\(| \w+;)", text)} - names
        names |= new_names
        unread_texts += [texts[name] for name in new_names]
    return {name: text for name, text in texts.items() if name in names}


def unsigned_type(largest: int) -> str:
    """Name the smallest unsigned C type that holds `largest`."""
    return f"uint{8 * unsigned_bytes(largest)}_t"


def c_number(value: float) -> str:
    """Format a float32 value as an exact C constant (hexadecimal, C99 6.4.4.2).

    >>> c_number(0.5), c_number(-3.0), c_number(float("-inf"))
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


def safe_name(value: object) -> str:
    """Replace all characters but ASCII letters and digits by ``_``."""
    return "".join(
        character if character.isascii() and character.isalnum() else "_"
        for character in str(value)
    )


def enum_lines(prefix: str, values: Sequence[object]) -> str:
    """Write the lines of an enum: one constant per value, numbered from 0, with distinct names.

    >>> print(enum_lines("M_CLASS", ["hot-dog", "hot dog"]))
        M_CLASS_HOT_DOG = 0,
        M_CLASS_HOT_DOG_1 = 1
    """
    names: dict[str, None] = {}  # a set in order
    for number, value in enumerate(values):
        name = f"{prefix}_{safe_name(value).upper()}"
        while name in names:
            name += f"_{number}"
        names[name] = None
    return ",\n".join(f"    {name} = {number}" for number, name in enumerate(names))


def c_string(value: object) -> str:
    r"""Format a text as a C string constant in UTF-8, with octal escapes for non-ASCII bytes.

    >>> print(c_string('a "b" é'))
    "a \042b\042 \303\251"
    """
    printable_bytes = set(range(0x20, 0x7F)) - set(b'"\\?')  # ??/ would be a trigraph
    escaped_text = "".join(
        chr(byte) if byte in printable_bytes else f"\\{byte:03o}" for byte in str(value).encode()
    )
    return f'"{escaped_text}"'


class Tables:
    """Constant tables of one C file, in the order in which they were added.

    `aliases` maps typedef names to C types; `nbytes` is the total size of the arrays.
    """

    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        self._texts: list[str] = []
        self._aliases = dict(aliases or {})
        self.nbytes = 0

    def add(self, name: str, values: NDArray[Any], c_type: str, comment: str = "") -> None:
        """Add an array of floats or integers; an empty array gets a 0, as C requires an element."""
        if comment:
            self._texts.append(f"/* {comment} */\n")
        elements = np.asarray(values).ravel()
        elements = elements if len(elements) else np.zeros(1, elements.dtype)
        element_type = self._aliases.get(c_type, c_type)
        element_texts = [
            c_number(element) if element_type == "float" else str(int(element))
            for element in elements.tolist()
        ]
        self.nbytes += len(elements) * TYPE_BYTES[element_type]
        lines = []
        line = "   "
        for element_text in element_texts:
            if len(line) + len(element_text) + 2 > MAX_LINE_LENGTH:
                lines.append(line)
                line = "   "
            line += f" {element_text},"
        lines.append(line)
        self._texts.append(
            f"static const {c_type} {name}[{len(elements)}] IN_FLASH = {{\n"
            + "\n".join(lines)
            + "\n};\n"
        )

    def add_struct(self, declaration: str, fields: str) -> None:
        """Add a constant struct with these fields."""
        self.add_code(f"static const {declaration} IN_FLASH = {{{fields}}};\n")

    def add_typedefs(self, aliases: Mapping[str, str]) -> None:
        """Add a typedef for each alias."""
        self._aliases |= aliases
        self.add_code("".join(f"typedef {c_type} {alias};\n" for alias, c_type in aliases.items()))

    def add_code(self, code: str) -> None:
        """Add C text after the last table."""
        self._texts.append(code)

    def __str__(self) -> str:
        return "".join(self._texts)


def common_placeholders(prefix: str) -> dict[str, str]:
    """Values of the placeholders that all templates share."""
    texts = {"mark": GENERATED_MARK, "version": __version__, "p": prefix, "P": prefix.upper()}
    return texts | {key: template_sections(f"{key}.c")[""] for key in ("float_rules", "flash")}


def checked_identifier(name: str) -> str:
    """Check that a name can begin C identifiers, and return it."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) or name in RESERVED_WORDS:
        raise InputError(
            f"name {name!r} cannot begin C identifiers: use at most 41 lowercase letters, digits "
            "and '_', start with a letter, and avoid keywords of C and names of its headers"
        )
    return name


def identifier_from_title(title: str) -> str:
    """Make a C identifier from a bundle's name."""
    identifier = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")[:40]
    return (
        identifier
        if re.match(r"[a-z]", identifier) and identifier not in RESERVED_WORDS
        else f"model_{identifier}"[:41].rstrip("_")
    )


def write_files(folder: Path, text_of_file: dict[str, str], *, model: str | None = None) -> None:
    """Write files; raise InputError if one would replace a file that Gatewise did not write.

    `model` is the name of the model whose code the files are. Generated files that an earlier
    version of it needed are removed, because some build systems compile whole folders.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder")
    for file_name in text_of_file:
        path = folder / file_name
        if path.exists() and not _is_generated(path):
            raise InputError(
                f"{path} exists and was not written by Gatewise: choose another folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, text in text_of_file.items():
        path = folder / file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    if model is not None:
        written_paths = {folder / file_name for file_name in text_of_file}
        for parent in {path.parent for path in written_paths}:
            for path in (parent / f"{model}{ending}" for ending in OPTIONAL_ENDINGS):
                if path not in written_paths and path.is_file() and _is_generated(path):
                    path.unlink()


def _is_generated(path: Path) -> bool:
    return GENERATED_MARK in path.read_text(errors="replace")[:200]
