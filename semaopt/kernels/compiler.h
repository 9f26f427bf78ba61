/* What differs between compilers: gcc and clang on Linux and macOS, MSVC (and clang-cl) on Windows. */

#pragma once

#include <stdint.h>

#if defined(_MSC_VER)

#include <intrin.h>

#define EXPORT __declspec(dllexport)
#define INLINE static __forceinline
#define SIMD __pragma(loop(ivdep)) /* the iterations of the next loop are independent */
#if defined(_M_X64)
#define PREFETCH_LINE(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#else
#define PREFETCH_LINE(p) (void)(p)
#endif

static __forceinline int64_t fetch_add(int64_t *at, int64_t value) { return _InterlockedExchangeAdd64(at, value); }

#else

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define SIMD _Pragma("omp simd")
#define PREFETCH_LINE(p) __builtin_prefetch(p, 0)

INLINE int64_t fetch_add(int64_t *at, int64_t value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }

/* Functions can be compiled for single instruction sets, and the program can ask which sets the processor has.
 * MSVC compiles a whole file for one set: there only the portable code exists. */
#if defined(__x86_64__)
#define INSTRUCTION_SETS
#endif

#endif
