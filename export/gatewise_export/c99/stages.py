"""A stage in C: its tables, the function that runs it, and when it stops."""

from __future__ import annotations

import numpy as np

from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import Forest, Layout, StageLayout
from gatewise_export.c99.tables import Tables, number

__all__ = ["stage_case", "stage_function"]


def stage_function(
    tables: Tables, layout: Layout, place: int, stage: StageLayout, prefix: str
) -> str:
    """Add a stage's tables; C of the function that runs it."""
    name = f"stage_{place}"
    tables.text(f"\n/* stage {place} */\n")
    lines = []
    if not (stage.lazy or len(stage.slots) == 0):
        tables.add(f"{name}_inputs", stage.slots, layout.list_type)
        lines.append(
            f"    if (!take_all(it, {name}_inputs, {len(stage.slots)}, acquire, context))\n"
            "        return 0;\n"
        )
    elif not stage.lazy:
        tables.add(f"{name}_inputs", stage.slots, layout.list_type)
        lines.append(f"    (void)acquire;\n    (void)context;\n    (void){name}_inputs;\n")
    model = stage.model
    if model is None:
        tables.text("/* never stops: its model is left out */\n")
    elif isinstance(model, Forest):
        _forest(tables, layout, name, model)
        if stage.lazy:
            lines.append(f"    return walk_and_take(it, &{name}, it->output, acquire, context);\n")
        else:
            lines.append(f"    walk(it, &{name}, it->output);\n")
    elif isinstance(model, LinearModel):
        for part in ("mean", "scale", "weights", "bias"):
            tables.add(f"{name}_{part}", getattr(model, part), "float")
        fields = ", ".join(f"{name}_{part}" for part in ("mean", "scale", "weights", "bias"))
        sizes = f"{model.n_features}, {model.n_outputs}"
        tables.text(f"static const linear_type {name} = {{{name}_inputs, {fields}, {sizes}}};\n")
        lines.append(f"    add_terms(it, &{name}, it->output);\n")
    else:
        _kernel(tables, name, model)
        lines.append(f"    add_kernels(it, &{name}, it->output);\n")
    if not stage.lazy:
        lines.append("    return 1;\n")
    return (
        f"\nstatic int run_{name}({prefix}_instance *it, {prefix}_acquire acquire, void *context)\n"
        "{\n" + "".join(lines) + "}\n"
    )


def _forest(tables: Tables, layout: Layout, name: str, forest: Forest) -> None:
    trees = forest.trees
    flag = np.where(forest.nan_left, layout.nan_flag, 0)
    tables.add(f"{name}_start", trees.start, "start_type")
    tables.add(f"{name}_slot", forest.slot + flag, "slot_type")
    key = trees.threshold if forest.code is None else forest.code
    tables.add(f"{name}_key", key, "key_type")
    tables.add(f"{name}_skip", trees.skip, "skip_type")
    tables.add(f"{name}_value", trees.value, "float")
    tables.add(f"{name}_base", trees.base, "float")
    output = "0"
    if trees.output is not None and len(trees.base) > 1:
        tables.add(f"{name}_output", trees.output, "output_type")
        output = f"{name}_output"
    tables.text(
        f"static const trees_type {name} = {{{name}_start, {name}_slot, {name}_key, {name}_skip, "
        f"{name}_value, {output}, {name}_base, {trees.n_trees}, {len(trees.base)}}};\n"
    )


def _kernel(tables: Tables, name: str, model: KernelModel) -> None:
    for part in ("mean", "scale", "landmarks", "weights", "bias"):
        tables.add(f"{name}_{part}", getattr(model, part), "float")
    fields = ", ".join(f"{name}_{p}" for p in ("mean", "scale", "landmarks", "weights", "bias"))
    sizes = f"{model.n_features}, {len(model.landmarks)}, {model.n_outputs}"
    tables.text(
        f"static const kernel_type {name} = {{{name}_inputs, {fields}, "
        f"{number(float(model.rate))}, {sizes}}};\n"
    )


def stage_case(cascade: Cascade, layout: Layout, s: int) -> str:
    """Run a stage and hold its stop score against the threshold; NaN goes on."""
    stage, threshold = layout.stages[s], cascade.thresholds[s]
    stops = "0"
    if threshold is not None:
        score = (
            f"margin_score(it->output, {stage.n_margins})"
            if cascade.stages[s].score == "margin"
            else f"it->output[{cascade.stages[s].model.n_outputs - 1}]"
        )
        stops = f"{score} >= {number(float(np.float32(threshold)))}"
    return (
        f"    case {s}:\n        if (!run_stage_{s}(it, acquire, context))\n"
        f"            return -1;\n        return {stops};\n"
    )
