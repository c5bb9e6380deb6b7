// out = x @ weight.T + bias, for weights that do not change.
//
// The weight [out, in] is packed into panels of WIDTH rows, and within a panel the WIDTH numbers of one column lie side
// by side. A tile multiplies one panel by up to MAX_ROWS rows of x, and keeps its results in registers:
//
//     panel   k=0: w[0..WIDTH)  k=1: w[0..WIDTH)  ...      two vectors a step, read one after the other from memory
//     x       k=0: x[0..rows)   k=1: x[0..rows)   ...      one number a row and step, multiplied by both vectors
//
// So a weight is read once, in order, whatever the number of rows: that is all the time a decode step needs for it. With
// many rows a panel is cut along k, so that a piece of it stays in the first cache for all of them; meanwhile the next
// one is asked for. With few rows there are registers for two panels at a time.
//
// Every result is one chain of multiply-adds over k in rising order. It does not depend on how many rows there are, nor
// on which thread computes it: a row has the same bits alone and in any batch.
//
// Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).
//
// vLLM: csrc/cpu/sgl-kernels/gemm.cpp

#include "kernels.h"
#include "panels.h"

namespace {

constexpr int PIECE = 128;                     // steps of k: 16 KiB of a float32 panel with AVX-512
constexpr int64_t CHUNK = 2 << 20;              // bytes of x, about, that stay in a cache while all panels pass by

// One panel, or two that follow each other: two streams from memory are faster than one. `out` holds ROWS * WIDTH
// results of the one, then of the other. Meanwhile LINES cache lines a step and panel are asked for, from `ahead` on.
template <int ROWS, int PANELS, int LINES, typename X, typename W>
void tile(const X *x, const W *w, int64_t size, float *out, bool go_on, int64_t next_panel, const char *ahead) {
    vec low[PANELS][ROWS], high[PANELS][ROWS];
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            const float *from = out + (p * ROWS + r) * WIDTH;
            low[p][r] = go_on ? load(from) : vec{};
            high[p][r] = go_on ? load(from + LANES) : vec{};
        }
    for (int64_t k = 0; k < size; k++, w += WIDTH, x += ROWS, ahead += LINES * LINE) {
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) {
            const W *mine = w + p * next_panel;
#pragma GCC unroll 2
            for (int line = 0; line < LINES; line++)
                __builtin_prefetch(ahead + p * next_panel * sizeof(W) + line * LINE);
            const auto a = load(mine), b = load(mine + LANES);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
                low[p][r] = multiply_add(low[p][r], x[r], a);
                high[p][r] = multiply_add(high[p][r], x[r], b);
            }
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            float *to = out + (p * ROWS + r) * WIDTH;
            store(to, low[p][r]);
            store(to + LANES, high[p][r]);
        }
}

template <int LINES, typename X, typename W>
void tile(int rows, int panels, const X *x, const W *w, int64_t size, float *out, bool go_on, int64_t next_panel,
          const char *ahead) {
    switch (rows * panels * (panels == 2 ? -1 : 1)) {  // two panels: a negative number
#define CASE(N) \
    case N:     \
        if constexpr (N <= MAX_ROWS) return tile<N, 1, LINES>(x, w, size, out, go_on, next_panel, ahead);
#define PAIR(N) \
    case -2 * N: \
        if constexpr (2 * N <= MAX_ROWS) return tile<N, 2, LINES>(x, w, size, out, go_on, next_panel, ahead);
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) PAIR(1) PAIR(2) PAIR(3)
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) PAIR(4) PAIR(5) PAIR(6)
    }
}

// x and what becomes of it, as every thread needs to know it.
template <typename X, typename W, typename T>
struct Linear {
    Tasks tasks;
    const X *packed;  // x, rearranged
    const W *weight;
    const float *bias;
    T *out;
    int64_t in, outs;  // in: steps

    void compute(int64_t task, const pool::Task &state) const {
        constexpr bool CONVERTED = sizeof(X) != sizeof(W);
        const int64_t panel = tasks.first_panel(task), begin = tasks.first_row(task), count = tasks.num_rows(task);
        const int64_t per_block = tasks.per_block, piece = count > per_block ? PIECE : in;
        float *sums = results(tasks.pair * count * WIDTH), wide[CONVERTED ? PIECE * WIDTH : 1];
        constexpr int LINES = WIDTH * sizeof(W) / LINE;  // of one step of a panel
        for (int64_t k = 0; k < in && !state.settled(); k += piece) {
            const int64_t size = std::min(piece, in - k);
            const W *w = weight + (panel * in + k) * WIDTH;
            if (count <= per_block) {
                tile<LINES>(count, tasks.num_panels(task), packed + begin * in, w, size, sums, false, in * WIDTH,
                            (const char *)w + PREFETCH_BYTES);
                continue;
            }
            // The next piece comes while this one is multiplied by the first rows, a line a step.
            const W *next = w + size * WIDTH;
            if constexpr (CONVERTED)
                for (int64_t i = 0; i < 2 * size; i++) store(wide + i * LANES, load(w + i * LANES));
            for (int64_t row = 0, block = 0; row < count; row += per_block, block++) {
                const int64_t together = std::min(per_block, count - row);
                const X *mine = packed + (begin + row) * in + k * together;
                const char *ahead = (const char *)next + block * size * LINE;
                const auto multiply = [&](const auto *piece_of_w) {
                    float *to = sums + row * WIDTH;
                    if (block < LINES)
                        tile<1>(together, 1, mine, piece_of_w, size, to, k > 0, 0, ahead);
                    else
                        tile<0>(together, 1, mine, piece_of_w, size, to, k > 0, 0, ahead);
                };
                if constexpr (CONVERTED)
                    multiply((const float *)wide);
                else
                    multiply(w);
            }
        }
    }

    void commit(int64_t task) const { tasks.put_results(task, bias, out, outs); }
};

// In steps of X: one column of x, or two.
template <typename X, typename T, typename W>
void linear(const T *x, const W *weight, const float *bias, T *out, int64_t rows, int64_t in, int64_t outs) {
    if (rows == 0) return;
    const int64_t blocks = (rows + MAX_ROWS - 1) / MAX_ROWS;
    const int64_t per_block = (rows + blocks - 1) / blocks;  // evenly: 16 rows are 8 and 8, not 12 and 4
    const int64_t steps = (in * sizeof(T) + sizeof(X) - 1) / sizeof(X);
    static thread_local pool::Buffer rearranged;
    X *packed = (X *)rearranged.reserve(rows * steps * sizeof(X));
    pool::each(blocks, rows * in > ENOUGH / 8, [=](int64_t block) { rearrange(x, packed, rows, in, per_block, block); });
    const Tasks tasks(rows, outs, 2 * rows <= MAX_ROWS ? 2 : 1, per_block, CHUNK / (steps * sizeof(X) * per_block));
    const Linear<X, W, T> body = {tasks, packed, weight, bias, out, steps, outs};
    pool::each_twice(tasks.count(), rows * in * outs > ENOUGH, body);
}

}  // namespace

extern "C" {

int panel_width() { return WIDTH; }
int has_bf16_pairs() { return HAS_PAIRS; }

LINEAR(float32, float, float, linear<float>)
LINEAR(bfloat16, float, bf16, linear<float>)
IF_PAIRS(LINEAR(bf16_pairs, bf16, bf16_pair, linear<bf16_pair>))
}
