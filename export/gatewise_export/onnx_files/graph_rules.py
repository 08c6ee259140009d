"""ONNX graphs that may be run: checked before any runtime opens one.

A few hundred bytes can make a runtime reserve gigabytes or never end (`ConstantOfShape`, `Tile`,
a product of two long vectors, a loop, a cyclic tree), and onnxruntime folds constants while it
loads. A stage's graph may therefore hold nothing but what :mod:`.onnx_graph` writes, and every
value's size is known beforehand (:mod:`.stage_rules`); that of a stage that was given holds the
operators of common classifiers, under the same condition (:mod:`.given_rules`). A cloud model's
graph may come from another converter: it is checked against a list of what is refused
(:mod:`.cloud_rules`).

Standard library and numpy alone: a device uses this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from gatewise_export.bundle.errors import BundleError
from gatewise_export.onnx_files.cloud_rules import CLOUD_RULES, check_cloud
from gatewise_export.onnx_files.given_rules import MOST_GIVEN_PARTS, check_given
from gatewise_export.onnx_files.onnx_parts import ML_DOMAIN, Model
from gatewise_export.onnx_files.onnx_reader import read_model
from gatewise_export.onnx_files.operator_shapes.layers import LAYER_RULES
from gatewise_export.onnx_files.operator_shapes.layout import LAYOUT_RULES
from gatewise_export.onnx_files.operator_shapes.ml_operators import ML_RULES
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.stage_rules import INPUT, MARGINS, StageGraph, check_stage
from gatewise_export.onnx_files.tree_rules import MOST_TREE_NODES

__all__ = [
    "INPUT",
    "MARGINS",
    "MOST_STAGE_BYTES",
    "StageGraph",
    "check_cloud_graph",
    "check_stage_graph",
    "read_stage_graph",
]

Checked = TypeVar("Checked")

MOST_STAGE_BYTES: Final = 64 << 20
MOST_PARTS: Final = 4096
_DOMAINS: Final = {"", "ai.onnx", ML_DOMAIN}
_GIVEN_RULES: Final = {"": {**LAYER_RULES, **LAYOUT_RULES}, ML_DOMAIN: ML_RULES}
#: Not those of large layers: how much a cloud model's results take is a worker's own limit
_CLOUD_RULES: Final = CLOUD_RULES | {
    name: _GIVEN_RULES[""][name]
    for name in ("MatMul", "Concat", "Transpose", "Unsqueeze", "Constant")
}


def check_stage_graph(
    content: bytes, *, file: str, n_inputs: int, n_outputs: int, given: bool = False
) -> None:
    """Refuse a graph that is not fit to be a stage, before a runtime opens it.

    `n_inputs` and `n_outputs` are the columns of ``x`` and ``margins``, and `given` is whether the
    stage was given, as the manifest says.
    """
    if given:
        bounds = {"most_bytes": MOST_STAGE_BYTES, "most_parts": MOST_GIVEN_PARTS}
        _checked(content, file, lambda m: check_given(m, _GIVEN_RULES, n_inputs, n_outputs), bounds)
    else:
        read_stage_graph(content, file=file, n_inputs=n_inputs, n_outputs=n_outputs)


def read_stage_graph(content: bytes, *, file: str, n_inputs: int, n_outputs: int) -> StageGraph:
    """Read a stage's graph as :func:`check_stage_graph` does, and keep what was read."""
    bounds = {"most_bytes": MOST_STAGE_BYTES, "most_parts": MOST_PARTS}
    bounds["most_texts"] = MOST_TREE_NODES
    return _checked(content, file, lambda model: check_stage(model, n_inputs, n_outputs), bounds)


def check_cloud_graph(content: bytes, *, file: str) -> None:
    """Refuse a high-cost model's graph that could harm a worker, before a runtime opens it.

    Any operator of ONNX's own two domains may stand in it, but none that loops or branches (`Scan`,
    which goes along a tensor and ends, may), none with data in another file, none with a result of
    a size that only a run will know. Sizes are followed from node to node as far as they can be
    known beforehand; a worker's own limit of memory is the second line.
    """
    _checked(content, file, lambda model: check_cloud(model, _CLOUD_RULES), {})


def _checked(
    content: bytes, file: str, check: Callable[[Model], Checked], bounds: dict[str, int]
) -> Checked:
    model = read_model(content, file, **bounds)
    try:
        _check_model(model)
        return check(model)
    except Malformed as error:
        raise BundleError(f"{file} is refused: {error}") from None


def _check_model(model: Model) -> None:
    strange = sorted(set(model.opsets) - _DOMAINS)
    if strange:
        raise Malformed(f"it asks for the custom domain {strange[0]!r}")
    if model.functions:
        raise Malformed(f"it brings along the function {model.functions[0]!r}")
    if model.others:
        raise Malformed(f"it brings along instructions for {model.others[0]}")
    if model.graph.n_sparse:
        raise Malformed("it holds sparse tensors")
