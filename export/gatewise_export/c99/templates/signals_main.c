//// declared
#include "${p}_signals.h"

int ${p}_signals_selftest(float *farthest, int *other);
//// test
    {
        float farthest;
        int other, apart = ${p}_signals_selftest(&farthest, &other);
        printf("${p}_signals: features of %d of ${n_windows} windows differ, the farthest by %.1e of its "
               "scale;\n%d more are decided otherwise; tables %d B, signals %d B, stack at most %d B\n",
               apart, (double)farthest, other, ${P}_SIGNALS_TABLE_BYTES, ${P}_SIGNALS_BYTES,
               ${P}_SIGNALS_STACK_BYTES);
        wrong += apart;
    }
