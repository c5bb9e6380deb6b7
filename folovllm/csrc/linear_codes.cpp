// out = x @ weight.T + bias, for weights that are codes of 4 or 8 bits with a scale for each group of columns.
//
//     weight[o, k] = scale[o, g] * code[o, k] + minimum[o, g]        g = k / group, code in [-8, 8) or [-128, 128)
//     out[o] = sum over g of  scale * (sum over the group of code * x)  +  minimum * (sum over the group of x)
//
// The codes lie in panels of WIDTH outputs, like the weights of linear.cpp, and each group has its scales before it:
//
//     panel   | scale[WIDTH] (minimum[WIDTH]) words[WIDTH] words[WIDTH] ... | scale[WIDTH] ...     one stretch of memory
//     word    32 bits of one output: its next 8 codes of 4 bits, or 4 of 8 bits. Even columns in the lower half:
//             k=0 k=2 k=4 k=6 | k=1 k=3 k=5 k=7
//
// A code is a small integer, which bfloat16 holds exactly, so nothing is lost before the sums, and these are float32. With
// few rows a word is taken apart in registers. With many rows a group is widened once, for all of them. Either way the
// same numbers are added in the same order: a row has the same bits alone and in any batch.
//
// Weights of 4 bits are a quarter of bfloat16's bytes, which is what a decode step waits for.
//
// vLLM: csrc/cpu/cpu_wna16.cpp

#include "kernels.h"
#include "panels.h"
#include "pool.h"

namespace {

constexpr int MAX_ROWS = LANES == 16 ? 12 : 6;  // 2 * MAX_ROWS results, of 32 registers or 16
constexpr int TWO_PANELS = LANES == 16 ? 5 : 2; // rows, for which there are registers for two panels
constexpr int LARGEST = 128;                    // columns of a group
constexpr int64_t CHUNK = 2 << 20;              // bytes of x, about, that stay in a cache while all panels pass by

// The first line of a weight.
struct Head {
    int64_t group, has_minimum;
};

// What x has for one step of a product, and what the codes become: a number, or a pair of them.
template <typename X>
constexpr int NUMBERS = 1;
template <>
constexpr int NUMBERS<bf16_pair> = 2;

// Step n of a word of each output, BITS wide. 0 bits: it is what the step needs already.
template <int BITS>
inline vec widen(words w, int n, float) {
    if constexpr (BITS == 0) return (vec)w;
    const int at = 16 * (n & 1) + BITS * (n >> 1);
    return __builtin_convertvector((ints)(w << (32 - BITS - at)) >> (32 - BITS), vec);
}

#ifdef __AVX512BF16__
// -8 to 7 in the order of their lower four bits, as bfloat16; twice, because an index has five bits.
alignas(64) constexpr uint16_t INTEGERS[32] = {
    0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040,
    0xC000, 0xBF80, 0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0xC100, 0xC0E0, 0xC0C0, 0xC0A0,
    0xC080, 0xC040, 0xC000, 0xBF80};

template <int BITS>
inline pairs widen(words w, int n, bf16_pair) {
    if constexpr (BITS == 0) return (pairs)w;
    if constexpr (BITS == 4)
        return (pairs)_mm512_permutexvar_epi16(_mm512_srli_epi16((__m512i)w, 4 * n), _mm512_load_si512(INTEGERS));
    const vec even = __builtin_convertvector((ints)(w << (24 - 8 * n)) >> 24, vec);
    const vec odd = __builtin_convertvector((ints)(w << (8 - 8 * n)) >> 24, vec);
    return (pairs)((words)even >> 16 | ((words)odd & 0xffff0000));
}
#endif

// In one rounding. Written as a * b + c it would be one or two, as the compiler finds it, and not the same everywhere.
inline vec fused(vec a, vec b, vec c) {
#ifdef __AVX512F__
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
}

// A group of columns of PANELS panels, `next_panel` bytes apart, by ROWS rows of x. `sums` has ROWS * WIDTH results of the
// one, then of the other. of_x: the sum of each row's numbers in the group.
template <int BITS, int ROWS, int PANELS, typename X>
void multiply_group(const X *x, const uint32_t *w, const float *scales, int64_t next_panel, int64_t size,
                    const float *of_x, float *sums, bool go_on) {
    constexpr int STEPS = BITS == 0 ? 1 : 32 / BITS / NUMBERS<X>;  // of a word
    vec low[PANELS][ROWS] = {}, high[PANELS][ROWS] = {};
    for (int64_t k = 0; k < size; k++, w += WIDTH, x += STEPS * ROWS) {
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) {
            const uint32_t *mine = (const uint32_t *)((const char *)w + p * next_panel);
            if constexpr (BITS > 0) {
                __builtin_prefetch((const char *)mine + PREFETCH_BYTES);
                if constexpr (LANES == 16) __builtin_prefetch((const char *)mine + PREFETCH_BYTES + LINE);
            }
            const words a = *(const words *)mine, b = *(const words *)(mine + LANES);
#pragma GCC unroll 8
            for (int n = 0; n < STEPS; n++) {
                const auto first = widen<BITS>(a, n, X{}), second = widen<BITS>(b, n, X{});
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++) {
                    low[p][r] = multiply_add(low[p][r], x[n * ROWS + r], first);
                    high[p][r] = multiply_add(high[p][r], x[n * ROWS + r], second);
                }
            }
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++) {
        const float *scale = (const float *)((const char *)scales + p * next_panel);
        const vec s = load(scale), t = load(scale + LANES);
        const vec m = of_x ? load(scale + WIDTH) : vec{}, n = of_x ? load(scale + WIDTH + LANES) : vec{};
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            float *sum = sums + (p * ROWS + r) * WIDTH;
            vec c = go_on ? load(sum) : vec{}, d = go_on ? load(sum + LANES) : vec{};
            c = fused(s, low[p][r], c), d = fused(t, high[p][r], d);
            if (of_x) c = fused(m, splat(of_x[r]), c), d = fused(n, splat(of_x[r]), d);
            store(sum, c);
            store(sum + LANES, d);
        }
    }
}

template <int BITS, int PANELS, typename X>
void multiply_group(int rows, const X *x, const uint32_t *w, const float *scales, int64_t next_panel, int64_t size,
                    const float *of_x, float *sums, bool go_on) {
    switch (rows) {
#define CASE(N)                                                                                                       \
    case N:                                                                                                           \
        if constexpr (PANELS == 1 || N <= TWO_PANELS)                                                                 \
            multiply_group<BITS, N, PANELS>(x, w, scales, next_panel, size, of_x, sums, go_on);                       \
        return;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#ifdef __AVX512F__
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}

// The sums over each group of a block of rows, [groups, rows of the block]; the blocks follow each other.
template <typename T>
void sum_groups(const T *x, float *sums, int64_t rows, int64_t in, int64_t group, int64_t per_block, int64_t block) {
    const int64_t first = block * per_block, count = std::min(per_block, rows - first), groups = in / group;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = 0; r < count; r++) {
            const T *from = x + (first + r) * in + g * group;
            vec lanes = {};
            int64_t k = 0;
            for (; k + LANES <= group; k += LANES) lanes += load(from + k);
            float total = sum(lanes);
            for (; k < group; k++) total += get(from + k);
            sums[first * groups + g * count + r] = total;
        }
}

template <int BITS, typename X, typename T>
struct Linear {
    Tasks tasks;
    Head head;
    const X *packed;    // x, rearranged
    const float *of_x;  // sums of x over the groups, or null
    const char *panels;
    const float *bias;
    T *out;
    int64_t in, outs;

    static constexpr int CODES = 32 / BITS;  // in a word

    int64_t group_bytes() const {
        return WIDTH * sizeof(float) * (1 + head.has_minimum) + head.group / CODES * WIDTH * sizeof(uint32_t);
    }

    void compute(int64_t task, const pool::Task &state) const {
        const int64_t begin = tasks.first_row(task), count = tasks.num_rows(task), per_block = tasks.per_block;
        const int64_t groups = in / head.group, size = head.group / CODES, steps = head.group / NUMBERS<X>;
        const int64_t next_panel = groups * group_bytes();
        const char *at = panels + tasks.first_panel(task) * next_panel;
        float *sums = results(tasks.pair * count * WIDTH);
        alignas(LINE) uint32_t wide[LARGEST / NUMBERS<X> * WIDTH];
        for (int64_t g = 0; g < groups && !state.settled(); g++, at += group_bytes()) {
            const float *scales = (const float *)at;
            const uint32_t *w = (const uint32_t *)(scales + WIDTH * (1 + head.has_minimum));
            const bool many = count > per_block;
            if (many) widen_group(w, size, wide);
            for (int64_t row = 0; row < count; row += per_block) {
                const int64_t rows = std::min(per_block, count - row), first = begin + row;
                const X *mine = packed + first * (in / NUMBERS<X>) + g * steps * rows;
                const float *of_mine = of_x ? of_x + first * groups + g * rows : nullptr;
                float *to = sums + row * WIDTH;
                if (many)
                    multiply_group<0, 1>(rows, mine, wide, scales, 0, steps, of_mine, to, g > 0);
                else if (tasks.num_panels(task) == 2)
                    multiply_group<BITS, 2>(rows, mine, w, scales, next_panel, size, of_mine, to, g > 0);
                else
                    multiply_group<BITS, 1>(rows, mine, w, scales, 0, size, of_mine, to, g > 0);
            }
        }
    }

    static void widen_group(const uint32_t *w, int64_t size, uint32_t *wide) {
        constexpr int STEPS = CODES / NUMBERS<X>;
        for (int64_t k = 0; k < size; k++, w += WIDTH) {
            __builtin_prefetch((const char *)w + PREFETCH_BYTES);
            if constexpr (LANES == 16) __builtin_prefetch((const char *)w + PREFETCH_BYTES + LINE);
            for (int half = 0; half < 2; half++)
#pragma GCC unroll 8
                for (int n = 0; n < STEPS; n++) {
                    const auto numbers = widen<BITS>(*(const words *)(w + half * LANES), n, X{});
                    memcpy(wide + (k * STEPS + n) * WIDTH + half * LANES, &numbers, sizeof numbers);
                }
        }
    }

    void commit(int64_t task) const {
        const int64_t begin = tasks.first_row(task), count = tasks.num_rows(task);
        for (int64_t p = 0; p < tasks.num_panels(task); p++)
            put_results(results(0) + p * count * WIDTH, bias, out + begin * outs, count, outs,
                        tasks.first_panel(task) + p);
    }
};

// `in` is a multiple of the group, and the group of 8.
template <int BITS, typename X, typename T>
void linear(const T *x, const void *weight, const float *bias, T *out, int64_t rows, int64_t in, int64_t outs) {
    if (rows == 0) return;
    const Head head = *(const Head *)weight;
    const int64_t blocks = (rows + MAX_ROWS - 1) / MAX_ROWS, per_block = (rows + blocks - 1) / blocks;
    const int64_t steps = in / NUMBERS<X>, groups = in / head.group;
    static thread_local pool::Buffer rearranged, summed;
    X *packed = (X *)rearranged.reserve(rows * steps * sizeof(X));
    float *of_x = head.has_minimum ? (float *)summed.reserve(rows * groups * sizeof(float)) : nullptr;
    pool::each(blocks, rows * in > ENOUGH / 8, [=](int64_t block) {
        rearrange(x, packed, rows, in, per_block, block);
        if (of_x) sum_groups(x, of_x, rows, in, head.group, per_block, block);
    });
    const Tasks tasks(rows, outs, rows <= TWO_PANELS ? 2 : 1, per_block, CHUNK / (steps * sizeof(X) * per_block));
    const Linear<BITS, X, T> body = {tasks, head, packed, of_x, (const char *)weight + LINE, bias, out, in, outs};
    pool::each_twice(tasks.count(), rows * in * outs > ENOUGH, body);
}

}  // namespace

extern "C" {

#define LINEAR(T_NAME, T, X, BITS)                                                                                    \
    void linear_##T_NAME##_codes##BITS(const T *x, const codes##BITS *weight, const float *bias, T *out,              \
                                       int64_t rows, int64_t in, int64_t outs) {                                      \
        linear<BITS, X>(x, weight, bias, out, rows, in, outs);                                                        \
    }

LINEAR(float32, float, float, 4)
LINEAR(float32, float, float, 8)
IF_PAIRS(LINEAR(bfloat16, bf16, bf16_pair, 4) LINEAR(bfloat16, bf16, bf16_pair, 8))
}
