"""Write a model's C files: ``<name>.h``, ``<name>.c`` and ``<name>_names.c``.

The engine, ``templates/engine.c``, evaluates tables of trees, linear models and kernel machines.
Each section of this template has the name of the C function or type that it defines. A section
with a space in its name is a part of a function. Functions that a cascade does not call are left
out.

Every sum is in float32 and in the order of :mod:`gatewise.models`: the trees in order and then the
base, or the features or landmarks in order and then the bias. Sums start at +0, so a sum of -0
alone is +0, as in numpy.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import STOP_RULES
from gatewise.models.kernel_machine import SQUARINGS
from gatewise_export.c99 import c_text
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import Layout, PackedTrees
from gatewise_export.c99.stage_tables import write_stage_case

#: Template of the functions that evaluate tables.
ENGINE_TEMPLATE = "engine.c"
#: C expression that reads leaf number i, by the field of ``trees_type`` that stores the numbers.
#:
#: A forest has ``small``, or ``pick`` and ``value``, or ``value`` alone. The generated code tests
#: in this order which field is not null; it needs no test for the last form in use.
LEAF_CODE = {
    "small": "trees->step * (float)READ(int8_t, trees->small + i)",
    "pick": "READ_FLOAT(trees->value + READ(pick_type, trees->pick + i))",
    "value": "READ_FLOAT(trees->value + i)",
}


def write_source(cascade: Cascade, layout: Layout, prefix: str) -> tuple[dict[str, str], int]:
    """Write a model's three files and count the bytes of its tables.

    `prefix` is a C identifier that begins every public name.
    """
    is_needed_by_cloud = _slots_of_cloud(cascade, layout)
    # an instance with a missing value may be offloaded if the cloud does not need the value
    offloads_missing = (
        cascade.offloads and not cascade.takes_missing and not is_needed_by_cloud.all()
    )
    model_tables = _model_tables(layout)
    if offloads_missing and is_needed_by_cloud.any():
        comment = "1: the cloud needs the value of this slot."
        model_tables.add("required", is_needed_by_cloud, "uint8_t", comment)
    stage_tables = c_text.Tables(layout.types)
    cases = "".join(
        write_stage_case(stage_tables, cascade, layout, stage_index)
        for stage_index in range(len(layout.stages))
    )
    table_bytes = model_tables.nbytes + stage_tables.nbytes
    placeholders = _placeholders(cascade, layout, prefix, table_bytes)
    public_functions = _public_functions(cascade, cases, placeholders, offloads_missing)
    if offloads_missing:
        required_test = "READ(uint8_t, required + i) || " if is_needed_by_cloud.any() else ""
        public_functions = (
            c_text.fill_template("model.c", "only_missing", required=required_test, **placeholders)
            + public_functions
        )
    engine_texts = _engine_texts(
        layout, public_functions, placeholders, takes_missing=cascade.takes_missing
    )
    structs = "".join(text for name, text in engine_texts.items() if name.endswith("_type"))
    functions = "".join(text for name, text in engine_texts.items() if not name.endswith("_type"))
    # C requires each name before its use: tables, structs, tables of structs, then functions
    body = f"{model_tables}{structs}{stage_tables}{functions}{public_functions}"
    typedefs = "".join(
        f"typedef {c_type} {alias};\n"
        for alias, c_type in layout.types.items()
        if re.search(rf"\b{alias}\b", body)
    )
    nan_flag_macro = f"#define NAN_LEFT {layout.nan_flag}u\n" if layout.nan_flag else ""
    top = c_text.fill_template(
        "model.c", "top", types=typedefs, nan_left=nan_flag_macro, **placeholders
    )
    files = {
        f"{prefix}.h": c_text.fill_template("model.h", **placeholders),
        f"{prefix}.c": f"{top}\n{body}",
        f"{prefix}_names.c": c_text.fill_template("names.c", **placeholders),
    }
    return files, table_bytes


def _model_tables(layout: Layout) -> c_text.Tables:
    """Write the tables that all stages use."""
    tables = c_text.Tables(layout.types)
    tables.add("columns", layout.columns, "column_type", "The feature of each slot.")
    n_margins = np.array([stage.n_margins for stage in layout.stages])
    tables.add("margins", n_margins, "uint16_t", "Class margins of each stage.")
    if layout.code_bits is not None:
        starts = np.cumsum([0, *map(len, layout.edges)])
        comment = "Where the thresholds of each slot start in `edge`, and where the last ones end."
        tables.add("edge_start", starts, "edge_start_type", comment)
        tables.add("edge", np.concatenate(layout.edges), "float")
    return tables


def _slots_of_cloud(cascade: Cascade, layout: Layout) -> NDArray[np.bool_]:
    """Mark the slots of values that the cloud needs, shape (n_slots,)."""
    if cascade.cloud_takes_missing:
        return np.zeros(layout.n_slots, np.bool_)
    if cascade.request_features is None:
        return np.ones(layout.n_slots, np.bool_)
    return np.isin(layout.columns, cascade.request_features)


def _public_functions(
    cascade: Cascade, cases: str, placeholders: dict[str, str], offloads_missing: bool
) -> str:
    """Write the functions of the header; `cases` has one case of a switch for each stage."""
    label_section = "label" if any(cascade.stage_has_model) else "no label"
    outcome = "OFFLOAD" if cascade.offloads else "STOPPED"
    return c_text.fill_template(
        "model.c",
        "bottom",
        cases=cases,
        label=c_text.fill_template("model.c", label_section, **placeholders),
        offload_missing=c_text.fill_template("model.c", "offload missing", **placeholders)
        if offloads_missing
        else "",
        outcome_if_none_stops=f"{placeholders['P']}_{outcome}",
        or_last_stage="" if cascade.offloads else f" || stage == {placeholders['P']}_STAGES - 1",
        **placeholders,
    )


def _placeholders(
    cascade: Cascade, layout: Layout, prefix: str, table_bytes: int
) -> dict[str, str]:
    """Return the values of the placeholders that all templates of a model share."""
    code_field = ""
    if layout.code_bits is not None:
        code_field = f"    {layout.types['code_type']} code[{layout.n_values}];\n"
    numbers = {
        "n_features": len(cascade.feature_names),
        "n_slots": layout.n_slots,
        "n_classes": len(cascade.classes),
        "n_stages": len(layout.stages),
        "n_outputs": layout.n_outputs,
        "offloads": int(cascade.offloads),
        "code_bits": layout.code_bits or 0,
        "table_bytes": table_bytes,
        "instance_bytes": layout.instance_bytes,
        "stack_bytes": layout.stack_bytes,
        "n_values": layout.n_values,
        "n_flags": layout.n_flags,
    }
    omission_note = "; models of stages that never stop were left out"
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
            "code_field": code_field,
            "omission_note": "" if all(cascade.stage_has_model) else omission_note,
            "or_missing": "" if cascade.takes_missing else " or missing",
        }
    )


def _engine_texts(
    layout: Layout, calling_text: str, placeholders: dict[str, str], *, takes_missing: bool
) -> dict[str, str]:
    """Write the engine's functions and types that `calling_text` needs, by name."""
    variants = _engine_variants(layout, takes_missing=takes_missing)
    texts = {
        name: c_text.fill_template(ENGINE_TEMPLATE, name, **placeholders, **variants)
        for name in c_text.template_sections(ENGINE_TEMPLATE)
        if name and " " not in name
    }
    texts |= {f"{name}_score": rule.c_code for name, rule in STOP_RULES.items()}
    return c_text.needed_functions(texts, calling_text)


def _engine_variants(layout: Layout, *, takes_missing: bool) -> dict[str, object]:
    """Return the placeholders of the engine for thresholds as codes or floats, and for NaN."""
    is_coded = layout.code_bits is not None
    slot_value = "instance->code[slot]" if is_coded else "instance->value[slot]"
    threshold_value = (
        "READ(key_type, trees->key + node)" if is_coded else "READ_FLOAT(trees->key + node)"
    )
    is_nan = f"{slot_value} == {layout.nan_code}" if is_coded else f"{slot_value} != {slot_value}"
    or_nan = f" || ((test & NAN_LEFT) && {is_nan})" if layout.nan_flag else ""
    nan_code_lines = f"    if (value != value)\n        return {layout.nan_code};\n"
    acquire_node_lines = (
        "            if (acquire && !acquire_slot(instance, slot, acquire, context))\n"
        "                return 0;\n"
    )
    is_infinite = "value - value != 0.0f"  # also true of NaN
    is_lazy = any(stage.is_lazy for stage in layout.stages)
    shares_rows = any(forest.leaves.rows is not None for forest in layout.forests)
    has_sparse_rows = any(forest.leaves.starts is not None for forest in layout.forests)
    sparse_rows_lines = c_text.template_sections(ENGINE_TEMPLATE)["sparse rows"]
    return {
        "nan_code": nan_code_lines if takes_missing else "",
        "is_refused": f"value == value && {is_infinite}" if takes_missing else is_infinite,
        "refused_values": "infinite" if takes_missing else "missing or infinite",
        "store_code": "    instance->code[slot] = code_of(value, slot);\n" if is_coded else "",
        "leaf_number": _leaf_number_body(layout),
        "leaf_row": "trees->row ? READ(row_type, trees->row + leaf) : leaf"
        if shares_rows
        else "leaf",
        "sparse_rows": sparse_rows_lines if has_sparse_rows else "",
        "slot_of_test": "test & ~(uint32_t)NAN_LEFT" if layout.nan_flag else "test",
        "acquire_node": acquire_node_lines if is_lazy else "",
        "goes_left": f"{slot_value} <= {threshold_value}{or_nan}",
        "squarings": SQUARINGS,
        "exponent": 2**SQUARINGS,
        "widest_kernel": max(layout.widest_kernel, 1),  # C has no empty arrays
    }


def _leaf_number_body(layout: Layout) -> str:
    """Write the body of the function that reads one leaf number."""
    forest_forms = {_leaf_form(forest) for forest in layout.forests}
    used_forms = [form for form in LEAF_CODE if form in forest_forms] or ["value"]
    null_tests = (
        f"    if (trees->{form})\n        return {LEAF_CODE[form]};\n" for form in used_forms[:-1]
    )
    return f"{''.join(null_tests)}    return {LEAF_CODE[used_forms[-1]]};\n"


def _leaf_form(forest: PackedTrees) -> str:
    """Name the field that stores a forest's leaf numbers, as in :data:`LEAF_CODE`."""
    if forest.leaves.small is not None:
        return "small"
    return "value" if forest.leaves.picks is None else "pick"
