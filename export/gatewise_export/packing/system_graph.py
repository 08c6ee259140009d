"""A whole fitted system as one graph for other people's tools: rows in, decisions out.

Every stage is computed for every row, and the operating point's thresholds stand in the graph. The
high-cost model is not in it: the label of an offloaded row is the last stage's.

Decisions are the system's, bit for bit: the margins are (:mod:`.onnx_graph`), and from there on
only comparisons follow. The cost is a float64 table's entry; it is left out where it differs from
row to row, that is where a stage acquires node by node.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from gatewise.decision import STOP_RULES
from gatewise.models.graph_model import GraphModel
from gatewise.models.stage import Stage
from gatewise.models.trees import TreeEnsemble
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.packing.graph_parts import INPUT, MARGINS, GraphParts, Output, constant
from gatewise_export.packing.onnx_graph import flat_graph

if TYPE_CHECKING:
    from gatewise_training.cascades.base import BudgetedClassifier


def outputs_of(system: BudgetedClassifier) -> tuple[Output, ...]:
    """Outputs of a fitted system's graph, in order.

    ``label`` (int64 or text), ``probabilities`` (float32), with a high-cost model ``offload``
    (bool), and where all rows that leave at the same stage pay the same ``cost`` (float64).
    A model of values gives ``value`` (float32) for the first two.
    """
    outputs = [Output("value", TensorProto.FLOAT)]
    if hasattr(system, "classes_"):
        kind = label_tensor(system.classes_).data_type
        chances = Output("probabilities", TensorProto.FLOAT, len(system.classes_))
        outputs = [Output("label", kind), chances]
    if system.high_cost_model_ is not None:
        outputs.append(Output("offload", TensorProto.BOOL))
    if all(stage.acquisition == "stage" for stage in system.stages_):
        outputs.append(Output("cost", TensorProto.DOUBLE))
    return tuple(outputs)


def make_system_graph(system: BudgetedClassifier) -> onnx.ModelProto:
    """Write a fitted system at its operating point as one graph with :func:`outputs_of`."""
    nodes = GraphParts()
    outputs = outputs_of(system)
    names = {output.name for output in outputs}
    stages, thresholds = system.stages_, system.operating_point_.thresholds
    answers = [append_stage(nodes, f"s{s}_", stage) for s, stage in enumerate(stages)]
    last = system.last_exit_  # the last word needs no score
    stops = [
        _stops(nodes, f"s{s}_", stage, threshold) if s < last else None
        for s, (stage, threshold) in enumerate(zip(stages, thresholds, strict=True))
    ]
    if "value" in names:
        nodes.add("Identity", f"{answers[0]}value", "value")
    else:
        for what in ("index", "probabilities"):
            final = min(last, len(stages) - 1)
            found = f"{answers[final]}{what}"
            for s in range(final - 1, -1, -1):
                found = _choose(nodes, stops[s], f"{answers[s]}{what}", found, what)
            nodes.add("Identity", found, what if what == "probabilities" else "class_index")
        nodes.constants.append(label_tensor(system.classes_))
        nodes.add("Gather", "classes class_index", "label")
    if names & {"offload", "cost"}:
        _leave(nodes, stops, last)
    if "offload" in names:
        nodes.value("gone", np.int64(len(stages)))
        nodes.add("Equal", "exit gone", "offload")
    if "cost" in names:
        nodes.value("exit_costs", _exit_costs(system))
        nodes.add("Gather", "exit_costs exit", "cost")
    model = nodes.model(system.n_features_in_, outputs, full_check=True)
    if "label" in names:
        helper.set_model_props(model, {"classes": json.dumps(system.classes_.tolist())})
    return model


def label_tensor(classes: NDArray[Any]) -> onnx.TensorProto:
    """Labels as the constant ``classes``, int64 or text."""
    if classes.dtype.kind in "biu":
        return constant("classes", classes.astype(np.int64))
    if all(isinstance(c, str) for c in classes.tolist()):
        words = [c.encode() for c in classes.tolist()]
        return helper.make_tensor("classes", TensorProto.STRING, [len(words)], words)
    raise ConversionError(
        f"to_onnx: labels {classes.tolist()[:3]!r} are neither whole numbers nor text"
    )


def _choose(nodes: GraphParts, condition: str | None, one: str, other: str, what: str) -> str:
    """`one` where the condition holds, else `other`; None never holds."""
    if condition is None:
        return other
    if what == "probabilities":
        condition = f"{condition}_column"
    name = f"{condition}_{what}"
    nodes.add("Where", f"{condition} {one} {other}", name)
    return name


def append_stage(nodes: GraphParts, prefix: str, stage: Stage) -> str:
    """Append a stage's model and answers; names of its values begin with `prefix`.

    They are ``margins``, ``index`` (int64), ``probabilities`` and ``score`` (float32), or of a
    model of values ``value``.
    """
    if isinstance(stage.model, GraphModel):
        raise ConversionError(
            "to_onnx: a stage that was given as a graph has no friendly form; use that graph, or "
            "pack a bundle"
        )
    model = flat_graph(stage.model)
    nodes.value(f"{prefix}features", stage.features.astype(np.int64))
    nodes.add("Gather", f"{INPUT} {prefix}features", f"{prefix}{INPUT}", axis=1)
    own = {name: prefix + name for name in (INPUT, MARGINS)}

    def placed(name: str) -> str:  # a constant may be called as one of the answers is
        return own.get(name, f"{prefix}model_{name}")

    for node in model.graph.node:
        node.input[:] = map(placed, node.input)
        node.output[:] = map(placed, node.output)
        node.name = prefix + node.name if node.name else ""
        nodes.nodes.append(node)
    for known in model.graph.initializer:
        known.name = placed(known.name)
        nodes.constants.append(known)
    _answers(nodes, prefix, stage)
    return prefix


def _answers(nodes: GraphParts, prefix: str, stage: Stage) -> None:
    """Append nodes from a stage's ``margins`` to its answers."""

    def add(kind: str, inputs: str, outputs: str, **attributes: Any) -> None:
        nodes.add(kind, _with(prefix, inputs), _with(prefix, outputs), **attributes)

    def value(name: str, array: Any) -> None:
        nodes.value(prefix + name, array)

    n_margins = stage.n_margins
    if stage.link == "identity" and n_margins == 1:
        value("value_column", np.int64(0))
        add("Gather", f"{MARGINS} value_column", "value", axis=1)
        return
    rule, margins = STOP_RULES[stage.score], MARGINS
    if rule.n_score_outputs:
        margins = "class_margins"
        value("class_columns", np.arange(n_margins))
        add("Gather", f"{MARGINS} class_columns", margins, axis=1)
    constants, score_nodes = rule.graph_nodes(n_margins)
    for name, array in constants.items():
        value(name, array)
    for kind, inputs, outputs, attributes in score_nodes:
        add(kind, inputs, outputs, **attributes)
    if stage.link == "sigmoid":
        value("nought", np.float32(0))
        value("unit", np.float32(1))
        value("margin_column", np.int64(0))
        add("Gather", f"{margins} margin_column", "margin", axis=1)
        add("Greater", "margin nought", "positive")
        add("Cast", "positive", "index", to=TensorProto.INT64)
        add("Sigmoid", margins, "second")
        add("Sub", "unit second", "first_class")
        add("Concat", "first_class second", "probabilities", axis=1)
        return
    add("ArgMax", margins, "index", axis=1, keepdims=0)
    if stage.link == "softmax":
        add("Softmax", margins, "probabilities", axis=1)
    else:
        add("Identity", margins, "probabilities")


def _with(prefix: str, names: str) -> str:
    return " ".join(prefix + name for name in names.split())


def _stops(nodes: GraphParts, prefix: str, stage: Stage, threshold: float | None) -> str | None:
    """Where a stage stops, as the name of a value of shape (n,); NaN goes on."""
    if threshold is None:
        return None
    name = f"{prefix}stops"
    nodes.value(f"{prefix}threshold", np.float32(threshold))
    nodes.add("GreaterOrEqual", f"{prefix}score {prefix}threshold", name)
    if not isinstance(stage.model, TreeEnsemble):
        # the two largest of margins with a NaN may be two numbers
        nodes.value(f"{prefix}along", np.array([1]))
        nodes.add("IsNaN", f"{prefix}{MARGINS}", f"{prefix}is_nan")
        nodes.add("Cast", f"{prefix}is_nan", f"{prefix}nans", to=TensorProto.INT64)
        nodes.add("ReduceSum", f"{prefix}nans {prefix}along", f"{prefix}n_nans", keepdims=0)
        nodes.value(f"{prefix}none", np.int64(0))
        nodes.add("Equal", f"{prefix}n_nans {prefix}none", f"{prefix}finite")
        nodes.add("And", f"{name} {prefix}finite", f"{prefix}stops_finite")
        name = f"{prefix}stops_finite"
    nodes.value(f"{prefix}as_column", np.array([1]))
    nodes.add("Unsqueeze", f"{name} {prefix}as_column", f"{name}_column")
    return name


def _leave(nodes: GraphParts, stops: list[str | None], last: int) -> None:
    """``exit``, int64 (n,): the first stage that stops, else the last exit."""
    nodes.value("first_column", np.int64(0))
    nodes.add("Gather", f"{INPUT} first_column", "one_column", axis=1)
    nodes.add("Shape", "one_column", "length")
    nodes.value("last_exit", np.array([last]))
    nodes.add("Expand", "last_exit length", "exit_last")
    found = "exit_last"
    for s in range(last - 1, -1, -1):
        if stops[s] is not None:
            nodes.value(f"s{s}_number", np.int64(s))
            found = _choose(nodes, stops[s], f"s{s}_number", found, "exit")
    nodes.add("Identity", found, "exit")


def _exit_costs(system: BudgetedClassifier) -> NDArray[np.float64]:
    """Cost of leaving at each stage and, last, at none."""
    nothing = np.zeros((1, system.n_features_in_), np.float32)
    acquired = [stage.acquired(nothing) for stage in system.stages_]
    return np.asarray(system._exit_costs(acquired), np.float64)
