//// declared
#include "${p}_signals.h"

int ${p}_signals_selftest(float *largest_distance, int *n_other);
//// test
    {
        float largest_distance;
        int n_other;
        int n_windows_wrong = ${p}_signals_selftest(&largest_distance, &n_other);
        printf("${p}_signals: features of %d of ${n_windows} windows differ, by at most %.1e of their "
               "scale;\n%d more are decided differently; tables %d B, signals %d B, stack at most %d B\n",
               n_windows_wrong, (double)largest_distance, n_other, ${P}_SIGNALS_TABLE_BYTES, ${P}_SIGNALS_BYTES,
               ${P}_SIGNALS_STACK_BYTES);
        n_wrong += n_windows_wrong;
    }
