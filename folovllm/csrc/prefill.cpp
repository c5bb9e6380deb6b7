// Attention of a sequence's new tokens over its paged cache, K and V read in place.
//
//     cache         one for K, one for V; where a token lies in it, cache.h tells
//     block_tables  [sequences, max_blocks], which blocks hold a sequence's tokens, in order
//
// A task takes some queries of one sequence, for all heads that share a KV head: `rows` of them. It walks along the keys,
// TILE at a time, and keeps for each row the largest score so far, the sum of the exponentials and the weighted values
// (online softmax):
//
//     K  TILE tokens   turned, so that the same number of TILE keys lies side by side      scores  = q @ K.T
//     V  TILE tokens   copied, so that the numbers of one value lie side by side           values += exp(scores) @ V
//
// Both are small products: of up to MAX_ROWS rows by two vectors (rows.h). Where the CPU multiplies pairs of bfloat16
// numbers, all four stay pairs: for the second product the exponentials are rounded to bfloat16, as FlashAttention does,
// but summed before that. Where it multiplies tiles (tiles.h), 16 rows are a tile, and K and V lie as they do for pairs.
// Keys that no row of a block sees are left out. Tiles of keys lie at the same places of every sequence, and no row knows
// how many others there are. So its bits are the same however a prompt is cut.
//
// Codes of 8 bits are widened by the copy, to bfloat16 or float; both hold them exactly. Scales of keys are multiplied into
// the scores, and those of values into the exponentials before these are rounded.
//
// Slots that no token has written are never read.
//
// vLLM: csrc/cpu/cpu_attn_impl.hpp; Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et
// al., "FlashAttention" (2022).

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cache.h"
#include "kernels.h"
#include "rows.h"
#include "tiles.h"

namespace {

constexpr int TILE = 64;           // keys
constexpr int ROWS_OF_TASK = 256;  // for which a tile of K and V is copied once

template <typename T, typename C, bool TILES = false>
struct Prefill {
    const T *q;
    const C *keys, *values;
    const int64_t *spans, *seqs;  // [entries, 2] first and last + 1 of the queries; whose they are
    const int32_t *seq_lens, *tables;
    int64_t q_stride, max_blocks, block_size, num_heads, num_kv_heads, size;
    float scale;
    Extras extras;
    T *out;

    static constexpr bool IN_PAIRS = HAS_PAIRS && std::is_same_v<T, bf16> && !std::is_same_v<C, float>;
    static constexpr bool HAS_SCALE = Place<C>::HAS_SCALE;
    using Step = std::conditional_t<IN_PAIRS, bf16_pair, float>;  // what a row has for one step of a product
    static constexpr int64_t KEYS_OF_STEP = IN_PAIRS ? 2 : 1;     // in the second one
    static constexpr int64_t TILE_STEPS = TILE / KEYS_OF_STEP;

    static constexpr int BLOCK = TILES ? 16 : MAX_ROWS;  // rows
    static constexpr int TOGETHER = TILES ? 16 : 1;      // steps

    int64_t group() const { return num_heads / num_kv_heads; }
    int64_t numbers() const { return IN_PAIRS ? size / 2 : size; }
    int64_t steps() const { return (numbers() + TOGETHER - 1) / TOGETHER * TOGETHER; }
    int64_t padded() const { return (size + WIDTH - 1) / WIDTH * WIDTH; }
    int64_t queries_of_task() const { return std::max<int64_t>(1, ROWS_OF_TASK / group()); }

    // Where a task's numbers lie, in memory of its thread.
    struct Memory {
        Step *q;        // [blocks of rows, steps, rows of a block], or as tiles; floats are scaled
        Step *k;        // [TILE / WIDTH, steps, WIDTH]
        Step *v;        // [padded / WIDTH, TILE_STEPS, WIDTH]
        float *scores;  // [BLOCK, TILE]
        Step *weights;  // [BLOCK, TILE_STEPS], the exponentials; where they are floats, they are written over scores
        float *sums;    // [rows, padded]
        float *highest, *total;  // [rows]
        float *key_scales, *value_scales;  // [TILE]
    };

    Memory memory(int64_t rows) const {
        static_assert(sizeof(Step) == sizeof(float));
        Memory m;
        m.q = (Step *)results(rows * (steps() + padded() + 2) + TILE * (steps() + padded() + 2 * BLOCK + 2) + LANES);
        m.k = m.q + rows * steps();
        m.v = m.k + TILE * steps();
        m.scores = (float *)(m.v + TILE_STEPS * padded());
        m.weights = (Step *)(m.scores + (IN_PAIRS ? TILE * BLOCK : 0));
        m.sums = m.scores + 2 * TILE * BLOCK;
        m.highest = m.sums + rows * padded();
        m.total = m.highest + rows;
        m.key_scales = m.total + rows;
        m.value_scales = m.key_scales + TILE;
        return m;
    }

    // What a head has for the LANES steps from `step` on, 32 bits each, or for fewer at its end.
    template <typename N>
    words take(const N *head, int64_t step, float scale) const {
        if constexpr (!IN_PAIRS) return (words)(load(head + step) * scale);
        words found = {};
        if constexpr (std::is_same_v<N, int8_t>) {
            store((bf16 *)&found, load(head + 2 * step));
            if (step + LANES <= numbers()) store((bf16 *)&found + LANES, load(head + 2 * step + LANES));
        } else if (step + LANES <= numbers())
            memcpy(&found, head + 2 * step, sizeof found);
        else
            memcpy(&found, head + 2 * step, sizeof found / 2);  // heads are multiples of 16
        return found;
    }

    // K and V of the tokens [begin, first + count) of a tile that begins at `first`; zeros before and behind them.
    void take_tile(int64_t seq, int64_t kv_head, int64_t first, int64_t begin, int64_t count, const Memory &m) const {
        int64_t at[TILE];
        const int64_t skipped = std::max<int64_t>(begin - first, 0), taken = first + skipped;
        const int32_t *block = tables + seq * max_blocks + taken / block_size;
        for (int64_t j = skipped, offset = taken % block_size; j < count; j++) {
            const Place<C> place(*block, offset, kv_head, block_size, num_kv_heads, size);
            at[j] = place.first;
            if constexpr (HAS_SCALE) {
                m.key_scales[j] = scale_at(keys, place.scale);
                m.value_scales[j] = scale_at(values, place.scale);
            }
            if (++offset == block_size) block++, offset = 0;
            // A row is short and the next lies far away: so all are asked for, into the second cache.
            for (int64_t byte = 0; byte < size * (int64_t)sizeof(C); byte += LINE) {
                __builtin_prefetch((const char *)(keys + at[j]) + byte, 0, 2);
                __builtin_prefetch((const char *)(values + at[j]) + byte, 0, 2);
            }
        }
        if constexpr (HAS_SCALE) {
            std::fill(m.value_scales, m.value_scales + skipped, 0.0f);
            std::fill(m.value_scales + count, m.value_scales + TILE, 0.0f);
        }
        const auto has = [=](int64_t j) { return uint64_t(j - skipped) < uint64_t(count - skipped); };
        const int64_t used = (count + WIDTH - 1) / WIDTH * WIDTH;  // what the products read
        // By squares: tokens lie a power of two apart, so a column of all of them would not fit into the first cache.
        for (int64_t j = 0; j < used; j += LANES)
            for (int64_t d = 0; d < steps(); d += LANES) {
                Step *to = m.k + j / WIDTH * WIDTH * steps() + d * WIDTH + j % WIDTH;
                put_steps(to, WIDTH, LANES, steps() - d,
                          [&](int64_t i) { return has(j + i) ? take(keys + at[j + i], d, 1) : words{}; });
            }
        for (int64_t d = 0; d < padded(); d += LANES) {
            Step *to = m.v + d / WIDTH * WIDTH * TILE_STEPS + d % WIDTH;
            const auto value = [&](int64_t j) { return has(j) && d < size ? load(values + at[j] + d) : vec{}; };
            for (int64_t step = 0; step < used / KEYS_OF_STEP; step++, to += WIDTH) {
                if constexpr (IN_PAIRS) {  // in float32 the lower half of a bfloat16 number is zero
                    const words both = (words)value(2 * step) >> 16 | (words)value(2 * step + 1);
                    memcpy(to, &both, sizeof both);
                } else {
                    store(to, value(step));
                }
            }
        }
    }

    // The scores of some rows for all keys of a panel; and what the values get from the weights of some keys.
    void multiply_keys(int rows, int64_t row, int64_t panel, const Memory &m) const {
        const Step *x = m.q + row * steps(), *w = m.k + panel * steps();
#ifdef __AMX_BF16__
        if constexpr (TILES)
            return multiply_tile(x, LINE, BLOCK * LINE, w, steps() / TOGETHER, m.scores + panel, TILE * 4, false);
#endif
        multiply_rows<1>(rows, x, w, steps(), nullptr, m.scores + panel, TILE);
    }

    void multiply_values(int rows, int64_t row, int64_t keys, const float *keep, const Memory &m) const {
        const int64_t steps_of_keys = (keys + KEYS_OF_STEP - 1) / KEYS_OF_STEP;
        for (int64_t d = 0; d < padded(); d += WIDTH) {
            const Step *w = m.v + d * TILE_STEPS;
            float *to = m.sums + row * padded() + d;
#ifdef __AMX_BF16__
            if constexpr (TILES) {
                const int64_t tiles = (steps_of_keys + TOGETHER - 1) / TOGETHER;
                for (int r = 0; r < rows; r++) {
                    store(to + r * padded(), load(to + r * padded()) * keep[r]);
                    store(to + r * padded() + LANES, load(to + r * padded() + LANES) * keep[r]);
                }
                multiply_tile(m.weights, TILE_STEPS * 4, LINE, w, tiles, to, padded() * 4, true);
                continue;
            }
#endif
            multiply_rows<TILE_STEPS>(rows, m.weights, w, steps_of_keys, keep, to, padded());
        }
    }

    // One tile for the rows [row, row + rows), of which the first is the query at `position`.
    void attend(int rows, int64_t row, int64_t position, int64_t first, const Memory &m) const {
        const int64_t most = position + (row % group() + rows - 1) / group() - first + 1;  // keys the last row sees
        const int64_t keys = std::min<int64_t>(TILE, most), vectors = TILES ? WIDTH : LANES;
        const int64_t whole = (keys + vectors - 1) / vectors * vectors;
        for (int64_t panel = 0; panel < keys; panel += WIDTH) multiply_keys(rows, row, panel, m);
        constexpr int ROOM = std::max(BLOCK, LANES);
        float before[ROOM] = {}, highest[ROOM] = {}, keep[ROOM];
        for (int r = 0; r < rows; r++) {
            float *scores = m.scores + r * TILE;
            const int64_t seen = position + (row % group() + r) / group() - first + 1;  // keys of this tile
            if constexpr (IN_PAIRS)
                for (int64_t j = 0; j < whole; j += LANES) store(scores + j, load(scores + j) * scale);
            if constexpr (HAS_SCALE)
                for (int64_t j = 0; j < whole; j += LANES) store(scores + j, load(scores + j) * load(m.key_scales + j));
            extras.cap(scores, whole);
            for (int64_t j = 0; j < std::min(seen - extras.window, whole); j++) scores[j] = -__builtin_inff();
            for (int64_t j = std::max<int64_t>(seen, 0); j < whole; j++) scores[j] = -__builtin_inff();
            vec each = splat(before[r] = m.highest[row + r]);
            for (int64_t j = 0; j < whole; j += LANES) each = load(scores + j) > each ? load(scores + j) : each;
            highest[r] = m.highest[row + r] = max(each);
        }
        for (int r = 0; r < ROOM; r += LANES)  // what each row has so far fades by this
            store(keep + r, exp_(load(before + r) - load(highest + r)));
        for (int r = 0; r < rows; r++) {
            vec total = {};
            for (int64_t j = 0; j < whole; j += LANES) {
                const vec e = exp_(load(m.scores + r * TILE + j) - highest[r]);
                const vec weight = HAS_SCALE ? e * load(m.value_scales + j) : e;
                if constexpr (IN_PAIRS)
                    store((bf16 *)(m.weights + r * TILE_STEPS) + j, weight);
                else
                    store(m.weights + r * TILE_STEPS + j, weight);
                total += e;
            }
            m.total[row + r] = m.total[row + r] * keep[r] + sum(total);
        }
        multiply_values(rows, row, keys, keep, m);
    }

    // The queries [begin, end) of an entry, for one KV head.
    void compute(int64_t entry, int64_t kv_head, int64_t begin, int64_t end) const {
        const int64_t seq = seqs[entry], rows = (end - begin) * group(), stop = spans[2 * entry + 1];
        const int64_t position = seq_lens[seq] - (stop - begin), last = seq_lens[seq] - (stop - end);  // of the queries
        const int64_t blocks = (rows + BLOCK - 1) / BLOCK, per_block = TILES ? BLOCK : (rows + blocks - 1) / blocks;
        const int64_t room = blocks * per_block;
        const Memory m = memory(room);
        for (int64_t block = 0; block < rows; block += per_block) {
            const int64_t here = std::min(per_block, rows - block);
            const T *from[BLOCK];
            for (int64_t r = 0, row = block; r < here; r++, row++)
                from[r] = q + (begin + row / group()) * q_stride + (kv_head * group() + row % group()) * size;
            Step *to = m.q + block * steps();  // what a square has beyond its rows is written over by the next step
            for (int64_t d = 0; d < steps(); d += LANES) {
                const auto row = [&](int64_t r) { return take(from[r], d, scale); };
                if constexpr (TILES) {
                    words square[LANES] = {};
                    for (int64_t r = 0; r < here; r++) square[r] = row(r);
                    memcpy(to + d * BLOCK, square, sizeof square);
                } else {
                    put_steps(to + d * here, here, here, steps() - d, row);
                }
            }
        }
        std::fill(m.sums, m.sums + room * padded(), 0.0f);
        for (int64_t row = 0; row < rows; row++) {  // a row may see its first key in a later tile
            m.highest[row] = extras.sinks ? extras.sinks[kv_head * group() + row % group()] : -__FLT_MAX__;
            m.total[row] = extras.sinks ? 1 : 0;
        }
#ifdef __AMX_BF16__
        const Shapes shapes(BLOCK);
        if constexpr (TILES) _tile_loadconfig(&shapes);
#endif
        const int64_t start = extras.first_key(position);
        for (int64_t first = start / TILE * TILE; first < last; first += TILE) {
            take_tile(seq, kv_head, first, start, std::min<int64_t>(TILE, last - first), m);
            for (int64_t row = 0; row < rows; row += per_block) {
                const int64_t here = std::min(per_block, rows - row);
                const bool before = position + (row + here - 1) / group() < first;
                if (before || extras.first_key(position + row / group()) >= first + TILE) continue;  // none sees a key
                attend(here, row, position + row / group(), first, m);
            }
        }
#ifdef __AMX_BF16__
        if constexpr (TILES) _tile_release();
#endif
        for (int64_t row = 0; row < rows; row++) {
            T *to = out + ((begin + row / group()) * num_heads + kv_head * group() + row % group()) * size;
            for (int64_t d = 0; d < size; d += LANES)
                store(to + d, load(m.sums + row * padded() + d) / m.total[row]);
        }
    }

    void run(int64_t entries) const {
        struct Task {
            int64_t entry, begin, end;
        };
        std::vector<Task> tasks;
        int64_t scores = 0;
        for (int64_t i = 0; i < entries; i++) {
            for (int64_t begin = spans[2 * i]; begin < spans[2 * i + 1]; begin += queries_of_task())
                tasks.push_back({i, begin, std::min(begin + queries_of_task(), spans[2 * i + 1])});
            scores += (spans[2 * i + 1] - spans[2 * i]) * seq_lens[seqs[i]];
        }
        pool::each(tasks.size() * num_kv_heads, scores * num_heads * size > (1 << 16), [&](int64_t number) {
            const Task &task = tasks[number / num_kv_heads];
            compute(task.entry, number % num_kv_heads, task.begin, task.end);
        });
    }
};

}  // namespace

extern "C" {

#define PREFILL(NAME, T, C, ...)                                                                                      \
    void prefill_##NAME(const T *q, int64_t q_stride, const C *keys, const C *values, const int64_t *spans,           \
                        const int64_t *seqs, const int32_t *seq_lens, const int32_t *tables, int64_t max_blocks,      \
                        int64_t entries, int64_t block_size, int64_t num_heads, int64_t num_kv_heads, int64_t size,   \
                        float scale, const Extras *extras, T *out) {                                                  \
        const auto attend = [&](auto tiles) {                                                                         \
            Prefill<T, C, tiles>{q, keys, values, spans, seqs, seq_lens, tables, q_stride, max_blocks, block_size,    \
                                 num_heads, num_kv_heads, size, scale, extras ? *extras : Extras(), out}              \
                .run(entries);                                                                                        \
        };                                                                                                            \
        __VA_ARGS__                                                                                                   \
        attend(std::false_type());                                                                                    \
    }

PREFILL(float32_float32, float, float)
PREFILL(float32_bfloat16, float, bf16)
PREFILL(float32_int8, float, int8_t)
#ifdef __AMX_BF16__
PREFILL(bfloat16_bfloat16, bf16, bf16, if (has_tiles()) return attend(std::true_type());)
PREFILL(bfloat16_int8, bf16, int8_t, if (has_tiles()) return attend(std::true_type());)
#else
PREFILL(bfloat16_bfloat16, bf16, bf16)
PREFILL(bfloat16_int8, bf16, int8_t)
#endif
}
