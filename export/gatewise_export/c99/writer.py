"""``to_c``: a system or a bundle as a folder of C99."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from gatewise.errors import InputError
from gatewise_export.c99.c_text import Tables, filled, smallest
from gatewise_export.c99.cascade import Cascade, cascade_of
from gatewise_export.c99.layout import Coded, Layout, lay_out
from gatewise_export.c99.source import MARK, template_names, write_source

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_training.cascades.base import BudgetedClassifier

__all__ = ["CSource", "identifier", "to_c", "write_cascade"]

TAKEN = {
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else",
    "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "main", "register",
    "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef",
    "union", "unsigned", "void", "volatile", "while",
}  # fmt: skip


@dataclass(frozen=True)
class CSource:
    """What was written, and what it takes.

    Attributes
    ----------
    folder : Path
    name : str
        Begins every public name.
    files : tuple of str
    coded : {8, 16} or None
        None also where there are no trees to code.
    n_stages, n_features, n_slots, n_classes : int
        Stages on the device, columns of an instance, those of them that stages may acquire.
    table_bytes : int
        Of the const arrays: flash.
    instance_bytes : int
        Of the struct that holds an instance: memory.
    stack_bytes : int
        Of stack at most, instance and callback apart.
    sample_rows : int
        In the self-test.
    """

    folder: Path
    name: str
    files: tuple[str, ...]
    coded: Coded | None
    n_stages: int
    n_features: int
    n_slots: int
    n_classes: int
    table_bytes: int
    instance_bytes: int
    stack_bytes: int
    sample_rows: int


def to_c(
    source: BudgetedClassifier | Bundle | str | Path,
    folder: str | Path,
    *,
    coded: Coded | None = None,
    name: str | None = None,
    sample: ArrayLike | None = None,
    lean: bool = False,
) -> CSource:
    """Write the device's stages, at the active operating point, as C99.

    Exit stage, label, acquired features and margins are those of Python, bit for bit. The C needs
    no heap and of the library only ``fabsf`` (which compilers know); all tables are const.

    Parameters
    ----------
    source : fitted system, Bundle, or path of a bundle
        Stages on a gateway or in the cloud stay there: what no stage of the device stops for is
        to be offloaded.
    folder : str or Path
        Gets ``<name>.h``, ``<name>.c``, ``<name>_names.c``, ``<name>_selftest.c``, ``main.c`` and
        ``Makefile``; files that were written by this before are replaced, no others.
    coded : {8, 16}, optional
        Hold thresholds as ranks of that many bits, and code each feature once, when it is
        acquired. Smaller where many nodes share few thresholds, as boosted trees do; decisions
        stay the same.
    name : str, optional
        An identifier of C that begins every public name; the bundle's, or ``model``, by default.
    sample : array-like of shape (n, n_features), optional
        Rows for the self-test. A bundle has its own; a system's is empty without.
    lean : bool, default False
        Leave out the models of stages that never stop at this operating point: they acquire what
        they always did, but the label of an instance that goes to the cloud is then of the last
        stage that may stop. What is left are the operating point's `nbytes`, packed.

    Returns
    -------
    CSource

    Raises
    ------
    InputError
        For a name that is no identifier, a folder that holds other files of these names, or a
        source that is neither.
    ConversionError
        If it does not classify, or a feature has too many distinct thresholds for `coded`.
    BundleError
        If the bundle cannot be read.

    Examples
    --------
    ``to_c("bundle", "firmware/model", coded=8).table_bytes`` is the flash that the tables take.
    """
    cascade = cascade_of(source, sample=sample, lean=lean)
    default = cascade.title.rsplit(" ", 1)[0] if " " in cascade.title else "model"
    return write_cascade(
        cascade, Path(folder), coded=coded, name=_named(default) if name is None else name
    )


def write_cascade(
    cascade: Cascade, folder: Path, *, coded: Coded | None = None, name: str = "model"
) -> CSource:
    """Write a cascade as C; see :func:`to_c`."""
    if coded not in (None, 8, 16):
        raise InputError(f"coded must be 8, 16 or None, not {coded!r}")
    identifier(name)
    layout = lay_out(cascade, coded)
    source = write_source(cascade, layout, name)
    names, n_rows = template_names(name), len(cascade.rows)
    sizes = ", ".join(map(str, cascade.outputs))
    files = {
        f"{name}.h": source.header,
        f"{name}.c": source.code,
        f"{name}_names.c": source.names,
        f"{name}_selftest.c": _selftest(cascade, layout, names),
        "main.c": filled("main.c", **names, n_rows=n_rows, n_outputs=sizes),
        "Makefile": filled("Makefile.in", **names),
    }
    _write(folder, files)
    return CSource(
        folder=folder,
        name=name,
        files=tuple(files),
        coded=layout.coded,
        n_stages=len(layout.stages),
        n_features=len(cascade.feature_names),
        n_slots=layout.n_slots,
        n_classes=len(cascade.classes),
        table_bytes=source.table_bytes,
        instance_bytes=layout.instance_bytes,
        stack_bytes=layout.stack_bytes,
        sample_rows=len(cascade.rows),
    )


def _selftest(cascade: Cascade, layout: Layout, names: dict[str, str]) -> str:
    """Write a function that answers the sample rows and counts those that differ from Python."""
    x = cascade.rows
    expected = cascade.expected(x)
    n = len(x)
    tables = Tables()
    tables.add("column", layout.columns, "uint32_t", "Features, in the order of the rows' numbers.")
    tables.add("rows", x[:, layout.columns], "float")
    tables.add("exits", expected.exits, "uint16_t", "The stage that stops, or the number of them.")
    tables.add("labels", expected.labels, smallest(len(cascade.classes)))
    bits = np.packbits(expected.acquired[:, layout.columns], axis=1, bitorder="little")
    tables.add("acquired", bits, "uint8_t", "Acquired features, a bit each.")
    flat = np.concatenate([np.zeros((n, 0), np.float32), *expected.outputs], axis=1)
    tables.add("outputs", np.ascontiguousarray(flat).view(np.uint32), "uint32_t", "As bits.")
    sizes = np.array([out.shape[1] for out in expected.outputs])
    tables.add("n_outputs", sizes, "uint16_t", "Of each stage.")
    text = str(tables).replace("const uint32_t column[", "const int32_t column[")
    return filled(
        "selftest.c",
        **names,
        tables=text,
        n_rows=n,
        width=layout.n_slots if n else max(layout.n_slots, 1),
        all_outputs=flat.shape[1],
        acquired_bytes=bits.shape[1],
    )


def identifier(name: str) -> str:
    """Check that a name can begin names of C."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) or name in TAKEN:
        raise InputError(
            f"name {name!r} cannot begin names of C: take small letters, digits and '_', "
            "beginning with a letter, and no word of the language"
        )
    return name


def _named(title: str) -> str:
    """Make an identifier of a bundle's name."""
    word = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")[:40]
    return word if re.match(r"[a-z]", word) and word not in TAKEN else f"model_{word}".rstrip("_")


def _write(folder: Path, files: dict[str, str]) -> None:
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
