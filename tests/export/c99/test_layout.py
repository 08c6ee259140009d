"""The layout of a cascade in C: slots, types, codes of thresholds, sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.c99.compiled import build
from gatewise.models.stage import Stage
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.layout import lay_out
from gatewise_export.c99.writer import write_cascade
from tests.support.c_cascades import steps
from tests.support.needs import needs_compiler


@needs_compiler
@pytest.mark.parametrize(("takes_missing", "most"), [(False, 255), (True, 254)])
def test_codes_of_a_byte_tell_as_many_thresholds_apart_as_there_are_numbers(
    tmp_path, takes_missing, most
):
    """n thresholds have n + 1 codes; where NaN is a value, it has the last code for itself."""
    cascade = steps(most, takes_missing=takes_missing)
    source = write_cascade(cascade, tmp_path, coded=8)
    (c,) = build([(source, cascade.outputs)], flags=("-O0",))
    highest = np.arange(most - 3, most, dtype=np.float32)
    beside = [np.nextafter(highest, np.float32(way)) for way in (-9, 999)]
    x = np.concatenate([highest, *beside, np.float32([0, -1, 3e38, *[np.nan] * takes_missing])])
    said = c(x[:, None])
    wanted = cascade.stages[0].margins(x[:, None])
    assert said.outputs[0].tobytes() == wanted.tobytes()
    assert wanted.max() == most
    more = steps(most + 1, takes_missing=takes_missing)
    with pytest.raises(ConversionError, match=f"8-bit codes tell {most} apart: use coded=16"):
        lay_out(more, 8)
    assert lay_out(more, 16).coded == 16


@needs_compiler
@pytest.mark.parametrize(
    ("form", "widths"), [("picks", (2, 1, 1, 2)), ("sparse", (2, 2, 1, 2))], ids=str
)
def test_tables_of_leaves_have_indices_of_two_bytes(tmp_path, form, widths):
    """More than 256 distinct rows, numbers or places in the rows."""
    rng = np.random.default_rng(0)
    n, n_rows, n_outputs = 500, 600, 8
    if form == "picks":
        rows = rng.choice(rng.random(500), (n_rows, n_outputs))
    else:
        rows = np.arange(1, n_rows + 1)[:, None] * (rng.random((n_rows, n_outputs)) < 0.25) / 97
    stage = steps(n, takes_missing=False).stages[0]
    leaves = rows[np.resize(np.arange(n_rows), 3 * n)].astype(np.float32)
    forest = replace(
        stage.model, value=leaves, output=np.full(n, -1, np.int32),
        base=np.zeros(n_outputs, np.float32),
    )  # fmt: skip
    cascade = replace(
        steps(n, takes_missing=False), stages=(Stage(forest, np.arange(1), "softmax"),),
        classes=tuple(range(n_outputs)),
    )  # fmt: skip
    assert lay_out(cascade, None).forests[0].leaves.index_widths == widths
    (c,) = build([(write_cascade(cascade, tmp_path), cascade.outputs)], flags=("-O0",))
    assert c.selftest() == 0
    x = np.arange(-1, n + 1, dtype=np.float32)[:, None]
    assert c(x).outputs[0].tobytes() == cascade.stages[0].margins(x).tobytes()
