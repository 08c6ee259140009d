"""``to_c``: a system or a bundle as a folder of C99."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99 import c_text
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.cascade_reader import cascade_of
from gatewise_export.c99.layout import Coded, Form, Layout, lay_out, with_codes
from gatewise_export.c99.probes import probe_rows
from gatewise_export.c99.signals.signal_plan import computable
from gatewise_export.c99.signals.signal_writer import SignalSource, signal_files
from gatewise_export.c99.source import write_source

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_training.cascades.base import BudgetedClassifier


@dataclass(frozen=True)
class CSource:
    """Files of C that were written, and their sizes.

    Attributes
    ----------
    folder : Path
    name : str
        Prefix of every public name.
    files : tuple of str
    coded : {8, 16} or None
        Bits of a threshold's code; None for thresholds in float32.
    n_stages, n_features, n_classes : int
    n_slots : int
        Features that the stages may acquire.
    flash_bytes : int
        All const arrays, without code.
    ram_bytes : int
        The structs that the firmware holds.
    stack_bytes : int
        A bound on the stack.
    table_bytes, instance_bytes : int
        The model's part of flash and of RAM.
    sample_rows, made_rows : int
        Rows of the self-test, from the sample and made from the model.
    signals : SignalSource or None
        The blocks that compute the features from windows.
    """

    folder: Path
    name: str
    files: tuple[str, ...]
    coded: Coded | None
    n_stages: int
    n_features: int
    n_slots: int
    n_classes: int
    flash_bytes: int
    ram_bytes: int
    stack_bytes: int
    table_bytes: int
    instance_bytes: int
    sample_rows: int
    made_rows: int
    signals: SignalSource | None = None


def to_c(
    source: BudgetedClassifier | Bundle | str | Path,
    folder: str | Path,
    *,
    coded: Form | None = None,
    name: str | None = None,
    sample: ArrayLike | None = None,
    lean: bool = False,
) -> CSource:
    """Write the device's stages, at the active operating point, as C99.

    Exit stage, label, acquired features and margins equal Python's, bit for bit. The C needs no
    heap, and from the library only ``fabsf`` (which compilers know); all tables lie in flash, also
    on AVR. Stages that no instance reaches are left out, and blocks that only they read.

    Parameters
    ----------
    source : fitted system, Bundle, or path of a bundle
        The caller of the C offloads an instance that no stage stops for.
    folder : str or Path
        Gets ``<name>.h``, ``<name>.c``, ``<name>_names.c``, ``<name>_selftest.c``, ``main.c`` and
        ``Makefile``; files that were written by this before are replaced, no others. Where features
        are computed from windows also ``<name>_signals.h``, ``.c`` and ``_selftest.c``: the steps
        that features of stages and of requests need.
    coded : {8, 16, "float"}, optional
        Hold thresholds as ranks of that many bits, and code each feature once, when it is
        acquired. Smaller where many nodes share few thresholds, as boosted trees do; decisions
        stay the same. By default the form with the smallest tables.
    name : str, optional
        An identifier of C that begins every public name; the bundle's, or ``model``, by default.
    sample : array-like of shape (n, n_features), optional
        Rows for the self-test, windows where features are computed from them; a bundle has its own.
        Rows made from the model are added: values at and next to its thresholds, and extremes.
    lean : bool, default False
        Leave out the models of stages that never stop at this operating point, and blocks that only
        a request reads. These stages acquire the same features as before, but the label of an
        instance that goes to the cloud is then of the last stage that may stop.

    Returns
    -------
    CSource

    Raises
    ------
    InputError
        If C does not allow the name, the folder holds other files of these names, or the source
        is neither a system nor a bundle.
    ConversionError
        If it does not classify, a feature has too many distinct thresholds for `coded`, or a stage
        reads a block that C cannot compute, which is named.
    BundleError
        If the bundle cannot be read.

    Examples
    --------
    ``to_c("bundle", "firmware/model", coded=8).table_bytes`` is the flash that the tables take.
    """
    cascade = cascade_of(source, sample=sample, lean=lean)
    default = cascade.title.rsplit(" ", 1)[0] if " " in cascade.title else "model"
    return write_cascade(
        cascade,
        Path(folder),
        coded=coded,
        name=c_text.identifier_from(default) if name is None else name,
    )


def write_cascade(
    cascade: Cascade, folder: Path, *, coded: Form | None = None, name: str = "model"
) -> CSource:
    """Write a cascade as C; see :func:`to_c`."""
    if coded not in (None, 8, 16, "float"):
        raise InputError(f"coded must be 8, 16, 'float' or None, not {coded!r}")
    c_text.identifier(name)
    layout, texts, table_bytes = _smallest(cascade, coded, name)
    names = c_text.template_names(name)
    probes = probe_rows(cascade)
    n_sample = len(cascade.rows)
    signals, signal_texts = _signals(cascade, layout, name)
    files = texts | {
        f"{name}_selftest.c": _selftest(cascade, layout, probes, names),
        "main.c": c_text.filled(
            "main.c",
            n_rows=n_sample + len(probes),
            tried=f"{n_sample} of the sample, {len(probes)} made from the model",
            **names,
            **_main(signals, names),
        ),
        "Makefile": _makefile(signals, name),
        **signal_texts,
    }
    c_text.write_files(folder, files)
    return CSource(
        folder=folder,
        name=name,
        files=tuple(files),
        coded=layout.coded,
        n_stages=len(layout.stages),
        n_features=len(cascade.feature_names),
        n_slots=layout.n_slots,
        n_classes=len(cascade.classes),
        flash_bytes=table_bytes + (signals.table_bytes if signals else 0),
        ram_bytes=layout.instance_bytes + (signals.struct_bytes if signals else 0),
        stack_bytes=layout.stack_bytes + (signals.stack_bytes if signals else 0),
        table_bytes=table_bytes,
        instance_bytes=layout.instance_bytes,
        sample_rows=n_sample,
        made_rows=len(probes),
        signals=signals,
    )


def _smallest(
    cascade: Cascade, coded: Form | None, name: str
) -> tuple[Layout, dict[str, str], int]:
    """Lay out and write a cascade in the wanted form, by default in the smallest."""
    layouts = [lay_out(cascade, None if coded == "float" else coded)]
    for ranks in (8, 16) if coded is None else ():
        with suppress(ConversionError):  # too many thresholds of a feature
            layouts.append(with_codes(layouts[0], cascade, ranks))
    written = [(layout, *write_source(cascade, layout, name)) for layout in layouts]
    return min(written, key=lambda form: form[2])


def _signals(
    cascade: Cascade, layout: Layout, name: str
) -> tuple[SignalSource | None, dict[str, str]]:
    """Write the blocks that stages read, and the blocks of a request that C can compute."""
    signal = cascade.signal
    if signal is None or not layout.n_slots:
        return None, {}
    stages = [feature for stage in cascade.stages for feature in stage.features.tolist()]
    request = cascade.needed_features.difference(stages) & computable(signal.graph)
    features = [*dict.fromkeys(stages), *sorted(request)]
    return signal_files(
        signal.graph,
        signal.shape,
        signal.dtype,
        name,
        cascade.windows,
        features,
        rate_hz=signal.rate_hz,
        decides=True,
    )


def _main(signals: SignalSource | None, names: dict[str, str]) -> dict[str, str]:
    """Parts of the example's program that test the blocks."""
    if signals is None:
        return {"declared": "", "signals_test": ""}
    text = c_text.filled("signals_main.c", "test", n_windows=signals.sample_windows, **names)
    return {"declared": c_text.filled("signals_main.c", "declared", **names), "signals_test": text}


def _makefile(signals: SignalSource | None, name: str) -> str:
    more = ["_signals", "_signals_selftest"] if signals else []
    modules = [f"{name}{ending}" for ending in ("", "_names", "_selftest", *more)]
    return c_text.filled(
        "Makefile.in",
        objects=" ".join(["main.o", *(f"{module}.o" for module in modules)]),
        headers=" ".join(f"{name}{ending}.h" for ending in ("", *more[:1])),
        sized=" ".join(f"{name}{ending}.o" for ending in ("", *more[:1])),
        **c_text.template_names(name),
    )


def _selftest(
    cascade: Cascade, layout: Layout, probes: NDArray[np.float32], names: dict[str, str]
) -> str:
    """Write a function that answers rows and counts answers that differ from Python's."""
    x = np.concatenate([cascade.rows, probes])
    expected = cascade.expected(x)
    tables = c_text.Tables()
    tables.add("column", layout.columns, "int32_t", "Features, in the order of the rows' numbers.")
    tables.add("rows", x[:, layout.columns], "float")
    tables.add("exits", expected.exits, "uint16_t", "The stage that stops, or the number of them.")
    tables.add("labels", expected.labels, "int32_t")
    bits = np.packbits(expected.acquired[:, layout.columns], axis=1, bitorder="little")
    tables.add("acquired", bits, "uint8_t", "Acquired features, a bit each.")
    flat = np.concatenate([np.zeros((len(x), 0), np.float32), *expected.outputs], axis=1)
    tables.add("outputs", np.ascontiguousarray(flat).view(np.uint32), "uint32_t", "As bits.")
    sizes = np.array([out.shape[1] for out in expected.outputs])
    tables.add("n_outputs", sizes, "uint16_t", "Of each stage.")
    return c_text.filled(
        "selftest.c",
        **names,
        tables=str(tables),
        n_rows=len(x),
        n_sample=len(cascade.rows),
        n_made=len(probes),
        width=layout.n_slots,
        all_outputs=flat.shape[1],
        acquired_bytes=bits.shape[1],
    )
