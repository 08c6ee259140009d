//// top
/* ${mark} ${version} from ${title}; see ${p}.h. */
#include "${p}.h"

#include <float.h>
#include <math.h>

${float_rules}
typedef char instance_has_its_declared_size[sizeof(${p}_instance) == ${P}_INSTANCE_BYTES ? 1 : -1];

enum { UNKNOWN, KNOWN, REFUSED };
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
${best}}

const float *${p}_value(const ${p}_instance *it, int feature)
{
    int i;
    for (i = 0; i < ${P}_SLOTS; i++)
        if ((int)columns[i] == feature && it->known[i] == KNOWN)
            return &it->value[i];
    return 0;
}

int ${p}_acquired(const ${p}_instance *it, int feature)
{
    int i;
    for (i = 0; i < ${P}_SLOTS; i++)
        if ((int)columns[i] == feature)
            return it->known[i] != UNKNOWN;
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
        int stops = ${p}_stage(it, stage, acquire, context);
        if (stops < 0) {
            answer->refused = it->refused;
            answer->outcome = answer->stage < 0 ? ${P}_ERROR : ${P}_FALLBACK;
${offload}            return;
        }
${label}        if (stops > 0${always}) {
            answer->outcome = ${P}_STOPPED;
            answer->exit = stage;
            return;
        }
    }
}
//// label
        answer->stage = stage;
        answer->label = ${p}_label(it, stage);
//// label of held
        if (margins[stage]) { /* a stage with its model left out has no label */
            answer->stage = stage;
            answer->label = ${p}_label(it, stage);
        }
//// best
    return best_class(it->output, margins[stage]);
//// no model
    (void)it;
    (void)stage;
    return -1;
//// offload missing
            if (${P}_OFFLOADS && missing(it)) /* the cloud takes it as a value, or does without it */
                answer->outcome = ${P}_OFFLOAD;
//// missing

static int missing(const ${p}_instance *it)
{
    int i;
    for (i = 0; i < ${P}_SLOTS; i++)
        if (it->known[i] == REFUSED && ${sent}it->value[i] == it->value[i]))
            return 0;
    return 1;
}
