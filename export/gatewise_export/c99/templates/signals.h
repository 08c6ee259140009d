/* ${mark} ${version}: features of a window, computed when they are read. Do not edit.

       static ${p}_signals signals;               beside the instance, in static memory
       ${p}_signals_start(&signals, window);
       ${p}_decide(&instance, ${p}_signals_acquire, &signals, &answer);

   A feature's step runs when the feature is first acquired: the window must stay until then. Each
   step runs once per window if features are acquired in the order of the stages, as ${p}_decide
   does; in another order some run again. Nothing is allocated. Float32; compile with -ffp-contract=off. Sums are in
   numpy's order; what goes through the Fourier transform, logarithms or cosines differs from Python
   in its last digits: ${p}_signals_selftest.c holds it to a bound. */
#ifndef ${P}_SIGNALS_H
#define ${P}_SIGNALS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Samples per 1,000 seconds and channel, 0 if training was not told. Compare it with the sensor's:
       #if ${P}_SIGNALS_MILLIHERTZ != SENSOR_MILLIHERTZ
       #error "the windows must have the rate of training"
       #endif */
#define ${P}_SIGNALS_MILLIHERTZ ${millihertz}
#define ${P}_SIGNALS_STEPS ${n_steps}
#define ${P}_SIGNALS_TABLE_BYTES ${table_bytes} /* flash: the const arrays; the code comes on top */
#define ${P}_SIGNALS_BYTES ((int)sizeof(void *) + ${own_bytes}) /* RAM: a ${p}_signals */
#define ${P}_SIGNALS_STACK_BYTES ${stack_bytes} /* bound on the stack, without the C library's */

typedef struct {
    const ${element} *window;
    float memory[${n_floats}]; /* results of steps */
    uint32_t computed[${n_words}]; /* a bit for each step */
    uint32_t n_reached; /* steps up to the last one that ran */
} ${p}_signals;

/* Begin with a window of ${shape} numbers, in C's order. */
void ${p}_signals_start(${p}_signals *signals, const ${element} *window);

/* A feature by its number, as ${p}_decide acquires it; context is a ${p}_signals. NaN for a feature
   that no stage here reads. */
float ${p}_signals_acquire(int feature, void *context);

/* Whether a step was computed for this window, by its place in the list of ${p}_signals.c. */
int ${p}_signals_computed(const ${p}_signals *signals, int step);

#ifdef __cplusplus
}
#endif
#endif
