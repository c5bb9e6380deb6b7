// out = x @ weight.T + bias, for a weight of codes (codes.h) and x rounded to whole numbers q.
//
//     W4A16, W8A16   x[r, k] ~ scale[r, g] * q[r, k]    16 bits, a scale for each group: for bfloat16 activations
//     W4A8           x[r, k] ~ scale[r] * q[r, k]        8 bits, a scale for each row
//
//     out[r, o] = sum over g of  weight_scale[o, g] * (x_scale[r, g] * (sum over the group of q * (code - middle)))
//
// The sums are exact, in int32. A word of codes needs a shift and a mask for two products of 16 bits or four of 8, and
// with VNNI these and their sum are one instruction. For bfloat16's products each code would have to be looked up. In 16
// bits a number is off by 2^-16 of the largest one in its group, at most; bfloat16 has rounded that by up to 2^-9 of it.
//
// With many rows a group is taken apart once, for all of them. With fewer this would take longer than doing it for each
// block of rows, between its products. The sum of the codes starts at -middle times the sum of q, which they have too
// much. A row has the same bits alone and in any batch.
//
// vLLM: csrc/cpu/cpu_wna16.cpp, csrc/cpu/dnnl_kernels.cpp

#include "codes.h"
#include "kernels.h"
#include "pool.h"
#include "rounding.h"

namespace {

constexpr int MAX_ROWS = LANES == 16 ? 12 : 4;   // 2 * MAX_ROWS results, of 32 registers or 16
constexpr int TWO_PANELS = LANES == 16 ? 6 : 2;  // rows, for which there are registers for two panels
constexpr int MANY = 6;                          // blocks (measured on Zen 4: 64 rows, 0.94 to 0.99 of bfloat16's speed)
constexpr int64_t CHUNK = 1 << 20;               // bytes of x, about, that stay in a cache while all panels pass by

// Of a row of x in a group.
struct Part {
    int32_t start;     // of the sums of codes
    float scale, sum;  // sum: of the row's numbers, as they are after rounding
};

// Of a type of q: numbers in a word, and the largest one.
template <typename Q>
constexpr int COLUMNS = 4 / sizeof(Q);
template <typename Q>
constexpr int MOST = (1 << (8 * sizeof(Q) - 1)) - 1;

// Step n of a word of each output: as many codes as a word of x has numbers. 0 bits: it is taken apart already.
template <int BITS, typename Q>
inline words codes_of(words w, int n) {
    if constexpr (BITS == 0) return w;
    constexpr uint32_t MASK = (1 << BITS) - 1;
    return (w >> (BITS * n)) & (sizeof(Q) == 2 ? MASK * 0x00010001 : MASK * 0x01010101);
}

// A group of columns of PANELS panels, `next_panel` bytes apart, by ROWS rows of x, whose words lie side by side. `sums`
// has ROWS * WIDTH results of the one, then of the other. Meanwhile memory is asked for that lies `ahead` bytes behind.
template <int BITS, int ROWS, int PANELS, typename Q>
void multiply_group(const Q *x, const Part *parts, const uint32_t *w, const float *scales, bool has_minimum,
                    int64_t next_panel, int64_t ahead, int64_t size, float *sums, bool go_on) {
    constexpr int STEPS = BITS == 0 ? 1 : 32 / BITS / COLUMNS<Q>;  // of a word
    ints low[PANELS][ROWS], high[PANELS][ROWS];
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) low[p][r] = high[p][r] = parts[r].start - ints{};
    const int32_t *of_x = (const int32_t *)x;
    for (int64_t k = 0; k < size; k++, w += WIDTH, of_x += STEPS * ROWS) {
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) {
            const uint32_t *mine = (const uint32_t *)((const char *)w + p * next_panel);
            if constexpr (BITS > 0) prefetch_step((const char *)mine + ahead);
            const words a = *(const words *)mine, b = *(const words *)(mine + LANES);
#pragma GCC unroll 4
            for (int n = 0; n < STEPS; n++) {
                const words first = codes_of<BITS, Q>(a, n), second = codes_of<BITS, Q>(b, n);
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; r++) {
                    const words q = (words)(of_x[n * ROWS + r] - ints{});
                    low[p][r] = add_products(low[p][r], first, q, Q{});
                    high[p][r] = add_products(high[p][r], second, q, Q{});
                }
            }
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++) {
        const float *scale = (const float *)((const char *)scales + p * next_panel);
        if constexpr (BITS > 0) prefetch_step((const char *)scale + ahead);
        const vec s = load(scale), t = load(scale + LANES);
        const vec m = has_minimum ? load(scale + WIDTH) : vec{}, n = has_minimum ? load(scale + WIDTH + LANES) : vec{};
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            float *sum = sums + (p * ROWS + r) * WIDTH;
            vec c = go_on ? load(sum) : vec{}, d = go_on ? load(sum + LANES) : vec{};
            c = fused(s, __builtin_convertvector(low[p][r], vec) * parts[r].scale, c);
            d = fused(t, __builtin_convertvector(high[p][r], vec) * parts[r].scale, d);
            if (has_minimum) c = fused(m, splat(parts[r].sum), c), d = fused(n, splat(parts[r].sum), d);
            store(sum, c);
            store(sum + LANES, d);
        }
    }
}

template <int BITS, int PANELS, typename Q>
void multiply_group(int rows, const Q *x, const Part *parts, const uint32_t *w, const float *scales, bool has_minimum,
                    int64_t next_panel, int64_t ahead, int64_t size, float *sums, bool go_on) {
    switch (rows) {
#define CASE(N)                                                                                                       \
    case N:                                                                                                           \
        if constexpr (N <= (PANELS == 1 ? MAX_ROWS : TWO_PANELS))                                                     \
            multiply_group<BITS, N, PANELS>(x, parts, w, scales, has_minimum, next_panel, ahead, size, sums, go_on);  \
        return;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
    }
}

// A block of rows, group by group: its numbers [groups, all rows, columns] with words of the block's rows side by side,
// and its parts [groups, all rows].
template <typename Q, typename T>
void round_block(const T *x, Q *rounded, Part *parts, int64_t rows, int64_t in, int64_t group, int middle,
                 int64_t per_block, int64_t block) {
    const int64_t first = block * per_block, count = std::min(per_block, rows - first);
    for (int64_t r = 0; r < count; r++) {
        const T *from = x + (first + r) * in;
        const float of_row = sizeof(Q) == 1 ? largest(from, in) / MOST<Q> : 0;
        for (int64_t g = 0; g < in / group; g++, from += group) {
            float scale = sizeof(Q) == 1 ? of_row : largest(from, group) / MOST<Q>;
            if (sizeof(Q) == 2 && scale < 1e-37f) scale = 0;  // 1 / scale would be infinite
            int32_t *to = (int32_t *)(rounded + (g * rows + first) * group) + r;
            ints total = {};
            for (int64_t k = 0; k < group; k += LANES) {
                const vec v = load_up_to(from + k, group - k);
                const ints whole = nearest(scale > 0 ? sizeof(Q) == 1 ? v / scale : v * (1 / scale) : vec{});
                put_words<Q>(whole, group - k, to + k / COLUMNS<Q> * count, count);
                total += whole;
            }
            int32_t sum = 0;
            for (int i = 0; i < LANES; i++) sum += total[i];
            parts[g * rows + first + r] = {-middle * sum, scale, sum * scale};
        }
    }
}

template <int BITS, typename Q, typename T>
struct Linear {
    Tasks tasks;
    Groups group;
    const Q *x;  // rounded
    const Part *parts;
    const char *panels;
    const float *bias;
    T *out;
    int64_t in, outs;

    void compute(int64_t task, const pool::Task &state) const {
        const int64_t begin = tasks.first_row(task), count = tasks.num_rows(task), per_block = tasks.per_block;
        const int64_t groups = in / group.size, size = group.size * BITS / 32, next_panel = groups * group.bytes(BITS);
        const bool many = count > MANY * per_block, minimum = group.has_minimum;
        const char *at = panels + tasks.first_panel(task) * next_panel;
        float *sums = results(tasks.pair * count * WIDTH);
        alignas(LINE) uint32_t apart[LARGEST_GROUP / COLUMNS<Q> * WIDTH];
        for (int64_t g = 0; g < groups && !state.settled(); g++, at += group.bytes(BITS)) {
            const float *scales = (const float *)at;
            const uint32_t *w = (const uint32_t *)(scales + group.scales());
            const int64_t ahead = group.ahead(g, groups, tasks.num_panels(task), BITS);
            if (many) take_apart(w, size, ahead, apart);
            for (int64_t row = 0; row < count; row += per_block) {
                const int64_t rows = std::min(per_block, count - row), first = g * tasks.rows + begin + row;
                const int64_t words_of_x = group.size / COLUMNS<Q>;
                const Q *mine = x + first * group.size;
                const Part *part = parts + first;
                float *to = sums + row * WIDTH;
                if (many)
                    multiply_group<0, 1>(rows, mine, part, apart, scales, minimum, 0, 0, words_of_x, to, g > 0);
                else if (tasks.num_panels(task) == 2)
                    multiply_group<BITS, 2>(rows, mine, part, w, scales, minimum, next_panel, ahead, size, to, g > 0);
                else
                    multiply_group<BITS, 1>(rows, mine, part, w, scales, minimum, 0, ahead, size, to, g > 0);
            }
        }
    }

    static void take_apart(const uint32_t *w, int64_t size, int64_t ahead, uint32_t *apart) {
        for (int64_t k = 0; k < size; k++, w += WIDTH) {
            prefetch_step((const char *)w + ahead);
#pragma GCC unroll 4
            for (int n = 0; n < 32 / BITS / COLUMNS<Q>; n++, apart += WIDTH)
                for (int half = 0; half < WIDTH; half += LANES)
                    *(words *)(apart + half) = codes_of<BITS, Q>(*(const words *)(w + half), n);
        }
    }

    void commit(int64_t task) const { tasks.put_results(task, bias, out, outs); }
};

// `in` is a multiple of the group, and the group of 8.
template <int BITS, typename Q, typename T>
void linear(const T *x, const void *weight, const float *bias, T *out, int64_t rows, int64_t in, int64_t outs) {
    if (rows == 0) return;
    const Groups group = Groups::of(weight);
    const int64_t blocks = (rows + MAX_ROWS - 1) / MAX_ROWS, per_block = (rows + blocks - 1) / blocks;
    static thread_local pool::Buffer numbers, of_groups;
    Q *rounded = (Q *)numbers.reserve(rows * in * sizeof(Q));
    Part *parts = (Part *)of_groups.reserve(rows * (in / group.size) * sizeof(Part));
    pool::each(blocks, rows * in > ENOUGH / 8, [=](int64_t block) {
        round_block(x, rounded, parts, rows, in, group.size, 1 << (BITS - 1), per_block, block);
    });
    const Tasks tasks(rows, outs, rows <= TWO_PANELS ? 2 : 1, per_block, CHUNK / (in * sizeof(Q) * per_block));
    const Linear<BITS, Q, T> body = {tasks, group, rounded, parts, Groups::panels(weight), bias, out, in, outs};
    pool::each_twice(tasks.count(), rows * in * outs > ENOUGH, body);
}

}  // namespace

extern "C" {

LINEAR(float32_codes4_int8, float, codes4_int8, linear<4, int8_t>)
IF_PAIRS(LINEAR(bfloat16_codes4_int8, bf16, codes4_int8, linear<4, int8_t>))
IF_PAIRS(LINEAR(bfloat16_codes4, bf16, codes4, linear<4, int16_t>))
IF_PAIRS(LINEAR(bfloat16_codes8, bf16, codes8, linear<8, int16_t>))
}
