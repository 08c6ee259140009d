/* ${mark} ${version}: rows, and the answers that ${p}.c must give to the bit. The first ${n_sample} rows
   are the sample; the other ${n_generated} have values at and next to the model's thresholds. */
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

static int is_same(float actual_value, uint32_t expected_bits)
{
    word actual, expected;
    actual.value = actual_value;
    expected.bits = expected_bits;
    return actual.bits == expected.bits ||
           (actual.value != actual.value && expected.value != expected.value);
}

static int row_agrees(uint32_t row)
{
    static ${p}_instance instance; /* not on the stack */
    ${p}_answer answer;
    source_type source;
    const uint32_t *expected = outputs + row * ${n_all_outputs}u;
    const uint8_t *acquired_bits = acquired + row * ${acquired_bytes}u;
    int i, stage, n_known = 0;
    source.row = rows + row * ${n_slots}u;
    source.calls = 0;
    ${p}_decide(&instance, acquire, &source, &answer);
    if (answer.exit != (int)READ(uint16_t, exits + row) || answer.label != READ(int32_t, labels + row))
        return 0;
    for (i = 0; i < ${P}_SLOTS; i++) {
        int known = ${p}_value(&instance, (int)READ(int32_t, column + i)) != 0;
        n_known += known;
        if (known != ((READ(uint8_t, acquired_bits + i / 8) >> i % 8) & 1))
            return 0;
    }
    if (source.calls != n_known)
        return 0;
    ${p}_begin(&instance);
    for (stage = 0; stage < ${P}_STAGES; stage++) {
        if (${p}_stage(&instance, stage, acquire, &source) < 0)
            return 0;
        for (i = 0; i < (int)READ(uint16_t, n_outputs + stage); i++, expected++)
            if (!is_same(instance.output[i], READ(uint32_t, expected)))
                return 0;
    }
    return 1;
}

/* Count those of the ${n_rows} rows whose answers differ from training's; 0 is right. */
int ${p}_selftest(void)
{
    uint32_t row;
    int n_wrong = 0;
    for (row = 0; row < ${n_rows}; row++)
        n_wrong += !row_agrees(row);
    return n_wrong;
}
