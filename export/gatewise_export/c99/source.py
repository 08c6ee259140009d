"""``<name>.h``, ``<name>.c``, ``<name>_names.c``: interface, tables, engine, stages, names.

The engine runs tables: trees, linear models, kernel machines; only what a cascade needs. Every sum
is in float32 and in the order of :mod:`gatewise.models`: trees one after another and the base last;
terms feature by feature, or landmark by landmark, and the bias last. Sums begin as 0, so that
adding -0 to nothing gives 0, as in numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import STOP_RULES
from gatewise.models.kernel_machine import SQUARINGS, KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.trees import byte_leaves
from gatewise_export.c99 import c_text
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.layout import Layout, StageLayout
from gatewise_export.c99.trees import PackedTrees

#: Template of the code that runs tables.
ENGINE = "engine.c"


def write_source(cascade: Cascade, layout: Layout, prefix: str) -> tuple[dict[str, str], int]:
    """Write a model's three files, and count the bytes of its tables.

    `prefix`, an identifier of C, begins every public name.
    """
    tables = c_text.Tables({f"{k}_type": v for k, v in _tree_types(layout).items()})
    tables.add(
        "columns",
        layout.columns,
        c_text.smallest(len(cascade.feature_names)),
        "The feature of each slot.",
    )
    tables.add(
        "margins",
        np.array([stage.n_margins for stage in layout.stages]),
        "uint16_t",
        "Class margins of each stage.",
    )
    sent = _sent(cascade, layout)
    # A refused value goes on to the cloud only if the cloud can do without it.
    passes = cascade.offloads and not cascade.takes_missing and not sent.all()
    if passes and sent.any():
        tables.add("sent", sent.astype(int), "uint8_t", "What the cloud cannot do without.")
    engine = _engine(layout, prefix, takes_missing=cascade.takes_missing)
    tables.text("\n" + engine["types"] + "\n")
    if layout.coded is not None:
        ends = np.cumsum([0, *map(len, layout.edges)])
        tables.add(
            "edge_start", ends, c_text.smallest(int(ends[-1])), "Thresholds, feature by feature."
        )
        tables.add("edge", np.concatenate(layout.edges), "float")
    stages = "".join(
        _stage_function(tables, layout, s, stage, prefix) for s, stage in enumerate(layout.stages)
    )
    fill = _values(cascade, layout, prefix, tables.nbytes)

    def part(section: str, **more: str) -> str:
        return c_text.filled("model.c", section, **fill, **more)

    flag = f"#define NAN_LEFT {layout.nan_flag}u\n\n" if layout.nan_flag else "\n"
    bottom = part(
        "bottom",
        cases="".join(_stage_case(cascade, layout, s) for s in range(len(layout.stages))),
        none=f"{fill['P']}_OFFLOAD" if cascade.offloads else f"{fill['P']}_STOPPED",
        always="" if cascade.offloads else f" || stage == {fill['P']}_STAGES - 1",
        label=part("label" if all(cascade.holds) else "label of held"),
        best=part("best" if any(cascade.holds) else "no model"),
        offload=part("offload missing") if passes else "",
    )
    helper = part("missing", sent="(sent[i] || " if sent.any() else "(") if passes else ""
    code = part("top") + flag + str(tables) + engine["code"] + stages
    files = {
        f"{prefix}.h": c_text.filled("model.h", **fill),
        f"{prefix}.c": code + helper + bottom,
        f"{prefix}_names.c": c_text.filled("names.c", **fill),
    }
    return files, tables.nbytes


def _sent(cascade: Cascade, layout: Layout) -> NDArray[np.bool_]:
    """Mark the slots of a request that may not be missing, shape (n_slots,)."""
    if cascade.cloud_takes_missing:
        return np.zeros(layout.n_slots, np.bool_)
    if cascade.request is None:
        return np.ones(layout.n_slots, np.bool_)
    return np.isin(layout.columns, cascade.request)


def _values(cascade: Cascade, layout: Layout, prefix: str, table_bytes: int) -> dict[str, str]:
    """Fill-ins of the model's templates."""
    code = f"    {layout.code_type} code[{layout.n_values}];\n"
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
            "lean": "" if all(cascade.holds) else left_out,
            "or_missing": "" if cascade.takes_missing else " or missing",
        }
    )


# -- the engine ---------------------------------------------------------------------------


def _engine(layout: Layout, prefix: str, *, takes_missing: bool) -> dict[str, str]:
    """Write only the C that a layout needs: ``types`` before the tables, ``code`` after them."""
    stages = layout.stages
    fill: dict[str, object] = {"p": prefix, "slot": layout.list_type, "code": layout.code_type}
    types = []
    code = []
    # trees
    if layout.forests:
        types.append(
            c_text.filled(ENGINE, "tree types", **_tree_types(layout), **_leaf_code(layout))
        )
    acquires = any(stage.lazy or len(stage.slots) for stage in stages)
    if layout.coded is not None and acquires:
        nan = f"    if (v != v)\n        return {layout.nan_code};\n" if takes_missing else ""
        code.append(c_text.filled(ENGINE, "codes", code=layout.code_type, nan=nan))
    if acquires:
        code.append(_take(layout, prefix, takes_missing))
    if any(len(stage.slots) for stage in stages if not stage.lazy):
        code.append(c_text.filled(ENGINE, "take all", **fill))
    if layout.forests:
        code.append(c_text.filled(ENGINE, "leaves", **_leaf_code(layout)))
    if any(isinstance(stage.model, PackedTrees) for stage in stages if not stage.lazy):
        code.append(_walk(layout, prefix, lazy=False))
    if any(stage.lazy for stage in stages):
        code.append(_walk(layout, prefix, lazy=True))
    # linear models and kernel machines
    fill |= {
        "squarings": SQUARINGS,
        "exponent": 2**SQUARINGS,
        "widest": max(layout.widest_kernel, 1),
    }
    for kind, name in ((LinearModel, "linear"), (KernelModel, "kernel")):
        if any(isinstance(stage.model, kind) for stage in stages):
            types.append(c_text.filled(ENGINE, f"{name} type", **fill))
            code.append(c_text.filled(ENGINE, name, **fill))
    # stop scores and the label
    rules = {stage.score for stage in stages}
    code += [rule.c_code for name, rule in STOP_RULES.items() if name in rules]
    if any(stage.model is not None for stage in stages):
        code.append(c_text.filled(ENGINE, "label"))
    return {"types": "\n".join(types), "code": "".join(code)}


def _tree_types(layout: Layout) -> dict[str, str]:
    """C's types of the numbers in trees' tables, without their ``_type``: the smallest that do."""
    packed = layout.forests
    return {
        "slot": layout.slot_type,
        "key": "float" if layout.coded is None else layout.code_type,
        "skip": c_text.smallest(max((int(t.skip.max(initial=0)) for t in packed), default=0)),
        "start": c_text.smallest(max((int(t.start[-1]) for t in packed), default=0)),
        "output": c_text.smallest(layout.n_outputs - 1),
    }


def _leaf_code(layout: Layout) -> dict[str, str]:
    """C that reads a leaf: some stages may hold bytes, others floats."""
    has_bytes = {byte_leaves(forest.value) is not None for forest in layout.forests}
    byte_leaf = "t->step * (float)t->small[leaf]"
    leaf = "t->value[leaf]"
    if has_bytes == {True}:
        leaf = byte_leaf
    elif len(has_bytes) == 2:
        leaf = f"t->small ? {byte_leaf} : {leaf}"
    members = (
        "    const int8_t *small;    /* in steps, a power of two; 0: value has them */\n"
        "    float step;\n"
    )
    return {"small": members if True in has_bytes else "", "leaf": leaf}


def _take(layout: Layout, prefix: str, takes_missing: bool) -> str:
    """Write the function that acquires one feature."""
    return c_text.filled(
        ENGINE,
        "take",
        p=prefix,
        refused="v == v && v - v != 0.0f" if takes_missing else "v - v != 0.0f",
        what="infinite" if takes_missing else "missing or infinite",
        code="    it->code[slot] = code_of(v, slot);\n" if layout.coded is not None else "",
    )


def _walk(layout: Layout, prefix: str, *, lazy: bool) -> str:
    """Write the loop over trees, with the tests that these trees make."""
    flag = layout.nan_flag
    coded = layout.coded is not None
    is_nan = f"x[slot] == {layout.nan_code}" if coded else "x[slot] != x[slot]"
    return c_text.filled(
        ENGINE,
        "walk",
        p=prefix,
        const="" if lazy else "const ",
        returns="int" if lazy else "void",
        name="walk_and_take" if lazy else "walk",
        more=f",\n                         {prefix}_acquire acquire, void *context" if lazy else "",
        key="key_type",
        numbers="code" if coded else "value",
        test="uint32_t test = t->slot[node], slot = test & ~(uint32_t)NAN_LEFT;"
        if flag
        else "uint32_t slot = t->slot[node];",
        take=c_text.filled(ENGINE, "take in walk") if lazy else "",
        or_nan=f" || ((test & NAN_LEFT) && {is_nan})" if flag else "",
        ends="    return 1;\n" if lazy else "",
    )


# -- stages --------------------------------------------------------------------------------


def _stage_function(
    tables: c_text.Tables, layout: Layout, number: int, stage: StageLayout, prefix: str
) -> str:
    """Add a stage's tables; write the function that runs it."""
    name = f"stage_{number}"
    tables.text(f"\n/* stage {number} */\n")
    lines = []
    if not stage.lazy:
        tables.add(f"{name}_inputs", stage.slots, layout.list_type)
        lines.append(
            f"    if (!take_all(it, {name}_inputs, {len(stage.slots)}, acquire, context))\n"
            "        return 0;\n"
            if len(stage.slots)
            else f"    (void)it;\n    (void)acquire;\n    (void)context;\n"
            f"    (void){name}_inputs;\n"
        )
    model = stage.model
    if model is None:
        tables.text("/* never stops: its model is left out */\n")
    elif isinstance(model, PackedTrees):
        _forest(tables, layout, name, model)
        if stage.lazy:
            lines.append(f"    return walk_and_take(it, &{name}, it->output, acquire, context);\n")
        else:
            lines.append(f"    walk(it, &{name}, it->output);\n")
    else:
        linear = isinstance(model, LinearModel)
        _sums(tables, name, model)
        lines.append(f"    add_{'terms' if linear else 'kernels'}(it, &{name}, it->output);\n")
    if not stage.lazy:
        lines.append("    return 1;\n")
    return (
        f"\nstatic int run_{name}({prefix}_instance *it, {prefix}_acquire acquire, void *context)\n"
        "{\n" + "".join(lines) + "}\n"
    )


def _forest(tables: c_text.Tables, layout: Layout, name: str, trees: PackedTrees) -> None:
    flag = np.where(trees.nan_left, layout.nan_flag, 0)
    tables.add(f"{name}_start", trees.start, "start_type")
    tables.add(f"{name}_slot", trees.slot + flag, "slot_type")
    key = trees.threshold if trees.code is None else trees.code
    tables.add(f"{name}_key", key, "key_type")
    tables.add(f"{name}_skip", trees.skip, "skip_type")
    bytes_and_step = byte_leaves(trees.value)
    if bytes_and_step is None:
        tables.add(f"{name}_value", trees.value, "float")
        leaves = f"{name}_value"
    else:
        tables.add(f"{name}_small", bytes_and_step[0], "int8_t")
        leaves = "0"
    if any(byte_leaves(forest.value) for forest in layout.forests):
        small = "0, 0.0f"
        if bytes_and_step is not None:
            small = f"{name}_small, {c_text.number(float(bytes_and_step[1]))}"
        leaves += f", {small}"
    tables.add(f"{name}_base", trees.base, "float")
    output = "0"
    if trees.output is not None and len(trees.base) > 1:
        tables.add(f"{name}_output", trees.output, "output_type")
        output = f"{name}_output"
    tables.text(
        f"static const trees_type {name} = {{{name}_start, {name}_slot, {name}_key, {name}_skip, "
        f"{leaves}, {output}, {name}_base, {trees.n_trees}, {len(trees.base)}}};\n"
    )


def _sums(tables: c_text.Tables, name: str, model: LinearModel | KernelModel) -> None:
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
    tables.text(f"static const {kind}_type {name} = {{{fields}, {sizes}}};\n")


def _stage_case(cascade: Cascade, layout: Layout, s: int) -> str:
    """Write the case that runs a stage and compares its stop score with the threshold."""
    stage = layout.stages[s]
    threshold = cascade.thresholds[s]
    stops = "0"
    if threshold is not None:
        score = f"{stage.score}_score(it->output, {stage.n_margins})"
        stops = f"{score} >= {c_text.number(float(np.float32(threshold)))}"
    return (
        f"    case {s}:\n        if (!run_stage_{s}(it, acquire, context))\n"
        f"            return -1;\n        return {stops};\n"
    )
