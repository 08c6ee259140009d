//// declared
#include "${p}_signals.h"

int ${p}_signals_selftest(float *farthest, int *n_other);
//// test
    {
        float farthest;
        int n_other;
        int n_windows_wrong = ${p}_signals_selftest(&farthest, &n_other);
        printf("${p}_signals: features of %d of ${n_windows} windows differ, the farthest by %.1e of its "
               "scale;\n%d more are decided differently; tables %d B, signals %d B, stack at most %d B\n",
               n_windows_wrong, (double)farthest, n_other, ${P}_SIGNALS_TABLE_BYTES, ${P}_SIGNALS_BYTES,
               ${P}_SIGNALS_STACK_BYTES);
        n_wrong += n_windows_wrong;
    }
