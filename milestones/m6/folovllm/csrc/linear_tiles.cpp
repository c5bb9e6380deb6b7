// out = x @ weight.T + bias in bfloat16, for CPUs that multiply tiles (AMX).
//
// The weight lies in the panels of linear.cpp. x is copied into tiles (tiles.h), block by block of rows. With many rows,
// two blocks and one panel are multiplied at a time: four sums, which load each tile for two of them. With up to 16 rows
// it is one block, and two panels for two streams from memory.
//
// Every result is a sum over k in rising order, by 32 numbers at a time, whatever else is in the tiles: a row has the
// same bits alone and in any batch. They are not the bits of linear.cpp, whose steps are of two numbers.
//
// vLLM: csrc/cpu/micro_gemm/cpu_micro_gemm_amx.hpp

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels.h"
#include "tiles.h"

namespace {

constexpr int STEP = TILE_PAIRS;
constexpr int PIECE = 8 * STEP;     // pairs: 16 KiB of a panel stay in the first cache for many rows
constexpr int FEW = 8;              // blocks, for which a whole panel in the second cache is faster
constexpr int64_t CHUNK = 1 << 20;  // bytes of x, about, that stay in a cache while all panels pass by

// BLOCKS of rows of x times PANELS: 2 and 1, or 1 and 2. `out` holds WIDTH results a row, then those of the next block or
// panel. Meanwhile `lines` cache lines a step and panel are asked for, from `ahead` on: into the first cache (3) or the
// second (2).
template <int BLOCKS, int PANELS, int CACHE>
void multiply(const bf16 *x, int64_t next_block, const bf16_pair *w, int64_t next_panel, int64_t steps, int rows,
              float *out, bool go_on, const char *ahead, int lines) {
    static_assert(BLOCKS * PANELS == 2);
    constexpr int64_t OUT_ROW = WIDTH * sizeof(float);
    float *other = out + rows * WIDTH;
    if (go_on) {
        _tile_loadd(0, out, OUT_ROW);
        _tile_loadd(1, out + LANES, OUT_ROW);
        _tile_loadd(2, other, OUT_ROW);
        _tile_loadd(3, other + LANES, OUT_ROW);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t step = 0; step < steps; step++) {
        for (int line = 0; line < lines; line++, ahead += LINE) {
            __builtin_prefetch(ahead, 0, CACHE);
            if constexpr (PANELS == 2) __builtin_prefetch(ahead + next_panel * sizeof(bf16_pair), 0, CACHE);
        }
        _tile_loadd(4, x, LINE);
        if constexpr (BLOCKS == 2) _tile_loadd(5, x + next_block, LINE);
        _tile_loadd(6, w, TILE_LINE);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (BLOCKS == 2) _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(7, w + LANES, TILE_LINE);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (BLOCKS == 2) _tile_dpbf16ps(3, 5, 7);
        if constexpr (PANELS == 2) {
            _tile_loadd(6, w + next_panel, TILE_LINE);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(7, w + next_panel + LANES, TILE_LINE);
            _tile_dpbf16ps(3, 4, 7);
        }
        x += rows * 2 * STEP;
        w += STEP * WIDTH;
    }
    _tile_stored(0, out, OUT_ROW);
    _tile_stored(1, out + LANES, OUT_ROW);
    _tile_stored(2, other, OUT_ROW);
    _tile_stored(3, other + LANES, OUT_ROW);
}

// One block of rows: step by step, its rows' numbers for the step. Zeros behind the last row and the last number.
void copy_block(const bf16 *x, bf16 *tiles, int64_t rows, int64_t in, int64_t per_block, int64_t block) {
    constexpr int64_t NUMBERS = 2 * STEP;  // of a row, in a step
    const int64_t first = block * per_block, steps = (in + NUMBERS - 1) / NUMBERS;
    for (int64_t r = 0; r < per_block; r++) {
        bf16 *to = tiles + (first * steps + r) * NUMBERS;
        const bf16 *from = x + (first + r) * in;
        const int64_t count = first + r < rows ? in : 0;
        int64_t k = 0;
        for (; k + NUMBERS <= count; k += NUMBERS, to += per_block * NUMBERS) memcpy(to, from + k, sizeof(words));
        for (; k < in; k += NUMBERS, to += per_block * NUMBERS) {
            words rest = {};
            if (k < count) memcpy(&rest, from + k, (count - k) * sizeof(bf16));
            memcpy(to, &rest, sizeof rest);
        }
    }
}

struct Linear {
    Shapes shapes;
    Tasks tasks;
    const bf16 *x;  // in tiles
    const bf16_pair *weight;
    const float *bias;
    bf16 *out;
    int64_t in, outs;  // in: pairs, a multiple of STEP

    void compute(int64_t task, const pool::Task &state) const {
        const int64_t panel = tasks.first_panel(task), panels = tasks.num_panels(task), per_block = tasks.per_block;
        const int64_t begin = tasks.first_row(task), blocks = (tasks.num_rows(task) + per_block - 1) / per_block;
        const int64_t piece = blocks > FEW ? PIECE : in;
        float *sums = results(std::max(tasks.pair, blocks) * per_block * WIDTH);
        _tile_loadconfig(&shapes);
        for (int64_t k = 0; k < in && !state.settled(); k += piece) {
            const int64_t size = std::min<int64_t>(piece, in - k), steps = size / STEP;
            const bf16_pair *w = weight + (panel * in + k) * WIDTH;
            const bf16 *from = x + 2 * (begin * in + k * per_block);
            constexpr int LINES = STEP * WIDTH * sizeof(bf16_pair) / LINE;
            const char *ahead = (const char *)w + PREFETCH_BYTES;
            if (panels == 2) {
                multiply<1, 2, 3>(from, 0, w, in * WIDTH, steps, per_block, sums, false, ahead, LINES);
                continue;
            }
            // With three blocks or more, the next piece comes while this one is multiplied.
            if (blocks > 2) ahead = (const char *)(w + size * WIDTH);
            const int lines = blocks > 2 ? LINES / (blocks / 2) : LINES;
            for (int64_t block = 0; block < blocks; block += 2, ahead += steps * lines * LINE) {
                const bf16 *mine = from + 2 * block * per_block * in;
                float *to = sums + block * per_block * WIDTH;
                if (block + 1 == blocks)
                    multiply_tile(mine, LINE, per_block * LINE, w, steps, to, WIDTH * sizeof(float), k > 0);
                else if (2 < blocks && blocks <= FEW)
                    multiply<2, 1, 2>(mine, 2 * per_block * in, w, 0, steps, per_block, to, k > 0, ahead, lines);
                else
                    multiply<2, 1, 3>(mine, 2 * per_block * in, w, 0, steps, per_block, to, k > 0, ahead, lines);
            }
        }
        _tile_release();
    }

    void commit(int64_t task) const { tasks.put_results(task, bias, out, outs); }
};

bool allowed() {  // by the system, which keeps room for the tiles of each thread from then on
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;
    static const bool granted = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return granted;
}

}  // namespace

extern "C" {

int has_tiles() { return allowed(); }

void linear_bf16_tiles(const bf16 *x, const bf16_tiled *weight, const float *bias, bf16 *out, int64_t rows,
                       int64_t in, int64_t outs) {
    if (rows == 0) return;
    const int64_t blocks = (rows + TILE_ROWS - 1) / TILE_ROWS, steps = (in + 2 * STEP - 1) / (2 * STEP);
    const int64_t per_block = (rows + blocks - 1) / blocks;  // evenly: 24 rows are 12 and 12, not 16 and 8
    static thread_local pool::Buffer copied;
    bf16 *tiles = (bf16 *)copied.reserve(blocks * per_block * steps * 2 * STEP * sizeof(bf16));
    pool::each(blocks, rows * in > ENOUGH / 8, [=](int64_t block) { copy_block(x, tiles, rows, in, per_block, block); });
    const Tasks tasks(rows, outs, blocks == 1 ? 2 : 1, per_block, CHUNK / (steps * STEP * 4 * per_block));
    const Linear body = {Shapes(per_block), tasks, tiles, weight, bias, out, steps * STEP, outs};
    pool::each_twice(tasks.count(), rows * in * outs > ENOUGH, body);
}
}
#else
extern "C" int has_tiles() { return 0; }
#endif
