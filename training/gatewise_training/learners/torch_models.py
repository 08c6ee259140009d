"""Export of PyTorch modules and programs to ONNX graphs.

torch is imported only if such a model is given. The exporter needs an example row in the shape that
the module takes. Instances are tried in their own shape, then with channels first, then with one
channel.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gatewise.errors import InputError, one_line

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.nn import Module

Shape = tuple[int, ...]


def is_torch(model: object) -> bool:
    """Whether a model is a PyTorch module or an exported program."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)


def export_module(model: Module | ExportedProgram, shape: Shape, model_name: str) -> bytes:
    """Export a PyTorch model for instances of a shape; `model_name` is its name in errors."""
    import torch

    try:
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError:
        raise InputError(
            f"{model_name} is a PyTorch model, which needs onnxscript: pip install onnxscript"
        ) from None
    options: dict[str, Any] = {"dynamo": True, "verbose": False}
    was_training = getattr(model, "training", False)
    try:
        if isinstance(model, torch.export.ExportedProgram):
            program = torch.onnx.export(model, **options)
        else:
            model.eval()
            dynamic_shapes = ({0: torch.export.Dim.DYNAMIC},)
            example = _make_example(model, shape, model_name)
            program = torch.onnx.export(model, (example,), dynamic_shapes=dynamic_shapes, **options)
        graph_bytes: bytes = program.model_proto.SerializeToString()
    except InputError:
        raise
    except Exception as error:  # the exporter's errors have no common base class
        raise InputError(
            f"{model_name}: torch.onnx.export fails: {one_line(error)}; give it as an ONNX file"
        ) from error
    finally:
        if was_training:
            model.train()
    return graph_bytes


def _make_example(model: Module, shape: Shape, model_name: str) -> Tensor:
    """Make a batch of two instances of zeros in the first layout that the module accepts."""
    import torch

    layouts = [shape]
    if len(shape) == 3:
        layouts.append((shape[2], shape[0], shape[1]))
    if len(shape) == 2:
        layouts.append((1, *shape))
    first_parameter = next(
        (parameter for parameter in model.parameters() if parameter.is_floating_point()),
        torch.zeros(1),
    )
    layout_errors = []
    for layout in layouts:
        example = torch.zeros(
            (2, *layout), dtype=first_parameter.dtype, device=first_parameter.device
        )
        try:
            with torch.no_grad():
                model(example)
        except Exception as error:  # a module may raise any exception
            layout_errors.append(f"{layout}: {one_line(error)}")
        else:
            return example
    raise InputError(
        f"{model_name} does not accept instances of the rows' shape ({'; '.join(layout_errors)}); "
        "give rows of the shape that it accepts, or begin the module with torch.nn.Unflatten"
    )
