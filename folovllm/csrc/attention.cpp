// The paged KV cache: storing new keys and values, and decode attention that reads them in place.
//
//     cache         one for K, one for V; where a token lies in it, cache.h tells
//     block_tables  [sequences, max_blocks], which blocks hold a sequence's tokens, in order
//
// The keys of a sequence are cut into parts of PART tokens, always at the same places. A thread takes one part of one KV
// head, for all query heads that share it, and leaves the maximum of the scores, the sum of their exponentials and the
// weighted values. The parts are then joined in order (flash decoding). Where the cuts are depends on the sequence
// alone, and so do the bits of its result.
//
// Slots that no token has written are never read.
//
// vLLM: csrc/cpu/cpu_attn_impl.hpp; Dao et al., "Flash-Decoding for long-context inference" (2023).

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache.h"
#include "kernels.h"
#include "panels.h"

namespace {

constexpr int64_t PART = 256;
constexpr int TOGETHER = 4;  // query heads that read a key at the same time
constexpr int PREFETCH_KEYS = 16;    // keys

template <typename T, typename C>
void store_kv(const T *k, const T *v, int64_t k_stride, int64_t v_stride, C *keys, C *values, const int64_t *slots,
              int64_t tokens, int64_t block_size, int64_t num_kv_heads, int64_t size) {
    const int64_t row = num_kv_heads * size;
    // K and V in turn. Pages that were never touched are cleared at the first store: so two threads wait for two pages,
    // and not both for the same one.
    constexpr int64_t RUN = 16;  // tokens
    pool::each((tokens + RUN - 1) / RUN * 2, tokens * row > (1 << 15), [=](int64_t task) {
        const T *from = task % 2 ? v : k;
        C *to = task % 2 ? values : keys;
        const int64_t stride = task % 2 ? v_stride : k_stride, first = task / 2 * RUN;
        for (int64_t token = first; token < std::min(first + RUN, tokens); token++)
            if constexpr (Place<C>::HAS_SCALE)
                for (int64_t head = 0, slot = slots[token]; head < num_kv_heads; head++) {
                    const Place<C> at(slot / block_size, slot % block_size, head, block_size, num_kv_heads, size);
                    store_codes(from + token * stride + head * size, size, to + at.first, to + at.scale);
                }
            else
                for (int64_t i = 0; i < row; i += LANES)
                    store(to + slots[token] * row + i, load(from + token * stride + i));
    });
}

// One part for the query heads q [heads, size]: scores, then sum and maximum, then weighted values. Scales of keys are
// multiplied into the scores, and those of values into the weights.
template <int HEADS, typename T, typename C>
void attend(const T *q, const C *keys, const C *values, const int32_t *table, int64_t first, int64_t count,
            int64_t block_size, int64_t kv_head, int64_t num_kv_heads, int64_t size, float scale, const Extras &extras,
            float *maximum, float *total, float *weighted) {
    constexpr bool HAS_SCALE = Place<C>::HAS_SCALE;
    alignas(64) float weights[HEADS][PART], key_scales[PART], value_scales[PART];
    int64_t rows[PART];
    const int32_t *block = table + first / block_size;
    for (int64_t i = 0, offset = first % block_size; i < count; i++) {
        const Place<C> at(*block, offset, kv_head, block_size, num_kv_heads, size);
        rows[i] = at.first;
        if constexpr (HAS_SCALE) key_scales[i] = scale_at(keys, at.scale), value_scales[i] = scale_at(values, at.scale);
        if (++offset == block_size) block++, offset = 0;
    }
    for (int64_t i = count; HAS_SCALE && i < (count + LANES - 1) / LANES * LANES; i++)
        key_scales[i] = value_scales[i] = 0;
    float wide[HEADS * size];
    for (int64_t d = 0; d < HEADS * size; d += LANES) store(wide + d, load(q + d) * scale);
    // A row of K or V is short, and the next one lies far away: nothing but this asks for it in time. All values come
    // while the keys are multiplied; into the second cache, for they are more than the first one holds.
    const auto ask = [&](const C *row) {
        for (int64_t byte = 0; byte < size * (int64_t)sizeof(C); byte += LINE)
            __builtin_prefetch((const char *)row + byte, 0, 2);
    };
    for (int64_t i = 0; i < count && i < PREFETCH_KEYS; i++) ask(keys + rows[i]);
    for (int64_t first = 0; first < count; first += LANES) {
        vec products[HEADS][LANES] = {};
        for (int64_t j = 0; j < LANES && first + j < count; j++) {
            const int64_t i = first + j;
            if (i + PREFETCH_KEYS < count) ask(keys + rows[i + PREFETCH_KEYS]);
            ask(values + rows[i]);
            vec of_key[HEADS] = {};
            for (int64_t d = 0; d < size; d += LANES) {
                vec key = load(keys + rows[i] + d);
#pragma GCC unroll 4
                for (int h = 0; h < HEADS; h++) of_key[h] += load(wide + h * size + d) * key;
            }
            for (int h = 0; h < HEADS; h++) products[h][j] = of_key[h];
        }
        for (int h = 0; h < HEADS; h++) {
            const vec scores = sums(products[h]);
            store(weights[h] + first, HAS_SCALE ? scores * load(key_scales + first) : scores);
        }
    }
    for (int h = 0; h < HEADS; h++) {
        extras.cap(weights[h], count);
        float highest = -__builtin_inff();
        for (int64_t i = 0; i < count; i++) highest = weights[h][i] > highest ? weights[h][i] : highest;
        for (int64_t i = count; i < (count + LANES - 1) / LANES * LANES; i++) weights[h][i] = -__builtin_inff();
        vec sums = {};
        for (int64_t i = 0; i < count; i += LANES) {
            vec e = exp_(load(weights[h] + i) - highest);
            store(weights[h] + i, HAS_SCALE ? e * load(value_scales + i) : e);
            sums += e;
        }
        maximum[h] = highest;
        total[h] = sum(sums);
    }
    constexpr int WIDE = 4;  // vectors of a value that are kept in registers
    for (int64_t d = 0; d < size; d += WIDE * LANES) {
        vec sums[HEADS][WIDE] = {};
        const int64_t left = (size - d) / LANES, wide = left < WIDE ? left : WIDE;
        if (wide == WIDE) {
            for (int64_t i = 0; i < count; i++) {
                const C *value = values + rows[i] + d;
#pragma GCC unroll 4
                for (int j = 0; j < WIDE; j++) {
                    vec part = load(value + j * LANES);
#pragma GCC unroll 4
                    for (int h = 0; h < HEADS; h++) sums[h][j] += weights[h][i] * part;
                }
            }
        } else {
            for (int64_t i = 0; i < count; i++)
                for (int64_t j = 0; j < wide; j++)
                    for (int h = 0; h < HEADS; h++)
                        sums[h][j] += weights[h][i] * load(values + rows[i] + d + j * LANES);
        }
        for (int h = 0; h < HEADS; h++)
            for (int64_t j = 0; j < wide; j++) store(weighted + h * size + d + j * LANES, sums[h][j]);
    }
}

struct Task {
    int64_t seq, part;
};

template <typename T, typename C>
void decode(const T *q, int64_t q_stride, const C *keys, const C *values, const int64_t *queries, const int64_t *seqs,
            const int32_t *seq_lens, const int32_t *tables, int64_t max_blocks, int64_t entries, int64_t block_size,
            int64_t num_heads, int64_t num_kv_heads, int64_t size, float scale, const Extras &extras, T *out) {
    const int64_t group = num_heads / num_kv_heads;
    std::vector<Task> tasks;
    std::vector<int64_t> first_task(entries + 1);
    int64_t keys_read = 0;
    for (int64_t i = 0; i < entries; i++) {
        first_task[i] = tasks.size();
        const int64_t end = seq_lens[seqs[i]], begin = extras.first_key(end - 1);
        for (int64_t part = begin / PART; part * PART < end; part++) tasks.push_back({i, part});
        keys_read += end - begin;
    }
    first_task[entries] = tasks.size();
    const int64_t num_tasks = tasks.size(), each = size + 2;  // maximum, sum, weighted values
    static thread_local std::vector<float> memory;
    if ((int64_t)memory.size() < num_tasks * num_heads * each) memory.resize(num_tasks * num_heads * each);
    float *partial = memory.data();
    float *maxima = partial, *totals = maxima + num_tasks * num_heads, *weighted = totals + num_tasks * num_heads;
    const bool worth = keys_read * num_heads * size > (1 << 16);
    pool::each(num_tasks * num_kv_heads, worth, [&](int64_t number) {
        const int64_t t = number / num_kv_heads, kv_head = number % num_kv_heads;
        const int64_t i = tasks[t].seq, seq = seqs[i], part = tasks[t].part * PART;
        const int64_t first = std::max(part, extras.first_key(seq_lens[seq] - 1));
        const int64_t count = std::min<int64_t>(part + PART, seq_lens[seq]) - first;
        for (int64_t h = 0; h < group; h += TOGETHER) {
            const int64_t head = kv_head * group + h, place = t * num_heads + head;
            const auto run = [&](auto function) {
                function(q + queries[i] * q_stride + head * size, keys, values, tables + seq * max_blocks, first, count,
                         block_size, kv_head, num_kv_heads, size, scale, extras, maxima + place, totals + place,
                         weighted + place * size);
            };
            switch (group - h) {
            case 1: run(attend<1, T, C>); break;
            case 2: run(attend<2, T, C>); break;
            case 3: run(attend<3, T, C>); break;
            default: run(attend<4, T, C>);
            }
        }
    });
    pool::each(entries, worth, [&](int64_t i) {
        std::vector<float> shares(first_task[i + 1] - first_task[i]);
        for (int64_t head = 0; head < num_heads; head++) {
            float highest = extras.sinks ? extras.sinks[head] : -__builtin_inff();
            for (int64_t t = first_task[i]; t < first_task[i + 1]; t++) {
                float mine = maxima[t * num_heads + head];
                highest = mine > highest ? mine : highest;
            }
            float total = extras.sinks ? expf(extras.sinks[head] - highest) : 0;
            T *target = out + (queries[i] * num_heads + head) * size;
            for (int64_t t = first_task[i]; t < first_task[i + 1]; t++) {
                float share = expf(maxima[t * num_heads + head] - highest);
                shares[t - first_task[i]] = share;
                total += totals[t * num_heads + head] * share;
            }
            for (int64_t d = 0; d < size; d += LANES) {
                vec sums = {};
                for (int64_t t = first_task[i]; t < first_task[i + 1]; t++)
                    sums += load(weighted + (t * num_heads + head) * size + d) * shares[t - first_task[i]];
                store(target + d, sums / total);
            }
        }
    });
}

}  // namespace

extern "C" {

#define PAGED(NAME, T, C)                                                                                             \
    void store_kv_##NAME(const T *k, const T *v, int64_t k_stride, int64_t v_stride, C *keys, C *values,              \
                         const int64_t *slots, int64_t tokens, int64_t block_size, int64_t num_kv_heads,              \
                         int64_t size) {                                                                              \
        store_kv(k, v, k_stride, v_stride, keys, values, slots, tokens, block_size, num_kv_heads, size);              \
    }                                                                                                                 \
    void decode_##NAME(const T *q, int64_t q_stride, const C *keys, const C *values, const int64_t *queries,          \
                       const int64_t *seqs, const int32_t *seq_lens, const int32_t *tables, int64_t max_blocks,       \
                       int64_t entries, int64_t block_size, int64_t num_heads, int64_t num_kv_heads,                  \
                       int64_t size, float scale, const Extras *extras, T *out) {                                     \
        decode(q, q_stride, keys, values, queries, seqs, seq_lens, tables, max_blocks, entries, block_size,           \
               num_heads, num_kv_heads, size, scale, extras ? *extras : Extras(), out);                               \
    }

EACH_CACHE(PAGED)
}
