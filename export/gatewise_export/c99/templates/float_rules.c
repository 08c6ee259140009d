/* 0: every result is rounded to its type; 16: all but half-precision results are */
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "sums must be rounded to float after each step: on i386 compile with -msse2 -mfpmath=sse"
#endif
#ifdef __FAST_MATH__
#error "do not use -ffast-math: it changes the order of sums and the meaning of NaN"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__) /* in case -ffp-contract=off is missing */
#pragma GCC optimize("fp-contract=off")
#endif
