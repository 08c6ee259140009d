//// top
/* ${mark} ${version}: the steps of ${p}_signals.h, in the order in which stages need them.

${listing}*/
#include "${p}_signals.h"

#include <float.h>
#include <math.h>

${float_rules}
${flash}
typedef char signals_have_their_declared_size[sizeof(${p}_signals) == ${P}_SIGNALS_BYTES ? 1 : -1];

/* Offsets of the steps' results and working memory in `memory`. Results share memory if they are not
   needed at the same time when features are acquired in the order of the steps. Values copied from
   the window may be overwritten between two blocks; they are then read from the window again. */
enum {
${offsets}
};

//// bottom

static void run(${p}_signals *signals, uint32_t step)
{
    switch (step) {
${cases}    default:
        break;
    }
}

static int has_bit(const uint32_t *bits, uint32_t i)
{
    return (int)(bits[i / 32] >> (i % 32) & 1u);
}

static void set_bit(uint32_t *bits, uint32_t i)
{
    bits[i / 32] |= (uint32_t)1 << (i % 32);
}

/* Mark a step and the steps that must run before it; return the first step to run. */
static uint32_t mark_needed(const ${p}_signals *signals, uint32_t target_step, uint32_t *needed)
{
    uint32_t first = target_step;
    uint32_t step, end, i;
    for (i = 0; i < ${n_words}; i++)
        needed[i] = 0;
    set_bit(needed, target_step);
    for (step = target_step + 1; step-- > 0;) {
        if (!has_bit(needed, step) || has_bit(signals->computed, step))
            continue;
        end = READ(input_start_type, input_start + step + 1);
        for (i = READ(input_start_type, input_start + step); i < end; i++) {
            first = step; /* not a step that reads only the window: it can run again at any time */
            set_bit(needed, READ(input_type, input + i));
        }
    }
    return first;
}

/* Compute a step after the steps that it needs, unless their results are in memory. */
static void compute(${p}_signals *signals, uint32_t target_step)
{
    uint32_t needed[${n_words}];
    uint32_t step, i;
    if (has_bit(signals->computed, target_step))
        return;
    if (mark_needed(signals, target_step, needed) < signals->n_reached) {
        /* out of order: later steps may have overwritten results that are needed now */
        for (i = 0; i < ${n_words}; i++)
            signals->computed[i] &= READ(uint32_t, is_feature + i);
        mark_needed(signals, target_step, needed);
    }
    for (step = 0; step <= target_step; step++)
        if (has_bit(needed, step) && !has_bit(signals->computed, step)) {
            run(signals, step);
            set_bit(signals->computed, step);
        }
    signals->n_reached = target_step + 1;
}

void ${p}_signals_start(${p}_signals *signals, const ${element} *window)
{
    int i;
    signals->window = window;
    signals->n_reached = 0;
    for (i = 0; i < ${n_words}; i++)
        signals->computed[i] = 0;
}

int ${p}_signals_computed(const ${p}_signals *signals, int step)
{
    return has_bit(signals->computed, (uint32_t)step);
}

float ${p}_signals_acquire(int feature, void *context)
{
    ${p}_signals *signals = (${p}_signals *)context;
    uint32_t number = (uint32_t)feature;
    uint32_t block;
    for (block = 0; block < ${n_blocks}; block++) {
        uint32_t first = READ(feature_type, first_feature + block);
        if (number < first || number >= READ(feature_type, end_feature + block))
            continue;
        compute(signals, READ(input_type, block_step + block));
        return signals->memory[READ(offset_type, block_offset + block) + (number - first)];
    }
    return NAN;
}
