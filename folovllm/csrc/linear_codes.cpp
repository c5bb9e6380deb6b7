// out = x @ weight.T + bias, for a weight of codes (codes.h) and x as it is or rounded to whole numbers q.
//
//     float32        x, and codes that become floats
//     W4A16, W8A16   x[r, k] ~ scale[r, g] * q[r, k]    16 bits, a scale for each group: for bfloat16 activations
//     W4A8           x[r, k] ~ scale[r] * q[r, k]        8 bits, a scale for each row
//
//     out[r, o] = sum over g of  weight_scale[o, g] * (x_scale[r, g] * (sum over the group of q * (code - middle)))
//
// Sums of whole numbers are exact, in int32. A word of codes needs a shift and a mask for two products of 16 bits or four
// of 8, and with VNNI these and their sum are one instruction. For bfloat16's products each code would have to be looked
// up. In 16 bits a number is off by 2^-16 of the largest one in its group, at most; bfloat16 has rounded that by up to
// 2^-9 of it. The sum of the codes starts at -middle times the sum of q, which they have too much.
//
// With many rows a group is taken apart once, for all of them. With fewer this would take longer than doing it for each
// block of rows, between its products. Tiles (tiles.h) multiply bytes: then a number of 16 bits is two, 256 * upper +
// lower, and has two sums. A row has the same bits alone and in any batch, in tiles or not.
//
// vLLM: csrc/cpu/cpu_wna16.cpp, csrc/cpu/dnnl_kernels.cpp

#include "kernels.h"
#include "rounding.h"
#include "tiles.h"

namespace {

template <typename Q>
constexpr int MOST_ROWS = LANES == 8 && !Kind<Q>::FLOAT ? 4 : MAX_ROWS;  // AVX2's products take registers of their own
template <typename Q>
constexpr int TWO_PANELS = LANES == 8 ? 2 : MAX_ROWS / 2 - Kind<Q>::FLOAT;  // rows, with registers for two panels
template <typename Q>
constexpr int MANY = Kind<Q>::FLOAT ? 1 : 6;  // blocks (measured on Zen 4: 64 rows, 0.94 to 0.99 of bfloat16's speed)
constexpr int64_t CHUNK = 4 << 20;  // bytes of x, about, that stay in a cache meanwhile
constexpr int FOR_TILES = 13;  // rows, from which tiles are faster

// Step n of a word of each output: as many codes as a word of x has numbers. 0 bits: it is taken apart already.
template <int BITS, typename Q>
inline words codes_of(words w, int n) {
    if constexpr (BITS == 0) return w;
    if constexpr (Kind<Q>::FLOAT) {
        const int at = 16 * (n & 1) + BITS * (n >> 1);
#ifdef __AVX512F__  // the lowest 4 bits choose a number (measured, Xeon, one row: 0.8 of the time of what follows)
        const vec numbers = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
        if constexpr (BITS == 4) return (words)_mm512_permutexvar_ps((__m512i)(w >> at), (__m512)numbers);
#endif
        // Turning a code's highest bit takes the middle off, if it then is the sign.
        const words turned = w ^ (BITS == 8 ? 0x80808080 : 0x88888888);
        return (words)__builtin_convertvector((ints)(turned << (32 - BITS - at)) >> (32 - BITS), vec);
    }
    constexpr uint32_t MASK = (1 << BITS) - 1;
    return (w >> (BITS * n)) & (sizeof(Q) == 2 ? MASK * 0x00010001 : MASK * 0x01010101);
}

// A row's sums of a group, to what it has of the groups before.
template <typename S>
inline void add_group(S low, S high, const Part &part, const float *scale, bool has_minimum, float *sum,
                      bool go_on) {
    vec c = go_on ? load(sum) : vec{}, d = go_on ? load(sum + LANES) : vec{};
    c = fused(load(scale), __builtin_convertvector(low, vec) * part.scale, c);
    d = fused(load(scale + LANES), __builtin_convertvector(high, vec) * part.scale, d);
    if (has_minimum) c = fused(load(scale + WIDTH), splat(part.sum), c);
    if (has_minimum) d = fused(load(scale + WIDTH + LANES), splat(part.sum), d);
    store(sum, c);
    store(sum + LANES, d);
}

// A group of columns of PANELS panels, `next` bytes apart, by blocks of ROWS rows of x, whose words lie side by side. `sums`
// has a block's ROWS * WIDTH results of the one, then of the other. What lies `ahead` bytes behind is asked for meanwhile.
template <int BITS, int ROWS, int PANELS, typename Q>
void multiply_group(int64_t blocks, const Q *x, const Part *parts, const uint32_t *w, const float *scales,
                    bool minimum, int64_t next, int64_t ahead, int64_t size, float *sums, bool go_on) {
    typedef Sums<Q> S;
    constexpr int STEPS = BITS == 0 ? 1 : 32 / BITS / Kind<Q>::COLUMNS;  // of a word
    const int32_t *of_x = (const int32_t *)x;
    for (; blocks > 0; blocks--, parts += ROWS, sums += PANELS * ROWS * WIDTH) {
        S low[PANELS][ROWS], high[PANELS][ROWS];
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++)
                low[p][r] = high[p][r] = __builtin_convertvector(parts[r].start - ints{}, S);
        for (int64_t k = 0; k < size; k++, of_x += STEPS * ROWS) {
#pragma GCC unroll 2
            for (int p = 0; p < PANELS; p++) {
                const uint32_t *mine = (const uint32_t *)((const char *)(w + k * WIDTH) + p * next);
                if constexpr (BITS > 0) prefetch_step((const char *)mine + ahead);
                const words a = *(const words *)mine, b = *(const words *)(mine + LANES);
#pragma GCC unroll 8
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
            const float *scale = (const float *)((const char *)scales + p * next);
            if constexpr (BITS > 0) prefetch_step((const char *)scale + ahead);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++)
                add_group(low[p][r], high[p][r], parts[r], scale, minimum, sums + (p * ROWS + r) * WIDTH, go_on);
        }
    }
}

template <int BITS, int PANELS, typename Q>
void multiply_group(int rows, int64_t blocks, const Q *x, const Part *parts, const uint32_t *w, const float *scales,
                    bool minimum, int64_t next, int64_t ahead, int64_t size, float *sums, bool go_on) {
    switch (rows) {
#define CASE(N)                                                                                                     \
    case N:                                                                                                         \
        if constexpr (N <= (PANELS == 1 ? MOST_ROWS<Q> : TWO_PANELS<Q>))                                            \
            multiply_group<BITS, N, PANELS>(blocks, x, parts, w, scales, minimum, next, ahead, size, sums, go_on);  \
        return;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
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
    bool tiled;

    void compute(int64_t task, const pool::Task &state) const {
        const int64_t begin = tasks.first_row(task), count = tasks.num_rows(task), per_block = tasks.per_block;
        const int64_t groups = in / group.size, size = group.size * BITS / 32, next = groups * group.bytes(BITS);
        const int64_t all = (tasks.rows + per_block - 1) / per_block * per_block;
        const bool many = count > MANY<Q> * per_block, minimum = group.has_minimum;
        const char *at = panels + tasks.first_panel(task) * next;
        float *sums = results(tasks.pair * count * WIDTH);
        alignas(LINE) uint32_t apart[LARGEST_GROUP / Kind<Q>::COLUMNS * WIDTH];
        if constexpr (!Kind<Q>::FLOAT)
            if (tiled) return compute_in_tiles(begin, count, all, at, sums, state);
        for (int64_t g = 0; g < groups && !state.settled(); g++, at += group.bytes(BITS)) {
            const float *scales = (const float *)at;
            const uint32_t *w = (const uint32_t *)(scales + group.scales());
            const int64_t ahead = group.ahead(g, groups, tasks.num_panels(task), BITS);
            for (int64_t k = 0; many && k < size; k++) prefetch_step((const char *)(w + k * WIDTH) + ahead);
            if (many) take_apart<Q>(w, size, apart);
            for (int64_t row = 0, rows, blocks; row < count; row += blocks * rows) {  // the last block may have fewer
                rows = std::min(per_block, count - row), blocks = (count - row) / rows;
                const int64_t first = g * all + begin + row, words_of_x = group.size / Kind<Q>::COLUMNS;
                const Q *mine = x + first * group.size;
                const Part *part = parts + first;
                float *to = sums + row * WIDTH;
                if (many)
                    multiply_group<0, 1>(rows, blocks, mine, part, apart, scales, minimum, 0, 0, words_of_x, to, g > 0);
                else if (tasks.num_panels(task) == 2)
                    multiply_group<BITS, 2>(rows, blocks, mine, part, w, scales, minimum, next, ahead, size, to, g > 0);
                else
                    multiply_group<BITS, 1>(rows, blocks, mine, part, w, scales, minimum, 0, ahead, size, to, g > 0);
            }
        }
    }

    // A panel by all rows of a task. A group's codes stay in tiles 4 to 7 meanwhile; sums are 0 and 1, x 2 and 3. Between
    // the products of a block, the block before it is scaled.
    void compute_in_tiles(int64_t begin, int64_t count, int64_t all, const char *at, float *sums,
                          const pool::Task &state) const {
#ifdef __AMX_BF16__
        constexpr int BYTES = sizeof(Q), ROWS = TILE_ROWS / 2 / BYTES;  // ROWS: that are scaled at a time
        const int64_t per_block = tasks.per_block, groups = in / group.size, size = group.size, step = per_block * LINE;
        alignas(LINE) uint32_t apart[LARGEST_GROUP / 4 * WIDTH];
        alignas(LINE) float found[2][BYTES][TILE_ROWS * WIDTH];
        struct {
            const float (*found)[TILE_ROWS * WIDTH], *scales;
            const Part *parts;
            float *sums;
            int64_t rows;
            bool go_on;
        } last = {};
        auto scale = [&](int first) {
#pragma GCC unroll 8
            for (int r = first; r < first + ROWS; r++) {
                if (r >= last.rows) return;
                const ints *lower = (const ints *)(last.found[0] + r * WIDTH);
                ints low = lower[0], high = lower[1];
                if constexpr (BYTES == 2) {
                    const ints *upper = (const ints *)(last.found[1] + r * WIDTH);
                    low += upper[0] << 8, high += upper[1] << 8;
                }
                add_group(low, high, last.parts[r], last.scales, group.has_minimum, last.sums + r * WIDTH, last.go_on);
            }
        };
        const Shapes shapes(per_block, 4);
        _tile_loadconfig(&shapes);
        int turn = 0;
        for (int64_t g = 0; g < groups && !state.settled(); g++, at += group.bytes(BITS)) {
            const float *scales = (const float *)at;
            const uint32_t *w = (const uint32_t *)(scales + group.scales());
            take_apart<int8_t, true>(w, size * BITS / 32, apart);
            const char *ahead = at + 2 * group.bytes(BITS);  // asked for a few lines with each block
            const int64_t lines = (group.bytes(BITS) / LINE * per_block + count - 1) / count;
            _tile_loadd(4, apart, TILE_LINE);
            _tile_loadd(5, apart + LANES, TILE_LINE);
            _tile_loadd(6, apart + TILE_WORDS * WIDTH, TILE_LINE);
            _tile_loadd(7, apart + TILE_WORDS * WIDTH + LANES, TILE_LINE);
            for (int64_t row = 0; row < count; row += per_block, turn ^= 1) {
                const int64_t first = g * all + begin + row;
                const char *mine = (const char *)(x + first * size);
                for (int64_t line = 0; line < lines; line++, ahead += LINE) __builtin_prefetch(ahead, 0, 2);
#pragma GCC unroll 2
                for (int byte = 0; byte < BYTES; byte++) {
                    _tile_zero(0);
                    _tile_zero(1);
                    _tile_loadd(2, mine, LINE);
                    _tile_dpbssd(0, 2, 4);
                    _tile_dpbssd(1, 2, 5);
                    mine += step;
                    scale(2 * byte * ROWS);
                    if (size > LINE) {
                        _tile_loadd(3, mine, LINE);
                        _tile_dpbssd(0, 3, 6);
                        _tile_dpbssd(1, 3, 7);
                        mine += step;
                    }
                    scale((2 * byte + 1) * ROWS);
                    _tile_stored(0, found[turn][byte], TILE_LINE);
                    _tile_stored(1, found[turn][byte] + LANES, TILE_LINE);
                }
                const int64_t rows = std::min(per_block, count - row);
                last = {found[turn], scales, parts + first, sums + row * WIDTH, rows, g > 0};
            }
        }
        for (int first = 0; first < TILE_ROWS; first += ROWS) scale(first);
        _tile_release();
#endif
    }

    // For tiles a code has its sign: the middle is taken off.
    template <typename As, bool TILED = false>
    static void take_apart(const uint32_t *w, int64_t size, uint32_t *apart) {
        typedef uint8_t bytes __attribute__((vector_size(LANES * 4)));
        constexpr uint8_t MIDDLE = TILED ? 1 << (BITS - 1) : 0;
        for (int64_t k = 0; k < size; k++, w += WIDTH)
#pragma GCC unroll 8
            for (int n = 0; n < 32 / BITS / Kind<As>::COLUMNS; n++, apart += WIDTH)
                for (int half = 0; half < WIDTH; half += LANES) {
                    const bytes codes = (bytes)codes_of<BITS, As>(*(const words *)(w + half), n);
                    *(words *)(apart + half) = (words)(codes - MIDDLE);
                }
    }

    void commit(int64_t task) const { tasks.put_results(task, bias, out, outs); }
};

// `in` is a multiple of the group, and the group of 8.
template <int BITS, typename Q, typename T>
void linear(const T *x, const void *weight, const float *bias, T *out, int64_t rows, int64_t in, int64_t outs) {
    if (rows == 0) return;
    const Groups group = Groups::of(weight);
    const bool tiled = !Kind<Q>::FLOAT && rows >= FOR_TILES && group.size % LINE == 0 && has_tiles();
    const int64_t most = tiled ? 16 : MOST_ROWS<Q>, blocks = (rows + most - 1) / most;
    const int64_t per_block = (rows + blocks - 1) / blocks;
    static thread_local pool::Buffer numbers, of_groups;
    Q *rounded = (Q *)numbers.reserve(blocks * per_block * in * sizeof(Q));
    Part *parts = (Part *)of_groups.reserve(blocks * per_block * (in / group.size) * sizeof(Part));
    pool::each(blocks, rows * in > ENOUGH / 8, [=](int64_t block) {
        round_block<BITS>(x, rounded, parts, rows, in, group.size, per_block, tiled, block);
    });
    const int64_t blocks_of_chunk = CHUNK / (tiled ? 8 : 1) / (in * sizeof(Q) * per_block);
    const Tasks tasks(rows, outs, rows <= TWO_PANELS<Q> ? 2 : 1, per_block, blocks_of_chunk);
    const Linear<BITS, Q, T> body = {tasks, group, rounded, parts, Groups::panels(weight), bias, out, in, outs, tiled};
    pool::each_twice(tasks.count(), rows * in * outs > ENOUGH, body);
}

}  // namespace

extern "C" {

LINEAR(float32_codes4, float, codes4, linear<4, float>)
LINEAR(float32_codes8, float, codes8, linear<8, float>)
LINEAR(float32_codes4_int8, float, codes4_int8, linear<4, int8_t>)
IF_PAIRS(LINEAR(bfloat16_codes4_int8, bf16, codes4_int8, linear<4, int8_t>))
IF_PAIRS(LINEAR(bfloat16_codes4, bf16, codes4, linear<4, int16_t>))
IF_PAIRS(LINEAR(bfloat16_codes8, bf16, codes8, linear<8, int16_t>))
}
