/* ${mark} ${version}: start-up, clock and output for this computer or an emulated chip. */
#include <stdint.h>

#if defined(__arm__) || defined(__riscv)

/* Call the emulator (semihosting). */
static long request(long operation, const void *parameters)
{
#ifdef __arm__
    register long result __asm__("r0") = operation;
    register const void *argument __asm__("r1") = parameters;
    __asm__ volatile("bkpt 0xab" : "+r"(result) : "r"(argument) : "memory");
#else
    register long result __asm__("a0") = operation;
    register const void *argument __asm__("a1") = parameters;
    __asm__ volatile(".balign 16\n.option push\n.option norvc\n"
                     "slli zero, zero, 0x1f\nebreak\nsrai zero, zero, 7\n.option pop"
                     : "+r"(result) : "r"(argument) : "memory");
#endif
    return result;
}

static void print(const char *text)
{
    request(4, text); /* SYS_WRITE0 */
}

int main(void);
void start(void);
extern uint32_t data_begin[], data_end[], data_in_flash[], bss_begin[], bss_end[], stack_top[];

/* Copy the data to RAM, clear the other variables, start the clock, and run the program. */
void start(void)
{
    uintptr_t exit[2] = {0x20026, 0}; /* ADP_Stopped_ApplicationExit, and the status */
    uint32_t *to;
    const uint32_t *from = data_in_flash;
    for (to = data_begin; to < data_end; to++)
        *to = *from++;
    for (to = bss_begin; to < bss_end; to++)
        *to = 0;
#ifdef __arm__
#ifdef __ARM_FP
    *(volatile uint32_t *)0xe000ed88 |= 0xf00000; /* enable the floating-point unit */
#endif
    *(volatile uint32_t *)0xe000e014 = 0xffffff; /* SysTick counts down from this value */
    *(volatile uint32_t *)0xe000e018 = 0;
    *(volatile uint32_t *)0xe000e010 = 7; /* with an interrupt at 0 */
#endif
    exit[1] = (uintptr_t)main();
    request(0x20, exit); /* SYS_EXIT_EXTENDED */
    for (;;)
        ;
}

#ifdef __arm__
static volatile uint32_t n_wraps; /* of SysTick, which has 24 bits */

static void count_wrap(void)
{
    n_wraps++;
}

__attribute__((section(".vectors"), used)) void *const vectors[16] = {
    [0] = stack_top, [1] = (void *)start, [15] = (void *)count_wrap};

static uint32_t ticks(void)
{
    uint32_t wraps, value;
    do {
        wraps = n_wraps;
        value = *(volatile uint32_t *)0xe000e018;
    } while (wraps != n_wraps);
    return wraps << 24 | (-value & 0xffffff);
}
#else
__asm__(".section .vectors, \"ax\"\n.globl vectors\nvectors:\nla sp, stack_top\nj start\n.text");

static uint32_t ticks(void)
{
    uint32_t count;
    __asm__ volatile(".insn i 0x73, 2, %0, x0, -0x500" : "=r"(count)); /* csrr mcycle */
    return count;
}

#endif

#else
#include <stdio.h>
#include <time.h>

static void print(const char *text)
{
    fputs(text, stdout);
}

static uint32_t ticks(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)now.tv_sec * 1000000000u + (uint32_t)now.tv_nsec;
}
#endif

static uint32_t ticks_since(uint32_t begin)
{
    return ticks() - begin;
}

static void print_number(uint32_t number)
{
    char text[12];
    int start_of_text = 11;
    text[start_of_text] = 0;
    text[--start_of_text] = ' ';
    do
        text[--start_of_text] = (char)('0' + number % 10);
    while (number /= 10);
    print(text + start_of_text);
}
