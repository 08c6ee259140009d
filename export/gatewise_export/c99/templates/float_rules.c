/* 0: every result is rounded to its type; 16: all but half-precision results are */
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "sums must be rounded to float after each step: on i386 compile with -msse2 -mfpmath=sse"
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "do not use -ffast-math or a flag that it sets: it changes the order of sums and the meaning of NaN"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__) /* in case -ffp-contract=off is missing */
#pragma GCC optimize("fp-contract=off")
#endif
