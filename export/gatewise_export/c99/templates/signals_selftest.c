//// test
/* ${mark} ${version}: real windows, and the features that Python computes of them. */
#include "${p}_signals.h"
${include}
#include <math.h>

int ${p}_signals_selftest(float *farthest, int *other);

${tables}
/* How far a feature is from Python's, as a part of its scale. */
static float distance(float got, float wanted, float size)
{
    float gap = fabsf(got - wanted);
    if (got == wanted || (got != got && wanted != wanted))
        return 0.0f;
    return gap < INFINITY && size > 0.0f ? gap / size : INFINITY;
}
${decisions}
/* How many of the ${n_windows} windows have a feature that is farther than ${bound} from Python's, as a
   part of its scale, the largest absolute value in the sample: 0. `farthest` is the distance of the
   farthest one; `other` counts windows that are decided otherwise than with Python's features though
   all of theirs are within the bound: a threshold lies between. */
int ${p}_signals_selftest(float *farthest, int *other)
{
    static ${p}_signals signals; /* not on the stack */
    int window, i, wrong = 0;
    *farthest = 0.0f;
    *other = 0;
    for (window = 0; window < ${n_windows}; window++) {
        const float *wanted = expected + window * ${n_features};
        float most = 0.0f;
        ${p}_signals_start(&signals, windows + window * ${size});
        for (i = 0; i < ${n_features}; i++) {
            float gap = distance(${p}_signals_acquire((int)feature[i], &signals), wanted[i],
                                 scale[i]);
            most = gap > most ? gap : most;
        }
        wrong += most > ${bound};
        *farthest = most > *farthest ? most : *farthest;
${compare}    }
    return wrong;
}
//// decisions

static float of_python(int number, void *context)
{
    int i;
    for (i = 0; i < ${n_features}; i++)
        if ((int)feature[i] == number)
            return ((const float *)context)[i];
    return NAN;
}

static int decided_otherwise(const ${element} *window, const float *wanted)
{
    static ${p}_signals signals;
    static ${p}_instance instance;
    ${p}_answer first, second;
    ${p}_signals_start(&signals, window);
    ${p}_decide(&instance, ${p}_signals_acquire, &signals, &first);
    ${p}_decide(&instance, of_python, (void *)wanted, &second);
    return first.outcome != second.outcome || first.exit != second.exit ||
           first.label != second.label;
}
//// compare
        *other += most <= ${bound} && decided_otherwise(windows + window * ${size}, wanted);
