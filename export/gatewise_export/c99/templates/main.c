/* ${mark} ${version}: the self-test; with --rows it answers rows from standard input.

   A row is a line of ${P}_FEATURES numbers, separated by commas, semicolons or blanks; "nan" or an empty
   cell is a missing value. If the first line holds no numbers, it is a header: columns are taken by
   the features' names, and others are ignored. For each row it prints: outcome, exit, label, a 1 or 0
   per feature (acquired or not), and the outputs of the last stage that finished. It ends with status
   2 at a line that is no such row. */
#include "${p}.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ${p}_selftest(void);
${declared}
enum { MAX_CELLS = ${P}_FEATURES + 1024, MAX_LINE = 64 * MAX_CELLS };

static char line[MAX_LINE];
static const char *cell[MAX_CELLS];
static int feature_of[MAX_CELLS]; /* the feature in a column, or -1 */

static float acquire(int feature, void *context)
{
    return ((const float *)context)[feature];
}

/* Cut a line into cells in place, at commas or semicolons, or at blanks if there are none. Return the
   number of cells; it is more than MAX_CELLS if they are too many. */
static int split(char *text)
{
    const char *separators = strpbrk(text, ",;") ? ",;" : " \t";
    int n;
    for (n = 1; n <= MAX_CELLS; n++) {
        char *end, separator;
        text += strspn(text, " \t");
        if (*text == '"') {
            cell[n - 1] = ++text;
            end = text + strcspn(text, "\"");
            text = end + (*end != 0);
            text += strcspn(text, separators);
        } else {
            cell[n - 1] = text;
            text += strcspn(text, separators);
            for (end = text; end > cell[n - 1] && strchr(" \t", end[-1]);)
                end--;
        }
        separator = *text;
        *end = 0;
        if (separator)
            text++;
        if (!separator || (*separators == ' ' && !text[strspn(text, " \t")]))
            return n;
    }
    return n;
}

/* Read a cell's number, NaN if it is missing; return 0 if it is not a number. */
static int number(const char *text, float *value)
{
    char *end;
    *value = NAN;
    if (!*text || !strcmp(text, "?") || !strcmp(text, "NA") || !strcmp(text, "null"))
        return 1;
    *value = strtof(text, &end);
    return end != text && !*end;
}

static int is_header(int n)
{
    float ignored;
    int i, has_all_names = n == ${P}_FEATURES;
    for (i = 0; i < n; i++) {
        if (!number(cell[i], &ignored))
            return 1;
        has_all_names = has_all_names && !strcmp(cell[i], ${p}_feature_names[i]);
    }
    return has_all_names;
}

/* Find the features among a header's columns. Return the first one without exactly one column, or -1. */
static int read_header(int n)
{
    int i, feature;
    for (i = 0; i < n; i++)
        feature_of[i] = -1;
    for (feature = 0; feature < ${P}_FEATURES; feature++) {
        int n_columns = 0;
        for (i = 0; i < n; i++)
            if (!strcmp(cell[i], ${p}_feature_names[feature])) {
                feature_of[i] = feature;
                n_columns++;
            }
        if (n_columns != 1)
            return feature;
    }
    return -1;
}

static void print_row(const ${p}_instance *instance, const ${p}_answer *answer)
{
    static const char *const outcomes[] = {"stopped", "offload", "fallback", "error"};
    static const int n_outputs[] = {${n_outputs}};
    int i;
    printf("%s,%d,%d,", outcomes[answer->outcome], answer->exit, answer->label);
    for (i = 0; i < ${P}_FEATURES; i++)
        putchar(${p}_acquired(instance, i) ? '1' : '0');
    for (i = 0; answer->stage >= 0 && i < n_outputs[answer->stage]; i++)
        printf(",%.9g", (double)instance->output[i]);
    putchar('\n');
}

static int answer_rows(void)
{
    static float row[${P}_FEATURES];
    static ${p}_instance instance;
    ${p}_answer answer;
    long n_lines = 0;
    int n_columns = 0; /* 0: neither a header nor a row was read */
    int i, n;
    while (fgets(line, sizeof line, stdin)) {
        char *text = line;
        if (!n_lines++ && !strncmp(text, "\xef\xbb\xbf", 3)) /* a byte order mark */
            text += 3;
        if (!strchr(text, '\n') && !feof(stdin)) {
            fprintf(stderr, "line %ld is too long\n", n_lines);
            return 2;
        }
        text[strcspn(text, "\r\n")] = 0;
        if (!text[strspn(text, " \t")])
            continue;
        n = split(text);
        if (!n_columns && n <= MAX_CELLS && is_header(n)) {
            int feature = read_header(n);
            if (feature >= 0) {
                fprintf(stderr, "line %ld: a header must have one column %s\n", n_lines,
                        ${p}_feature_names[feature]);
                return 2;
            }
            n_columns = n;
            continue;
        }
        if (!n_columns)
            for (n_columns = ${P}_FEATURES, i = 0; i < n_columns; i++)
                feature_of[i] = i;
        if (n != n_columns) {
            fprintf(stderr, "line %ld: %d cells, not %d\n", n_lines, n, n_columns);
            return 2;
        }
        for (i = 0; i < n; i++)
            if (feature_of[i] >= 0 && !number(cell[i], &row[feature_of[i]])) {
                fprintf(stderr, "line %ld: %.40s is not a number\n", n_lines, cell[i]);
                return 2;
            }
        ${p}_decide(&instance, acquire, row, &answer);
        print_row(&instance, &answer);
    }
    return ferror(stdin) || ferror(stdout);
}

int main(int argc, char **argv)
{
    int n_wrong;
    if (argc > 1 && strcmp(argv[1], "--rows") == 0)
        return answer_rows();
    n_wrong = ${p}_selftest();
    printf("${p}: %d of ${n_rows} rows differ (${tried}); tables %d B, instance %d B, "
           "stack at most %d B\n",
           n_wrong, ${P}_TABLE_BYTES, ${P}_INSTANCE_BYTES, ${P}_STACK_BYTES);
${signals_test}    return n_wrong != 0;
}
