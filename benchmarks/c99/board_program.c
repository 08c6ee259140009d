/* Reads rows, answers each, writes the answers; prints ticks per row and the deepest stack. */
#define _POSIX_C_SOURCE 199309L
#include "target.h"
#include "answer.h"

/* Not inlined, so that no work moves out of the time that is measured. */
__attribute__((noinline)) static void timed_row(const float *values, unsigned char *to)
{
    answer_row(values, to);
    __asm__ volatile("" ::: "memory");
}

static float row[N_VALUES];
static unsigned char answer[N_ANSWER_BYTES];

#if defined(__arm__) || defined(__riscv)
static long opened(const char *name, uintptr_t length, uintptr_t mode)
{
    uintptr_t arguments[3];
    arguments[0] = (uintptr_t)name;
    arguments[1] = mode;
    arguments[2] = length;
    return request(1, arguments);
}

static long transfer(long operation, long file, void *bytes, uintptr_t size) /* 0: all of them */
{
    uintptr_t arguments[3];
    arguments[0] = (uintptr_t)file;
    arguments[1] = (uintptr_t)bytes;
    arguments[2] = size;
    return request(operation, arguments);
}

#define FREE_STACK 64
#define PATTERN 0x5aa5a55au

int main(void)
{
    long rows = opened("rows.bin", 8, 1), answers = opened("answers.bin", 11, 5);
    uint32_t begin, n_ticks, *word, *top = (uint32_t *)__builtin_frame_address(0) - FREE_STACK;
    for (word = bss_end; word < top; word++)
        *word = PATTERN;
    while (!transfer(6, rows, row, sizeof row)) {
        begin = ticks();
        timed_row(row, answer);
        n_ticks = ticks_since(begin);
        print_number(n_ticks);
        more_of_row(row, answer);
        transfer(5, answers, answer, sizeof answer);
    }
    for (word = bss_end; word < top && *word == PATTERN; word++)
        ;
    print("stack ");
    print_number((uint32_t)((char *)stack_top - (char *)word));
    return 0;
}
#else
int main(void)
{
    FILE *rows = fopen("rows.bin", "rb"), *answers = fopen("answers.bin", "wb");
    while (rows && answers && fread(row, sizeof row, 1, rows)) {
        uint32_t begin = ticks(), n_ticks;
        timed_row(row, answer);
        n_ticks = ticks_since(begin);
        print_number(n_ticks);
        more_of_row(row, answer);
        fwrite(answer, sizeof answer, 1, answers);
    }
    print("stack 0 ");
    return !rows || !answers || fclose(answers);
}
#endif
