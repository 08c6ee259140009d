"""The C that runs tables: trees, linear models, kernel machines; only what a cascade needs.

Every sum is in float32 and in the order of :mod:`gatewise.models`: trees one after another and
the base last; terms feature by feature, or landmark by landmark, and the bias last. Sums begin as
0, so that adding -0 to nothing gives 0, as in numpy.
"""

from __future__ import annotations

from gatewise.models.kernel_machine import SQUARINGS, KernelModel
from gatewise.models.linear import LinearModel
from gatewise_export.c99.c_text import filled, smallest
from gatewise_export.c99.layout import Forest, Layout

__all__ = ["engine", "tree_types"]

FILE = "engine.c"


def engine(layout: Layout, prefix: str, *, takes_missing: bool) -> dict[str, str]:
    """Write the C of the parts that a layout needs, and of no others.

    Parameters
    ----------
    layout : Layout
    prefix : str
        Of public names.
    takes_missing : bool

    Returns
    -------
    dict of str
        ``types``, which the tables need, and ``code``, which follows the tables.
    """
    stages = layout.stages
    fill: dict[str, object] = {"p": prefix, "slot": layout.list_type, "code": layout.code_type}
    types, code = [], []
    if layout.forests:
        types.append(filled(FILE, "tree types", **tree_types(layout)))
    takes = any(stage.lazy or len(stage.slots) for stage in stages)
    if layout.coded is not None and takes:
        nan = f"    if (v != v)\n        return {layout.nan_code};\n" if takes_missing else ""
        code.append(filled(FILE, "codes", code=layout.code_type, nan=nan))
    if takes:
        code.append(_take(layout, prefix, takes_missing))
    if any(len(stage.slots) for stage in stages if not stage.lazy):
        code.append(filled(FILE, "take all", **fill))
    if layout.forests:
        code.append(filled(FILE, "leaves"))
    if any(isinstance(stage.model, Forest) for stage in stages if not stage.lazy):
        code.append(_walk(layout, prefix, lazy=False))
    if any(stage.lazy for stage in stages):
        code.append(_walk(layout, prefix, lazy=True))
    fill |= {
        "squarings": SQUARINGS,
        "exponent": 2**SQUARINGS,
        "widest": max(layout.widest_kernel, 1),
    }
    for kind, name in ((LinearModel, "linear"), (KernelModel, "kernel")):
        if any(isinstance(stage.model, kind) for stage in stages):
            types.append(filled(FILE, f"{name} type", **fill))
            code.append(filled(FILE, name, **fill))
    if any(stage.needs_score for stage in stages):
        code.append(filled(FILE, "score"))
    if any(stage.model is not None for stage in stages):
        code.append(filled(FILE, "label"))
    return {"types": "\n".join(types), "code": "".join(code)}


def tree_types(layout: Layout) -> dict[str, str]:
    """C's types of the numbers in trees' tables, without their ``_type``: the smallest that do."""
    packed = [forest.trees for forest in layout.forests]
    return {
        "slot": layout.slot_type,
        "key": "float" if layout.coded is None else layout.code_type,
        "skip": smallest(max((int(t.skip.max(initial=0)) for t in packed), default=0)),
        "start": smallest(max((int(t.start[-1]) for t in packed), default=0)),
        "output": smallest(layout.n_outputs - 1),
    }


def _take(layout: Layout, prefix: str, takes_missing: bool) -> str:
    """The function that acquires a feature."""
    return filled(
        FILE,
        "take",
        p=prefix,
        refused="v == v && v - v != 0.0f" if takes_missing else "v - v != 0.0f",
        what="infinite" if takes_missing else "missing or infinite",
        code="    it->code[slot] = code_of(v, slot);\n" if layout.coded is not None else "",
    )


def _walk(layout: Layout, prefix: str, *, lazy: bool) -> str:
    """The loop over trees, with the tests that these trees make."""
    flag, coded = layout.nan_flag, layout.coded is not None
    is_nan = f"x[slot] == {layout.nan_code}" if coded else "x[slot] != x[slot]"
    return filled(
        FILE,
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
        take=filled(FILE, "take in walk") if lazy else "",
        or_nan=f" || ((test & NAN_LEFT) && {is_nan})" if flag else "",
        ends="    return 1;\n" if lazy else "",
    )
