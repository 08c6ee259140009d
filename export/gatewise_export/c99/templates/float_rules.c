/* 0: each result is rounded to its type; 16: so are floats, only half precision is special */
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "sums must be rounded to float after each step: on i386 compile with -msse2 -mfpmath=sse"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math does not keep the order of sums, nor NaN"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__) /* for builds without -ffp-contract=off */
#pragma GCC optimize("fp-contract=off")
#endif
