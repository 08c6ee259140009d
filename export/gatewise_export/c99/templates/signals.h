/* ${mark} ${version}: features of a window, computed when they are read. Do not edit.

       static ${p}_signals signals;               in static memory, as the instance
       ${p}_signals_start(&signals, window);
       ${p}_decide(&instance, ${p}_signals_acquire, &signals, &answer);

   A feature's step runs when the feature is first acquired, so the window must stay valid until then.
   Each step runs once per window if features are acquired in the order of the stages, as ${p}_decide
   does; in another order some steps run again. The code allocates no memory. It computes in float32;
   compile with -ffp-contract=off. Sums are in numpy's order. Results of Fourier transforms, logarithms,
   cosines and edges of pictures may differ from Python's in their last digits;
   ${p}_signals_selftest.c checks a bound. */
#ifndef ${P}_SIGNALS_H
#define ${P}_SIGNALS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Samples per channel in 1,000 seconds; 0 if unknown in training. Compare it with the sensor's rate:
       #if ${P}_SIGNALS_MILLIHERTZ != SENSOR_MILLIHERTZ
       #error "the windows must have the rate of training"
       #endif */
#define ${P}_SIGNALS_MILLIHERTZ ${millihertz}
#define ${P}_SIGNALS_STEPS ${n_steps}
#define ${P}_SIGNALS_TABLE_BYTES ${table_bytes} /* flash for the const arrays, without the code */
#define ${P}_SIGNALS_BYTES ((int)sizeof(void *) + ${bytes_after_pointer}) /* RAM for a ${p}_signals */
#define ${P}_SIGNALS_STACK_BYTES ${stack_bytes} /* upper bound, without the C library's stack */

typedef struct {
    const ${element} *window;
    float memory[${n_floats}]; /* results and working memory of the steps */
    uint32_t computed[${n_words}]; /* one bit per step: whether its result is in memory */
    uint32_t n_reached; /* number of the last step that ran, plus 1 */
} ${p}_signals;

/* Begin with a window of ${shape} values in row-major order. */
void ${p}_signals_start(${p}_signals *signals, const ${element} *window);

/* Compute a feature by its number; pass this function to ${p}_decide, with a ${p}_signals as context.
   Returns NaN for a feature that this file does not compute. */
float ${p}_signals_acquire(int feature, void *context);

/* Whether a step was computed for this window; ${p}_signals.c lists the numbers of the steps. */
int ${p}_signals_computed(const ${p}_signals *signals, int step);

#ifdef __cplusplus
}
#endif
#endif
