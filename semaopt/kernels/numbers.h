/* Conversion to and from bf16 with nearest or stochastic rounding, and the random bits for the latter. */

#pragma once

#include <stdint.h>
#include <string.h>

#include "compiler.h"

enum { BLOCK = 64 }; /* elements processed per block */

INLINE float from_bf16(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Round to nearest, ties to even, like torch. */
INLINE uint16_t to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : nearest);
}

/* Round up with a probability equal to the truncated fraction, so that the mean is f. `random` has 16 bits. NaN stays
 * NaN. */
INLINE uint16_t to_bf16_random(float f, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)(((bits + random) | (f != f ? 0xffffffffu : 0u)) >> 16);
}

/* 16 random bits per element from a 64-bit key. The first half of the key starts a Weyl sequence. The second half
 * enters one xorshift-multiply round (constant from "lowbias32", https://github.com/skeeto/hash-prospector), whose
 * upper bits are the well-mixed ones. rounding.py has the Python twin. */
#define WEYL 0x9e3779b9u
#define WEYL_4(i) WEYL *(i), WEYL *(i + 1), WEYL *(i + 2), WEYL *(i + 3)
#define WEYL_16(i) WEYL_4(i), WEYL_4(i + 4), WEYL_4(i + 8), WEYL_4(i + 12)
static const uint32_t weyl_of[BLOCK] = {WEYL_16(0u), WEYL_16(16u), WEYL_16(32u), WEYL_16(48u)};
INLINE uint32_t random_bits(uint32_t weyl, uint32_t key) {
    uint32_t h = weyl ^ key;
    h = (h ^ (h >> 15)) * 0xd35a2d97u;
    return h >> 16;
}

/* Generates a key per parameter and step: splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
