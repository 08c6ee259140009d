"""Write a model's C files: ``<name>.h``, ``<name>.c`` and ``<name>_names.c``.

The engine evaluates tables of trees, linear models and kernel machines; functions that a cascade
does not need are left out. Every sum is in float32 and in the order of :mod:`gatewise.models`:
trees in turn and the base last, or features or landmarks in turn and the bias last. Sums begin as
0, so that a sum of -0 alone gives 0, as in numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import STOP_RULES
from gatewise.models.kernel_machine import SQUARINGS, KernelModel
from gatewise.models.linear import LinearModel
from gatewise_export.c99 import c_text
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import Layout, PackedTrees

#: Template of the functions that evaluate tables.
ENGINE = "engine.c"
LEAF_CODE = {
    "small": "trees->step * (float)READ(int8_t, trees->small + i)",
    "pick": "READ_FLOAT(trees->value + READ(pick_type, trees->pick + i))",
    "value": "READ_FLOAT(trees->value + i)",
}
"""C expression that reads leaf number i, by the table that stores the numbers."""


def write_source(cascade: Cascade, layout: Layout, prefix: str) -> tuple[dict[str, str], int]:
    """Write a model's three files and count the bytes of its tables.

    `prefix` is a C identifier that begins every public name.
    """
    aliases = layout.types
    tables = c_text.Tables(aliases)
    tables.add("columns", layout.columns, "column_type", "The feature of each slot.")
    n_margins = np.array([stage.n_margins for stage in layout.stages])
    tables.add("margins", n_margins, "uint16_t", "Class margins of each stage.")
    required = _required(cascade, layout)
    # an instance with a missing value is offloaded only if the cloud does not need the value
    passes_missing = cascade.offloads and not cascade.takes_missing and not required.all()
    if passes_missing and required.any():
        tables.add("required", required, "uint8_t", "1: the cloud needs the value of this slot.")
    if layout.coded is not None:
        starts = np.cumsum([0, *map(len, layout.edges)])
        tables.add("edge_start", starts, "edge_start_type", "Thresholds, feature by feature.")
        tables.add("edge", np.concatenate(layout.edges), "float")
    stages = c_text.Tables(aliases)
    cases = "".join(_stage_case(stages, cascade, layout, s) for s in range(len(layout.stages)))
    fill = _values(cascade, layout, prefix, tables.nbytes + stages.nbytes)
    label = c_text.filled("model.c", "label" if any(cascade.has_model) else "no label", **fill)
    offload = c_text.filled("model.c", "offload missing", **fill) if passes_missing else ""
    bottom = c_text.filled(
        "model.c",
        "bottom",
        cases=cases,
        label=label,
        offload_missing=offload,
        none_stops=f"{fill['P']}_{'OFFLOAD' if cascade.offloads else 'STOPPED'}",
        last_stops="" if cascade.offloads else f" || stage == {fill['P']}_STAGES - 1",
        **fill,
    )
    if passes_missing:
        reads_required = "READ(uint8_t, required + i) || " if required.any() else ""
        bottom = c_text.filled("model.c", "only_missing", required=reads_required, **fill) + bottom
    engine = _engine(layout, bottom, fill, takes_missing=cascade.takes_missing)
    structs = {name: text for name, text in engine.items() if name.endswith("_type")}
    functions = "".join(text for name, text in engine.items() if name not in structs)
    code = f"{tables}{''.join(structs.values())}{stages}{functions}{bottom}"
    types = "".join(
        f"typedef {plain} {alias};\n" for alias, plain in aliases.items() if alias in code
    )
    flag = f"#define NAN_LEFT {layout.nan_flag}u\n" if layout.nan_flag else ""
    top = c_text.filled("model.c", "top", types=types, nan_left=flag, **fill)
    files = {
        f"{prefix}.h": c_text.filled("model.h", **fill),
        f"{prefix}.c": f"{top}\n{code}",
        f"{prefix}_names.c": c_text.filled("names.c", **fill),
    }
    return files, tables.nbytes + stages.nbytes


def _required(cascade: Cascade, layout: Layout) -> NDArray[np.bool_]:
    """Mark the slots of values that the cloud needs, shape (n_slots,)."""
    if cascade.cloud_takes_missing:
        return np.zeros(layout.n_slots, np.bool_)
    if cascade.request is None:
        return np.ones(layout.n_slots, np.bool_)
    return np.isin(layout.columns, cascade.request)


def _values(cascade: Cascade, layout: Layout, prefix: str, table_bytes: int) -> dict[str, str]:
    """Values of the placeholders in the model's templates."""
    code = f"    {layout.types['code_type']} code[{layout.n_values}];\n"
    numbers = {
        "n_features": len(cascade.feature_names),
        "n_slots": layout.n_slots,
        "n_classes": len(cascade.classes),
        "n_stages": len(layout.stages),
        "n_outputs": layout.n_outputs,
        "offloads": int(cascade.offloads),
        "coded": layout.coded or 0,
        "table_bytes": table_bytes,
        "instance_bytes": layout.instance_bytes,
        "stack_bytes": layout.stack_bytes,
        "n_values": layout.n_values,
        "n_flags": layout.n_flags,
    }
    left_out = "; models of stages that never stop were left out"
    return (
        {k: str(v) for k, v in numbers.items()}
        | c_text.template_names(prefix)
        | {
            "title": c_text.safe(cascade.title),
            "class_enum": c_text.enumerated(f"{prefix.upper()}_CLASS", cascade.classes),
            "feature_enum": c_text.enumerated(f"{prefix.upper()}_FEATURE", cascade.feature_names),
            "class_names": ",\n".join(f"    {c_text.quoted(c)}" for c in cascade.classes),
            "feature_names": ",\n".join(f"    {c_text.quoted(f)}" for f in cascade.feature_names),
            "code": code if layout.coded is not None else "",
            "lean": "" if all(cascade.has_model) else left_out,
            "or_missing": "" if cascade.takes_missing else " or missing",
        }
    )


def _engine(
    layout: Layout, calls: str, fill: dict[str, str], *, takes_missing: bool
) -> dict[str, str]:
    """Write the engine's functions that `calls` needs, adapted to the form of the tables."""
    # expressions that depend on the form of the tables: codes or floats, with or without NaN
    coded = layout.coded is not None
    x = "instance->code[slot]" if coded else "instance->value[slot]"
    key = "READ(key_type, trees->key + node)" if coded else "READ_FLOAT(trees->key + node)"
    is_nan = f"{x} == {layout.nan_code}" if coded else f"{x} != {x}"
    or_nan = f" || ((test & NAN_LEFT) && {is_nan})" if layout.nan_flag else ""
    code_nan = f"    if (value != value)\n        return {layout.nan_code};\n"
    is_lazy = any(stage.lazy for stage in layout.stages)
    acquire_node = (
        "            if (acquire && !acquire_slot(instance, slot, acquire, context))\n"
        "                return 0;\n"
    )
    shares_rows = any(forest.leaves.rows is not None for forest in layout.forests)
    has_sparse_rows = any(forest.leaves.starts is not None for forest in layout.forests)
    variants = {
        "nan_code": code_nan if takes_missing else "",
        "refused": "value == value && value - value != 0.0f"
        if takes_missing
        else "value - value != 0.0f",
        "refused_values": "infinite" if takes_missing else "missing or infinite",
        "store_code": "    instance->code[slot] = code_of(value, slot);\n" if coded else "",
        "leaf_number": _leaf_number(layout),
        "leaf_row": "trees->row ? READ(row_type, trees->row + leaf) : leaf"
        if shares_rows
        else "leaf",
        "sparse_rows": c_text.sections(ENGINE)["sparse rows"] if has_sparse_rows else "",
        "slot_of_test": "test & ~(uint32_t)NAN_LEFT" if layout.nan_flag else "test",
        "acquire_node": acquire_node if is_lazy else "",
        "goes_left": f"{x} <= {key}{or_nan}",
        "squarings": SQUARINGS,
        "exponent": 2**SQUARINGS,
        "widest_kernel": max(layout.widest_kernel, 1),
    }
    # fill all functions, then select those that are called
    texts = {
        name: c_text.filled(ENGINE, name, **fill, **variants)
        for name in c_text.sections(ENGINE)
        if name and name != "sparse rows"
    }
    texts |= {f"{name}_score": rule.c_code for name, rule in STOP_RULES.items()}
    return c_text.needed(texts, calls)


def _leaf_number(layout: Layout) -> str:
    """Write the body of the function that reads one leaf number."""
    forest_forms = {_leaf_form(forest) for forest in layout.forests}
    forms = [form for form in LEAF_CODE if form in forest_forms] or ["value"]
    tests = (f"    if (trees->{form})\n        return {LEAF_CODE[form]};\n" for form in forms[:-1])
    return f"{''.join(tests)}    return {LEAF_CODE[forms[-1]]};\n"


def _leaf_form(forest: PackedTrees) -> str:
    leaves = forest.leaves
    return "small" if leaves.small is not None else "pick" if leaves.picks is not None else "value"


# -- stages --------------------------------------------------------------------------------


def _stage_case(tables: c_text.Tables, cascade: Cascade, layout: Layout, s: int) -> str:
    """Add a stage's tables; write the case that acquires features, runs the model and compares.

    The case returns whether the stage stops, or -1 if a value was refused.
    """
    stage = layout.stages[s]
    name = f"stage_{s}"
    lines = [f"    case {s}:"]
    tables.text(f"\n/* stage {s} */\n")
    if not stage.lazy:
        tables.add(f"{name}_inputs", stage.slots, "list_type")
        acquired = f"acquire_slots(instance, {name}_inputs, {len(stage.slots)}, acquire, context)"
        lines += [f"        if (!{acquired})", "            return -1;"]
    if isinstance(stage.model, PackedTrees):
        _add_forest(tables, layout, name, stage.model)
        if stage.lazy:
            lines += [
                f"        if (!add_trees(instance, &{name}, acquire, context))",
                "            return -1;",
            ]
        else:
            lines.append(f"        add_trees(instance, &{name}, 0, 0);")
    elif stage.model is not None:
        _add_sums(tables, name, stage.model)
        sums = "terms" if isinstance(stage.model, LinearModel) else "kernels"
        lines.append(f"        add_{sums}(instance, &{name});")
    else:
        lines.append("        /* the model is left out, because this stage never stops */")
    threshold = cascade.thresholds[s]
    stops = "0"
    if threshold is not None:
        score = f"{stage.score}_score(instance->output, {stage.n_margins})"
        stops = f"{score} >= {c_text.number(float(np.float32(threshold)))}"
    return "\n".join([*lines, f"        return {stops};\n"])


def _add_forest(tables: c_text.Tables, layout: Layout, name: str, trees: PackedTrees) -> None:
    leaves = trees.leaves
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
    for array, (values, kind) in arrays.items():
        if values is not None:
            tables.add(f"{name}_{array}", values, kind)
        fields.append("0" if values is None else f"{name}_{array}")
    n_trees = len(trees.start) - 1
    sizes = f"{c_text.number(float(leaves.step))}, {n_trees}, {len(trees.base)}"
    tables.struct(f"trees_type {name}", f"{', '.join(fields)}, {sizes}")


def _add_sums(tables: c_text.Tables, name: str, model: LinearModel | KernelModel) -> None:
    """Add the tables of a linear model or kernel machine."""
    arrays = ["mean", "scale", "weights", "bias"]
    sizes = f"{model.n_features}, {model.n_outputs}"
    kind = "linear"
    if isinstance(model, KernelModel):
        kind = "kernel"
        arrays.insert(2, "landmarks")
        rate = c_text.number(float(model.rate))
        sizes = f"{rate}, {model.n_features}, {len(model.landmarks)}, {model.n_outputs}"
    for array in arrays:
        tables.add(f"{name}_{array}", getattr(model, array), "float")
    fields = ", ".join(f"{name}_{array}" for array in ("inputs", *arrays))
    tables.struct(f"{kind}_type {name}", f"{fields}, {sizes}")
