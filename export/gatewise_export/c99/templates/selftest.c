/* ${mark} ${version}: real rows, and what ${p}.c must answer to them, to the bit. */
#include "${p}.h"

#include <math.h>

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
        if (column[i] == feature)
            return source->row[i];
    return NAN;
}

static int same(float got, uint32_t expected)
{
    word a, b;
    a.value = got;
    b.bits = expected;
    return a.bits == b.bits || (a.value != a.value && b.value != b.value);
}

static int row_agrees(int row)
{
    static ${p}_instance instance; /* not on the stack */
    ${p}_answer answer;
    source_type source;
    const uint32_t *expected = outputs + row * ${all_outputs};
    int i, s, n_known = 0;
    source.row = rows + row * ${width};
    source.calls = 0;
    ${p}_decide(&instance, acquire, &source, &answer);
    if (answer.exit != exits[row] || answer.label != labels[row])
        return 0;
    for (i = 0; i < ${P}_SLOTS; i++) {
        int known = ${p}_value(&instance, column[i]) != 0;
        n_known += known;
        if (known != ((acquired[row * ${acquired_bytes} + i / 8] >> i % 8) & 1))
            return 0;
    }
    if (source.calls != n_known)
        return 0;
    ${p}_begin(&instance);
    for (s = 0; s < ${P}_STAGES; s++) {
        if (${p}_stage(&instance, s, acquire, &source) < 0)
            return 0;
        for (i = 0; i < n_outputs[s]; i++)
            if (!same(instance.output[i], *expected++))
                return 0;
    }
    return 1;
}

/* How many of the ${n_rows} rows are answered otherwise than in training: 0. */
int ${p}_selftest(void)
{
    int row, wrong = 0;
    for (row = 0; row < ${n_rows}; row++)
        wrong += !row_agrees(row);
    return wrong;
}
