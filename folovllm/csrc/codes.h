// Weights that are codes of 4 or 8 bits with a scale for each group of columns, as they lie in memory.
//
//     weight[o, k] = scale[o, g] * (code[o, k] - middle) + minimum[o, g]       g = k / group, middle: 8 or 128
//
// The codes lie in panels of WIDTH outputs, like the weights of linear.cpp, and each group has its scales before it:
//
//     weight  | group, has_minimum, until the end of a cache line | panel | panel | ...
//     panel   | scale[WIDTH] (minimum[WIDTH]) words[WIDTH] words[WIDTH] ... | scale[WIDTH] ...     one stretch of memory
//     word    32 bits of one output: its next 8 codes of 4 bits, or 4 of 8 bits. In two parts of 16 bits, whose lowest
//             codes are k=0 and k=1, and the next k=2 and k=3; or, beside x in 8 bits, in four parts
//
// vLLM: csrc/cpu/cpu_wna16.cpp

#pragma once

#include "panels.h"

constexpr int LARGEST_GROUP = 128;  // columns

struct Groups {
    int64_t size, has_minimum;  // size: columns of a group

    static Groups of(const void *weight) { return *(const Groups *)weight; }
    static const char *panels(const void *weight) { return (const char *)weight + LINE; }
    int64_t scales() const { return WIDTH * (1 + has_minimum); }  // numbers before the words
    int64_t bytes(int bits) const { return scales() * sizeof(float) + size * bits / 8 * WIDTH; }

    // How far behind group g of `panels` panels lies what should be asked for meanwhile: a group of theirs, or one of the
    // panels that come after them.
    int64_t ahead(int64_t g, int64_t groups, int64_t panels, int bits) const {
        const int64_t some = (PREFETCH_BYTES + bytes(bits) - 1) / bytes(bits);
        return (some + (g + some < groups ? 0 : (panels - 1) * groups)) * bytes(bits);
    }
};

// A vector of each half of a panel, to the second cache. The first one has few lines on their way at a time, and codes
// are used up so fast that this would be what a core waits for (measured: 2.3 to 1.6 ms).
inline void prefetch_step(const void *step) {
    __builtin_prefetch(step, 0, 2);
    if constexpr (LANES == 16) __builtin_prefetch((const char *)step + LINE, 0, 2);
}

// In one rounding. Written as a * b + c it would be one or two, as the compiler finds it, and not the same everywhere.
inline vec fused(vec a, vec b, vec c) {
#ifdef __aarch64__
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined __AVX512F__
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
}
