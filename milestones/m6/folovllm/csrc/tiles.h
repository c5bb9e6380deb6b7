// Tiles of bfloat16 numbers, which some CPUs multiply (AMX), and their float32 sums.
//
// A tile is a register of up to 16 rows of 64 bytes. One instruction multiplies two of them, and adds to a third:
//
//     x [16 rows, 32 numbers]   w [16 pairs of numbers, 16 columns]   sums [16 rows, 16 columns]
//
// Tiles are loaded from memory, each row from an address of its own. A row should not lie across two cache lines. w is
// read from panels of WIDTH columns, where a pair of numbers is two lines: a tile of it is every second line of 32.
//
// Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter 18 (AMX).
//
// vLLM: csrc/cpu/micro_gemm/cpu_micro_gemm_amx.hpp

#pragma once

#ifdef __AMX_BF16__
#include "panels.h"

constexpr int TILE_ROWS = 16;
constexpr int TILE_PAIRS = 16;  // of numbers, that one instruction multiplies
constexpr int64_t TILE_LINE = WIDTH * sizeof(bf16_pair);  // bytes from one pair of a panel to the next

// What the eight tiles are: sums 0 to 3, x 4 and 5, w 6 and 7. x and the sums have as many rows.
struct Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};

    explicit Shapes(uint8_t of_x) {
        std::fill(rows, rows + 6, of_x);
        rows[6] = rows[7] = TILE_ROWS;
    }
};

// One tile of rows by a panel. x: a row's 32 numbers are `x_row` bytes from the next row's, and `x_step` from its own of
// the next step. out has a row's WIDTH sums, `out_row` bytes from the next row's.
static inline void multiply_tile(const void *x, int64_t x_row, int64_t x_step, const bf16_pair *w, int64_t steps,
                                 float *out, int64_t out_row, bool go_on) {
    if (go_on) {
        _tile_loadd(0, out, out_row);
        _tile_loadd(1, out + LANES, out_row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    const char *from = (const char *)x;
    for (int64_t step = 0; step < steps; step++, from += x_step, w += TILE_PAIRS * WIDTH) {
        _tile_loadd(4, from, x_row);
        _tile_loadd(6, w, TILE_LINE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + LANES, TILE_LINE);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, out, out_row);
    _tile_stored(1, out + LANES, out_row);
}
#endif
