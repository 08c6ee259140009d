/* ${mark} ${version}: prints the clock ticks of each step, one line per window. */
#define _POSIX_C_SOURCE 199309L
#include "target.h"

static uint32_t n_ticks[${n_steps}];
static void run_step(uint32_t step);

#include "${p}_timed.c"

static ${p}_signals signals;

static void run_step(uint32_t step)
{
    uint32_t begin = ticks();
    run(&signals, step);
    n_ticks[step] += ticks_since(begin);
}

${tables}
static void copy_window(uint32_t window_number, ${element} *window)
{
    const ${element} *source = windows + window_number * ${size}u;
    uint32_t i;
    for (i = 0; i < ${size}u; i++)
        window[i] = source[i];
}

int main(void)
{
    static ${element} window[${size}];
    static uint32_t min_ticks[${n_steps}];
    uint32_t window_number, repeat, i, begin, elapsed;
    uint32_t overhead = UINT32_MAX; /* ticks of a measurement without a step, to subtract */
    for (repeat = 0; repeat < ${repeats}u; repeat++) {
        begin = ticks();
        elapsed = ticks_since(begin);
        if (elapsed < overhead)
            overhead = elapsed;
    }
    for (window_number = 0; window_number < ${n_windows}u; window_number++) {
        for (i = 0; i < ${n_steps}u; i++)
            min_ticks[i] = UINT32_MAX;
        for (repeat = 0; repeat < ${repeats}u; repeat++) {
            copy_window(window_number, window);
            ${p}_signals_start(&signals, window);
            for (i = 0; i < ${n_steps}u; i++)
                n_ticks[i] = 0;
            for (i = 0; i < ${n_features}u; i++)
                ${p}_signals_acquire((int)feature[i], &signals);
            for (i = 0; i < ${n_steps}u; i++)
                if (n_ticks[i] < min_ticks[i])
                    min_ticks[i] = n_ticks[i];
        }
        for (i = 0; i < ${n_steps}u; i++)
            print_number(min_ticks[i] > overhead ? min_ticks[i] - overhead : 0);
        print("\n");
    }
    return 0;
}
