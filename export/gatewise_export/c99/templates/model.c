//// top
/* ${mark} ${version} from ${title}; see ${p}.h. */
#include "${p}.h"

#include <float.h>
#include <math.h>

${float_rules}
${flash}
typedef char instance_has_its_declared_size[sizeof(${p}_instance) == ${P}_INSTANCE_BYTES ? 1 : -1];

enum { UNKNOWN, KNOWN, REFUSED };

${types}${nan_left}
//// bottom

void ${p}_begin(${p}_instance *instance)
{
    int i;
    for (i = 0; i < (int)sizeof instance->known; i++)
        instance->known[i] = UNKNOWN;
    instance->refused = -1;
}

int ${p}_stage(${p}_instance *instance, int stage, ${p}_acquire acquire, void *context)
{
    switch (stage) {
${cases}    default:
        return 0;
    }
}

int ${p}_label(const ${p}_instance *instance, int stage)
{
${label}}

/* The slot of a feature; -1 if no stage reads it. */
static int slot_of(int feature)
{
    int i;
    for (i = 0; i < ${P}_SLOTS; i++)
        if ((int)READ(column_type, columns + i) == feature)
            return i;
    return -1;
}

const float *${p}_value(const ${p}_instance *instance, int feature)
{
    int slot = slot_of(feature);
    return slot >= 0 && instance->known[slot] == KNOWN ? &instance->value[slot] : 0;
}

int ${p}_acquired(const ${p}_instance *instance, int feature)
{
    int slot = slot_of(feature);
    return slot >= 0 && instance->known[slot] != UNKNOWN;
}

void ${p}_decide(${p}_instance *instance, ${p}_acquire acquire, void *context, ${p}_answer *answer)
{
    int stage;
    ${p}_begin(instance);
    answer->outcome = ${outcome_if_none_stops};
    answer->exit = ${P}_STAGES;
    answer->stage = -1;
    answer->label = -1;
    answer->refused = -1;
    for (stage = 0; stage < ${P}_STAGES; stage++) {
        int stops = ${p}_stage(instance, stage, acquire, context);
        if (stops < 0) {
            answer->refused = (int)instance->refused;
            answer->outcome = answer->stage < 0 ? ${P}_ERROR : ${P}_FALLBACK;
${offload_missing}            return;
        }
        if (READ(uint16_t, margins + stage)) { /* a stage whose model is left out has no label */
            answer->stage = stage;
            answer->label = ${p}_label(instance, stage);
        }
        if (stops > 0${or_last_stage}) {
            answer->outcome = ${P}_STOPPED;
            answer->exit = stage;
            return;
        }
    }
}
//// label
    int n_margins = (int)READ(uint16_t, margins + stage);
    return n_margins ? best_class(instance->output, n_margins) : -1;
//// no label
    (void)instance;
    (void)stage;
    return -1;
//// offload missing
            if (only_missing(instance)) /* the cloud accepts missing values, or does not need these */
                answer->outcome = ${P}_OFFLOAD;
//// only_missing

/* Whether all refused values are missing values that the cloud does not need. */
static int only_missing(const ${p}_instance *instance)
{
    int i;
    for (i = 0; i < ${P}_SLOTS; i++)
        if (instance->known[i] == REFUSED && (${required}instance->value[i] == instance->value[i]))
            return 0;
    return 1;
}
