"""Shapes of what layers compute: element by element, over windows, as products and reductions."""

from __future__ import annotations

import math
from typing import Final

from gatewise_export.onnx_files.given_rules import (
    KnownValue,
    OperatorCall,
    broadcast,
    by_operator,
    same_shape,
)
from gatewise_export.onnx_files.protobuf import Malformed
from gatewise_export.onnx_files.shapes import (
    ROWS,
    Shape,
    checked_axis,
    joint_shape,
    row_size,
    written,
)


def _conv(call: OperatorCall) -> KnownValue:
    x, w = call.shape(), call.shape(3 if call.node.op_type == "QLinearConv" else 1)
    group = call.number("group", 1)
    if len(x) < 3 or len(w) != len(x) or group < 1 or x[1] != w[1] * group or w[0] % group:
        raise Malformed(f"weights {written(w)} for values {written(x)} in {group} groups")
    kernel = call.listed("kernel_shape") or list(w[2:])
    if kernel != list(w[2:]):
        raise Malformed("a kernel_shape that its weights have not")
    made = (x[0], w[0], *_windows(call, x[2:], kernel))
    call.totals.add_work(row_size(made) * math.prod(w[1:]))
    return KnownValue(made)


def _pool(call: OperatorCall) -> KnownValue:
    x, kernel = call.shape(), call.listed("kernel_shape")
    if kernel is None or len(x) < 3:
        raise Malformed("it has no kernel_shape, or no image to move over")
    made = (*x[:2], *_windows(call, x[2:], kernel))
    call.totals.add_work(row_size(made) * math.prod(kernel))
    return KnownValue(made)


def _windows(call: OperatorCall, spatial: Shape, kernel: list[int]) -> Shape:
    """Shape of the places of a moving window; all of it lies in the values and their padding."""
    n = len(spatial)
    strides = call.listed("strides") or [1] * n
    dilations = call.listed("dilations") or [1] * n
    pads = call.listed("pads") or [0] * (2 * n)
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


def _global_pool(call: OperatorCall) -> KnownValue:
    x = call.shape()
    return KnownValue((*x[:2], *([1] * (len(x) - 2))))


def _reduce(call: OperatorCall) -> KnownValue:
    x = call.shape()
    axes = call.numbers(1, "axes")
    if axes is None:
        if call.number("noop_with_empty_axes", 0):
            return KnownValue(x)
        raise Malformed("it mixes rows")
    gone = {checked_axis(a, len(x)) for a in axes}
    if any(x[a] == ROWS for a in gone):
        raise Malformed("it mixes rows")
    if call.number("keepdims", 1):
        return KnownValue(tuple(1 if i in gone else d for i, d in enumerate(x)))
    return KnownValue(tuple(d for i, d in enumerate(x) if i not in gone))


def _argmax(call: OperatorCall) -> KnownValue:
    x = call.shape()
    axis = call.axis("axis", 0, len(x))
    if x[axis] == ROWS:
        raise Malformed("it mixes rows")
    kept = [1] if call.number("keepdims", 1) else []
    return KnownValue((*x[:axis], *kept, *x[axis + 1 :]))


def _top(call: OperatorCall) -> list[KnownValue]:
    """The k largest along an axis, and where they were."""
    x, k = call.shape(), call.numbers(1, "k")
    axis = call.axis("axis", -1, len(x))
    if k is None or len(k) != 1 or x[axis] == ROWS or not 0 < k[0] <= x[axis]:
        raise Malformed(f"the largest {k} of {written(x)}")
    made = KnownValue((*x[:axis], k[0], *x[axis + 1 :]))
    return [made, made]


def _gemm(call: OperatorCall) -> KnownValue:
    a, b = call.shape(0), call.shape(1)
    if len(a) != 2 or len(b) != 2:
        raise Malformed("factors that are no matrices")
    a = a[::-1] if call.number("transA", 0) else a
    b = b[::-1] if call.number("transB", 0) else b
    made = _matrix_product(call, a, b)
    if len(call.inputs) > 2 and joint_shape([made, call.shape(2)]) != made:
        raise Malformed(f"a bias of shape {written(call.shape(2))}")
    return KnownValue(made)


def _matmul(call: OperatorCall) -> KnownValue:
    second = 3 if call.node.op_type == "QLinearMatMul" else 1
    return KnownValue(_matrix_product(call, call.shape(0), call.shape(second)))


def _matrix_product(call: OperatorCall, a: Shape, b: Shape) -> Shape:
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2] or a[-1] == ROWS:
        raise Malformed(f"the product of {written(a)} and {written(b)}")
    made = (*joint_shape([a[:-2], b[:-2]]), a[-2], b[-1])
    call.totals.add_work(row_size(made) * a[-1])
    return made


def _recurrent(call: OperatorCall) -> list[KnownValue]:
    """LSTM, GRU and RNN over (steps, rows, values)."""
    x, r = call.shape(0), call.shape(2)
    hidden = call.number("hidden_size", r[-1])
    if len(x) != 3 or len(r) != 3 or x[0] == ROWS or call.number("layout", 0) or hidden != r[-1]:
        raise Malformed(f"steps of shape {written(x)}")
    call.totals.add_work(x[0] * r[0] * (row_size(call.shape(1)) + row_size(r)))
    last = KnownValue((r[0], x[1], hidden))
    return [KnownValue((x[0], r[0], x[1], hidden)), last, last]


def _dynamic_quantize(call: OperatorCall) -> list[KnownValue]:
    return [KnownValue(call.shape()), KnownValue(()), KnownValue(())]


LAYER_RULES: Final = by_operator(
    (
        "Relu LeakyRelu Elu Selu Celu Sigmoid HardSigmoid HardSwish Tanh Softplus Softsign "
        "Softmax LogSoftmax Exp Log Sqrt Abs Neg Floor Ceil Round Reciprocal Erf Sign Not "
        "Identity Cast Clip BatchNormalization InstanceNormalization LayerNormalization LRN "
        "Dropout Gelu ThresholdedRelu Sin Cos QuantizeLinear DequantizeLinear "
        "LpNormalization MeanVarianceNormalization Mish IsNaN",
        same_shape,
    ),
    (
        "Add Sub Mul Div Pow Max Min Sum Mean Equal Less Greater LessOrEqual GreaterOrEqual "
        "And Or Xor Where PRelu",
        broadcast,
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
    ("LSTM GRU RNN", _recurrent),
)
