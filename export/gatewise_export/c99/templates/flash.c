/* AVR needs special instructions to read constants in flash, which must be in its lower 64 KiB. */
#ifdef __AVR__
#include <avr/pgmspace.h>
#define IN_FLASH PROGMEM
#define READ(type, p) \
    ((type)(sizeof(type) == 1 ? pgm_read_byte(p) : \
            sizeof(type) == 2 ? pgm_read_word(p) : pgm_read_dword(p)))
#define READ_FLOAT(p) pgm_read_float(p)
#define READ_STRUCT(copy, p) memcpy_P(copy, p, sizeof *(copy))
#else
#define IN_FLASH
#define READ(type, p) (*(p))
#define READ_FLOAT(p) (*(p))
#define READ_STRUCT(copy, p) (*(copy) = *(p))
#endif
