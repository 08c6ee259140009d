"""Write the tables of a stage's model, and the C case that runs the stage.

The fields of a constant struct are in the order of its type in ``templates/engine.c``, which C does
not check; ``tests/export/c99/test_source.py`` compares the answers of all kinds of models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise_export.c99 import c_text
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import Layout, PackedTrees


def write_stage_case(
    tables: c_text.Tables, cascade: Cascade, layout: Layout, stage_index: int
) -> str:
    """Add the tables of a stage, and write the C case that runs the stage.

    The case acquires the features, runs the model and compares the score with the threshold. It
    returns whether the stage stops, or -1 if a value was refused.
    """
    stage = layout.stages[stage_index]
    table_prefix = f"stage_{stage_index}"
    lines = [f"    case {stage_index}:"]
    tables.add_code(f"\n/* stage {stage_index} */\n")
    # acquire the features, unless the trees acquire them node by node
    if not stage.is_lazy:
        tables.add(f"{table_prefix}_inputs", stage.slots, "list_type")
        acquire_call = (
            f"acquire_slots(instance, {table_prefix}_inputs, {len(stage.slots)}, acquire, context)"
        )
        lines += [f"        if (!{acquire_call})", "            return -1;"]
    # run the model
    if isinstance(stage.model, PackedTrees):
        _add_forest(tables, layout, table_prefix, stage.model)
        if stage.is_lazy:
            lines += [
                f"        if (!add_trees(instance, &{table_prefix}, acquire, context))",
                "            return -1;",
            ]
        else:
            lines.append(f"        add_trees(instance, &{table_prefix}, 0, 0);")
    elif stage.model is not None:
        _add_linear_or_kernel(tables, table_prefix, stage.model)
        sum_kind = "terms" if isinstance(stage.model, LinearModel) else "kernels"
        lines.append(f"        add_{sum_kind}(instance, &{table_prefix});")
    else:
        lines.append("        /* the model is left out, because this stage never stops */")
    # compare the score with the threshold
    threshold = cascade.thresholds[stage_index]
    stop_test = "0"
    if threshold is not None:
        score = f"{stage.score}_score(instance->output, {stage.n_margins})"
        stop_test = f"{score} >= {c_text.c_number(float(np.float32(threshold)))}"
    return "\n".join([*lines, f"        return {stop_test};\n"])


def _add_forest(
    tables: c_text.Tables, layout: Layout, table_prefix: str, trees: PackedTrees
) -> None:
    """Add the tables of trees, and a struct ``trees_type`` that points to them."""
    leaves = trees.leaves
    # in the order of the fields of trees_type; a field is 0 if the engine needs no such table
    arrays: dict[str, tuple[NDArray[np.generic] | None, str]] = {
        "start": (trees.start, "start_type"),
        "slot": (trees.slot + np.where(trees.nan_left, layout.nan_flag, 0), "slot_type"),
        "key": (trees.threshold if trees.code is None else trees.code, "key_type"),
        "skip": (trees.skip, "skip_type"),
        "row": (leaves.rows, "row_type"),
        "bound": (leaves.starts, "bound_type"),
        "member": (leaves.outputs, "output_type"),
        "pick": (leaves.picks, "pick_type"),
        "small": (leaves.small, "int8_t"),
        "value": (leaves.value if leaves.small is None else None, "float"),
        "output": (trees.output if len(trees.base) > 1 else None, "output_type"),
        "base": (trees.base, "float"),
    }
    fields = []
    for array_name, (array, c_type) in arrays.items():
        if array is not None:
            tables.add(f"{table_prefix}_{array_name}", array, c_type)
        fields.append("0" if array is None else f"{table_prefix}_{array_name}")
    n_trees = len(trees.start) - 1
    number_fields = f"{c_text.c_number(float(leaves.step))}, {n_trees}, {len(trees.base)}"
    tables.add_struct(f"trees_type {table_prefix}", f"{', '.join(fields)}, {number_fields}")


def _add_linear_or_kernel(
    tables: c_text.Tables, table_prefix: str, model: LinearModel | KernelModel
) -> None:
    """Add the tables of a linear model or kernel machine, and a struct that points to them."""
    # in the order of the fields of linear_type and kernel_type
    array_names = ["mean", "scale", "weights", "bias"]
    number_fields = f"{model.n_features}, {model.n_outputs}"
    struct_name = "linear"
    if isinstance(model, KernelModel):
        struct_name = "kernel"
        array_names.insert(2, "landmarks")
        rate = c_text.c_number(float(model.rate))
        number_fields = f"{rate}, {model.n_features}, {len(model.landmarks)}, {model.n_outputs}"
    for array_name in array_names:
        tables.add(f"{table_prefix}_{array_name}", getattr(model, array_name), "float")
    fields = ", ".join(f"{table_prefix}_{array_name}" for array_name in ("inputs", *array_names))
    tables.add_struct(f"{struct_name}_type {table_prefix}", f"{fields}, {number_fields}")
