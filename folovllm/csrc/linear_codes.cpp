// out = x @ weight.T + bias in float32, for a weight of codes (codes.h).
//
//     out[o] = sum over g of  scale * (sum over the group of (code - middle) * x)  +  minimum * (sum over the group of x)
//
// A code is a small integer, so nothing is lost before the sums. With few rows a word is taken apart in registers. With
// many rows a group is widened once, for all of them. Either way the same numbers are added in the same order: a row has
// the same bits alone and in any batch.
//
// vLLM: csrc/cpu/cpu_wna16.cpp

#include "codes.h"
#include "kernels.h"
#include "pool.h"

namespace {

constexpr int MAX_ROWS = LANES == 16 ? 12 : 6;  // 2 * MAX_ROWS results, of 32 registers or 16
constexpr int TWO_PANELS = LANES == 16 ? 5 : 2; // rows, for which there are registers for two panels
constexpr int64_t CHUNK = 2 << 20;              // bytes of x, about, that stay in a cache while all panels pass by

// Code n of a word of each output, BITS wide. 0 bits: it is a float already.
template <int BITS>
inline vec widen(words w, int n) {
    if constexpr (BITS == 0) return (vec)w;
    const int at = 16 * (n & 1) + BITS * (n >> 1);
    // Turning a code's highest bit takes the middle off, if it then is the sign.
    const words turned = w ^ (BITS == 8 ? 0x80808080 : 0x88888888);
    return __builtin_convertvector((ints)(turned << (32 - BITS - at)) >> (32 - BITS), vec);
}

// A group of columns of PANELS panels, `next_panel` bytes apart, by ROWS rows of x. `sums` has ROWS * WIDTH results of the
// one, then of the other. Memory is asked for that lies `ahead` bytes behind.
// of_x: the sum of each row's numbers in the group.
template <int BITS, int ROWS, int PANELS>
void multiply_group(const float *x, const uint32_t *w, const float *scales, int64_t next_panel, int64_t ahead,
                    int64_t size, const float *of_x, float *sums, bool go_on) {
    constexpr int STEPS = BITS == 0 ? 1 : 32 / BITS;  // of a word
    vec low[PANELS][ROWS] = {}, high[PANELS][ROWS] = {};
    for (int64_t k = 0; k < size; k++, w += WIDTH, x += STEPS * ROWS) {
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) {
            const uint32_t *mine = (const uint32_t *)((const char *)w + p * next_panel);
            if constexpr (BITS > 0) prefetch_step((const char *)mine + ahead);
            const words a = *(const words *)mine, b = *(const words *)(mine + LANES);
#pragma GCC unroll 8
            for (int n = 0; n < STEPS; n++) {
                const vec first = widen<BITS>(a, n), second = widen<BITS>(b, n);
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
        if constexpr (BITS > 0) prefetch_step((const char *)scale + ahead);
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

template <int BITS, int PANELS>
void multiply_group(int rows, const float *x, const uint32_t *w, const float *scales, int64_t next_panel,
                    int64_t ahead, int64_t size, const float *of_x, float *sums, bool go_on) {
    switch (rows) {
#define CASE(N)                                                                                                       \
    case N:                                                                                                           \
        if constexpr (N <= (PANELS == 1 ? MAX_ROWS : TWO_PANELS))                                                     \
            multiply_group<BITS, N, PANELS>(x, w, scales, next_panel, ahead, size, of_x, sums, go_on);                \
        return;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
    }
}

// The sums over each group of a block of rows, [groups, rows of the block]; the blocks follow each other.
void sum_groups(const float *x, float *sums, int64_t rows, int64_t in, int64_t group, int64_t per_block,
                int64_t block) {
    const int64_t first = block * per_block, count = std::min(per_block, rows - first), groups = in / group;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = 0; r < count; r++) {
            const float *from = x + (first + r) * in + g * group;
            vec lanes = {};
            int64_t k = 0;
            for (; k + LANES <= group; k += LANES) lanes += load(from + k);
            float total = sum(lanes);
            for (; k < group; k++) total += from[k];
            sums[first * groups + g * count + r] = total;
        }
}

template <int BITS>
struct Linear {
    Tasks tasks;
    Groups group;
    const float *packed, *of_x;  // x, rearranged; sums of x over the groups, or null
    const char *panels;
    const float *bias;
    float *out;
    int64_t in, outs;

    static constexpr int CODES = 32 / BITS;  // in a word

    void compute(int64_t task, const pool::Task &state) const {
        const int64_t begin = tasks.first_row(task), count = tasks.num_rows(task), per_block = tasks.per_block;
        const int64_t groups = in / group.size, size = group.size / CODES, next_panel = groups * group.bytes(BITS);
        const char *at = panels + tasks.first_panel(task) * next_panel;
        float *sums = results(tasks.pair * count * WIDTH);
        alignas(LINE) uint32_t wide[LARGEST_GROUP * WIDTH];
        for (int64_t g = 0; g < groups && !state.settled(); g++, at += group.bytes(BITS)) {
            const float *scales = (const float *)at;
            const uint32_t *w = (const uint32_t *)(scales + group.scales());
            const int64_t ahead = group.ahead(g, groups, tasks.num_panels(task), BITS);
            const bool many = count > per_block;
            if (many) widen_group(w, size, ahead, wide);
            for (int64_t row = 0; row < count; row += per_block) {
                const int64_t rows = std::min(per_block, count - row), first = begin + row;
                const float *mine = packed + first * in + g * group.size * rows;
                const float *of_mine = of_x ? of_x + first * groups + g * rows : nullptr;
                float *to = sums + row * WIDTH;
                if (many)
                    multiply_group<0, 1>(rows, mine, wide, scales, 0, 0, group.size, of_mine, to, g > 0);
                else if (tasks.num_panels(task) == 2)
                    multiply_group<BITS, 2>(rows, mine, w, scales, next_panel, ahead, size, of_mine, to, g > 0);
                else
                    multiply_group<BITS, 1>(rows, mine, w, scales, 0, ahead, size, of_mine, to, g > 0);
            }
        }
    }

    static void widen_group(const uint32_t *w, int64_t size, int64_t ahead, uint32_t *wide) {
        for (int64_t k = 0; k < size; k++, w += WIDTH) {
            prefetch_step((const char *)w + ahead);
            for (int half = 0; half < WIDTH; half += LANES)
#pragma GCC unroll 8
                for (int n = 0; n < CODES; n++)
                    store((float *)wide + (k * CODES + n) * WIDTH + half, widen<BITS>(*(const words *)(w + half), n));
        }
    }

    void commit(int64_t task) const { tasks.put_results(task, bias, out, outs); }
};

// `in` is a multiple of the group, and the group of 8.
template <int BITS>
void linear(const float *x, const void *weight, const float *bias, float *out, int64_t rows, int64_t in,
            int64_t outs) {
    if (rows == 0) return;
    const Groups group = Groups::of(weight);
    const int64_t blocks = (rows + MAX_ROWS - 1) / MAX_ROWS, per_block = (rows + blocks - 1) / blocks;
    const int64_t groups = in / group.size;
    static thread_local pool::Buffer rearranged, summed;
    float *packed = (float *)rearranged.reserve(rows * in * sizeof(float));
    float *of_x = group.has_minimum ? (float *)summed.reserve(rows * groups * sizeof(float)) : nullptr;
    pool::each(blocks, rows * in > ENOUGH / 8, [=](int64_t block) {
        rearrange(x, packed, rows, in, per_block, block);
        if (of_x) sum_groups(x, of_x, rows, in, group.size, per_block, block);
    });
    const Tasks tasks(rows, outs, rows <= TWO_PANELS ? 2 : 1, per_block, CHUNK / (in * sizeof(float) * per_block));
    const Linear<BITS> body = {tasks, group, packed, of_x, Groups::panels(weight), bias, out, in, outs};
    pool::each_twice(tasks.count(), rows * in * outs > ENOUGH, body);
}

}  // namespace

extern "C" {

LINEAR(float32_codes4, float, codes4, linear<4>)
LINEAR(float32_codes8, float, codes8, linear<8>)
}
