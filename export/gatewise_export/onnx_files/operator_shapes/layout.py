"""Shapes of values that are only laid out anew: reshaped, cut, joined; and constants."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gatewise_export.onnx_files.given_rules import KnownValue, OperatorCall, by_operator
from gatewise_export.onnx_files.onnx_parts import Tensor
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.shapes import ROWS, Shape, checked_axis, row_size, written


def _reshape(call: OperatorCall) -> KnownValue:
    x = call.shape()
    wanted = call.numbers(1, "shape")
    if wanted is None:
        raise Malformed("it has no shape")
    if call.number("allowzero", 0) and 0 in wanted:
        raise Malformed("a shape with a dimension of 0")
    target = [x[i] if d == 0 and i < len(x) else d for i, d in enumerate(wanted)]
    return KnownValue(_filled(x, target))


def _filled(x: Shape, target: list[int]) -> Shape:
    if target.count(-1) > 1 or any(d < -1 for d in target if d != ROWS):
        raise Malformed(f"the shape {target}")
    rest = row_size(tuple(d for d in target if d != -1))
    total = row_size(x)
    if -1 in target:
        place = target.index(-1)
        if ROWS in x and ROWS not in target:  # the rows are what is left to be found
            target[place] = ROWS
            if rest != total:
                raise Malformed(f"{written(x)} as {target[:8]} mixes rows")
            return tuple(target)
        if rest == 0 or total % rest:
            raise Malformed(f"{written(x)} as {target[:8]}")
        target[place] = total // rest
        return tuple(target)
    if ROWS in x and ROWS not in target and rest == total and target[:1] == [1]:
        raise Malformed("a shape for one row alone; a stage takes many")
    if rest != total or (ROWS in x) != (ROWS in target):
        raise Malformed(f"{written(x)} as {target[:8]}")
    return tuple(target)


def _flatten(call: OperatorCall) -> KnownValue:
    x = call.shape()
    axis = call.number("axis", 1)
    axis = axis if axis == len(x) else checked_axis(axis, len(x))
    head, tail = x[:axis], x[axis:]
    return KnownValue((_product(head), _product(tail)))


def _product(shape: Shape) -> int:
    """Number of elements; where one dimension is the rows, the others must be 1."""
    if ROWS in shape:
        if row_size(shape) != 1:
            raise Malformed(f"{written(shape)} as one dimension mixes rows")
        return ROWS
    return math.prod(shape)


def _transpose(call: OperatorCall) -> KnownValue:
    x = call.shape()
    order = call.listed("perm") or list(range(len(x)))[::-1]
    if sorted(order) != list(range(len(x))):
        raise Malformed(f"the order {order} for {len(x)} axes")
    return KnownValue(tuple(x[i] for i in order))


def _concat(call: OperatorCall) -> KnownValue:
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
    return KnownValue((*shapes[0][:axis], sum(along), *shapes[0][axis + 1 :]), numbers)


def _squeeze(call: OperatorCall) -> KnownValue:
    value, x = call.inputs[0], call.shape()
    axes = call.numbers(1, "axes")
    ones = {i for i, d in enumerate(x) if d == 1}
    gone = {checked_axis(a, len(x)) for a in axes} if axes else ones
    if any(x[i] != 1 for i in gone):
        raise Malformed(f"axes of {written(x)} that are not 1")
    made = tuple(d for i, d in enumerate(x) if i not in gone)
    return _renumbered(value, made)


def _unsqueeze(call: OperatorCall) -> KnownValue:
    value, made = call.inputs[0], list(call.shape())
    axes = call.numbers(1, "axes")
    if not axes:
        raise Malformed("it has no axes")
    ndim = len(made) + len(axes)
    for axis in sorted(checked_axis(a, ndim) for a in axes):
        made.insert(axis, 1)
    return _renumbered(value, tuple(made))


def _renumbered(value: KnownValue | None, shape: Shape) -> KnownValue:
    if value is None or value.numbers is None:
        return KnownValue(shape)
    return KnownValue(shape, value.numbers.reshape(shape))


def _gather(call: OperatorCall) -> KnownValue:
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
    return KnownValue((*x[:axis], *at, *x[axis + 1 :]), numbers)


def _slice(call: OperatorCall) -> KnownValue:
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
        axis = checked_axis(a, len(x))
        if made[axis] == ROWS:
            raise Malformed("it cuts rows")
        parts[axis] = slice(start, end, step)
        # ONNX's end of a backward slice: below the first
        stop = None if step < 0 and end < -x[axis] else end
        made[axis] = len(range(*slice(start, stop, step).indices(x[axis])))
    numbers = None
    if value is not None and value.numbers is not None and min(steps) > 0:
        numbers = value.numbers[tuple(parts)]
    return KnownValue(tuple(made), numbers)


def _split(call: OperatorCall) -> list[KnownValue]:
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
    return [KnownValue((*x[:axis], size, *x[axis + 1 :])) for size in sizes]


def _pad(call: OperatorCall) -> KnownValue:
    x, pads = call.shape(), call.numbers(1, "pads")
    axes = call.numbers(3)
    places = list(range(len(x))) if axes is None else [checked_axis(a, len(x)) for a in axes]
    if pads is None or len(pads) != 2 * len(places):
        raise Malformed("pads that do not fit")
    made = list(x)
    for i, axis in enumerate(places):
        both = pads[i] + pads[len(places) + i]
        if made[axis] == ROWS and both:
            raise Malformed("it adds rows")
        made[axis] = made[axis] if made[axis] == ROWS else made[axis] + both
    return KnownValue(tuple(made))


def _shape_of(call: OperatorCall) -> KnownValue:
    if {"start", "end"} & set(call.node.attributes):
        raise Malformed("a part of a shape")
    x = call.shape()
    return KnownValue((len(x),), np.array(x, np.int64))


def _constant_node(call: OperatorCall) -> KnownValue:
    held = call.node.get("value")
    if isinstance(held, Tensor) and len(call.node.attributes) == 1:
        return KnownValue.of_constant(held)
    for name in ("value_int", "value_float"):
        if name in call.node.attributes:
            number = np.array(call.node.get(name)) if name == "value_int" else None
            return KnownValue((), number)
    for name in ("value_ints", "value_floats"):
        if name in call.node.attributes:
            listed = call.node.get(name)
            numbers = np.asarray(listed) if name == "value_ints" else None
            return KnownValue((len(listed),), numbers)
    raise Malformed("a constant of no known form")


LAYOUT_RULES: Final = by_operator(
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
)
