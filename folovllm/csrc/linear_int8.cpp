// out = x @ weight.T + bias with 8 bits on both sides: the weight has a scale for each output, x one for each row.
//
//     x[r, k] ~ x_scale[r] * q[r, k]        x_scale = max |x[r]| / 127, q rounded to the nearest, computed in each call
//     out[r, o] = x_scale[r] * scale[o] * (sum over k of q[r, k] * w[o, k])          the sum is exact, in int32
//
//     panel   | scale[WIDTH] sums[WIDTH] | w[WIDTH][4] of k = 0..3 | w[WIDTH][4] of k = 4..7 | ...
//
// Four products of 8 bits and their sum are one instruction with VNNI. It takes the left side without a sign, so x goes in
// as q + 128, and 128 times the sum of an output's weights is taken off at the end. Tiles (tiles.h) are multiplied in the
// same way. NEON's takes signs on both sides. AVX2 has an instruction that adds two such products in 16 bits; there the sign moves from the weight to q, and
// two products stay within 16 bits.
//
// vLLM: csrc/cpu/dnnl_kernels.cpp (onednn_scaled_mm)

#include "kernels.h"
#include "rounding.h"
#include "tiles.h"

namespace {

constexpr int MOST_ROWS = LANES == 8 ? 4 : MAX_ROWS;  // AVX2's product takes registers of its own
constexpr int TWO_PANELS = MOST_ROWS / 2;             // rows, for which there are registers for two panels
constexpr int64_t PIECE = 128;                   // words of a panel: 16 KiB stay in the first cache for many rows
constexpr int64_t AHEAD = PREFETCH_BYTES / 4;   // words, that are asked for meanwhile
constexpr int64_t CHUNK = 2 << 20;               // bytes of x, about, that stay in a cache while all panels pass by

#if defined __AVX512VNNI__ || defined __aarch64__
constexpr int OFFSET = LANES == 16 ? 128 : 0;
inline ints multiply_word(ints sums, int32_t x, words w) { return add_products(sums, (words)(x - ints{}), w, int8_t{}); }
#else
constexpr int OFFSET = 0;
inline ints multiply_word(ints sums, int32_t x, words w) {
    typedef int8_t signs __attribute__((vector_size(LANES * 4)));
    const signs of_w = (signs)w, of_x = (signs)(x - ints{});
    return add_products(sums, (words)(of_w < 0 ? -of_w : of_w), (words)(of_w < 0 ? -of_x : of_x), int8_t{});
}
#endif

template <int ROWS, int PANELS>
void tile(const int32_t *x, const uint32_t *w, int64_t size, int32_t *out, bool go_on, int64_t next_panel,
          int64_t ahead) {
    ints low[PANELS][ROWS], high[PANELS][ROWS];
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            const int32_t *from = out + (p * ROWS + r) * WIDTH;
            low[p][r] = go_on ? *(const ints *)from : ints{};
            high[p][r] = go_on ? *(const ints *)(from + LANES) : ints{};
        }
    for (int64_t k = 0; k < size; k++, w += WIDTH, x += ROWS) {
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++) {
            const uint32_t *mine = w + p * next_panel;
            prefetch_step(mine + ahead);
            const words a = *(const words *)mine, b = *(const words *)(mine + LANES);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
                low[p][r] = multiply_word(low[p][r], x[r], a);
                high[p][r] = multiply_word(high[p][r], x[r], b);
            }
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            int32_t *to = out + (p * ROWS + r) * WIDTH;
            *(ints *)to = low[p][r];
            *(ints *)(to + LANES) = high[p][r];
        }
}

template <int PANELS>
void tile(int rows, const int32_t *x, const uint32_t *w, int64_t size, int32_t *out, bool go_on, int64_t next_panel,
          int64_t ahead) {
    switch (rows) {
#define CASE(N)                                                                                                       \
    case N:                                                                                                           \
        if constexpr (N <= (PANELS == 1 ? MOST_ROWS : TWO_PANELS))                                                     \
            tile<N, PANELS>(x, w, size, out, go_on, next_panel, ahead);                                               \
        return;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
    }
}

// A block of rows: their scales, and their codes four at a time, word by word, the rows' words side by side; or as tiles.
// A row has `size` words.
template <typename T>
void quantize(const T *x, int32_t *codes, float *scales, int64_t rows, int64_t in, int64_t size, int64_t per_block,
              bool tiled, int64_t block) {
    const int64_t first = block * per_block, count = std::min(per_block, rows - first);
    int32_t *to = codes + first * size;
    for (int64_t r = 0; r < count; r++) {
        const T *row = x + (first + r) * in;
        const float scale = largest(row, in) / 127;
        scales[first + r] = scale;
        for (int64_t k = 0; k < in; k += LANES) {
            const vec v = scale > 0 ? load_up_to(row + k, in - k) / scale : vec{};
            const int64_t in_tile = (k / 64 * per_block + r) * 16 + k / 4 % 16;
            int32_t *place = to + (tiled ? in_tile : k / 4 * count + r);
            put_words<int8_t>(nearest(v) + OFFSET, in - k, place, tiled ? 1 : count);
        }
    }
}

template <typename T>
struct Linear {
    Tasks tasks;
    const int32_t *codes;   // of x
    const float *x_scales;  // [rows]
    const float *panels, *bias;
    T *out;
    int64_t size, outs;  // size: words of a row
    bool tiled;

    void compute(int64_t task, const pool::Task &state) const {
        const int64_t begin = tasks.first_row(task), count = tasks.num_rows(task), per_block = tasks.per_block;
        const int64_t next_panel = (2 + size) * WIDTH, pairs = tasks.num_panels(task);
        const int64_t blocks = (count + per_block - 1) / per_block;
        const float *scales = panels + tasks.first_panel(task) * next_panel;
        const uint32_t *w = (const uint32_t *)scales + 2 * WIDTH;
        float *sums = results(std::max(tasks.pair, blocks) * per_block * WIDTH);
#ifdef __AMX_BF16__
        if (tiled)
            multiply_blocks<int8_t>((const uint32_t *)codes + begin * size, blocks, per_block, w, pairs, next_panel, size,
                                    sums, state);
        else
#endif
            multiply(task, w, next_panel, sums, state);
        if (state.settled()) return;
        for (int64_t p = 0; p < pairs; p++, scales += next_panel)
            for (int64_t r = 0; r < count; r++)
                for (int half = 0; half < WIDTH; half += LANES) {
                    float *to = sums + (p * count + r) * WIDTH + half;
                    const ints over = *(const ints *)((const int32_t *)scales + WIDTH + half) * OFFSET;
                    const vec total = __builtin_convertvector(*(const ints *)to - over, vec);
                    store(to, total * load(scales + half) * x_scales[begin + r]);
                }
    }

    void multiply(int64_t task, const uint32_t *w, int64_t next_panel, float *sums, const pool::Task &state) const {
        const int64_t begin = tasks.first_row(task), count = tasks.num_rows(task), per_block = tasks.per_block;
        const int64_t pairs = tasks.num_panels(task);
        // The last piece of two panels asks for the two that come after them, each for its own.
        const int64_t last = pairs == 2 ? std::max<int64_t>(0, size - AHEAD / WIDTH) : size;
        const int64_t piece = count > per_block ? PIECE : size;
        for (int64_t k = 0, end; k < size && !state.settled(); k = end) {
            end = std::min(k + piece, k < last ? last : size);
            const int64_t ahead = AHEAD + (k < last ? 0 : next_panel);
            for (int64_t row = 0; row < count; row += per_block) {
                const int64_t rows = std::min(per_block, count - row);
                const int32_t *x = codes + (begin + row) * size + k * rows;
                int32_t *to = (int32_t *)sums + row * WIDTH;
                if (pairs == 2)
                    tile<2>(rows, x, w + k * WIDTH, end - k, to, k > 0, next_panel, ahead);
                else
                    tile<1>(rows, x, w + k * WIDTH, end - k, to, k > 0, 0, ahead);
            }
        }
    }

    void commit(int64_t task) const { tasks.put_results(task, bias, out, outs); }
};

template <typename T>
void linear(const T *x, const void *weight, const float *bias, T *out, int64_t rows, int64_t in, int64_t outs) {
    if (rows == 0) return;
    const bool tiled = has_tiles();
    const int64_t most = tiled ? 16 : MOST_ROWS, together = tiled ? 64 : 4;
    const int64_t blocks = (rows + most - 1) / most, per_block = (rows + blocks - 1) / blocks;
    const int64_t size = (in + together - 1) / together * together / 4;
    static thread_local pool::Buffer quantized, scaled;
    int32_t *codes = (int32_t *)quantized.reserve(blocks * per_block * size * sizeof(int32_t));
    float *scales = (float *)scaled.reserve(rows * sizeof(float));
    pool::each(blocks, rows * in > ENOUGH / 8,
               [=](int64_t block) { quantize(x, codes, scales, rows, in, size, per_block, tiled, block); });
    const Tasks tasks(rows, outs, rows <= (tiled ? 16 : TWO_PANELS) ? 2 : 1, per_block, CHUNK / (size * sizeof(int32_t) * per_block));
    const Linear<T> body = {tasks, codes, scales, (const float *)weight, bias, out, size, outs, tiled};
    pool::each_twice(tasks.count(), rows * in * outs > ENOUGH, body);
}

}  // namespace

extern "C" {

LINEAR(float32_int8, float, int8s, linear)
IF_PAIRS(LINEAR(bfloat16_int8, bf16, int8s, linear))
}
