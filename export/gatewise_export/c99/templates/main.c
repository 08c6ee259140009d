/* ${mark} ${version}: runs the self-test; exits with 1 if an answer differs from Python's. */
#include "${p}.h"

#include <stdio.h>

int ${p}_selftest(void);
${declared}
int main(void)
{
    int n_wrong = ${p}_selftest();
    printf("${p}: %d of ${n_rows} rows differ (${tested_rows}); tables %d B, instance %d B, "
           "stack at most %d B\n",
           n_wrong, ${P}_TABLE_BYTES, ${P}_INSTANCE_BYTES, ${P}_STACK_BYTES);
${signals_test}    return n_wrong != 0;
}
