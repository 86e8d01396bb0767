// HOT_LOOP: a function that loops over many numbers, in a header that is also compiled without much
// optimization, with code that waits for files and kernels (CONTROL in the Makefile). It is
// compiled as kernels are. What it calls is not: loops over pointers, without calls, gain most.
#pragma once

#if defined(__OPTIMIZE__) && defined(__GNUC__) && !defined(__clang__)
#define HOT_LOOP __attribute__((optimize("O3")))
#else
#define HOT_LOOP
#endif
