"""Given classifiers as ONNX graphs over flat instances, from any input shape and form of outputs.

A graph that was given stays as it is inside. Nodes before it bring a row of values into the shape
and type of its input; nodes behind it turn its output into margins (a low-cost model) or into label
and probabilities (a high-cost model). Probabilities become margins as their logarithms, so that
the softmax of the margins is what the model gave.
"""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gatewise import _onnxruntime
from gatewise.decision import Link, stop_score
from gatewise.errors import InputError, one_line
from gatewise.models.graph_model import GraphModel
from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.given_graph import OnnxModel
from gatewise_training.learners.tree_attributes import attributes_of

if TYPE_CHECKING:
    import onnx

__all__ = ["PairGraph", "converted", "gate_inputs", "with_gate"]

Shape = tuple[int, ...]
Form = Literal["logits", "probabilities"]

TRIED_ROWS = 256
"""Rows that a graph is run on to see the form of its outputs."""
ALONE = 4
"""Of these, rows that are run alone, too: a graph must not mix the rows of a batch."""
LEAST = 1e-30
"""A probability of 0 becomes this, so that its logarithm is finite."""
ML_DOMAIN = "ai.onnx.ml"


def converted(estimator: Any, n_features: int, what: str) -> bytes:
    """Convert a fitted scikit-learn classifier over flat rows with skl2onnx; `what` is for errors.

    Its outputs are label and scores, one column a class.
    """
    import skl2onnx
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.preprocessing import StandardScaler

    options: dict[Any, dict[str, Any]] = {StandardScaler: {"div": "div"}}
    if hasattr(estimator, "predict_proba"):
        options[id(estimator)] = {"zipmap": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # scikit-learn's, of its own attributes
        try:
            graph = skl2onnx.to_onnx(
                estimator,
                name="given",
                initial_types=[("x", FloatTensorType([None, n_features]))],
                options=options,
                target_opset={"": 17, ML_DOMAIN: 3},
            )
        except Exception as error:  # skl2onnx raises types of every kind
            raise InputError(
                f"{what}: skl2onnx cannot convert {type(estimator).__name__}: {one_line(error)}; "
                "give it as an ONNX file"
            ) from error
    content: bytes = graph.SerializeToString(deterministic=True)
    return content


@dataclass(frozen=True, eq=False)
class _Output:
    """An output of a graph: its name, and its values on the rows tried."""

    name: str
    values: NDArray[Any]

    @property
    def columns(self) -> int:
        return math.prod(self.values.shape[1:])


class PairGraph:
    """A classifier's ONNX graph, read and run on some rows.

    Parameters
    ----------
    model : str, Path, bytes or OnnxModel
        An ONNX file. One input tensor of numbers; outputs labels, probabilities or logits.
    x : ndarray of float32, shape (n, n_values)
        Instances, flat.
    shape : tuple of int
        Shape of an instance.
    what : str
        The model's name in errors.

    Attributes
    ----------
    classes : list or None
        Labels of its classes, if the file names them.
    n_classes : int or None
        Columns of its scores; 2 for a single one, None if it gives labels alone.

    Raises
    ------
    InputError
        If it is no such file, takes instances of another shape, or onnxruntime does not run it.
    """

    def __init__(
        self, model: str | Path | bytes | OnnxModel, x: NDArray[np.float32], shape: Shape, what: str
    ) -> None:
        self._what = what
        self._n_values = math.prod(shape)
        given = model if isinstance(model, OnnxModel) else OnnxModel(model)
        self._given_form = given.scores
        graph = _load(given.source, what)
        self.classes = _named_classes(graph)
        if given.classes is not None:
            self.classes = np.asarray(given.classes).tolist()
        self._graph = _with_flat_input(graph, shape, what)
        self._scores, self._label = self._choose_outputs(x[:TRIED_ROWS])
        scores = self._scores
        self.n_classes = None if scores is None else max(2, scores.columns)
        if self.classes is not None and self.n_classes not in (None, len(self.classes)):
            raise InputError(
                f"{what} names {len(self.classes)} classes and gives {self.n_classes} scores"
            )

    @property
    def form(self) -> Form:
        """Whether its scores are probabilities: within 0 and 1, and of sum 1 in every row."""
        assert self._scores is not None
        if self._given_form in ("logits", "probabilities"):
            return self._given_form
        values = self._scores.values.reshape(len(self._scores.values), -1).astype(np.float64)
        inside = bool((values > -1e-6).all() and (values < 1 + 1e-6).all())
        if inside and (values.shape[1] == 1 or np.allclose(values.sum(axis=1), 1.0, atol=1e-3)):
            return "probabilities"
        return "logits"

    # -- in another form -------------------------------------------------------------------

    def low_cost_model(self, order: NDArray[np.int64] | None) -> tuple[GraphModel, Link]:
        """Make the graph from rows to margins, and their link to probabilities.

        `order` gives the column of each class where the graph has them in another order. Raises
        InputError if it gives labels alone.
        """
        if self._scores is None:
            raise InputError(
                f"{self._what} gives labels alone; a gate needs its probabilities or logits: "
                "export the graph with that output"
            )
        parts = _Tail(self._graph)
        scores, link = self._tensor(parts, order)
        if self.form == "probabilities":
            given, least = scores, parts.value(LEAST)
            scores = parts.add("Log", [parts.add("Max", [given, least])])
            if link == "sigmoid":
                rest = parts.add("Sub", [parts.value(1.0), given])
                rest = parts.add("Log", [parts.add("Max", [rest, least])])
                scores = parts.add("Sub", [scores, rest])
        parts.add("Identity", [scores], "margins")
        assert self.n_classes is not None
        width = 1 if link == "sigmoid" else self.n_classes
        content = parts.finish([("margins", 1, width)])
        return GraphModel(content, self._n_values, width), link

    def high_cost_model(self, classes: NDArray[Any], order: NDArray[np.int64] | None) -> bytes:
        """Make the graph from rows to ``label``, class indices, and ``probabilities``.

        The label is the graph's own, or that of its largest score where it gives none. `order` is
        that of :meth:`low_cost_model`.
        """
        parts = _Tail(self._graph)
        if self._label is not None:
            self._add_indices(parts, classes, self._label)
        if self._scores is None:
            parts.add_one_hot(len(classes))
        else:
            scores, link = self._tensor(parts, order)
            if link == "sigmoid":
                one = scores
                if self.form == "logits":
                    one = parts.add("Sigmoid", [scores])
                rest = parts.add("Sub", [parts.value(1.0), one])
                parts.add("Concat", [rest, one], "probabilities", axis=1)
            elif self.form == "logits":
                parts.add("Softmax", [scores], "probabilities", axis=1)
            else:
                parts.add("Identity", [scores], "probabilities")
        if self._label is None:
            parts.add("ArgMax", ["probabilities"], "label", axis=1, keepdims=0)
        return parts.finish([("label", 7, None), ("probabilities", 1, len(classes))])

    def _tensor(self, parts: _Tail, order: NDArray[np.int64] | None) -> tuple[str, Link]:
        """Scores as a float32 matrix with a column a class, or a single one."""
        assert self._scores is not None
        columns, values = self._scores.columns, self._scores.values
        scores = parts.add("Cast", [self._scores.name], to=1)
        scores = parts.add("Reshape", [scores, parts.value([-1, columns], np.int64)])
        if order is not None and columns > 1:
            scores = parts.add("Gather", [scores, parts.value(order, np.int64)], axis=1)
        if columns == 1:
            return scores, "sigmoid"
        flat = values.reshape(len(values), -1)
        if columns == 2 and self.form == "logits" and np.array_equal(flat[:, 0], -flat[:, 1]):
            # a decision function and its negative, as skl2onnx writes it: softmax would double it
            second = parts.value([1], np.int64)
            return parts.add("Gather", [scores, second], axis=1), "sigmoid"
        return scores, "softmax"

    def _add_indices(self, parts: _Tail, classes: NDArray[Any], label: _Output) -> None:
        """Nodes from the graph's own labels to class indices, ``label``."""
        flat = parts.add("Reshape", [label.name, parts.value([-1], np.int64)])
        known = classes.tolist()
        found = set(np.ravel(label.values).tolist())
        if (
            self.classes is None
            and label.values.dtype.kind in "iu"
            and found <= set(range(len(known)))
        ):
            parts.add("Cast", [flat], "label", to=7)  # no names: labels are positions
            return
        if not found <= set(known):
            unknown = min(found - set(known), key=str)
            raise InputError(f"{self._what} gives the label {unknown!r}, which is not in classes")
        if label.values.dtype.kind in "iu":
            row = parts.value(np.array([[int(c) for c in known]]), np.int64)
            column = parts.value([-1, 1], np.int64)
            whole = parts.add("Reshape", [parts.add("Cast", [flat], to=7), column])
            same = parts.add("Cast", [parts.add("Equal", [whole, row])], to=7)
            parts.add("ArgMax", [same], "label", axis=1, keepdims=0)
            return
        versions = {o.domain: o.version for o in self._graph.opset_import}
        table: dict[str, Any] = {"classes_strings": known}
        if versions.get(ML_DOMAIN, 3) > 1:
            table = {"keys_strings": known, "values_int64s": list(range(len(known)))}
        parts.add("LabelEncoder", [flat], "label", domain=ML_DOMAIN, **table)

    # -- outputs ---------------------------------------------------------------------------

    def _choose_outputs(self, x: NDArray[np.float32]) -> tuple[_Output | None, _Output | None]:
        """Find scores and labels among the outputs, by their types and shapes on some rows."""
        names = [output.name for output in self._graph.graph.output]
        values = self._run(x)
        outputs = [_Output(n, v) for n, v in zip(names, values, strict=True)]
        scores = [o for o in outputs if o.values.dtype.kind == "f"]
        label = [o for o in outputs if o.values.dtype.kind in "iuUSO" and o.columns == 1]
        if not scores and not label:
            found = ", ".join(f"{o.name} {o.values.dtype} {o.values.shape}" for o in outputs)
            raise InputError(f"{self._what} gives [{found}]: neither scores nor labels")
        if len(scores) > 1:
            named = [o for o in scores if any(w in o.name.lower() for w in ("prob", "logit"))]
            if len(named) != 1:
                shown = ", ".join(o.name.removeprefix("g_") for o in scores)
                raise InputError(
                    f"{self._what} has several outputs of scores ({shown}); keep one of them"
                )
            scores = named
        if self._given_form == "labels":
            scores = []
        if scores and not np.isfinite(scores[0].values).all():
            raise InputError(f"{self._what} gives scores that are not finite on the rows")
        return scores[0] if scores else None, label[0] if label else None

    def _run(self, x: NDArray[np.float32]) -> list[NDArray[Any]]:
        """All outputs on some rows; every row's must be its own."""
        try:
            session = _onnxruntime.session(self._graph.SerializeToString(deterministic=True))
            together = [np.asarray(v) for v in session.run(None, {"x": x})]
            alone = [session.run(None, {"x": x[i : i + 1]}) for i in range(min(ALONE, len(x)))]
        except Exception as error:  # onnxruntime's own errors share no base
            raise InputError(
                f"{self._what}: onnxruntime does not run it on instances of this shape, one or "
                f"many at a time: {one_line(error)}; export it with a free first dimension"
            ) from error
        for place, values in enumerate(together):
            fits = values.ndim and len(values) == len(x)
            for i, outputs in enumerate(alone if fits else ()):
                one = np.asarray(outputs[place])
                same = values[i : i + 1] == one if one.dtype.kind in "iuUSO" else None
                if same is None:
                    same = np.isclose(values[i : i + 1], one, rtol=1e-3, atol=1e-4, equal_nan=True)
                fits = fits and one.shape == values[i : i + 1].shape and bool(np.all(same))
            if not fits:
                raise InputError(
                    f"{self._what}: the output {self._graph.graph.output[place].name[2:]!r} of a "
                    "batch is not that of its rows; export it with a free first dimension"
                )
        return together


# -- reading -------------------------------------------------------------------------------


def _load(model: str | Path | bytes, what: str) -> onnx.ModelProto:
    """Read and check a file; drop ZipMap nodes, shapes of inner values and texts."""
    import onnx

    if not isinstance(model, bytes):
        path = Path(model)
        if not path.is_file():
            raise InputError(f"{what}: file {path} does not exist")
        model = path.read_bytes()
    try:
        graph = onnx.load_model_from_string(model)
        outside = [
            t.name for t in graph.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL
        ]
        if outside:
            raise InputError(f"{what} keeps {outside[0]!r} in another file; save it as one")
        onnx.checker.check_model(graph)
    except InputError:
        raise
    except Exception as error:  # protobuf's DecodeError is not public
        raise InputError(f"{what} is not a usable ONNX file: {one_line(error)}") from error
    strange = {o.domain for o in graph.opset_import} - {"", "ai.onnx", ML_DOMAIN}
    if strange or graph.functions:
        raise InputError(
            f"{what} uses operators that onnxruntime alone does not have "
            f"({', '.join(sorted(strange)) or 'functions'})"
        )
    graph = onnx.compose.add_prefix(graph, "g_")
    del graph.graph.value_info[:]
    graph.graph.doc_string = graph.doc_string = ""
    return graph


def _named_classes(model: onnx.ModelProto) -> list[Any] | None:
    """Labels of the classes in the metadata or in a ZipMap, which is taken out."""
    text = next((p.value for p in model.metadata_props if p.key == "classes"), None)
    classes = None if text is None else list(json.loads(text))
    graph = model.graph
    for node in [n for n in graph.node if n.op_type == "ZipMap"]:
        for attribute in node.attribute:
            words = [s.decode() for s in attribute.strings]
            classes = classes or words or list(attribute.ints) or None
        for output in graph.output:
            if output.name == node.output[0]:
                output.name = node.input[0]
                output.ClearField("type")
                output.type.tensor_type.elem_type = 1
        graph.node.remove(node)
    return classes


def _with_flat_input(model: onnx.ModelProto, shape: Shape, what: str) -> onnx.ModelProto:
    """Put nodes before a graph that make its input of ``x``, float32 (n, n_values)."""
    from onnx import TensorProto, helper

    graph = model.graph
    known = {t.name for t in graph.initializer}
    inputs = [i for i in graph.input if i.name not in known]
    if len(inputs) != 1 or not inputs[0].type.HasField("tensor_type"):
        shown = ", ".join(i.name.removeprefix("g_") for i in inputs)
        raise InputError(f"{what} must have one input, a tensor; it has [{shown}]")
    kind = inputs[0].type.tensor_type.elem_type
    if kind not in (1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13):
        raise InputError(f"{what}'s input must be numbers, not {TensorProto.DataType.Name(kind)}")
    dims = [
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None
        for d in inputs[0].type.tensor_type.shape.dim
    ]
    wanted, order = _layout(dims, shape, what)
    nodes, value = [], "x"
    if kind != 1:
        nodes.append(helper.make_node("Cast", [value], ["gw_cast"], to=kind))
        value = "gw_cast"
    held: Shape = shape if order is not None else wanted
    if held != (math.prod(shape),):
        graph.initializer.append(helper.make_tensor("gw_shape", 7, [1 + len(held)], [-1, *held]))
        nodes.append(helper.make_node("Reshape", [value, "gw_shape"], ["gw_shaped"]))
        value = "gw_shaped"
    if order is not None:
        nodes.append(helper.make_node("Transpose", [value], ["gw_layout"], perm=order))
        value = "gw_layout"
    nodes.append(helper.make_node("Identity", [value], [inputs[0].name]))
    body, kept = list(graph.node), [i for i in graph.input if i.name in known]
    del graph.node[:], graph.input[:]
    graph.node.extend([*nodes, *body])
    source = helper.make_tensor_value_info("x", 1, ["n", math.prod(shape)])
    graph.input.extend([source, *kept])
    for output in graph.output:  # what it says of their shapes is found out by running it
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return model


def _layout(
    dims: list[int | None], shape: Shape, what: str
) -> tuple[Shape, tuple[int, ...] | None]:
    """Shape that an instance has for the graph, and how its axes move, if they do.

    >>> _layout([None, 1, 8, 8], (8, 8), "model")
    ((1, 8, 8), None)
    >>> _layout([None, 3, 32, 32], (32, 32, 3), "model")
    ((3, 32, 32), (0, 3, 1, 2))
    """
    own, size = dims[1:], math.prod(shape)
    solid = [d for d in own if d != 1]
    plain = [d for d in shape if d != 1]
    if len(own) == 1 and own[0] in (None, size):
        return (size,), None
    if len(own) == len(shape) and all(d in (None, s) for d, s in zip(own, shape, strict=True)):
        return shape, None
    if len(solid) == len(plain) and all(d in (None, p) for d, p in zip(solid, plain, strict=True)):
        found = iter(plain)
        return tuple(1 if d == 1 else next(found) for d in own), None
    if len(shape) == 3 and len(own) == 3:
        for axes, order in (((2, 0, 1), (0, 3, 1, 2)), ((1, 2, 0), (0, 2, 3, 1))):
            moved = tuple(shape[a] for a in axes)
            if all(d in (None, m) for d, m in zip(own, moved, strict=True)):
                return moved, order
    if len(shape) == 1 and None not in own and math.prod(d or 0 for d in own) == size:
        return tuple(d or 0 for d in own), None
    shown = ", ".join("n" if d is None else str(d) for d in own)
    raise InputError(f"{what} takes instances of shape ({shown}), the rows have {shape}")


# -- a learned gate ------------------------------------------------------------------------


def gate_inputs(
    margins: NDArray[np.float32], x: NDArray[np.float32], columns: NDArray[np.intp]
) -> NDArray[np.float32]:
    """Get what a gate reads of rows: stop score, margins, and these columns of the instance."""
    return np.column_stack([stop_score(margins), margins, x[:, columns]])


def with_gate(model: GraphModel, gate: TreeEnsemble, columns: NDArray[np.intp]) -> GraphModel:
    """Append a gate's trees over :func:`gate_inputs`; the last output is the gate's, negated."""
    import onnx

    graph = onnx.load_model_from_string(model.content)
    for node in graph.graph.node:
        node.output[:] = ["gw_margins" if name == "margins" else name for name in node.output]
    parts = _Tail(graph)
    if model.n_outputs == 1:
        score = parts.add("Abs", ["gw_margins"])
    else:
        two = parts.add_two_largest("gw_margins")
        first, second = (
            parts.add("Gather", [two, parts.value([i], np.int64)], axis=1) for i in (0, 1)
        )
        score = parts.add("Sub", [first, second])
    given = [score, "gw_margins"]
    if len(columns):
        given.append(parts.add("Gather", ["x", parts.value(columns, np.int64)], axis=1))
    read = parts.add("Concat", given, axis=1)
    odds = parts.add("TreeEnsembleRegressor", [read], domain=ML_DOMAIN, **attributes_of(gate))
    parts.add("Concat", ["gw_margins", parts.add("Neg", [odds])], "margins", axis=1)
    width = model.n_outputs + 1
    return GraphModel(parts.finish([("margins", 1, width)]), model.n_features, width)


# -- writing -------------------------------------------------------------------------------


class _Tail:
    """Nodes behind a copy of a graph; :meth:`finish` leaves out all that its outputs do not use."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnx

        self._model = onnx.ModelProto()
        self._model.CopyFrom(model)
        taken = [name for node in model.graph.node for name in node.output]
        self._made = sum(name.startswith("gw_") for name in taken)  # names of an earlier tail

    def add(self, kind: str, inputs: list[str], name: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return its name."""
        from onnx import helper

        domain = attributes.get("domain", "")
        if domain and domain not in {o.domain for o in self._model.opset_import}:
            self._model.opset_import.append(helper.make_opsetid(domain, 3))
        made = name or f"gw_{self._made}_{len(self._model.graph.node)}"
        self._model.graph.node.append(helper.make_node(kind, inputs, [made], **attributes))
        return made

    def value(self, numbers: Any, dtype: Any = np.float32) -> str:
        """Add a constant, and return its name."""
        from onnx import numpy_helper

        name = f"gw_{self._made}_value_{len(self._model.graph.initializer)}"
        array = np.asarray(numbers, dtype)
        self._model.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def add_two_largest(self, name: str) -> str:
        """Add the two largest values of each row, the largest first; return their name."""
        from onnx import helper

        made = f"gw_{len(self._model.graph.node)}_top"
        inputs = [name, self.value([2], np.int64)]
        self._model.graph.node.append(
            helper.make_node("TopK", inputs, [made, f"{made}_at"], axis=1)
        )
        return made

    def add_one_hot(self, n_classes: int) -> None:
        """Add ``probabilities`` of 0 and 1 from ``label``."""
        column = self.add("Reshape", ["label", self.value([-1, 1], np.int64)])
        row = self.value(np.arange(n_classes)[None, :], np.int64)
        self.add("Cast", [self.add("Equal", [column, row])], "probabilities", to=1)

    def finish(self, outputs: list[tuple[str, int, int | None]]) -> bytes:
        """Declare the outputs (name, ONNX type, columns), check, and write the file."""
        import onnx
        from onnx import helper

        graph = self._model.graph
        del graph.output[:], self._model.metadata_props[:]
        for name, kind, columns in outputs:
            shape: list[str | int | None] = ["n"] if columns is None else ["n", columns]
            graph.output.append(helper.make_tensor_value_info(name, kind, shape))
        if not any(a.HasField("g") or a.graphs for n in graph.node for a in n.attribute):
            _keep_used(graph)
        for node in graph.node:
            node.name = node.doc_string = ""
        graph.name = "given"
        self._model.opset_import.sort(key=lambda opset: opset.domain)
        onnx.checker.check_model(self._model)
        content: bytes = self._model.SerializeToString(deterministic=True)
        return content


def _keep_used(graph: onnx.GraphProto) -> None:
    """Leave out nodes and constants that no output depends on."""
    used = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if used & set(node.output):
            used |= set(node.input)
            kept.append(node)
    constants = [t for t in graph.initializer if t.name in used]
    inputs = [i for i in graph.input if i.name in used | {"x"}]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(constants)
    graph.input.extend(inputs)
