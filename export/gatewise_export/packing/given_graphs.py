"""Checks of graphs that were given, before they go into a bundle."""

from __future__ import annotations

import onnx

from gatewise.errors import InputError, one_line


def check_given_graph(content: bytes, what: str) -> None:
    """Refuse a malformed graph, or one that keeps data in other files; `what` names it.

    onnx checks its form, and infers the shapes of its values.
    """
    try:
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # errors of protobuf and of shape inference share no base
        raise InputError(f"{what} is not a usable ONNX graph: {one_line(error)}") from error
    external = onnx.external_data_helper.uses_external_data
    outside = [t.name for t in onnx.external_data_helper._get_all_tensors(model) if external(t)]
    if outside:
        raise InputError(f"{what} keeps {outside[0]!r} in another file; save it as one")
