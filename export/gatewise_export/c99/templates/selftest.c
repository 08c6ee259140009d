/* ${mark} ${version}: rows and the bits that ${p}.c must answer. The first ${n_sample} rows are the
   sample; ${n_made} are made from the model, at its thresholds and the neighbouring floats. */
#include "${p}.h"

#include <math.h>

${flash}
int ${p}_selftest(void);

typedef union {
    float value;
    uint32_t bits;
} word;

${tables}
typedef struct {
    const float *row;
    int calls;
} source_type;

static float acquire(int feature, void *context)
{
    source_type *source = (source_type *)context;
    int i;
    source->calls++;
    for (i = 0; i < ${P}_SLOTS; i++)
        if (READ(int32_t, column + i) == feature)
            return READ_FLOAT(source->row + i);
    return NAN;
}

static int same(float got, uint32_t expected)
{
    word a, b;
    a.value = got;
    b.bits = expected;
    return a.bits == b.bits || (a.value != a.value && b.value != b.value);
}

static int row_agrees(uint32_t row)
{
    static ${p}_instance instance; /* not on the stack */
    ${p}_answer answer;
    source_type source;
    const uint32_t *expected = outputs + row * ${all_outputs}u;
    const uint8_t *marks = acquired + row * ${acquired_bytes}u;
    int i, s, n_known = 0;
    source.row = rows + row * ${width}u;
    source.calls = 0;
    ${p}_decide(&instance, acquire, &source, &answer);
    if (answer.exit != (int)READ(uint16_t, exits + row) || answer.label != READ(int32_t, labels + row))
        return 0;
    for (i = 0; i < ${P}_SLOTS; i++) {
        int known = ${p}_value(&instance, (int)READ(int32_t, column + i)) != 0;
        n_known += known;
        if (known != ((READ(uint8_t, marks + i / 8) >> i % 8) & 1))
            return 0;
    }
    if (source.calls != n_known)
        return 0;
    ${p}_begin(&instance);
    for (s = 0; s < ${P}_STAGES; s++) {
        if (${p}_stage(&instance, s, acquire, &source) < 0)
            return 0;
        for (i = 0; i < (int)READ(uint16_t, n_outputs + s); i++, expected++)
            if (!same(instance.output[i], READ(uint32_t, expected)))
                return 0;
    }
    return 1;
}

/* Number of the ${n_rows} rows that are answered differently than in training: 0. */
int ${p}_selftest(void)
{
    uint32_t row;
    int wrong = 0;
    for (row = 0; row < ${n_rows}; row++)
        wrong += !row_agrees(row);
    return wrong;
}
