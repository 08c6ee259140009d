"""Write a system or a bundle as a folder of C99."""

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
from gatewise_export.c99.layout import CodeBits, Layout, ThresholdForm, lay_out, with_codes
from gatewise_export.c99.probes import probe_rows
from gatewise_export.c99.signals.signal_plan import computable_features
from gatewise_export.c99.signals.signal_writer import SignalCode, signal_files
from gatewise_export.c99.source import write_source

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_training.cascades.base import BudgetedClassifier


@dataclass(frozen=True)
class CSource:
    """Generated C files and their sizes.

    Attributes
    ----------
    folder : Path
    name : str
        Prefix of every public C name.
    files : tuple of str
    coded : {8, 16} or None
        Bits of a threshold's code; None for thresholds in float32.
    n_stages, n_features, n_classes : int
    n_slots : int
        Number of features that the stages may acquire.
    flash_bytes : int
        Size of all const arrays, without the code.
    ram_bytes : int
        Size of the structs that the firmware allocates.
    stack_bytes : int
        Upper bound on the stack.
    table_bytes, instance_bytes : int
        The model's share of `flash_bytes` and of `ram_bytes`, without the blocks.
    sample_rows, made_rows : int
        Number of self-test rows from the sample, and of rows generated from the model.
    signals : SignalCode or None
        The blocks that compute the features from windows, if any.
    """

    folder: Path
    name: str
    files: tuple[str, ...]
    coded: CodeBits | None
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
    signals: SignalCode | None = None


def to_c(
    source: BudgetedClassifier | Bundle | str | Path,
    folder: str | Path,
    *,
    coded: ThresholdForm | None = None,
    name: str | None = None,
    sample: ArrayLike | None = None,
    lean: bool = False,
) -> CSource:
    """Write the device's stages as C99, at the active operating point.

    Exit stage, label, acquired features and margins equal Python's, bit for bit. The C code needs
    no heap, and no function of the C library except ``fabsf``, which compilers inline. All tables
    lie in flash, also on AVR. Stages that no instance reaches are left out, and so are blocks that
    only they read.

    Parameters
    ----------
    source : fitted system, Bundle, or path of a bundle
        The system to write. The calling program must offload instances for which no stage stops.
    folder : str or Path
        Folder for ``<name>.h``, ``<name>.c``, ``<name>_names.c``, ``<name>_selftest.c``,
        ``main.c`` and ``Makefile``. A system with blocks also has ``<name>_signals.h``, ``.c`` and
        ``_selftest.c``, with the steps that stages and requests need. Only files that Gatewise
        wrote are replaced; those that an earlier version of the model needed are removed.
    coded : {8, 16, "float"}, optional
        Form of thresholds: ranks of 8 or 16 bits, or floats. With ranks each feature is coded once,
        when it is acquired. Ranks are smaller if many nodes share few thresholds, as in boosted
        trees; decisions stay the same. The default is the form with the smallest tables.
    name : str, optional
        C identifier that begins every public name; by default from the bundle's name, or
        ``model`` for a system.
    sample : array-like of shape (n, n_features), optional
        Rows for the self-test, or windows for a system with blocks; by default a bundle's sample.
        Rows with a value that the C code refuses are left out.
        Rows generated from the model are added, with extreme values and values at and next to its
        thresholds.
    lean : bool, default False
        Whether to leave out the models of stages that never stop at this operating point, and
        blocks that only a request reads. Stages without a model still acquire their features, but
        the label of an offloaded instance is then the label of the last stage that may stop.

    Returns
    -------
    CSource

    Raises
    ------
    InputError
        If C does not allow the name, the folder holds files of these names that Gatewise did not
        write, or the source is neither a system nor a bundle.
    ConversionError
        If the source is not a classifier, a feature has too many distinct thresholds for `coded`,
        or a stage reads a block that C cannot compute.
    BundleError
        If the bundle cannot be read.

    Examples
    --------
    ``to_c("bundle", "firmware/model", coded=8).table_bytes`` is the size of the tables in flash.
    """
    cascade = cascade_of(source, sample=sample, lean=lean)
    return write_cascade(
        cascade,
        Path(folder),
        coded=coded,
        name=c_text.identifier_from_title(cascade.name) if name is None else name,
    )


def write_cascade(
    cascade: Cascade, folder: Path, *, coded: ThresholdForm | None = None, name: str = "model"
) -> CSource:
    """Write a cascade as C, as :func:`to_c` does."""
    if coded not in (None, 8, 16, "float"):
        raise InputError(f"coded must be 8, 16, 'float' or None, not {coded!r}")
    c_text.checked_identifier(name)
    cascade = cascade.without_refused_rows()
    # write the model, its blocks and the programs that test both
    layout, model_files, table_bytes = _write_smallest(cascade, coded, name)
    placeholders = c_text.common_placeholders(name)
    generated_rows = probe_rows(cascade)
    n_sample_rows = len(cascade.rows)
    signals, signal_texts = _write_signals(cascade, layout, name)
    files = model_files | {
        f"{name}_selftest.c": _write_selftest(cascade, layout, generated_rows, placeholders),
        "main.c": c_text.fill_template(
            "main.c",
            n_rows=n_sample_rows + len(generated_rows),
            tested_rows=(
                f"{n_sample_rows} of the sample, {len(generated_rows)} generated from the model"
            ),
            **placeholders,
            **_main_placeholders(signals, placeholders),
        ),
        "Makefile": _write_makefile(signals, name),
        **signal_texts,
    }
    c_text.write_files(folder, files, model=name)
    return CSource(
        folder=folder,
        name=name,
        files=tuple(files),
        coded=layout.code_bits,
        n_stages=len(layout.stages),
        n_features=len(cascade.feature_names),
        n_slots=layout.n_slots,
        n_classes=len(cascade.classes),
        flash_bytes=table_bytes + (signals.table_bytes if signals else 0),
        ram_bytes=layout.instance_bytes + (signals.struct_bytes if signals else 0),
        stack_bytes=layout.stack_bytes + (signals.stack_bytes if signals else 0),
        table_bytes=table_bytes,
        instance_bytes=layout.instance_bytes,
        sample_rows=n_sample_rows,
        made_rows=len(generated_rows),
        signals=signals,
    )


def _write_smallest(
    cascade: Cascade, coded: ThresholdForm | None, name: str
) -> tuple[Layout, dict[str, str], int]:
    """Lay out and write a cascade in the form `coded`, or by default in the smallest form."""
    layouts = [lay_out(cascade, None if coded == "float" else coded)]
    for code_bits in (8, 16) if coded is None else ():
        with suppress(ConversionError):  # too many thresholds of a feature
            layouts.append(with_codes(layouts[0], cascade, code_bits))
    written_forms = [(layout, *write_source(cascade, layout, name)) for layout in layouts]
    return min(written_forms, key=lambda written_form: written_form[2])


def _write_signals(
    cascade: Cascade, layout: Layout, name: str
) -> tuple[SignalCode | None, dict[str, str]]:
    """Write the blocks that stages read, and those of the request's blocks that C can compute."""
    signal = cascade.signal
    if signal is None or not layout.n_slots:
        return None, {}
    stage_features = [feature for stage in cascade.stages for feature in stage.features.tolist()]
    request_features = cascade.needed_features.difference(stage_features) & computable_features(
        signal.graph
    )
    features = [*dict.fromkeys(stage_features), *sorted(request_features)]
    return signal_files(
        signal.graph,
        signal.shape,
        signal.dtype,
        name,
        cascade.windows,
        features,
        rate_hz=signal.rate_hz,
        compares_decisions=True,
    )


def _main_placeholders(signals: SignalCode | None, placeholders: dict[str, str]) -> dict[str, str]:
    """Fill the parts of the example program that test blocks; empty without blocks."""
    if signals is None:
        return {"declared": "", "signals_test": ""}
    test_code = c_text.fill_template(
        "signals_main.c", "test", n_windows=signals.sample_windows, **placeholders
    )
    return {
        "declared": c_text.fill_template("signals_main.c", "declared", **placeholders),
        "signals_test": test_code,
    }


def _write_makefile(signals: SignalCode | None, name: str) -> str:
    """Write the Makefile, which builds, tests and measures the code."""
    signal_endings = ["_signals", "_signals_selftest"] if signals else []
    modules = [f"{name}{ending}" for ending in ("", "_names", "_selftest", *signal_endings)]
    return c_text.fill_template(
        "Makefile.in",
        objects=" ".join(["main.o", *(f"{module}.o" for module in modules)]),
        headers=" ".join(f"{name}{ending}.h" for ending in ("", *signal_endings[:1])),
        measured_objects=" ".join(f"{name}{ending}.o" for ending in ("", *signal_endings[:1])),
        **c_text.common_placeholders(name),
    )


def _write_selftest(
    cascade: Cascade,
    layout: Layout,
    generated_rows: NDArray[np.float32],
    placeholders: dict[str, str],
) -> str:
    """Write the self-test, which counts rows with answers that differ from Python's.

    ``templates/selftest.c`` reads the tables by their names and types.
    """
    rows = np.concatenate([cascade.rows, generated_rows])
    expected_answers = cascade.expected_answers(rows)
    tables = c_text.Tables()
    tables.add("column", layout.columns, "int32_t", "The feature of each value of a row.")
    tables.add("rows", rows[:, layout.columns], "float")
    comment = "The stage that stops; the number of stages if none does."
    tables.add("exits", expected_answers.exits, "uint16_t", comment)
    comment = "Class indices; -1 if no stage has a model."
    tables.add("labels", expected_answers.labels, "int32_t", comment)
    is_acquired = expected_answers.is_acquired[:, layout.columns]
    acquired_bits = np.packbits(is_acquired, axis=1, bitorder="little")
    tables.add("acquired", acquired_bits, "uint8_t", "One bit per slot: whether it was acquired.")
    outputs = np.concatenate(expected_answers.outputs, axis=1)
    comment = "Outputs of the stages, as the bits of floats."
    tables.add("outputs", np.ascontiguousarray(outputs).view(np.uint32), "uint32_t", comment)
    n_outputs = np.array([stage_outputs.shape[1] for stage_outputs in expected_answers.outputs])
    tables.add("n_outputs", n_outputs, "uint16_t", "Number of outputs of each stage.")
    return c_text.fill_template(
        "selftest.c",
        **placeholders,
        tables=str(tables),
        n_rows=len(rows),
        n_sample=len(cascade.rows),
        n_generated=len(generated_rows),
        n_slots=layout.n_slots,
        n_all_outputs=outputs.shape[1],
        acquired_bytes=acquired_bits.shape[1],
    )
