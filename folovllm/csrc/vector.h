// Vectors of floats, as wide as the CPU's registers, and the three number formats that the kernels read.
//
// GCC and Clang compile `a * b + c` on these types to the widest instructions that the CPU has: 16 floats with AVX-512, 8
// with AVX2, 4 with NEON. Loads and stores need no alignment.
//
// vLLM: csrc/cpu/cpu_types_x86.hpp, csrc/cpu/cpu_types_arm.hpp

#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

// MAX_ROWS: a product of so many rows has its 2 * MAX_ROWS results in registers, of which there are 32, or 16 with AVX2.
#if defined __AVX512F__
#include <immintrin.h>
constexpr int LANES = 16, MAX_ROWS = 12;
#define TO_WORDS(HALVES) ((words)_mm512_cvtepu16_epi32((__m256i)(HALVES)))  // GCC 12 would convert two halves
#elif defined __aarch64__
#include <arm_neon.h>
constexpr int LANES = 4, MAX_ROWS = 8;  // with 12 GCC 12 would keep some results in memory
#define TO_WORDS(HALVES) ((words)vmovl_u16((uint16x4_t)(HALVES)))
#else
#include <immintrin.h>
constexpr int LANES = 8, MAX_ROWS = 6;
#define TO_WORDS(HALVES) ((words)_mm256_cvtepu16_epi32((__m128i)(HALVES)))
#endif
static_assert(MAX_ROWS <= LANES || MAX_ROWS % LANES == 0, "rows are taken by whole vectors");

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

struct bf16 {  // the upper half of a float32
    uint16_t bits;
};

static inline vec load(const float *p) { return *(const vec *)p; }
static inline vec load(const bf16 *p) { return (vec)(TO_WORDS(*(const halves *)p) << 16); }

static inline void store(float *p, vec x) { *(vec *)p = x; }
static inline void store(bf16 *p, vec x) {  // to the nearest, ties to even
#ifdef __AVX512BF16__
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)x);
    memcpy(p, &rounded, sizeof rounded);
#else
    words bits = (words)x;
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    words quiet_nan = (bits >> 16) | 0x40;                       // rounding could turn a NaN into an infinity
    *(halves *)p = __builtin_convertvector(x == x ? rounded : quiet_nan, halves);
#endif
}

// One step of a product: sum += x * w, one x for all lanes.
static inline vec multiply_add(vec sum, float x, vec w) { return sum + x * w; }

// Two bfloat16 numbers that are multiplied in one step: at k and k + 1. Where the CPU has an instruction for it, it does
// twice the work of a float32 step, and adds to a float32 sum.
struct bf16_pair {
    bf16 even, odd;
};

#ifdef __AVX512BF16__
typedef __m512bh pairs;
#define ADD_PAIRS(SUM, W, X) _mm512_dpbf16_ps((__m512)(SUM), W, (pairs)(X))
#elif defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
typedef bfloat16x8_t pairs;
#define ADD_PAIRS(SUM, W, X) vbfdotq_f32((float32x4_t)(SUM), W, (pairs)(X))
#endif
#ifdef ADD_PAIRS
#define IF_PAIRS(...) __VA_ARGS__
static inline pairs load(const bf16_pair *p) { return (pairs)(*(const ints *)p); }
static inline vec multiply_add(vec sum, bf16_pair x, pairs w) {
    int32_t both;
    memcpy(&both, &x, 4);
    return (vec)ADD_PAIRS(sum, w, both - ints{});
}
#else
#define IF_PAIRS(...)
#endif
constexpr bool HAS_PAIRS = 0 IF_PAIRS(+1);

static inline float get(const float *p) { return *p; }
static inline float get(const bf16 *p) {
    uint32_t bits = (uint32_t)p->bits << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline vec splat(float x) { return x - vec{}; }

static inline void put(float *p, float x) { *p = x; }
static inline void put(bf16 *p, float x) {
    bf16 lanes[LANES];
    store(lanes, splat(x));
    *p = lanes[0];
}

// Of two vectors whose lanes are cut into groups of S: the even groups of both side by side, or the odd ones.
template <int S, bool ODD, int... L>
static inline words groups(words a, words b, std::integer_sequence<int, L...>) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, (L & S ? LANES + L - (ODD ? 0 : S) : L + (ODD ? S : 0))...);
#else
    return __builtin_shuffle(a, b, (words){(L & S ? LANES + L - (ODD ? 0 : S) : L + (ODD ? S : 0))...});
#endif
}

// Halves onto each other until one lane is left.
template <int S = LANES / 2>
static inline auto join_lanes(auto x, auto join) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>();
    const words w = (words)x;
    x = join((decltype(x))groups<S, false>(w, w, lanes), (decltype(x))groups<S, true>(w, w, lanes));
    if constexpr (S > 1) return join_lanes<S / 2>(x, join);
    return x[0];
}

static inline auto sum(auto x) { return join_lanes(x, [](auto a, auto b) { return a + b; }); }
static inline auto max(auto x) { return join_lanes(x, [](auto a, auto b) { return a > b ? a : b; }); }

// Of four vectors.
template <int S>
static inline void exchange(words *rows) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        if (!(i & S)) {
            const words a = rows[i], b = rows[i + S];
            rows[i] = groups<S, false>(a, b, lanes);
            rows[i + S] = groups<S, true>(a, b, lanes);
        }
}

template <int S>
static inline void add_groups(const vec *from, vec *to, int count) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>();
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        const words a = (words)from[2 * i], b = (words)from[2 * i + 1];
        to[i] = (vec)groups<S, false>(a, b, lanes) + (vec)groups<S, true>(a, b, lanes);
    }
}

// The sums of LANES vectors, side by side. `rows` is written over.
static inline vec sums(vec *rows) {
    add_groups<1>(rows, rows, LANES / 2);
    add_groups<2>(rows, rows, LANES / 4);
    if constexpr (LANES > 4) add_groups<4>(rows, rows, LANES / 8);
    if constexpr (LANES > 8) add_groups<8>(rows, rows, 1);
    return rows[0];
}

// 2^n * p, for whole n.
static inline vec scale(vec p, vec n) {
#ifdef __AVX512F__
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    // In two steps, since 2^n may be beyond the range where the result is not.
    const ints whole = __builtin_convertvector(n, ints), half = whole >> 1;
    return p * (vec)((half + 127) << 23) * (vec)((whole - half + 127) << 23);
#endif
}

// e^x to about one unit in the last place: 2^n * e^r with |r| <= ln(2) / 2, and a polynomial for e^r (Cephes' expf). Far
// out it is 0 or infinite, and NaN stays NaN. It is 0, too, where it would be subnormal: some CPUs take hundreds of
// cycles for such a number, and each masked score would make one.
static inline vec exp_(vec x) {
    const auto vanishes = x < -87.0f;
    x = vanishes ? splat(-87.0f) : x;
    x = x > 100.0f ? splat(100.0f) : x;
    const vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    vec n = x * 1.44269504f + magic - magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return vanishes ? vec{} : scale(p, n);
}
