"""Rules for a given stage's graph: common operators of classifiers, each result's shape known.

A stage that was given as an ONNX file may convolve, pool and multiply. Its operators are those
listed here, without any that loop, branch or make a result as large as a value says. Every shape
follows from that of the input before anything runs, so that values and work are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise_export.onnx_files.onnx_parts import FLOAT, INT64, Model, Node, Tensor
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.tree_rules import TREE_OPERATORS, read_trees_node

__all__ = ["MOST_GIVEN_PARTS", "check_given"]

MOST_GIVEN_PARTS: Final = 65_536
MOST_NODES: Final = 4096
MOST_TREE_NODES: Final = 1 << 21
MOST_ELEMENTS: Final = 1 << 25
"""Numbers that all values of a graph may hold together for one row (128 MiB)."""
MOST_WORK: Final = 1 << 34
"""Multiplications for one row: seconds on a small device."""
MOST_NUMBERS: Final = 1024
"""Numbers of a constant that shapes may follow from."""
ROWS: Final = -(1 << 40)
"""Stands for the number of rows in shapes, and in constants that hold shapes."""
ML_DOMAIN: Final = "ai.onnx.ml"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Known:
    """What is certain of a value before anything runs: its shape; numbers, if they are few."""

    shape: Shape
    numbers: NDArray[np.int64] | None = None


def check_given(model: Model, n_inputs: int, n_outputs: int) -> None:
    """Check a graph from ``x``, float32 (n, n_inputs), to ``margins``, float32 (n, n_outputs)."""
    _GivenCheck(model).check(n_inputs, n_outputs)


class _GivenCheck:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.values: dict[str, _Known] = {}
        self.elements = self.work = self.tree_nodes = 0

    def check(self, n_inputs: int, n_outputs: int) -> None:
        graph = self.model.graph
        constants = {tensor.name for tensor in graph.initializers}
        for what, values, name in (
            ("inputs", [v for v in graph.inputs if v.name not in constants], "x"),
            ("outputs", graph.outputs, "margins"),
        ):
            ends = [(v.name, v.kind, v.element) for v in values]
            if ends != [(name, "tensor", FLOAT)]:
                raise Malformed(f"its {what} are not {name!r} alone, a float32 tensor")
        if len(graph.nodes) > MOST_NODES:
            raise Malformed(f"it has {len(graph.nodes)} nodes, more than {MOST_NODES}")
        self.add("x", _Known((ROWS, n_inputs)))
        for tensor in graph.initializers:
            self.add(tensor.name, _constant(tensor))
        for node in graph.nodes:
            try:
                self.node(node)
            except Malformed as error:
                raise Malformed(f"{node.op_type[:64]}: {error}") from None
            except (TypeError, ValueError, IndexError, OverflowError):
                raise Malformed(
                    f"{node.op_type[:64]}: inputs or attributes that fit no rule"
                ) from None
        made = self.values.get("margins")
        if made is None or made.shape != (ROWS, n_outputs):
            found = "nothing" if made is None else _written(made.shape)
            raise Malformed(f"its nodes give {found} as 'margins', not (n, {n_outputs})")

    def add(self, name: str, value: _Known) -> None:
        if value.numbers is not None and value.numbers.size > MOST_NUMBERS:
            value = _Known(value.shape)
        if not name or name in self.values:
            raise Malformed(f"the value {name!r} is made twice, or has no name")
        if len(value.shape) > 8 or value.shape.count(ROWS) > 1:
            raise Malformed(f"a value of shape {_written(value.shape)}")
        if any(d < 0 for d in value.shape if d != ROWS):
            raise Malformed(f"a value of shape {_written(value.shape)}")
        self.elements += _size(value.shape)
        if self.elements > MOST_ELEMENTS:
            raise Malformed(f"its values hold more than {MOST_ELEMENTS} numbers a row")
        self.values[name] = value

    def node(self, node: Node) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        table = _RULES if not domain else _ML_RULES if domain == ML_DOMAIN else {}
        rule = table.get(node.op_type)
        if rule is None:
            raise Malformed("an operator that no given stage may use")
        if node.overload or any(a.kind in (5, 9, 10) for a in node.attributes.values()):
            raise Malformed("an operator with a graph inside, or overloaded")
        for name in node.inputs:
            if name and name not in self.values:
                raise Malformed(f"it reads {name!r}, which no earlier node makes")
        given = [self.values[n] if n else None for n in node.inputs]
        made = rule(_Call(node, given, self))
        results = [made] if isinstance(made, _Known) else made
        for place, name in enumerate(node.outputs):
            if not name:
                continue
            if place >= len(results):
                raise Malformed(f"its output {place} is of no known shape")
            self.add(name, results[place])

    def count(self, work: int) -> None:
        self.work += work
        if self.work > MOST_WORK:
            raise Malformed(f"it takes more than {MOST_WORK} multiplications a row")


@dataclass(frozen=True)
class _Call:
    """A node with what is certain of its inputs."""

    node: Node
    inputs: list[_Known | None]
    check: _GivenCheck

    def shape(self, place: int = 0) -> Shape:
        value = self.inputs[place] if place < len(self.inputs) else None
        if value is None:
            raise Malformed(f"it has no input {place}")
        return value.shape

    def numbers(self, place: int, attribute: str = "") -> list[int] | None:
        """Whole numbers of a constant input, or of an attribute, as in older versions; or None."""
        if attribute and attribute in self.node.attributes:
            return [int(i) for i in np.atleast_1d(self.node.get(attribute))]
        value = self.inputs[place] if place < len(self.inputs) else None
        if value is None:
            return None
        if value.numbers is None:
            raise Malformed(f"its input {place} must be a constant of few numbers")
        return [int(i) for i in value.numbers.reshape(-1)]

    def number(self, name: str, default: int) -> int:
        return int(self.node.get(name, default))

    def axis(self, name: str, default: int, ndim: int) -> int:
        return _axis(self.number(name, default), ndim)


Rule = Callable[[_Call], "_Known | list[_Known]"]


def _constant(tensor: Tensor) -> _Known:
    tensor.check()
    few = tensor.kind == INT64 and tensor.size <= MOST_NUMBERS
    return _Known(tensor.shape, tensor.array().astype(np.int64) if few else None)


def _size(shape: Shape) -> int:
    return math.prod(1 if d == ROWS else d for d in shape)


def _written(shape: Shape) -> str:
    return "(" + ", ".join("n" if d == ROWS else str(d) for d in shape) + ")"


def _axis(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise Malformed(f"axis {axis} of {ndim}")
    return axis % ndim


# -- one rule a kind of operator -----------------------------------------------------------


def _same(call: _Call) -> _Known:
    value = call.inputs[0]
    if value is None:
        raise Malformed("it has no input")
    kept = call.node.op_type in ("Identity", "Cast")
    return value if kept else _Known(value.shape)


def _broadcast(call: _Call) -> _Known:
    shapes = [call.shape(i) for i in range(len(call.inputs))]
    return _Known(_joint(shapes))


def _joint(shapes: list[Shape]) -> Shape:
    width = max(map(len, shapes))
    made = [1] * width
    for shape in shapes:
        for i, d in enumerate(reversed(shape), 1):
            if d != made[-i] and 1 not in (d, made[-i]):
                raise Malformed(f"{_written(shape)} and {_written(tuple(made))} do not fit")
            made[-i] = d if made[-i] == 1 else made[-i]
    return tuple(made)


def _windows(call: _Call, spatial: Shape, kernel: list[int]) -> Shape:
    """Shape of the places of a moving window; all of it lies in the values and their padding."""
    n = len(spatial)
    strides = call.numbers(99, "strides") or [1] * n
    dilations = call.numbers(99, "dilations") or [1] * n
    pads = call.numbers(99, "pads") or [0] * (2 * n)
    auto = call.node.get("auto_pad", b"NOTSET")
    if not len(strides) == len(dilations) == len(kernel) == n or len(pads) != 2 * n:
        raise Malformed("a window of other dimensions than its input")
    if min([*strides, *dilations, *kernel]) < 1 or min(pads) < 0 or ROWS in spatial:
        raise Malformed("a window with strides, pads or sizes that none may have")
    if max([*strides, *dilations, *kernel, *pads]) > 65_535:
        raise Malformed("a window with strides, pads or sizes that none may have")
    made = []
    for i, d in enumerate(spatial):
        if auto in (b"SAME_UPPER", b"SAME_LOWER"):
            made.append(-(-d // strides[i]))
            continue
        both = 0 if auto == b"VALID" else pads[i] + pads[n + i]
        room = d + both - dilations[i] * (kernel[i] - 1) - 1
        if room < 0:
            raise Malformed(f"a window of {kernel[i]} over {d} values")
        step = -(-room // strides[i]) if call.number("ceil_mode", 0) else room // strides[i]
        made.append(step + 1)
    return tuple(made)


def _conv(call: _Call) -> _Known:
    x, w = call.shape(), call.shape(3 if call.node.op_type == "QLinearConv" else 1)
    group = call.number("group", 1)
    if len(x) < 3 or len(w) != len(x) or group < 1 or x[1] != w[1] * group or w[0] % group:
        raise Malformed(f"weights {_written(w)} for values {_written(x)} in {group} groups")
    kernel = call.numbers(99, "kernel_shape") or list(w[2:])
    if kernel != list(w[2:]):
        raise Malformed("a kernel_shape that its weights have not")
    made = (x[0], w[0], *_windows(call, x[2:], kernel))
    call.check.count(_size(made) * math.prod(w[1:]))
    return _Known(made)


def _pool(call: _Call) -> _Known:
    x, kernel = call.shape(), call.numbers(99, "kernel_shape")
    if kernel is None or len(x) < 3:
        raise Malformed("it has no kernel_shape, or no image to move over")
    made = (*x[:2], *_windows(call, x[2:], kernel))
    call.check.count(_size(made) * math.prod(kernel))
    return _Known(made)


def _global_pool(call: _Call) -> _Known:
    x = call.shape()
    return _Known((*x[:2], *([1] * (len(x) - 2))))


def _flatten(call: _Call) -> _Known:
    x = call.shape()
    axis = call.number("axis", 1)
    axis = axis if axis == len(x) else _axis(axis, len(x))
    head, tail = x[:axis], x[axis:]
    return _Known((_product(head), _product(tail)))


def _product(shape: Shape) -> int:
    """Number of elements; where one dimension is the rows, the others must be 1."""
    if ROWS in shape:
        if _size(shape) != 1:
            raise Malformed(f"{_written(shape)} as one dimension mixes rows")
        return ROWS
    return math.prod(shape)


def _reshape(call: _Call) -> _Known:
    x = call.shape()
    wanted = call.numbers(1, "shape")
    if wanted is None:
        raise Malformed("it has no shape")
    if call.number("allowzero", 0) and 0 in wanted:
        raise Malformed("a shape with a dimension of 0")
    target = [x[i] if d == 0 and i < len(x) else d for i, d in enumerate(wanted)]
    return _Known(_filled(x, target))


def _filled(x: Shape, target: list[int]) -> Shape:
    if target.count(-1) > 1 or any(d < -1 for d in target if d != ROWS):
        raise Malformed(f"the shape {target}")
    rest = _size(tuple(d for d in target if d != -1))
    total = _size(x)
    if -1 in target:
        place = target.index(-1)
        if ROWS in x and ROWS not in target:  # the rows are what is left to be found
            target[place] = ROWS
            if rest != total:
                raise Malformed(f"{_written(x)} as {target[:8]} mixes rows")
            return tuple(target)
        if rest == 0 or total % rest:
            raise Malformed(f"{_written(x)} as {target[:8]}")
        target[place] = total // rest
        return tuple(target)
    if ROWS in x and ROWS not in target and rest == total and target[:1] == [1]:
        raise Malformed("a shape for one row alone; a stage takes many")
    if rest != total or (ROWS in x) != (ROWS in target):
        raise Malformed(f"{_written(x)} as {target[:8]}")
    return tuple(target)


def _transpose(call: _Call) -> _Known:
    x = call.shape()
    order = call.numbers(99, "perm") or list(range(len(x)))[::-1]
    if sorted(order) != list(range(len(x))):
        raise Malformed(f"the order {order} for {len(x)} axes")
    return _Known(tuple(x[i] for i in order))


def _concat(call: _Call) -> _Known:
    shapes = [call.shape(i) for i in range(len(call.inputs))]
    axis = call.axis("axis", 0, len(shapes[0]))
    rest = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    if len(rest) != 1 or any(len(s) != len(shapes[0]) for s in shapes):
        raise Malformed("parts that do not fit")
    along = [s[axis] for s in shapes]
    if ROWS in along:
        raise Malformed("rows behind rows")
    parts = [v.numbers for v in call.inputs if v is not None and v.numbers is not None]
    numbers = np.concatenate(parts, axis) if len(parts) == len(shapes) else None
    return _Known((*shapes[0][:axis], sum(along), *shapes[0][axis + 1 :]), numbers)


def _squeeze(call: _Call) -> _Known:
    value, x = call.inputs[0], call.shape()
    axes = call.numbers(1, "axes")
    gone = {_axis(a, len(x)) for a in axes} if axes else {i for i, d in enumerate(x) if d == 1}
    if any(x[i] != 1 for i in gone):
        raise Malformed(f"axes of {_written(x)} that are not 1")
    made = tuple(d for i, d in enumerate(x) if i not in gone)
    return _renumbered(value, made)


def _unsqueeze(call: _Call) -> _Known:
    value, made = call.inputs[0], list(call.shape())
    axes = call.numbers(1, "axes")
    if not axes:
        raise Malformed("it has no axes")
    ndim = len(made) + len(axes)
    for axis in sorted(_axis(a, ndim) for a in axes):
        made.insert(axis, 1)
    return _renumbered(value, tuple(made))


def _renumbered(value: _Known | None, shape: Shape) -> _Known:
    if value is None or value.numbers is None:
        return _Known(shape)
    return _Known(shape, value.numbers.reshape(shape))


def _gather(call: _Call) -> _Known:
    x, value = call.shape(), call.inputs[0]
    axis = call.axis("axis", 0, len(x))
    index, at = call.inputs[1], call.shape(1)
    if index is None or x[axis] == ROWS or ROWS in at:
        raise Malformed("it picks among rows")
    places = index.numbers if index.numbers is not None else np.zeros(0, np.int64)
    if ((places < -x[axis]) | (places >= x[axis])).any():
        raise Malformed(f"an index beyond {x[axis]}")
    numbers = None
    if value is not None and value.numbers is not None and index.numbers is not None:
        numbers = np.take(value.numbers, index.numbers, axis)
    return _Known((*x[:axis], *at, *x[axis + 1 :]), numbers)


def _slice(call: _Call) -> _Known:
    x, value = call.shape(), call.inputs[0]
    starts, ends = call.numbers(1, "starts"), call.numbers(2, "ends")
    axes, steps = call.numbers(3, "axes"), call.numbers(4)
    if starts is None or ends is None:
        raise Malformed("it has no ends")
    axes = axes if axes is not None else list(range(len(starts)))
    steps = steps if steps is not None else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Malformed("starts, ends, axes and steps that do not fit")
    made = list(x)
    parts = [slice(None)] * len(x)
    for start, end, a, step in zip(starts, ends, axes, steps, strict=True):
        axis = _axis(a, len(x))
        if made[axis] == ROWS:
            raise Malformed("it cuts rows")
        parts[axis] = slice(start, end, step)
        # ONNX's end of a backward slice: below the first
        stop = None if step < 0 and end < -x[axis] else end
        made[axis] = len(range(*slice(start, stop, step).indices(x[axis])))
    numbers = None
    if value is not None and value.numbers is not None and min(steps) > 0:
        numbers = value.numbers[tuple(parts)]
    return _Known(tuple(made), numbers)


def _split(call: _Call) -> list[_Known]:
    x, n = call.shape(), len(call.node.outputs)
    axis = call.axis("axis", 0, len(x))
    sizes = call.numbers(1, "split")
    if x[axis] == ROWS:
        raise Malformed("it parts rows")
    if sizes is None:
        each = -(-x[axis] // n)
        sizes = [min(each, x[axis] - i * each) for i in range(n)]
    if len(sizes) != n or sum(sizes) != x[axis] or min(sizes) < 0:
        raise Malformed(f"parts {sizes[:8]} of {x[axis]}")
    return [_Known((*x[:axis], size, *x[axis + 1 :])) for size in sizes]


def _pad(call: _Call) -> _Known:
    x, pads = call.shape(), call.numbers(1, "pads")
    axes = call.numbers(3)
    places = list(range(len(x))) if axes is None else [_axis(a, len(x)) for a in axes]
    if pads is None or len(pads) != 2 * len(places):
        raise Malformed("pads that do not fit")
    made = list(x)
    for i, axis in enumerate(places):
        both = pads[i] + pads[len(places) + i]
        if made[axis] == ROWS and both:
            raise Malformed("it adds rows")
        made[axis] = made[axis] if made[axis] == ROWS else made[axis] + both
    return _Known(tuple(made))


def _reduce(call: _Call) -> _Known:
    x = call.shape()
    axes = call.numbers(1, "axes")
    if axes is None:
        if call.number("noop_with_empty_axes", 0):
            return _Known(x)
        raise Malformed("it mixes rows")
    gone = {_axis(a, len(x)) for a in axes}
    if any(x[a] == ROWS for a in gone):
        raise Malformed("it mixes rows")
    if call.number("keepdims", 1):
        return _Known(tuple(1 if i in gone else d for i, d in enumerate(x)))
    return _Known(tuple(d for i, d in enumerate(x) if i not in gone))


def _argmax(call: _Call) -> _Known:
    x = call.shape()
    axis = call.axis("axis", 0, len(x))
    if x[axis] == ROWS:
        raise Malformed("it mixes rows")
    kept = [1] if call.number("keepdims", 1) else []
    return _Known((*x[:axis], *kept, *x[axis + 1 :]))


def _top(call: _Call) -> list[_Known]:
    """The k largest along an axis, and where they were."""
    x, k = call.shape(), call.numbers(1, "k")
    axis = call.axis("axis", -1, len(x))
    if k is None or len(k) != 1 or x[axis] == ROWS or not 0 < k[0] <= x[axis]:
        raise Malformed(f"the largest {k} of {_written(x)}")
    made = _Known((*x[:axis], k[0], *x[axis + 1 :]))
    return [made, made]


def _gemm(call: _Call) -> _Known:
    a, b = call.shape(0), call.shape(1)
    if len(a) != 2 or len(b) != 2:
        raise Malformed("factors that are no matrices")
    a = a[::-1] if call.number("transA", 0) else a
    b = b[::-1] if call.number("transB", 0) else b
    made = _matrix_product(call, a, b)
    if len(call.inputs) > 2 and _joint([made, call.shape(2)]) != made:
        raise Malformed(f"a bias of shape {_written(call.shape(2))}")
    return _Known(made)


def _matmul(call: _Call) -> _Known:
    second = 3 if call.node.op_type == "QLinearMatMul" else 1
    return _Known(_matrix_product(call, call.shape(0), call.shape(second)))


def _matrix_product(call: _Call, a: Shape, b: Shape) -> Shape:
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2] or a[-1] == ROWS:
        raise Malformed(f"the product of {_written(a)} and {_written(b)}")
    made = (*_joint([a[:-2], b[:-2]]), a[-2], b[-1]) if len(a) > 2 or len(b) > 2 else (a[0], b[1])
    call.check.count(_size(made) * a[-1])
    return made


def _shape_of(call: _Call) -> _Known:
    if {"start", "end"} & set(call.node.attributes):
        raise Malformed("a part of a shape")
    x = call.shape()
    return _Known((len(x),), np.array(x, np.int64))


def _constant_node(call: _Call) -> _Known:
    held = call.node.get("value")
    if isinstance(held, Tensor) and len(call.node.attributes) == 1:
        return _constant(held)
    for name, shape in (("value_float", ()), ("value_int", ())):
        if name in call.node.attributes:
            number = call.node.get(name)
            return _Known(shape, np.array(number) if name == "value_int" else None)
    for name in ("value_ints", "value_floats"):
        if name in call.node.attributes:
            listed = call.node.get(name)
            few = name == "value_ints" and len(listed) <= MOST_NUMBERS
            return _Known((len(listed),), np.asarray(listed) if few else None)
    raise Malformed("a constant of no known form")


def _recurrent(call: _Call) -> list[_Known]:
    """LSTM, GRU and RNN over (steps, rows, values)."""
    x, r = call.shape(0), call.shape(2)
    hidden = call.number("hidden_size", r[-1])
    if len(x) != 3 or len(r) != 3 or x[0] == ROWS or call.number("layout", 0) or hidden != r[-1]:
        raise Malformed(f"steps of shape {_written(x)}")
    call.check.count(x[0] * r[0] * (_size(call.shape(1)) + _size(r)))
    last = _Known((r[0], x[1], hidden))
    return [_Known((x[0], r[0], x[1], hidden)), last, last]


def _dynamic_quantize(call: _Call) -> list[_Known]:
    return [_Known(call.shape()), _Known(()), _Known(())]


def _linear(call: _Call) -> list[_Known]:
    """Scores of a linear model; labels before them where it classifies."""
    x = call.shape()
    weights = len(call.node.get("coefficients", ()))
    biases = len(call.node.get("intercepts", ()))
    if len(x) != 2 or ROWS in x[1:] or not weights or weights % x[1]:
        raise Malformed(f"{weights} coefficients for {_written(x)}")
    width = weights // x[1]
    if biases not in (0, width):
        raise Malformed(f"{biases} intercepts for {width} scores")
    if call.node.op_type == "LinearRegressor":
        if call.number("targets", 1) != width:
            raise Malformed(f"{width} targets")
        return [_Known((x[0], width))]
    labels = [len(call.node.get(f"classlabels_{kind}", ())) for kind in ("ints", "strings")]
    if biases != width or max(labels) != width or min(labels):
        raise Malformed(f"{max(labels)} classes for {width} scores")
    call.check.count(weights)
    return [_Known((x[0],)), _Known((x[0], width))]


def _trees(call: _Call) -> list[_Known]:
    x = call.shape()
    if len(x) != 2 or x[0] != ROWS:
        raise Malformed(f"trees that read {_written(x)}")
    left = MOST_TREE_NODES - call.check.tree_nodes
    trees = read_trees_node(call.node, width=x[1], ordered=False, most_nodes=left)
    call.check.tree_nodes += len(trees.feature)
    scores = _Known((ROWS, len(trees.base)))
    one = call.node.op_type == "TreeEnsembleRegressor"
    return [scores] if one else [_Known((ROWS,)), scores]


def _scaler(call: _Call) -> _Known:
    x = call.shape()
    for name in ("offset", "scale"):
        if len(call.node.get(name, (0,))) not in (1, x[-1]):
            raise Malformed(f"{name!r} does not fit {_written(x)}")
    return _Known(x)


def _columns(call: _Call) -> _Known:
    """Columns that constant numbers name."""
    x, numbers = call.shape(), call.numbers(1)
    if numbers is None or len(x) != 2 or not all(0 <= i < x[1] for i in numbers):
        raise Malformed(f"columns beyond {_written(x)}")
    return _Known((x[0], len(numbers)))


def _rules(*rows: tuple[str, Rule]) -> Iterator[tuple[str, Rule]]:
    for names, rule in rows:
        for name in names.split():
            yield name, rule


_RULES: Final[Mapping[str, Rule]] = dict(
    _rules(
        (
            "Relu LeakyRelu Elu Selu Celu Sigmoid HardSigmoid HardSwish Tanh Softplus Softsign "
            "Softmax LogSoftmax Exp Log Sqrt Abs Neg Floor Ceil Round Reciprocal Erf Sign Not "
            "Identity Cast Clip BatchNormalization InstanceNormalization LayerNormalization LRN "
            "Dropout Gelu ThresholdedRelu Sin Cos QuantizeLinear DequantizeLinear "
            "LpNormalization MeanVarianceNormalization Mish IsNaN",
            _same,
        ),
        (
            "Add Sub Mul Div Pow Max Min Sum Mean Equal Less Greater LessOrEqual GreaterOrEqual "
            "And Or Xor Where PRelu",
            _broadcast,
        ),
        ("Conv ConvInteger QLinearConv", _conv),
        ("MaxPool AveragePool LpPool", _pool),
        ("GlobalAveragePool GlobalMaxPool", _global_pool),
        (
            "ReduceMean ReduceSum ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceSumSquare ReduceProd "
            "ReduceLogSumExp",
            _reduce,
        ),
        ("ArgMax ArgMin", _argmax),
        ("TopK", _top),
        ("Gemm", _gemm),
        ("MatMul MatMulInteger QLinearMatMul", _matmul),
        ("DynamicQuantizeLinear", _dynamic_quantize),
        ("Flatten", _flatten),
        ("Reshape", _reshape),
        ("Transpose", _transpose),
        ("Concat", _concat),
        ("Squeeze", _squeeze),
        ("Unsqueeze", _unsqueeze),
        ("Gather", _gather),
        ("Slice", _slice),
        ("Split", _split),
        ("Pad", _pad),
        ("Shape", _shape_of),
        ("Constant", _constant_node),
        ("LSTM GRU RNN", _recurrent),
    )
)
_ML_RULES: Final[Mapping[str, Rule]] = dict(
    _rules(
        ("LinearClassifier LinearRegressor", _linear),
        (" ".join(TREE_OPERATORS), _trees),
        ("Scaler", _scaler),
        ("Normalizer Binarizer", _same),
        ("ArrayFeatureExtractor", _columns),
    )
)
