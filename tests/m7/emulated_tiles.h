// The tile instructions of AMX, one plain loop each, for a CPU that lacks them: what tests/m7/test_tiles.py compiles
// the kernels with. Like the CPU's they know nothing but the shapes that were configured and the addresses.

#pragma once

#include <immintrin.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace emulated {

struct Configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

inline thread_local Configuration shapes;
inline thread_local uint8_t tiles[8][16][64];

inline void load(int tile, const void *from, int64_t apart) {
    memset(tiles[tile], 0, sizeof tiles[tile]);
    for (int r = 0; r < shapes.rows[tile]; r++)
        memcpy(tiles[tile][r], (const char *)from + r * apart, shapes.bytes[tile]);
}

inline void store(int tile, void *to, int64_t apart) {
    for (int r = 0; r < shapes.rows[tile]; r++)
        memcpy((char *)to + r * apart, tiles[tile][r], shapes.bytes[tile]);
}

// sums[r, c] += the products of word k of x's row r and word c of w's row k, for each k.
template <typename Sum, typename X, typename W, typename Widen>
void multiply(int sums, int x, int w, Widen widen) {
    for (int r = 0; r < shapes.rows[sums]; r++)
        for (int k = 0; k < shapes.bytes[x] / 4; k++)
            for (int c = 0; c < shapes.bytes[sums] / 4; c++)
                for (int i = 0; i < int(4 / sizeof(X)); i++) {
                    Sum sum;
                    X left;
                    W right;
                    memcpy(&sum, tiles[sums][r] + 4 * c, 4);
                    memcpy(&left, tiles[x][r] + 4 * k + i * sizeof(X), sizeof(X));
                    memcpy(&right, tiles[w][k] + 4 * c + i * sizeof(W), sizeof(W));
                    sum += widen(left) * widen(right);
                    memcpy(tiles[sums][r] + 4 * c, &sum, 4);
                }
}

inline float of_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &wide, 4);
    return number;
}

inline int64_t allow(...) { return 0; }  // the system lets us use them

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbusd
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#define _tile_loadd(TILE, FROM, APART) emulated::load(TILE, FROM, APART)
#define _tile_stored(TILE, TO, APART) emulated::store(TILE, TO, APART)
#define _tile_zero(TILE) memset(emulated::tiles[TILE], 0, sizeof emulated::tiles[TILE])
#define _tile_loadconfig(FROM) memcpy(&emulated::shapes, FROM, sizeof emulated::shapes)
#define _tile_release() (void)0
#define _tile_dpbusd(S, X, W) \
    emulated::multiply<int32_t, uint8_t, int8_t>(S, X, W, [](auto number) { return (int32_t)number; })
#define _tile_dpbssd(S, X, W) \
    emulated::multiply<int32_t, int8_t, int8_t>(S, X, W, [](auto number) { return (int32_t)number; })
#define _tile_dpbf16ps(S, X, W) \
    emulated::multiply<float, uint16_t, uint16_t>(S, X, W, [](auto number) { return emulated::of_bf16(number); })
#define syscall emulated::allow
