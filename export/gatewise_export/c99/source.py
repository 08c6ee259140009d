"""``<name>.h`` and ``<name>.c``: the public face, the tables, the engine, the stages."""

from __future__ import annotations

from dataclasses import dataclass
from string import Template

import numpy as np

from gatewise._version import __version__
from gatewise_export.c99.cascade import Cascade, safe
from gatewise_export.c99.engine import engine, tree_types
from gatewise_export.c99.layout import Layout
from gatewise_export.c99.stages import stage_case, stage_function
from gatewise_export.c99.tables import Tables, smallest

__all__ = ["MARK", "Source", "write_source"]

MARK = "Written by gatewise"

HEADER = """\
/* ${mark} ${version} from ${title}. Another operating point, another file: do not edit.

   A device holds one ${p}_instance an instance, and gives a callback that acquires a feature:

       static float acquire(int feature, void *context) { ... }   NaN: it cannot be had

       ${p}_instance instance;
       ${p}_answer answer;
       ${p}_decide(&instance, acquire, context, &answer);

   acquire is called at most once a feature and instance, and only for what the stages need. Nothing
   is allocated; there is no state but the instance. Float32 throughout; compile with
   -ffp-contract=off, and decisions, margins and purchases are those of training, bit for bit.

   Classes: ${classes}
   Features, by number: ${features} */
#ifndef ${P}_H
#define ${P}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ${P}_FEATURES ${n_features} /* columns of an instance */
#define ${P}_SLOTS ${n_slots} /* of them, what the stages may acquire */
#define ${P}_CLASSES ${n_classes}
#define ${P}_STAGES ${n_stages}
#define ${P}_OUTPUTS ${n_outputs} /* most outputs of a stage */
#define ${P}_OFFLOADS ${offloads} /* whether what no stage stops for goes to the cloud */
#define ${P}_CODED ${coded} /* bits of a code; 0: nodes hold float thresholds */

#define ${P}_TABLE_BYTES ${table_bytes} /* of the const arrays */
#define ${P}_INSTANCE_BYTES ${instance_bytes} /* of a ${p}_instance */
#define ${P}_STACK_BYTES ${stack_bytes} /* of stack at most; instance, callback apart */

/* The value of a feature; NaN if it is missing. */
typedef float (*${p}_acquire)(int feature, void *context);

typedef struct {
    float value[${n_values}]; /* of the slots */
    float output[${n_outputs}]; /* of the stage that ran last: margins, and a gate's score */
    int32_t refused; /* feature whose value was refused, or -1 */
${code}    uint8_t known[${n_values}];
} ${p}_instance;

enum {
    ${P}_STOPPED,  /* stage `exit` answers */
    ${P}_OFFLOAD,  /* ask the cloud; `label` is the fallback */
    ${P}_FALLBACK, /* a value was refused: the last finished stage's label is the best there is */
    ${P}_ERROR     /* a value that the first stage needs was refused: there is no answer */
};

typedef struct {
    int outcome; /* one of the four above */
    int exit;    /* the stage that stopped; ${P}_STAGES: none */
    int stage;   /* the last stage that finished; -1: none */
    int label;   /* its class, by number; -1: none${lean} */
    int refused; /* feature whose value was refused: infinite${or_missing}; -1: none */
} ${p}_answer;

/* Classify an instance: stage after stage, until one stops. */
void ${p}_decide(${p}_instance *instance, ${p}_acquire acquire, void *context,
                 ${p}_answer *answer);

/* The same, step by step. Stages in turn: 1 it stops, 0 go on, -1 a value was refused. */
void ${p}_begin(${p}_instance *instance);
int ${p}_stage(${p}_instance *instance, int stage, ${p}_acquire acquire, void *context);
int ${p}_label(const ${p}_instance *instance, int stage);

/* The value of a feature that was acquired, or a null pointer. */
const float *${p}_value(const ${p}_instance *instance, int feature);

#ifdef __cplusplus
}
#endif
#endif
"""

TOP = """\
/* ${mark} ${version} from ${title}; see ${p}.h. */
#include "${p}.h"

#include <float.h>
#include <math.h>

#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0
#error "sums must be rounded to float after each step: on i386 compile with -msse2 -mfpmath=sse"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math does not keep the order of sums, nor NaN"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

typedef char instance_has_the_size_it_says[sizeof(${p}_instance) == ${P}_INSTANCE_BYTES ? 1 : -1];

enum { UNKNOWN, KNOWN, REFUSED };
"""

BOTTOM = """
void ${p}_begin(${p}_instance *it)
{
    int i;
    for (i = 0; i < (int)sizeof it->known; i++)
        it->known[i] = UNKNOWN;
    it->refused = -1;
}

int ${p}_stage(${p}_instance *it, int stage, ${p}_acquire acquire, void *context)
{
    switch (stage) {
${cases}    default:
        return 0;
    }
}

int ${p}_label(const ${p}_instance *it, int stage)
{
${best}}

const float *${p}_value(const ${p}_instance *it, int feature)
{
    int i;
    for (i = 0; i < ${P}_SLOTS; i++)
        if ((int)columns[i] == feature && it->known[i] == KNOWN)
            return &it->value[i];
    return 0;
}

void ${p}_decide(${p}_instance *it, ${p}_acquire acquire, void *context, ${p}_answer *answer)
{
    int stage;
    ${p}_begin(it);
    answer->outcome = ${none};
    answer->exit = ${P}_STAGES;
    answer->stage = answer->label = answer->refused = -1;
    for (stage = 0; stage < ${P}_STAGES; stage++) {
        int said = ${p}_stage(it, stage, acquire, context);
        if (said < 0) {
            answer->refused = it->refused;
            answer->outcome = answer->stage < 0 ? ${P}_ERROR : ${P}_FALLBACK;
${offload}            return;
        }
${label}        if (said > 0${always}) {
            answer->outcome = ${P}_STOPPED;
            answer->exit = stage;
            return;
        }
    }
}
"""

MISSING = """\
            if (${P}_OFFLOADS && missing(it)) /* the cloud takes it as a value */
                answer->outcome = ${P}_OFFLOAD;
"""

LEAN = "; models of stages that never stop were left out"

LABELLED = """\
        answer->stage = stage;
        answer->label = ${p}_label(it, stage);
"""

HELD = """\
        if (margins[stage]) { /* a stage whose model is left out says nothing */
            answer->stage = stage;
            answer->label = ${p}_label(it, stage);
        }
"""

BEST = """\
    return best_class(it->output, margins[stage]);
"""

NO_MODEL = """\
    (void)it;
    (void)stage;
    return -1;
"""

IS_MISSING = """
static int missing(const ${p}_instance *it)
{
    int i;
    for (i = 0; i < ${P}_SLOTS; i++)
        if (it->known[i] == REFUSED)
            return it->value[i] != it->value[i];
    return 0;
}
"""


@dataclass(frozen=True)
class Source:
    """The two files of a model, and the bytes of its tables."""

    header: str
    code: str
    table_bytes: int


def write_source(cascade: Cascade, layout: Layout, prefix: str) -> Source:
    """Write a model's header and code.

    Parameters
    ----------
    cascade : Cascade
    layout : Layout
    prefix : str
        An identifier of C: begins every public name.
    """
    tables = Tables({f"{k}_type": v for k, v in tree_types(layout).items()})
    tables.add(
        "columns", layout.columns, smallest(len(cascade.feature_names)), "The feature of each slot."
    )
    tables.add(
        "margins",
        np.array([stage.n_margins for stage in layout.stages]),
        "uint16_t",
        "Class margins of each stage.",
    )
    parts = engine(layout, prefix, takes_missing=cascade.takes_missing)
    tables.text("\n" + parts["types"] + "\n")
    if layout.coded is not None:
        ends = np.cumsum([0, *(len(marks) for marks in layout.edges)])
        tables.add("edge_start", ends, smallest(int(ends[-1])), "Thresholds, feature by feature.")
        tables.add("edge", np.concatenate(layout.edges), "float")
    stages = "".join(
        stage_function(tables, layout, s, stage, prefix) for s, stage in enumerate(layout.stages)
    )
    fill = _fill(cascade, layout, prefix, tables.nbytes)
    flag = f"#define NAN_LEFT {layout.nan_flag}u\n\n" if layout.nan_flag else "\n"
    asks = cascade.offloads and cascade.cloud_takes_missing and not cascade.takes_missing
    bottom = Template(BOTTOM).substitute(
        fill,
        cases="".join(stage_case(cascade, layout, s) for s in range(len(layout.stages))),
        none=f"{fill['P']}_OFFLOAD" if cascade.offloads else f"{fill['P']}_STOPPED",
        always="" if cascade.offloads else f" || stage == {fill['P']}_STAGES - 1",
        label=Template(LABELLED if all(cascade.holds) else HELD).substitute(fill),
        best=BEST if any(cascade.holds) else NO_MODEL,
        offload=Template(MISSING).substitute(fill) if asks else "",
    )
    helper = Template(IS_MISSING).substitute(fill) if asks else ""
    code = Template(TOP).substitute(fill) + flag + str(tables) + parts["code"] + stages
    return Source(Template(HEADER).substitute(fill), code + helper + bottom, tables.nbytes)


def _fill(cascade: Cascade, layout: Layout, prefix: str, table_bytes: int) -> dict[str, str]:
    """What the templates ask for."""
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
    return {k: str(v) for k, v in numbers.items()} | {
        "mark": MARK,
        "version": __version__,
        "title": safe([cascade.title])[0],
        "p": prefix,
        "P": prefix.upper(),
        "classes": _listed(cascade.classes),
        "features": _listed(cascade.feature_names),
        "code": code if layout.coded is not None else "",
        "lean": "" if all(cascade.holds) else LEAN,
        "or_missing": "" if cascade.takes_missing else " or missing",
    }


def _listed(values: tuple[object, ...]) -> str:
    """``0 = a, 1 = b``, wrapped for a comment."""
    lines, line = [], ""
    for i, word in enumerate(safe(values)):
        item = f"{i} = {word}" + ("," if i + 1 < len(values) else "")
        if line and len(line) + len(item) > 80:
            lines.append(line)
            line = ""
        line = f"{line} {item}" if line else item
    return "\n     ".join([*lines, line])
