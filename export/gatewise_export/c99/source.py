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
ENGINE_TEMPLATE = "engine.c"
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
    is_required = _required_slots(cascade, layout)
    # an instance with a missing value is offloaded only if the cloud does not need the value
    passes_missing = cascade.offloads and not cascade.takes_missing and not is_required.all()
    if passes_missing and is_required.any():
        tables.add("required", is_required, "uint8_t", "1: the cloud needs the value of this slot.")
    if layout.code_bits is not None:
        starts = np.cumsum([0, *map(len, layout.edges)])
        tables.add("edge_start", starts, "edge_start_type", "Thresholds, feature by feature.")
        tables.add("edge", np.concatenate(layout.edges), "float")
    stage_tables = c_text.Tables(aliases)
    cases = "".join(
        _stage_case(stage_tables, cascade, layout, stage_index)
        for stage_index in range(len(layout.stages))
    )
    placeholders = _placeholders(cascade, layout, prefix, tables.nbytes + stage_tables.nbytes)
    label_code = c_text.fill_template(
        "model.c", "label" if any(cascade.has_model) else "no label", **placeholders
    )
    offload_code = (
        c_text.fill_template("model.c", "offload missing", **placeholders) if passes_missing else ""
    )
    bottom_code = c_text.fill_template(
        "model.c",
        "bottom",
        cases=cases,
        label=label_code,
        offload_missing=offload_code,
        none_stops=f"{placeholders['P']}_{'OFFLOAD' if cascade.offloads else 'STOPPED'}",
        last_stops="" if cascade.offloads else f" || stage == {placeholders['P']}_STAGES - 1",
        **placeholders,
    )
    if passes_missing:
        required_test = "READ(uint8_t, required + i) || " if is_required.any() else ""
        bottom_code = (
            c_text.fill_template("model.c", "only_missing", required=required_test, **placeholders)
            + bottom_code
        )
    engine_texts = _engine_texts(
        layout, bottom_code, placeholders, takes_missing=cascade.takes_missing
    )
    struct_texts = {name: text for name, text in engine_texts.items() if name.endswith("_type")}
    function_texts = "".join(
        text for name, text in engine_texts.items() if name not in struct_texts
    )
    tables_and_functions = (
        f"{tables}{''.join(struct_texts.values())}{stage_tables}{function_texts}{bottom_code}"
    )
    typedefs = "".join(
        f"typedef {c_type} {alias};\n"
        for alias, c_type in aliases.items()
        if alias in tables_and_functions
    )
    nan_flag_macro = f"#define NAN_LEFT {layout.nan_flag}u\n" if layout.nan_flag else ""
    top_code = c_text.fill_template(
        "model.c", "top", types=typedefs, nan_left=nan_flag_macro, **placeholders
    )
    files = {
        f"{prefix}.h": c_text.fill_template("model.h", **placeholders),
        f"{prefix}.c": f"{top_code}\n{tables_and_functions}",
        f"{prefix}_names.c": c_text.fill_template("names.c", **placeholders),
    }
    return files, tables.nbytes + stage_tables.nbytes


def _required_slots(cascade: Cascade, layout: Layout) -> NDArray[np.bool_]:
    """Mark the slots of values that the cloud needs, shape (n_slots,)."""
    if cascade.cloud_takes_missing:
        return np.zeros(layout.n_slots, np.bool_)
    if cascade.request_features is None:
        return np.ones(layout.n_slots, np.bool_)
    return np.isin(layout.columns, cascade.request_features)


def _placeholders(
    cascade: Cascade, layout: Layout, prefix: str, table_bytes: int
) -> dict[str, str]:
    """Values of the placeholders in the model's templates."""
    code_field = f"    {layout.types['code_type']} code[{layout.n_values}];\n"
    numbers = {
        "n_features": len(cascade.feature_names),
        "n_slots": layout.n_slots,
        "n_classes": len(cascade.classes),
        "n_stages": len(layout.stages),
        "n_outputs": layout.n_outputs,
        "offloads": int(cascade.offloads),
        "coded": layout.code_bits or 0,
        "table_bytes": table_bytes,
        "instance_bytes": layout.instance_bytes,
        "stack_bytes": layout.stack_bytes,
        "n_values": layout.n_values,
        "n_flags": layout.n_flags,
    }
    lean_note = "; models of stages that never stop were left out"
    return (
        {name: str(number) for name, number in numbers.items()}
        | c_text.common_placeholders(prefix)
        | {
            "title": c_text.safe_name(cascade.title),
            "class_enum": c_text.enum_lines(f"{prefix.upper()}_CLASS", cascade.classes),
            "feature_enum": c_text.enum_lines(f"{prefix.upper()}_FEATURE", cascade.feature_names),
            "class_names": ",\n".join(
                f"    {c_text.c_string(class_name)}" for class_name in cascade.classes
            ),
            "feature_names": ",\n".join(
                f"    {c_text.c_string(feature_name)}" for feature_name in cascade.feature_names
            ),
            "code": code_field if layout.code_bits is not None else "",
            "lean": "" if all(cascade.has_model) else lean_note,
            "or_missing": "" if cascade.takes_missing else " or missing",
        }
    )


def _engine_texts(
    layout: Layout, calling_text: str, placeholders: dict[str, str], *, takes_missing: bool
) -> dict[str, str]:
    """Write the engine's functions that `calling_text` needs, adapted to the form of the tables."""
    # expressions that depend on the form of the tables: codes or floats, with or without NaN
    is_coded = layout.code_bits is not None
    slot_value = "instance->code[slot]" if is_coded else "instance->value[slot]"
    threshold_value = (
        "READ(key_type, trees->key + node)" if is_coded else "READ_FLOAT(trees->key + node)"
    )
    is_nan = f"{slot_value} == {layout.nan_code}" if is_coded else f"{slot_value} != {slot_value}"
    or_nan = f" || ((test & NAN_LEFT) && {is_nan})" if layout.nan_flag else ""
    nan_code_lines = f"    if (value != value)\n        return {layout.nan_code};\n"
    is_lazy = any(stage.is_lazy for stage in layout.stages)
    acquire_node_lines = (
        "            if (acquire && !acquire_slot(instance, slot, acquire, context))\n"
        "                return 0;\n"
    )
    shares_rows = any(forest.leaves.rows is not None for forest in layout.forests)
    has_sparse_rows = any(forest.leaves.starts is not None for forest in layout.forests)
    variants = {
        "nan_code": nan_code_lines if takes_missing else "",
        "refused": "value == value && value - value != 0.0f"
        if takes_missing
        else "value - value != 0.0f",
        "refused_values": "infinite" if takes_missing else "missing or infinite",
        "store_code": "    instance->code[slot] = code_of(value, slot);\n" if is_coded else "",
        "leaf_number": _leaf_number(layout),
        "leaf_row": "trees->row ? READ(row_type, trees->row + leaf) : leaf"
        if shares_rows
        else "leaf",
        "sparse_rows": c_text.template_sections(ENGINE_TEMPLATE)["sparse rows"]
        if has_sparse_rows
        else "",
        "slot_of_test": "test & ~(uint32_t)NAN_LEFT" if layout.nan_flag else "test",
        "acquire_node": acquire_node_lines if is_lazy else "",
        "goes_left": f"{slot_value} <= {threshold_value}{or_nan}",
        "squarings": SQUARINGS,
        "exponent": 2**SQUARINGS,
        "widest_kernel": max(layout.widest_kernel, 1),
    }
    # fill all functions, then select those that are called
    function_texts = {
        name: c_text.fill_template(ENGINE_TEMPLATE, name, **placeholders, **variants)
        for name in c_text.template_sections(ENGINE_TEMPLATE)
        if name and name != "sparse rows"
    }
    function_texts |= {f"{name}_score": rule.c_code for name, rule in STOP_RULES.items()}
    return c_text.needed_functions(function_texts, calling_text)


def _leaf_number(layout: Layout) -> str:
    """Write the body of the function that reads one leaf number."""
    forest_forms = {_leaf_form(forest) for forest in layout.forests}
    used_forms = [form for form in LEAF_CODE if form in forest_forms] or ["value"]
    null_tests = (
        f"    if (trees->{form})\n        return {LEAF_CODE[form]};\n" for form in used_forms[:-1]
    )
    return f"{''.join(null_tests)}    return {LEAF_CODE[used_forms[-1]]};\n"


def _leaf_form(forest: PackedTrees) -> str:
    leaves = forest.leaves
    return "small" if leaves.small is not None else "pick" if leaves.picks is not None else "value"


# -- stages --------------------------------------------------------------------------------


def _stage_case(tables: c_text.Tables, cascade: Cascade, layout: Layout, stage_index: int) -> str:
    """Add a stage's tables; write the case that acquires features, runs the model and compares.

    The case returns whether the stage stops, or -1 if a value was refused.
    """
    stage = layout.stages[stage_index]
    name = f"stage_{stage_index}"
    lines = [f"    case {stage_index}:"]
    tables.add_code(f"\n/* stage {stage_index} */\n")
    if not stage.is_lazy:
        tables.add(f"{name}_inputs", stage.slots, "list_type")
        acquire_call = (
            f"acquire_slots(instance, {name}_inputs, {len(stage.slots)}, acquire, context)"
        )
        lines += [f"        if (!{acquire_call})", "            return -1;"]
    if isinstance(stage.model, PackedTrees):
        _add_forest(tables, layout, name, stage.model)
        if stage.is_lazy:
            lines += [
                f"        if (!add_trees(instance, &{name}, acquire, context))",
                "            return -1;",
            ]
        else:
            lines.append(f"        add_trees(instance, &{name}, 0, 0);")
    elif stage.model is not None:
        _add_sums(tables, name, stage.model)
        sum_kind = "terms" if isinstance(stage.model, LinearModel) else "kernels"
        lines.append(f"        add_{sum_kind}(instance, &{name});")
    else:
        lines.append("        /* the model is left out, because this stage never stops */")
    threshold = cascade.thresholds[stage_index]
    stop_test = "0"
    if threshold is not None:
        score = f"{stage.score}_score(instance->output, {stage.n_margins})"
        stop_test = f"{score} >= {c_text.c_number(float(np.float32(threshold)))}"
    return "\n".join([*lines, f"        return {stop_test};\n"])


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
    for array_name, (values, c_type) in arrays.items():
        if values is not None:
            tables.add(f"{name}_{array_name}", values, c_type)
        fields.append("0" if values is None else f"{name}_{array_name}")
    n_trees = len(trees.start) - 1
    size_fields = f"{c_text.c_number(float(leaves.step))}, {n_trees}, {len(trees.base)}"
    tables.add_struct(f"trees_type {name}", f"{', '.join(fields)}, {size_fields}")


def _add_sums(tables: c_text.Tables, name: str, model: LinearModel | KernelModel) -> None:
    """Add the tables of a linear model or kernel machine."""
    array_names = ["mean", "scale", "weights", "bias"]
    size_fields = f"{model.n_features}, {model.n_outputs}"
    struct_name = "linear"
    if isinstance(model, KernelModel):
        struct_name = "kernel"
        array_names.insert(2, "landmarks")
        rate = c_text.c_number(float(model.rate))
        size_fields = f"{rate}, {model.n_features}, {len(model.landmarks)}, {model.n_outputs}"
    for array_name in array_names:
        tables.add(f"{name}_{array_name}", getattr(model, array_name), "float")
    fields = ", ".join(f"{name}_{array_name}" for array_name in ("inputs", *array_names))
    tables.add_struct(f"{struct_name}_type {name}", f"{fields}, {size_fields}")
