//// test
/* ${mark} ${version}: windows, and the features that Python computes from them. */
#include "${p}_signals.h"
${include}
#include <math.h>

${flash}
int ${p}_signals_selftest(float *largest_distance, int *n_other);

${tables}
/* Distance of a feature from Python's value, relative to `size`, the feature's scale. */
static float distance(float value, float expected_value, float size)
{
    float gap = fabsf(value - expected_value);
    if (value == expected_value || (value != value && expected_value != expected_value))
        return 0.0f;
    return gap < INFINITY && size > 0.0f ? gap / size : INFINITY;
}

static void copy_window(uint32_t number, ${element} *window)
{
    const ${element} *source = windows + number * ${size}u;
    uint32_t i;
    for (i = 0; i < ${size}u; i++)
        window[i] = ${read};
}

/* Largest distance of a window's features from Python's values. */
static float window_distance(${p}_signals *signals, uint32_t number)
{
    const float *expected_row = expected + number * ${n_features}u;
    float largest = 0.0f;
    uint32_t i;
    for (i = 0; i < ${n_features}u; i++) {
        float value = ${p}_signals_acquire((int)READ(${feature_type}, feature + i), signals);
        float gap = distance(value, READ_FLOAT(expected_row + i), READ_FLOAT(scale + i));
        largest = gap > largest ? gap : largest;
    }
    return largest;
}
${decisions}
/* Count those of the ${n_windows} windows with a feature whose distance from Python's value exceeds
   ${bound} of its scale; 0 is right. The scale of a feature is its largest absolute value in these
   windows. `n_other` counts windows within the bound whose decision still differs from the one with
   Python's features, because a threshold lies between the two values. */
int ${p}_signals_selftest(float *largest_distance, int *n_other)
{
    static ${p}_signals signals; /* not on the stack */
    static ${element} window[${size}];
    uint32_t number;
    int n_wrong = 0;
    *largest_distance = 0.0f;
    *n_other = 0;
    for (number = 0; number < ${n_windows}u; number++) {
        float gap;
        copy_window(number, window);
        ${p}_signals_start(&signals, window);
        gap = window_distance(&signals, number);
        n_wrong += gap > ${bound};
        *largest_distance = gap > *largest_distance ? gap : *largest_distance;
${compare}    }
    return n_wrong;
}
//// decisions

static float acquire_expected(int wanted_feature, void *context)
{
    const float *expected_row = expected + *(const uint32_t *)context * ${n_features}u;
    uint32_t i;
    for (i = 0; i < ${n_features}u; i++)
        if ((int)READ(${feature_type}, feature + i) == wanted_feature)
            return READ_FLOAT(expected_row + i);
    return NAN;
}

static int is_decided_differently(${p}_signals *signals, const ${element} *window, uint32_t number)
{
    static ${p}_instance instance;
    ${p}_answer answer, expected_answer;
    ${p}_signals_start(signals, window);
    ${p}_decide(&instance, ${p}_signals_acquire, signals, &answer);
    ${p}_decide(&instance, acquire_expected, &number, &expected_answer);
    return answer.outcome != expected_answer.outcome || answer.exit != expected_answer.exit ||
           answer.label != expected_answer.label;
}
//// compare
        *n_other += gap <= ${bound} && is_decided_differently(&signals, window, number);
