//// top
/* ${mark} ${version}: the steps of ${p}_signals.h, each with the numbers of those that it needs.

${listing}*/
#include "${p}_signals.h"

#include <float.h>
#include <math.h>

${float_rules}
typedef char signals_have_their_declared_size[sizeof(${p}_signals) == ${P}_SIGNALS_BYTES ? 1 : -1];

//// bottom

static void run(${p}_signals *it, uint32_t step)
{
    switch (step) {
${cases}    default:
        break;
    }
}

void ${p}_signals_start(${p}_signals *it, const ${element} *window)
{
    int i;
    it->window = window;
    for (i = 0; i < ${n_words}; i++)
        it->computed[i] = 0;
}

int ${p}_signals_computed(const ${p}_signals *it, int step)
{
    return (int)(it->computed[step / 32] >> (step % 32) & 1u);
}

float ${p}_signals_acquire(int feature, void *context)
{
    ${p}_signals *it = (${p}_signals *)context;
    int block, i;
    for (block = 0; block < ${n_blocks}; block++) {
        if (feature < (int)first_feature[block] || feature >= (int)end_feature[block])
            continue;
        for (i = needs_start[block]; i < (int)needs_start[block + 1]; i++) {
            uint32_t step = needs[i];
            if (!${p}_signals_computed(it, (int)step)) {
                run(it, step);
                it->computed[step / 32] |= (uint32_t)1 << (step % 32);
            }
        }
        switch (block) {
${results}        default:
            break;
        }
    }
    return NAN;
}
