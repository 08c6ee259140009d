/* ${mark} ${version}: the self-test; with --rows it answers rows from standard input.

   A row is a line of ${P}_FEATURES numbers with commas, semicolons or blanks between them, "nan" or
   nothing where one is missing. A first line that holds no numbers is a header: columns are then
   taken by the features' names, and others are left out. For each row it prints: outcome, exit,
   label, then a 1 for each acquired feature, else a 0, and the outputs of the last stage that
   finished. A line that is no such row ends it with status 2. */
#include "${p}.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ${p}_selftest(void);
${declared}
enum { MOST_CELLS = ${P}_FEATURES + 1024, LONGEST_LINE = 64 * MOST_CELLS };

static char line[LONGEST_LINE];
static const char *cell[MOST_CELLS];
static int place[MOST_CELLS]; /* the feature in a column, or -1 */

static float acquire(int feature, void *context)
{
    return ((const float *)context)[feature];
}

/* Cut a line into cells in place, at commas or semicolons or, without any, at blanks; their number,
   or MOST_CELLS + 1. */
static int split(char *at)
{
    const char *cuts = strpbrk(at, ",;") ? ",;" : " \t";
    int n;
    for (n = 1; n <= MOST_CELLS; n++) {
        char *end, cut;
        at += strspn(at, " \t");
        if (*at == '"') {
            cell[n - 1] = ++at;
            end = at + strcspn(at, "\"");
            at = end + (*end != 0);
            at += strcspn(at, cuts);
        } else {
            cell[n - 1] = at;
            at += strcspn(at, cuts);
            for (end = at; end > cell[n - 1] && strchr(" \t", end[-1]);)
                end--;
        }
        cut = *at;
        *end = 0;
        if (cut)
            at++;
        if (!cut || (*cuts == ' ' && !at[strspn(at, " \t")]))
            return n;
    }
    return n;
}

/* A cell's number, NaN where it is missing; 0 if it is no number. */
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
    int i, named = n == ${P}_FEATURES;
    for (i = 0; i < n; i++) {
        if (!number(cell[i], &ignored))
            return 1;
        named = named && !strcmp(cell[i], ${p}_feature_names[i]);
    }
    return named;
}

/* Find the features among a header's columns; the first one that is not there once, or -1. */
static int read_header(int n)
{
    int i, k;
    for (i = 0; i < n; i++)
        place[i] = -1;
    for (k = 0; k < ${P}_FEATURES; k++) {
        int times = 0;
        for (i = 0; i < n; i++)
            if (!strcmp(cell[i], ${p}_feature_names[k])) {
                place[i] = k;
                times++;
            }
        if (times != 1)
            return k;
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
    long count = 0;
    int i, n, columns = 0;
    while (fgets(line, sizeof line, stdin)) {
        char *text = line;
        if (!count++ && !strncmp(text, "\xef\xbb\xbf", 3))
            text += 3;
        if (!strchr(text, '\n') && !feof(stdin)) {
            fprintf(stderr, "line %ld is too long\n", count);
            return 2;
        }
        text[strcspn(text, "\r\n")] = 0;
        if (!text[strspn(text, " \t")])
            continue;
        n = split(text);
        if (!columns && n <= MOST_CELLS && is_header(n)) {
            int lacks = read_header(n);
            if (lacks >= 0) {
                fprintf(stderr, "line %ld: a header must have one column %s\n", count,
                        ${p}_feature_names[lacks]);
                return 2;
            }
            columns = n;
            continue;
        }
        if (!columns)
            for (columns = ${P}_FEATURES, i = 0; i < columns; i++)
                place[i] = i;
        if (n != columns) {
            fprintf(stderr, "line %ld: %d cells, not %d\n", count, n, columns);
            return 2;
        }
        for (i = 0; i < n; i++)
            if (place[i] >= 0 && !number(cell[i], &row[place[i]])) {
                fprintf(stderr, "line %ld: %.40s is not a number\n", count, cell[i]);
                return 2;
            }
        ${p}_decide(&instance, acquire, row, &answer);
        print_row(&instance, &answer);
    }
    return ferror(stdin) || ferror(stdout);
}

int main(int argc, char **argv)
{
    int wrong;
    if (argc > 1 && strcmp(argv[1], "--rows") == 0)
        return answer_rows();
    wrong = ${p}_selftest();
    printf("${p}: %d of ${n_rows} rows differ (${tried}); tables %d B, instance %d B, "
           "stack at most %d B\n",
           wrong, ${P}_TABLE_BYTES, ${P}_INSTANCE_BYTES, ${P}_STACK_BYTES);
${signals_test}    return wrong != 0;
}
