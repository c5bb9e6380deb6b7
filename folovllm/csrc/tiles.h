// Tiles of numbers, which some CPUs multiply (AMX), and their sums: bfloat16 and float32, or 8 bits and int32.
//
// A tile is a register of up to 16 rows of 64 bytes. One instruction multiplies two of them, and adds to a third:
//
//     x [16 rows, 32 numbers]   w [16 pairs of numbers, 16 columns]   sums [16 rows, 16 columns]       fours for 8 bits
//
// Tiles are loaded from memory, each row from an address of its own. A row should not lie across two cache lines. w is
// read from panels of WIDTH columns, where a word, a pair of numbers or four, is two lines: a tile of it is every second
// line of 32. CPUs that multiply the one kind of number multiply the other.
//
// Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter 18 (AMX).
//
// vLLM: csrc/cpu/micro_gemm/cpu_micro_gemm_amx.hpp

#pragma once

#ifdef __AMX_BF16__
#include "panels.h"

constexpr int TILE_ROWS = 16;
constexpr int TILE_WORDS = 16;                           // of a row, that one instruction multiplies
constexpr int64_t TILE_LINE = WIDTH * sizeof(uint32_t);  // bytes from one word of a panel to the next
constexpr int TILE_PIECE = 8 * TILE_WORDS;  // words: 16 KiB of a panel stay in the first cache for many rows
constexpr int FEW_BLOCKS = 8;               // for which a whole panel in the second cache is faster

// sums += x times w, of bf16; or of 8 bits, where the numbers of x have no sign.
#define MULTIPLY_TILES(SUMS, X, W)           \
    if constexpr (sizeof(N) == 2)            \
        _tile_dpbf16ps(SUMS, X, W);          \
    else                                     \
        _tile_dpbusd(SUMS, X, W)

// The rows of the eight tiles. Those from `of_w` on are w. Those before are sums and x, with as many rows as x has: here 0
// to 3, and 4 and 5.
struct Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};

    explicit Shapes(uint8_t of_x, int of_w = 6) {
        std::fill(rows, rows + of_w, of_x);
        std::fill(rows + of_w, rows + 8, TILE_ROWS);
    }
};

// One tile of rows by a panel. x: a row's 64 bytes are `x_row` bytes from the next row's, and `x_step` from its own of
// the next step. out has a row's WIDTH sums, `out_row` bytes from the next row's.
template <typename N = bf16>
inline void multiply_tile(const void *x, int64_t x_row, int64_t x_step, const void *weight, int64_t steps, float *out,
                          int64_t out_row, bool go_on) {
    if (go_on) {
        _tile_loadd(0, out, out_row);
        _tile_loadd(1, out + LANES, out_row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    const char *from = (const char *)x;
    const uint32_t *w = (const uint32_t *)weight;
    for (int64_t step = 0; step < steps; step++, from += x_step, w += TILE_WORDS * WIDTH) {
        _tile_loadd(4, from, x_row);
        _tile_loadd(6, w, TILE_LINE);
        MULTIPLY_TILES(0, 4, 6);
        _tile_loadd(7, w + LANES, TILE_LINE);
        MULTIPLY_TILES(1, 4, 7);
    }
    _tile_stored(0, out, out_row);
    _tile_stored(1, out + LANES, out_row);
}

// BLOCKS of rows of x times PANELS: 2 and 1, or 1 and 2. `out` holds WIDTH results a row, then those of the next block or
// panel. Meanwhile `lines` cache lines a step and panel are asked for, from `ahead` on: into the first cache (3) or the
// second (2).
template <typename N, int BLOCKS, int PANELS, int CACHE>
inline void multiply_tiles(const uint32_t *x, int64_t next_block, const uint32_t *w, int64_t next_panel, int64_t steps,
                           int rows, float *out, bool go_on, const char *ahead, int lines) {
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
            if constexpr (PANELS == 2) __builtin_prefetch(ahead + next_panel * sizeof(uint32_t), 0, CACHE);
        }
        _tile_loadd(4, x, LINE);
        if constexpr (BLOCKS == 2) _tile_loadd(5, x + next_block, LINE);
        _tile_loadd(6, w, TILE_LINE);
        MULTIPLY_TILES(0, 4, 6);
        if constexpr (BLOCKS == 2) { MULTIPLY_TILES(2, 5, 6); }
        _tile_loadd(7, w + LANES, TILE_LINE);
        MULTIPLY_TILES(1, 4, 7);
        if constexpr (BLOCKS == 2) { MULTIPLY_TILES(3, 5, 7); }
        if constexpr (PANELS == 2) {
            _tile_loadd(6, w + next_panel, TILE_LINE);
            MULTIPLY_TILES(2, 4, 6);
            _tile_loadd(7, w + next_panel + LANES, TILE_LINE);
            MULTIPLY_TILES(3, 4, 7);
        }
        x += rows * TILE_WORDS;
        w += TILE_WORDS * WIDTH;
    }
    _tile_stored(0, out, OUT_ROW);
    _tile_stored(1, out + LANES, OUT_ROW);
    _tile_stored(2, other, OUT_ROW);
    _tile_stored(3, other + LANES, OUT_ROW);
}

// The blocks of rows of a task by its one or two panels, whose rows are `in` words. With many rows, two blocks and one
// panel are multiplied at a time: four sums, which load each tile for two of them. With up to 16 rows it is one block,
// and two panels for two streams from memory. x: block by block, step by step, its rows' 16 words for the step.
template <typename N>
void multiply_blocks(const uint32_t *x, int64_t blocks, int64_t per_block, const uint32_t *weight, int64_t panels,
                     int64_t next_panel, int64_t in, float *sums, const pool::Task &state) {
    constexpr int LINES = TILE_WORDS * TILE_LINE / LINE;
    const int64_t piece = blocks > FEW_BLOCKS ? TILE_PIECE : in;
    const Shapes shapes(per_block);
    _tile_loadconfig(&shapes);
    for (int64_t k = 0; k < in && !state.settled(); k += piece) {
        const int64_t size = std::min<int64_t>(piece, in - k), steps = size / TILE_WORDS;
        const uint32_t *w = weight + k * WIDTH, *from = x + k * per_block;
        const char *ahead = (const char *)w + PREFETCH_BYTES;
        if (panels == 2) {
            multiply_tiles<N, 1, 2, 3>(from, 0, w, next_panel, steps, per_block, sums, false, ahead, LINES);
            continue;
        }
        // With three blocks or more, the next piece comes while this one is multiplied.
        if (blocks > 2) ahead = (const char *)(w + size * WIDTH);
        const int lines = blocks > 2 ? LINES / (blocks / 2) : LINES;
        for (int64_t block = 0; block < blocks; block += 2, ahead += steps * lines * LINE) {
            const uint32_t *mine = from + block * per_block * in;
            float *to = sums + block * per_block * WIDTH;
            if (block + 1 == blocks)
                multiply_tile<N>(mine, LINE, per_block * LINE, w, steps, to, WIDTH * sizeof(float), k > 0);
            else if (2 < blocks && blocks <= FEW_BLOCKS)
                multiply_tiles<N, 2, 1, 2>(mine, per_block * in, w, 0, steps, per_block, to, k > 0, ahead, lines);
            else
                multiply_tiles<N, 2, 1, 3>(mine, per_block * in, w, 0, steps, per_block, to, k > 0, ahead, lines);
        }
    }
    _tile_release();
}
#endif
