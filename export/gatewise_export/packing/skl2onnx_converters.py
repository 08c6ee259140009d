"""Converters of every estimator for skl2onnx: alone, or as the last step of a pipeline.

A converter puts the graph of :func:`.make_system_graph` behind what comes before, so skl2onnx and
:func:`gatewise_export.to_onnx` give the same bits. skl2onnx has no plug-ins: call
:func:`register_converters` once before ``skl2onnx.to_onnx``, or let
``gatewise_export.to_onnx(pipeline)`` do so.
"""

from __future__ import annotations

import importlib
from typing import Any

import onnx
from onnx import TensorProto, helper

from gatewise.errors import one_line
from gatewise.models.tree_attributes import ML_DOMAIN, ML_OPSET, OPSET
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.packing.graph_parts import INPUT
from gatewise_export.packing.system_graph import make_system_graph, outputs_of

ESTIMATORS = (
    "AdaptGBRT", "AdaptLin", "AdaptLstsq", "BudgetForest", "BudgetPrune", "CEGBClassifier",
    "CEGBRanker", "CEGBRegressor", "ConfidenceCascade", "GreedyMiser", "L1Cascade",
    "StagedCascade",
)  # fmt: skip
"""Names in :mod:`gatewise_training` that skl2onnx is taught."""


def register_converters() -> None:
    """Teach skl2onnx the estimators of the project; may be called again.

    Afterwards ``skl2onnx.to_onnx(estimator, X)`` works, and so do pipelines that end with one.
    The outputs are those of ``gatewise_export.to_onnx(estimator)``: ``label``,
    ``probabilities``, ``offload`` for systems with a high-cost model, ``cost`` where stages acquire
    as a whole; of regressors and rankers ``value`` and perhaps ``cost``. `label` holds the last
    stage's answer where `offload` is true.

    Notes
    -----
    What is exact. Estimators take their input as float32. A graph whose input is float32 or
    float64 rounds as they do, so that decisions agree bit for bit, with
    ``intra_op_num_threads = 1``: more threads add up trees in another order.

    In a pipeline the same holds of the last step, given the same numbers. What comes before it
    may round otherwise: skl2onnx's ``StandardScaler`` on float32 input multiplies by a rounded
    inverse, where scikit-learn divides in float64 and rounds once, and a row at a threshold may go
    the other way. A float64 input (``X`` of float64, or ``DoubleTensorType``) makes it subtract
    and divide in float64 like scikit-learn: exact, and what ``gatewise_export.to_onnx(pipeline)``
    gives. A float32 input with ``options={StandardScaler: {"div": "div_cast"}}`` comes close: it
    computes in float64, and scikit-learn rounds between the two steps.
    """
    from skl2onnx import update_registered_converter

    training = importlib.import_module("gatewise_training")
    for name in ESTIMATORS:
        update_registered_converter(
            getattr(training, name),
            f"Gatewise{name}",
            _check_inputs,
            _convert,
            parser=_parse,
            options={"zipmap": [False]},
        )


def pipeline_graph(pipeline: Any) -> onnx.ModelProto:
    """Convert a pipeline, or any estimator that skl2onnx converts, with a float64 input ``x``."""
    import skl2onnx
    from skl2onnx.common.data_types import DoubleTensorType

    register_converters()
    try:
        width = pipeline.n_features_in_
        model: onnx.ModelProto = skl2onnx.to_onnx(
            pipeline,
            name="gatewise",
            initial_types=[(INPUT, DoubleTensorType([None, width]))],
            target_opset={"": OPSET, ML_DOMAIN: ML_OPSET},
        )
    except ConversionError:
        raise
    except Exception as error:  # skl2onnx raises types of every kind
        raise ConversionError(
            f"to_onnx: skl2onnx cannot convert {type(pipeline).__name__}: {one_line(error)}"
        ) from error
    return model


# -- what skl2onnx calls -------------------------------------------------------------------


def _parse(scope: Any, model: Any, inputs: list[Any], custom_parsers: Any = None) -> list[Any]:
    """Declare the outputs."""
    from skl2onnx.common import data_types

    kinds: dict[int, Any] = {
        TensorProto.FLOAT: data_types.FloatTensorType,
        TensorProto.DOUBLE: data_types.DoubleTensorType,
        TensorProto.INT64: data_types.Int64TensorType,
        TensorProto.STRING: data_types.StringTensorType,
        TensorProto.BOOL: data_types.BooleanTensorType,
    }
    operator = scope.declare_local_operator(f"Gatewise{type(model).__name__}", model)
    operator.inputs = inputs
    for output in outputs_of(model):
        shape = [None] if output.columns is None else [None, output.columns]
        operator.outputs.append(
            scope.declare_local_variable(output.name, kinds[output.kind](shape))
        )
    return list(operator.outputs)


def _check_inputs(operator: Any) -> None:
    """Outputs have their shapes from the parser; check the width of what comes in."""
    width, wanted = 0, operator.raw_operator.n_features_in_
    for variable in operator.inputs:
        columns = variable.type.shape[1] if len(variable.type.shape) > 1 else 1
        if columns is None:
            return
        width += columns
    if width != wanted:
        raise ConversionError(
            f"{type(operator.raw_operator).__name__} was fitted on {wanted} columns, and the graph "
            f"gives it {width}"
        )


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Append the system's graph, renamed, behind a cast to float32."""
    from skl2onnx.operator_converters.common import concatenate_variables

    model = make_system_graph(operator.raw_operator)
    names: dict[str, str] = {
        declared.name: variable.full_name
        for declared, variable in zip(model.graph.output, operator.outputs, strict=True)
    }

    def fresh(name: str) -> str:
        return names.setdefault(name, scope.get_unique_variable_name(f"gw_{name}"))

    given = operator.inputs[0].full_name
    if len(operator.inputs) > 1:
        given = concatenate_variables(scope, operator.inputs, container)
    nodes = [helper.make_node("Cast", [given], [fresh(INPUT)], to=TensorProto.FLOAT)]
    for node in model.graph.node:
        node.input[:] = [fresh(name) for name in node.input]
        node.output[:] = [fresh(name) for name in node.output]
        nodes.append(node)
    for node in nodes:
        node.name = scope.get_unique_operator_name(f"gw_{node.op_type}")
    for known in model.graph.initializer:
        known.name = fresh(known.name)
    container.nodes.extend(nodes)
    container.initializers.extend(model.graph.initializer)
    for opset in model.opset_import:
        container.node_domain_version_pair_sets.add((opset.domain, opset.version))
