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
${label}}

const float *${p}_value(const ${p}_instance *it, int feature)
{
    int i;
    for (i = 0; i < ${P}_SLOTS; i++)
        if ((int)READ(column_type, columns + i) == feature && it->known[i] == KNOWN)
            return &it->value[i];
    return 0;
}

int ${p}_acquired(const ${p}_instance *it, int feature)
{
    int i;
    for (i = 0; i < ${P}_SLOTS; i++)
        if ((int)READ(column_type, columns + i) == feature)
            return it->known[i] != UNKNOWN;
    return 0;
}

void ${p}_decide(${p}_instance *it, ${p}_acquire acquire, void *context, ${p}_answer *answer)
{
    int stage;
    ${p}_begin(it);
    answer->outcome = ${none_stops};
    answer->exit = ${P}_STAGES;
    answer->stage = -1;
    answer->label = -1;
    answer->refused = -1;
    for (stage = 0; stage < ${P}_STAGES; stage++) {
        int stops = ${p}_stage(it, stage, acquire, context);
        if (stops < 0) {
            answer->refused = (int)it->refused;
            answer->outcome = answer->stage < 0 ? ${P}_ERROR : ${P}_FALLBACK;
${offload_missing}            return;
        }
        if (READ(uint16_t, margins + stage)) { /* a stage without its model has no label */
            answer->stage = stage;
            answer->label = ${p}_label(it, stage);
        }
        if (stops > 0${last_stops}) {
            answer->outcome = ${P}_STOPPED;
            answer->exit = stage;
            return;
        }
    }
}
//// label
    return best_class(it->output, (int)READ(uint16_t, margins + stage));
//// no label
    (void)it;
    (void)stage;
    return -1;
//// offload missing
            if (only_missing(it)) /* the cloud takes missing values, or does without these */
                answer->outcome = ${P}_OFFLOAD;
//// only_missing

/* Whether all refused values are missing ones that the cloud can do without. */
static int only_missing(const ${p}_instance *it)
{
    int i;
    for (i = 0; i < ${P}_SLOTS; i++)
        if (it->known[i] == REFUSED && (${required}it->value[i] == it->value[i]))
            return 0;
    return 1;
}
