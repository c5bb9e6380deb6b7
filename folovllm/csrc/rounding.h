// Activations as whole numbers of 8 or 16 bits, and the products of such numbers.
//
// vLLM: csrc/cpu/dnnl_kernels.cpp (dynamic_scaled_int8_quant_impl)

#pragma once

#include <algorithm>

#include "codes.h"

// The next LANES numbers, or fewer and zeros.
template <typename T>
inline vec load_up_to(const T *x, int64_t count) {
    if (count >= LANES) return load(x);
    T some[LANES] = {};
    memcpy(some, x, count * sizeof(T));
    return load(some);
}

// max |x|, or NaN where there is one: its bits are above those of all numbers.
template <typename T>
inline float largest(const T *x, int64_t size) {
    ints most = {};
    for (int64_t k = 0; k < size; k += LANES) {
        const ints v = (ints)load_up_to(x + k, size - k) & 0x7fffffff;
        most = v > most ? v : most;
    }
    int32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits = std::max(bits, most[i]);
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

// The nearest whole numbers, ties to even, up to 2^22: adding 1.5 * 2^23 leaves them in the lower bits.
inline ints nearest(vec x) { return (ints)(x + 12582912.0f) - 0x4B400000; }

// Up to LANES whole numbers, as those of type N. As many as fit are a word, and words are `apart` from each other.
template <typename N>
inline void put_words(ints whole, int64_t count, int32_t *to, int64_t apart) {
    typedef N narrow __attribute__((vector_size(LANES * sizeof(N))));
    constexpr int TOGETHER = 4 / sizeof(N);
    const narrow numbers = __builtin_convertvector(whole, narrow);
    int32_t found[LANES / TOGETHER];
    memcpy(found, &numbers, sizeof found);
    for (int i = 0; i < LANES / TOGETHER && TOGETHER * i < count; i++) to[i * apart] = found[i];
}

#ifdef __AMX_BF16__
// Whole numbers as bytes for tiles, in the order of a word whose codes are taken apart by fours. Of numbers of 16 bits the
// upper bytes lie `next` behind the lower ones.
template <int BITS, typename Q>
inline void put_bytes(ints whole, char *to, int64_t next) {
    typedef int8_t bytes __attribute__((vector_size(LANES)));
    const bytes order = BITS == 4 ? bytes{0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15}
                                  : bytes{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    const ints upper = (whole + 128) >> 8;
    const bytes more = __builtin_convertvector(upper, bytes), less = __builtin_convertvector(whole - (upper << 8), bytes);
    if constexpr (sizeof(Q) == 1) return (void)memcpy(to, &less, LANES);
    _mm_storeu_si128((__m128i *)to, _mm_shuffle_epi8((__m128i)less, (__m128i)order));
    _mm_storeu_si128((__m128i *)(to + next), _mm_shuffle_epi8((__m128i)more, (__m128i)order));
}
#endif

// sums + the products of a word's four bytes, those of a without a sign. On CPUs without VNNI, two products have to stay
// within 16 bits.
inline ints add_products(ints sums, words a, words b, int8_t) {
#ifdef __AVX512VNNI__
    return (ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#else
    __m256i parts[3][LANES / 8];
    memcpy(parts[0], &sums, sizeof sums);
    memcpy(parts[1], &a, sizeof a);
    memcpy(parts[2], &b, sizeof b);
    for (int i = 0; i < LANES / 8; i++) {
        const __m256i twos = _mm256_maddubs_epi16(parts[1][i], parts[2][i]);
        parts[0][i] = _mm256_add_epi32(parts[0][i], _mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
    }
    memcpy(&sums, parts[0], sizeof sums);
    return sums;
#endif
}

// The same for two numbers of 16 bits, with signs.
#ifdef __AVX512VNNI__
inline ints add_products(ints sums, words a, words b, int16_t) {
    return (ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
}
#endif

// And for a number that is as it was.
inline vec add_products(vec sums, words a, words b, float) { return fused((vec)a, (vec)b, sums); }
