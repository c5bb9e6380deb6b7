// out = x @ weight.T + bias in bfloat16, for CPUs that multiply tiles (AMX).
//
// The weight lies in the panels of linear.cpp. x is copied into tiles (tiles.h), block by block of rows.
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

constexpr int STEP = TILE_WORDS;
constexpr int64_t CHUNK = 1 << 20;  // bytes of x, about, that stay in a cache while all panels pass by

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
    Tasks tasks;
    const bf16 *x;  // in tiles
    const bf16_pair *weight;
    const float *bias;
    bf16 *out;
    int64_t in, outs;  // in: pairs, a multiple of STEP

    void compute(int64_t task, const pool::Task &state) const {
        const int64_t per_block = tasks.per_block, blocks = (tasks.num_rows(task) + per_block - 1) / per_block;
        const uint32_t *mine = (const uint32_t *)x + tasks.first_row(task) * in;
        const uint32_t *w = (const uint32_t *)weight + tasks.first_panel(task) * in * WIDTH;
        float *sums = results(std::max(tasks.pair, blocks) * per_block * WIDTH);
        multiply_blocks<bf16>(mine, blocks, per_block, w, tasks.num_panels(task), in * WIDTH, in, sums, state);
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
    const Linear body = {tasks, tiles, weight, bias, out, steps * STEP, outs};
    pool::each_twice(tasks.count(), rows * in * outs > ENOUGH, body);
}
}
#else
extern "C" int has_tiles() { return 0; }
#endif
