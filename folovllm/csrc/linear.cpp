// out = x @ weight.T + bias, for weights that do not change.
//
// The weight [out, in] is packed into panels of WIDTH rows, and within a panel the WIDTH numbers of one column lie side
// by side. A tile multiplies one panel by up to MAX_ROWS rows of x, and keeps its results in registers:
//
//     panel   k=0: w[0..WIDTH)  k=1: w[0..WIDTH)  ...      two vectors a step, read one after the other from memory
//     x       k=0: x[0..rows)   k=1: x[0..rows)   ...      one number a row and step, multiplied by both vectors
//
// So a weight is read once, in order, whatever the number of rows: that is all the time a decode step needs for it. With
// many rows a panel is cut along k, so that a piece of it stays in the first cache for all of them. With few rows there
// are registers for two panels at a time.
//
// Every result is one chain of multiply-adds over k in rising order. It does not depend on how many rows there are, nor
// on which thread computes it: a row has the same bits alone and in any batch.
//
// Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).

#include <vector>

#include "vector.h"

namespace {

constexpr int WIDTH = 2 * LANES;
constexpr int MAX_ROWS = LANES == 16 ? 12 : 6;  // 2 * MAX_ROWS results, of 32 registers or 16
constexpr int PIECE = 128;                      // steps of k: 16 KiB of a float32 panel with AVX-512
constexpr int64_t ENOUGH = 1 << 18;             // multiply-adds for which a second thread pays
constexpr int AHEAD = 4096;                     // bytes. The hardware's own prefetching ends at each page

// One panel, or two that follow each other: two streams from memory are faster than one. `out` holds ROWS * WIDTH
// results of the one, then of the other.
template <int ROWS, int PANELS, typename W, bool FROM_MEMORY>
void tile(const float *x, const W *w, int64_t size, float *out, bool go_on, int64_t next_panel) {
    vec low[PANELS][ROWS], high[PANELS][ROWS];
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            const float *from = out + (p * ROWS + r) * WIDTH;
            low[p][r] = go_on ? load(from) : vec{};
            high[p][r] = go_on ? load(from + LANES) : vec{};
        }
    for (int64_t k = 0; k < size; k++, w += WIDTH, x += ROWS) {
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) {
            const W *mine = w + p * next_panel;
            if (FROM_MEMORY) {
                __builtin_prefetch((const char *)mine + AHEAD);
                if (sizeof(W) * WIDTH > 64) __builtin_prefetch((const char *)mine + AHEAD + 64);
            }
            vec a = load(mine), b = load(mine + LANES);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
                low[p][r] += x[r] * a;
                high[p][r] += x[r] * b;
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

template <typename W, bool FROM_MEMORY>
void tile(int rows, int panels, const float *x, const W *w, int64_t size, float *out, bool go_on, int64_t next_panel) {
    switch (rows * panels * (panels == 2 ? -1 : 1)) {  // two panels: a negative number
#define CASE(N) \
    case N: return tile<N, 1, W, FROM_MEMORY>(x, w, size, out, go_on, next_panel);
#define PAIR(N) \
    case -2 * N: return tile<N, 2, W, FROM_MEMORY>(x, w, size, out, go_on, next_panel);
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) PAIR(1) PAIR(2) PAIR(3)
#ifdef __AVX512F__
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) PAIR(4) PAIR(5) PAIR(6)
#endif
    }
}

// Block by block of rows, and in a block the rows' numbers for one k side by side.
template <typename T>
void rearrange(const T *x, float *packed, int64_t rows, int64_t in, int64_t per_block, int64_t block) {
    int64_t first = block * per_block, count = rows - first < per_block ? rows - first : per_block;
    for (int64_t k = 0; k < in; k++)
        for (int64_t r = 0; r < count; r++) packed[first * in + k * count + r] = get(x + (first + r) * in + k);
}

// The results of one panel, [rows, WIDTH], to their columns of out [rows, outs]. The last panel may stick out.
template <typename T>
void put_results(float *results, const float *bias, T *out, int64_t rows, int64_t outs, int64_t panel) {
    int64_t first = panel * WIDTH, width = outs - first < WIDTH ? outs - first : WIDTH;
    for (int64_t r = 0; r < rows; r++) {
        float *sums = results + r * WIDTH;
        for (int64_t i = 0; bias && i < width; i++) sums[i] += bias[first + i];
        T row[WIDTH];
        store(row, load(sums));
        store(row + LANES, load(sums + LANES));
        memcpy(out + r * outs + first, row, width * sizeof(T));
    }
}

template <typename T, typename W>
void linear(const T *x, const W *weight, const float *bias, T *out, int64_t rows, int64_t in, int64_t outs) {
    const int64_t panels = (outs + WIDTH - 1) / WIDTH, blocks = (rows + MAX_ROWS - 1) / MAX_ROWS;
    const int64_t per_block = (rows + blocks - 1) / blocks;  // evenly: 16 rows are 8 and 8, not 12 and 4
    const int64_t piece = blocks > 1 ? PIECE : in, pair = 2 * rows <= MAX_ROWS ? 2 : 1;
    const bool widen = sizeof(W) == 2 && blocks > 1;  // converted once for all rows
    static thread_local std::vector<float> rearranged;
    if ((int64_t)rearranged.size() < rows * in) rearranged.resize(rows * in);
    float *packed = rearranged.data();
#pragma omp parallel if (rows * in * outs > ENOUGH)
    {
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; block++) rearrange(x, packed, rows, in, per_block, block);
        std::vector<float> results(pair * rows * WIDTH);
        float wide[PIECE * WIDTH];
        // Panel by panel to whoever is free: a thread whose core is shared with another program takes fewer.
#pragma omp for schedule(dynamic, 1)
        for (int64_t panel = 0; panel < panels; panel += pair) {
            const int together = panels - panel < pair ? 1 : pair;
            for (int64_t k = 0; k < in; k += piece) {
                int64_t size = in - k < piece ? in - k : piece;
                const W *w = weight + (panel * in + k) * WIDTH;
                for (int64_t i = 0; widen && i < 2 * size; i++) {
                    __builtin_prefetch((const char *)(w + i * LANES) + AHEAD);
                    store(wide + i * LANES, load(w + i * LANES));
                }
                for (int64_t block = 0; block < blocks; block++) {
                    int64_t first = block * per_block, count = rows - first < per_block ? rows - first : per_block;
                    const float *mine = packed + first * in + k * count;
                    float *sums = results.data() + first * WIDTH;
                    if (widen)
                        tile<float, false>(count, 1, mine, wide, size, sums, k > 0, 0);
                    else if (block == 0)
                        tile<W, true>(count, together, mine, w, size, sums, k > 0, in * WIDTH);
                    else
                        tile<W, false>(count, 1, mine, w, size, sums, k > 0, 0);
                }
            }
            for (int p = 0; p < together; p++)
                put_results(results.data() + p * rows * WIDTH, bias, out, rows, outs, panel + p);
        }
    }
}

}  // namespace

extern "C" {

int panel_width() { return WIDTH; }

void linear_float32(const float *x, const float *weight, const float *bias, float *out, int64_t rows, int64_t in,
                    int64_t outs) {
    if (rows > 0) linear(x, weight, bias, out, rows, in, outs);
}

void linear_bfloat16(const float *x, const bf16 *weight, const float *bias, float *out, int64_t rows, int64_t in,
                     int64_t outs) {
    if (rows > 0) linear(x, weight, bias, out, rows, in, outs);
}
}
