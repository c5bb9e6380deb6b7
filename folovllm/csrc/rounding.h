// Activations as whole numbers of 8 or 16 bits, and the products of such numbers.
//
// vLLM: csrc/cpu/dnnl_kernels.cpp (dynamic_scaled_int8_quant_impl)

#pragma once

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
    const int32_t bits = max(most);
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

// sums + the products of a word's four bytes, those of a without a sign: below 128, but for VNNI. With AVX2 two products
// have to stay within 16 bits.
inline ints add_products(ints sums, words a, words b, int8_t) {
#ifdef __AVX512VNNI__
    return (ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined __ARM_FEATURE_DOTPROD
    return (ints)vdotq_s32((int32x4_t)sums, (int8x16_t)a, (int8x16_t)b);
#elif defined __aarch64__
    const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)a), vget_low_s8((int8x16_t)b));
    return sums + (ints)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(vmull_high_s8((int8x16_t)a, (int8x16_t)b)));
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
#elif defined __aarch64__
inline ints add_products(ints sums, words a, words b, int16_t) {
    const int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b));
    return sums + (ints)vpaddq_s32(low, vmull_high_s16((int16x8_t)a, (int16x8_t)b));
}
#endif

// And for a number that is as it was.
inline vec add_products(vec sums, words a, words b, float) { return fused((vec)a, (vec)b, sums); }

// By the type of q: float, int16_t or int8_t.
template <typename Q>
struct Kind {
    static constexpr bool FLOAT = std::is_same_v<Q, float>;
    static constexpr int COLUMNS = 4 / sizeof(Q);                    // in a word of x
    static constexpr float MOST = sizeof(Q) == 1 ? 127 : 127 * 257;  // each byte of it is at most 127
};

// What products with a q are summed up in.
vec sums_of(float);
ints sums_of(int);
template <typename Q>
using Sums = decltype(sums_of(Q{}));

// Of a row of x in a group.
struct Part {
    int32_t start;     // of the sums of codes
    float scale, sum;  // sum: of the row's numbers, as they are after rounding
};

// A block of rows, group by group: its numbers [groups, all rows, columns] with words of the block's rows side by side, or
// as tiles, and its parts [groups, all rows]. All rows: in blocks of the same size.
template <int BITS, typename Q, typename T>
void round_block(const T *x, Q *rounded, Part *parts, int64_t rows, int64_t in, int64_t group, int64_t per_block,
                 bool tiled, int64_t block) {
    typedef Kind<Q> K;
    typedef Q narrow __attribute__((vector_size(LANES * sizeof(Q)), aligned(sizeof(Q)), may_alias));
    const int64_t first = block * per_block, count = std::min(per_block, rows - first);
    const int64_t all = (rows + per_block - 1) / per_block * per_block;
    for (int64_t g = 0; g < in / group; g++) {
        Q *to = rounded + (g * all + first) * group, found[std::max(MAX_ROWS, 16)][LARGEST_GROUP];
        for (int64_t r = 0; r < count; r++) {
            const T *from = x + (first + r) * in + g * group;
            float scale = sizeof(Q) == 2 ? largest(from, group) / K::MOST : 1;
            if (sizeof(Q) == 1) scale = g > 0 ? parts[first + r].scale : largest(from, in) / K::MOST;  // of the row
            if (sizeof(Q) == 2 && scale < 1e-37f) scale = 0;  // 1 / scale would be infinite
            const float inverse = scale > 0 ? 1 / scale : 0;
            Sums<Q> total = {}, q;
            for (int64_t k = 0; k < group; k += LANES) {
                const vec v = load_up_to(from + k, group - k);
                if constexpr (K::FLOAT)
                    q = v;
                else
                    q = nearest(sizeof(Q) == 2 ? v * inverse : scale > 0 ? v / scale : vec{});
                total += q;
#ifdef __AMX_BF16__
                char *bytes = (char *)to + (k / LINE * per_block + r) * LINE + k % LINE;
                if constexpr (!K::FLOAT)
                    if (tiled) put_bytes<BITS, Q>(q, bytes, per_block * group);
#endif
                *(narrow *)(found[r] + k) = __builtin_convertvector(q, narrow);
            }
            const auto of_group = sum(total);
            const bool counts = !K::FLOAT && scale * 0 == 0;  // beside an infinite number the others are 0
            const int32_t start = counts ? -(1 << (BITS - 1)) * (int32_t)of_group : 0;
            parts[g * all + first + r] = {start, scale, of_group * scale};
        }
        for (int64_t k = 0; !tiled && k < group; k += LANES * K::COLUMNS)
            put_steps((uint32_t *)to + k / K::COLUMNS * count, count, count, (group - k) / K::COLUMNS,
                      [&](int64_t r) { return *(const words *)(found[r] + k); });
    }
}
