"""The C that runs tables: trees, linear models, kernel machines; only what a cascade needs.

Every sum is in float32 and in the order of :mod:`gatewise_training`: trees one after another and
the base last; terms feature by feature, or landmark by landmark, and the bias last. Sums begin as
0, so that adding -0 to nothing gives 0, as in numpy.
"""

from __future__ import annotations

from string import Template

from gatewise.models.kernel_machine import SQUARINGS, KernelModel
from gatewise.models.linear import LinearModel
from gatewise_export.c99.layout import Forest, Layout
from gatewise_export.c99.tables import smallest

__all__ = ["engine", "tree_types"]

TYPES = """\
typedef ${slot} slot_type;
typedef ${skip} skip_type;
typedef ${start} start_type;
typedef ${key} key_type;
typedef ${output} output_type;

typedef struct {
    const start_type *start; /* first inner node of each tree, and their number */
    const slot_type *slot;   /* what a node tests */
    const key_type *key;     /* to the left up to here */
    const skip_type *skip;   /* inner nodes of its left part, which come next */
    const float *value;      /* of the leaves, in the order of the walk */
    const output_type *output; /* which output a tree adds to; 0: all */
    const float *base;
    uint32_t n_trees, n_outputs;
} trees_type;
"""

LEAVES = """
static void add_leaf(const trees_type *t, uint32_t tree, uint32_t leaf, float *out)
{
    uint32_t m;
    if (t->output) {
        out[t->output[tree]] += t->value[leaf];
        return;
    }
    for (m = 0; m < t->n_outputs; m++)
        out[m] += t->value[leaf * t->n_outputs + m];
}
"""

WALK = """
static ${returns} ${name}(${const}${p}_instance *it, const trees_type *t, float *out${more})
{
    const ${key} *x = it->${numbers};
    uint32_t tree, m;
    for (m = 0; m < t->n_outputs; m++)
        out[m] = 0.0f;
    for (tree = 0; tree < t->n_trees; tree++) {
        uint32_t node = t->start[tree], leaf = node + tree, inner = t->start[tree + 1] - node;
        while (inner) {
            uint32_t skip = t->skip[node];
            ${test}
${take}            if (x[slot] <= t->key[node]${or_nan}) {
                node += 1;
                inner = skip;
            } else {
                node += skip + 1;
                leaf += skip + 1;
                inner -= skip + 1;
            }
        }
        add_leaf(t, tree, leaf, out);
    }
    for (m = 0; m < t->n_outputs; m++)
        out[m] += t->base[m];
${ends}}
"""

LAZY = """\
            if (!take(it, slot, acquire, context))
                return 0;
"""

LINEAR_TYPE = """\
typedef struct {
    const ${slot} *slot;
    const float *mean, *scale, *weight, *bias;
    uint16_t n_inputs, n_outputs;
} linear_type;
"""

LINEAR = """
static void add_terms(const ${p}_instance *it, const linear_type *t, float *out)
{
    const float *w = t->weight;
    uint32_t j, m;
    for (m = 0; m < t->n_outputs; m++)
        out[m] = 0.0f;
    for (j = 0; j < t->n_inputs; j++) {
        float z = (it->value[t->slot[j]] - t->mean[j]) * t->scale[j];
        for (m = 0; m < t->n_outputs; m++) {
            float term = z * *w++;
            out[m] += term;
        }
    }
    for (m = 0; m < t->n_outputs; m++)
        out[m] += t->bias[m];
}
"""

KERNEL_TYPE = """\
typedef struct {
    const ${slot} *slot;
    const float *mean, *scale, *landmark, *weight, *bias;
    float rate;
    uint16_t n_inputs, n_landmarks, n_outputs;
} kernel_type;
"""

KERNEL = """
/* (1 + rate d) ** -${exponent} of the squared distance d to each landmark, weighed and added up */
static void add_kernels(const ${p}_instance *it, const kernel_type *t, float *out)
{
    const float *mark = t->landmark, *w = t->weight;
    float z[${widest}];
    uint32_t i, j, m;
    for (m = 0; m < t->n_outputs; m++)
        out[m] = 0.0f;
    for (j = 0; j < t->n_inputs; j++)
        z[j] = (it->value[t->slot[j]] - t->mean[j]) * t->scale[j];
    for (i = 0; i < t->n_landmarks; i++) {
        float distance = 0.0f, power;
        for (j = 0; j < t->n_inputs; j++) {
            float gap = z[j] - *mark++;
            float square = gap * gap;
            distance += square;
        }
        power = distance * t->rate;
        power = 1.0f / (power + 1.0f);
        for (j = 0; j < ${squarings}; j++)
            power = power * power;
        for (m = 0; m < t->n_outputs; m++) {
            float term = power * *w++;
            out[m] += term;
        }
    }
    for (m = 0; m < t->n_outputs; m++)
        out[m] += t->bias[m];
}
"""

CODE = """
/* How many of the edges are below a value: what nodes compare with the rank of their threshold. */
static ${code} code_of(float v, uint32_t number)
{
    uint32_t first = edge_start[number], low = 0, high = edge_start[number + 1] - first;
    const float *edges = edge + first;
${nan}    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (edges[middle] < v)
            low = middle + 1;
        else
            high = middle;
    }
    return (${code})low;
}
"""

TAKE = """
/* A feature's value, acquired if it is not yet known; 0 if it is refused. */
static int take(${p}_instance *it, uint32_t slot, ${p}_acquire acquire, void *context)
{
    float v;
    if (it->known[slot])
        return it->known[slot] == KNOWN;
    v = acquire(columns[slot], context);
    it->value[slot] = v;
    if (${refused}) { /* ${what} */
        it->known[slot] = REFUSED;
        it->refused = columns[slot];
        return 0;
    }
    it->known[slot] = KNOWN;
${code}    return 1;
}
"""

TAKE_ALL = """
static int take_all(${p}_instance *it, const ${slot} *slots, uint32_t n, ${p}_acquire acquire,
                    void *context)
{
    uint32_t i;
    for (i = 0; i < n; i++)
        if (!take(it, slots[i], acquire, context))
            return 0;
    return 1;
}
"""

SCORE = """
/* The gap between the two largest margins, or the size of the only one. */
static float margin_score(const float *margin, uint32_t n)
{
    float best = margin[0], second = -INFINITY;
    uint32_t m;
    if (n == 1)
        return fabsf(best);
    for (m = 0; m < n; m++)
        if (margin[m] != margin[m])
            return margin[m];
    for (m = 1; m < n; m++) {
        if (margin[m] > best) {
            second = best;
            best = margin[m];
        } else if (margin[m] > second) {
            second = margin[m];
        }
    }
    return best - second;
}
"""

LABEL = """
static int best_class(const float *margin, int n)
{
    int m, best = 0;
    if (n == 1)
        return margin[0] > 0.0f;
    for (m = 0; m < n; m++) {
        if (margin[m] != margin[m])
            return m;
        if (margin[m] > margin[best])
            best = m;
    }
    return best;
}
"""


def engine(layout: Layout, prefix: str, *, takes_missing: bool) -> dict[str, str]:
    """C of the parts that a layout needs, and of no others.

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
    fill = {"p": prefix, "slot": layout.list_type, "code": layout.code_type}
    types, code = [], []
    if layout.forests:
        types.append(Template(TYPES).substitute(tree_types(layout)))
    takes = any(stage.lazy or len(stage.slots) for stage in stages)
    if layout.coded is not None and takes:
        code.append(_coding(layout, takes_missing))
    if takes:
        code.append(_take(layout, fill, takes_missing))
    if any(len(stage.slots) for stage in stages if not stage.lazy):
        code.append(Template(TAKE_ALL).substitute(fill))
    if layout.forests:
        code.append(LEAVES)
    if any(isinstance(stage.model, Forest) for stage in stages if not stage.lazy):
        code.append(_walk(layout, prefix, lazy=False))
    if any(stage.lazy for stage in stages):
        code.append(_walk(layout, prefix, lazy=True))
    numbers = {
        "squarings": str(SQUARINGS),
        "exponent": str(2**SQUARINGS),
        "widest": str(max(layout.widest_kernel, 1)),
    }
    for kind, struct, function in (
        (LinearModel, LINEAR_TYPE, LINEAR),
        (KernelModel, KERNEL_TYPE, KERNEL),
    ):
        if any(isinstance(stage.model, kind) for stage in stages):
            types.append(Template(struct).substitute(fill))
            code.append(Template(function).substitute(fill, **numbers))
    if any(stage.needs_score for stage in stages):
        code.append(SCORE)
    if any(stage.model is not None for stage in stages):
        code.append(LABEL)
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


def _coding(layout: Layout, takes_missing: bool) -> str:
    nan = ""
    if takes_missing:
        nan = f"    if (v != v)\n        return {layout.nan_code};\n"
    return Template(CODE).substitute(code=layout.code_type, nan=nan)


def _take(layout: Layout, fill: dict[str, str], takes_missing: bool) -> str:
    return Template(TAKE).substitute(
        fill,
        refused="v == v && v - v != 0.0f" if takes_missing else "v - v != 0.0f",
        what="infinite" if takes_missing else "missing or infinite",
        code="    it->code[slot] = code_of(v, slot);\n" if layout.coded is not None else "",
    )


def _walk(layout: Layout, prefix: str, *, lazy: bool) -> str:
    """The loop over trees, with the questions that these trees ask."""
    flag, coded = layout.nan_flag, layout.coded is not None
    is_nan = f"x[slot] == {layout.nan_code}" if coded else "x[slot] != x[slot]"
    return Template(WALK).substitute(
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
        take=LAZY if lazy else "",
        or_nan=f" || ((test & NAN_LEFT) && {is_nan})" if flag else "",
        ends="    return 1;\n" if lazy else "",
    )
