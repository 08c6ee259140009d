/* ${mark} ${version}: the self-test; with --rows it answers rows from standard input.

   A row is ${P}_FEATURES numbers with blanks or commas between them, "nan" where one is missing.
   For each it prints: outcome, exit, label, then a 1 for each acquired feature, else a 0,
   and the outputs of the last stage that finished. */
#include "${p}.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ${p}_selftest(void);

static float acquire(int feature, void *context)
{
    return ((const float *)context)[feature];
}

static int read_row(float *row)
{
    char word[64];
    int i;
    for (i = 0; i < ${P}_FEATURES; i++) {
        if (scanf("%63[^, \t\r\n]%*[, \t\r\n]", word) != 1)
            return 0;
        row[i] = strtof(word, NULL);
    }
    return 1;
}

static void print_answer(const ${p}_instance *instance, const ${p}_answer *answer)
{
    static const char *const outcomes[] = {"stopped", "offload", "fallback", "error"};
    static const int n_outputs[] = {${n_outputs}};
    int i;
    printf("%s,%d,%d,", outcomes[answer->outcome], answer->exit, answer->label);
    for (i = 0; i < ${P}_FEATURES; i++)
        putchar(${p}_value(instance, i) ? '1' : '0');
    for (i = 0; answer->stage >= 0 && i < n_outputs[answer->stage]; i++)
        printf(",%.9g", (double)instance->output[i]);
    putchar('\n');
}

int main(int argc, char **argv)
{
    static float row[${P}_FEATURES];
    static ${p}_instance instance;
    ${p}_answer answer;
    int wrong;
    if (argc > 1 && strcmp(argv[1], "--rows") == 0) {
        while (read_row(row)) {
            ${p}_decide(&instance, acquire, row, &answer);
            print_answer(&instance, &answer);
        }
        return ferror(stdin) || ferror(stdout);
    }
    wrong = ${p}_selftest();
    printf("${p}: %d of ${n_rows} rows differ; tables %d B, instance %d B, stack at most %d B\n",
           wrong, ${P}_TABLE_BYTES, ${P}_INSTANCE_BYTES, ${P}_STACK_BYTES);
    return wrong != 0;
}
