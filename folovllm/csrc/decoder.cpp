// The layers of a decoder in one call, from the first norm to the last.
//
//     x ─┬─ norm ─ qkv ─ rope ─ attention ─ o ─▶ (+) ─┬─ norm ─ gate·up ─ silu ─ down ─▶ (+) ─▶ … ─ norm ─▶ hidden
//        └────────────── residual ─────────────┘     └──────────── residual ────────────┘
//
// Every operator is a kernel of the other files. What a call from Python costs each of them is not its few instructions: a
// product of milliseconds has pushed Python's code and data out of the caches.
//
// The last layer may be asked for some rows only, since a prompt's next token depends on its last row alone. What follows
// its attention is then computed for these.
//
// T is the type of the activations, W of the packed weights, C of the cache.
//
// vLLM: none, its layers are compiled one by one (compilation/)

#include <algorithm>
#include <cstring>

#include "vector.h"

#define EACH_ACTIVATION(APPLY) APPLY(float32, float) APPLY(bfloat16, bf16)
#define EACH_CACHE(APPLY) \
    APPLY(float32_float32, float, float) APPLY(float32_bfloat16, float, bf16) APPLY(bfloat16_bfloat16, bf16, bf16)

extern "C" {  // layers.cpp, linear.cpp, attention.cpp, prefill.cpp

#define LAYERS(NAME, T)                                                                                               \
    void add_rms_norm_##NAME(const T *x, T *residual, const float *weight, T *out, int64_t rows, int64_t size,        \
                             float eps);                                                                              \
    void norm_rotary_##NAME(T *heads, const float *q_weight, const float *k_weight, const float *cos,                 \
                            const float *sin, int64_t tokens, int64_t stride, int64_t num_q, int64_t num_k,           \
                            int64_t size, float eps);                                                                 \
    void silu_mul_##NAME(const T *gate_up, T *out, int64_t rows, int64_t size);
EACH_ACTIVATION(LAYERS)

#define PAGED(NAME, T, C)                                                                                             \
    void store_kv_##NAME(const T *k, const T *v, int64_t k_stride, int64_t v_stride, C *keys, C *values,              \
                         const int64_t *slots, int64_t tokens, int64_t row);                                          \
    void decode_##NAME(const T *q, int64_t q_stride, const C *keys, const C *values, const int64_t *queries,          \
                       const int64_t *seqs, const int32_t *seq_lens, const int32_t *tables, int64_t max_blocks,       \
                       int64_t entries, int64_t block_size, int64_t num_heads, int64_t num_kv_heads, int64_t size,    \
                       float scale, T *out);                                                                          \
    void prefill_##NAME(const T *q, int64_t q_stride, const C *keys, const C *values, const int64_t *spans,           \
                        const int64_t *seqs, const int32_t *seq_lens, const int32_t *tables, int64_t max_blocks,      \
                        int64_t entries, int64_t block_size, int64_t num_heads, int64_t num_kv_heads, int64_t size,   \
                        float scale, T *out);
EACH_CACHE(PAGED)

#define LINEAR(NAME, T, W)                                                                                            \
    void NAME(const T *x, const W *weight, const float *bias, T *out, int64_t rows, int64_t in, int64_t outs);
LINEAR(linear_float32, float, float)
LINEAR(linear_bfloat16, float, bf16)
#ifdef __AVX512BF16__
LINEAR(linear_bf16_pairs, bf16, bf16_pair)
#endif
#ifdef __AMX_BF16__
LINEAR(linear_bf16_tiles, bf16, bf16_pair)
#endif
}

namespace {

// The same functions, found by the types of what they take.

template <typename T>
struct Between;  // the products
#define OF_ACTIVATION(NAME, T)                                   \
    template <>                                                  \
    struct Between<T> {                                          \
        static constexpr auto add_rms_norm = add_rms_norm_##NAME; \
        static constexpr auto norm_rotary = norm_rotary_##NAME;  \
        static constexpr auto silu_mul = silu_mul_##NAME;        \
    };
EACH_ACTIVATION(OF_ACTIVATION)

template <typename T, typename C>
struct Paged;
#define OF_CACHE(NAME, T, C)                              \
    template <>                                           \
    struct Paged<T, C> {                                  \
        static constexpr auto store_kv = store_kv_##NAME; \
        static constexpr auto decode = decode_##NAME;     \
        static constexpr auto prefill = prefill_##NAME;   \
    };
EACH_CACHE(OF_CACHE)

inline void multiply(const float *x, const float *weight, const float *bias, float *out, int64_t rows, int64_t in,
                     int64_t outs) {
    linear_float32(x, weight, bias, out, rows, in, outs);
}
inline void multiply(const float *x, const bf16 *weight, const float *bias, float *out, int64_t rows, int64_t in,
                     int64_t outs) {
    linear_bfloat16(x, weight, bias, out, rows, in, outs);
}
#ifdef __AVX512BF16__
inline void multiply(const bf16 *x, const bf16_pair *weight, const float *bias, bf16 *out, int64_t rows, int64_t in,
                     int64_t outs) {
    linear_bf16_pairs(x, weight, bias, out, rows, in, outs);
}
#endif
#ifdef __AMX_BF16__
struct bf16_tiled : bf16_pair {};  // the same numbers, for the other product
inline void multiply(const bf16 *x, const bf16_tiled *weight, const float *bias, bf16 *out, int64_t rows, int64_t in,
                     int64_t outs) {
    linear_bf16_tiles(x, weight, bias, out, rows, in, outs);
}
#endif

// What follows is filled in by models/compiled_decoder.py, field by field in the same order.

struct Shape {
    int64_t hidden, intermediate, num_heads, num_kv_heads, head_size, block_size;
    float eps, scale;
};

struct Product {
    const void *weight;  // packed
    const float *bias;   // may be null
};

struct Layer {
    const float *input_norm, *post_norm;
    const float *q_norm, *k_norm;  // may be null
    Product qkv, o, gate_up, down;
    void *keys, *values;
};

// What the step is about. `decodes` and `prefills` say whose the queries and the spans are.
struct Step {
    int64_t tokens, num_decodes, num_prefills, max_blocks, num_wanted;
    const float *cos, *sin;
    const int64_t *slots, *queries, *decodes, *spans, *prefills;
    const int32_t *seq_lens, *tables;
    const int64_t *wanted;  // rows of the last layer, rising
};

template <typename T>
void keep_rows(T *x, const int64_t *rows, int64_t count, int64_t size) {
    for (int64_t i = 0; i < count; i++) memmove(x + i * size, x + rows[i] * size, size * sizeof(T));
}

template <typename T, typename W, typename C>
struct Decoder {
    const Shape &s;
    const Step &step;
    T *residual;           // [tokens, hidden]
    T *x, *branch, *wide;  // [tokens, hidden] twice; [tokens, what attention or the MLP needs]

    static void linear(const T *x, const Product &product, T *out, int64_t rows, int64_t in, int64_t outs) {
        multiply(x, (const W *)product.weight, product.bias, out, rows, in, outs);
    }

    void norm(const T *x, T *residual, const float *weight, T *out, int64_t rows) const {
        Between<T>::add_rms_norm(x, residual, weight, out, rows, s.hidden, s.eps);
    }

    // x -> attended, [tokens, num_heads * head_size]
    T *attend(const Layer &layer) const {
        const int64_t q = s.num_heads * s.head_size, kv = s.num_kv_heads * s.head_size, all = q + 2 * kv;
        T *heads = wide, *attended = wide + step.tokens * all;
        linear(x, layer.qkv, heads, step.tokens, s.hidden, all);
        Between<T>::norm_rotary(heads, layer.q_norm, layer.k_norm, step.cos, step.sin, step.tokens, all, s.num_heads,
                                s.num_kv_heads, s.head_size, s.eps);
        C *keys = (C *)layer.keys, *values = (C *)layer.values;
        Paged<T, C>::store_kv(heads + q, heads + q + kv, all, all, keys, values, step.slots, step.tokens, kv);
        if (step.num_decodes)
            Paged<T, C>::decode(heads, all, keys, values, step.queries, step.decodes, step.seq_lens, step.tables,
                                step.max_blocks, step.num_decodes, s.block_size, s.num_heads, s.num_kv_heads,
                                s.head_size, s.scale, attended);
        if (step.num_prefills)
            Paged<T, C>::prefill(heads, all, keys, values, step.spans, step.prefills, step.seq_lens, step.tables,
                                 step.max_blocks, step.num_prefills, s.block_size, s.num_heads, s.num_kv_heads,
                                 s.head_size, s.scale, attended);
        return attended;
    }

    // x -> branch
    void mlp(const Layer &layer, int64_t rows) const {
        T *gate_up = wide, *product = wide + rows * 2 * s.intermediate;
        linear(x, layer.gate_up, gate_up, rows, s.hidden, 2 * s.intermediate);
        Between<T>::silu_mul(gate_up, product, rows, s.intermediate);
        linear(product, layer.down, branch, rows, s.intermediate, s.hidden);
    }

    // The layers [first, end) of all. `out` gets the hidden states behind the last one, at their rows.
    void run(const Layer *layers, int64_t first, int64_t end, int64_t all, const float *final_norm, T *out) const {
        int64_t rows = step.tokens;
        for (int64_t i = first; i < end; i++) {
            const Layer &layer = layers[i];
            if (i == 0)
                norm(residual, nullptr, layer.input_norm, x, rows);
            else
                norm(branch, residual, layer.input_norm, x, rows);
            T *attended = attend(layer);
            if (i == all - 1 && step.wanted) {
                rows = step.num_wanted;
                keep_rows(attended, step.wanted, rows, s.num_heads * s.head_size);
                keep_rows(residual, step.wanted, rows, s.hidden);
            }
            linear(attended, layer.o, branch, rows, s.num_heads * s.head_size, s.hidden);
            norm(branch, residual, layer.post_norm, x, rows);
            mlp(layer, rows);
        }
        if (end < all) return;
        norm(branch, residual, final_norm, step.wanted ? x : out, rows);
        if (step.wanted)
            for (int64_t i = 0; i < rows; i++)
                memcpy(out + step.wanted[i] * s.hidden, x + i * s.hidden, s.hidden * sizeof(T));
    }
};

}  // namespace

extern "C" {

#define DECODER(NAME, T, W, C)                                                                                        \
    void decoder_##NAME(const Shape *shape, const Step *step, const Layer *layers, int64_t first, int64_t end,        \
                        int64_t all, const float *final_norm, T *residual, T *scratch, T *out) {                      \
        T *x = scratch, *branch = x + step->tokens * shape->hidden, *wide = branch + step->tokens * shape->hidden;    \
        Decoder<T, W, C>{*shape, *step, residual, x, branch, wide}.run(layers, first, end, all, final_norm, out);     \
    }

DECODER(float32_float32_float32, float, float, float)
DECODER(float32_float32_bfloat16, float, float, bf16)
DECODER(float32_bfloat16_float32, float, bf16, float)
DECODER(float32_bfloat16_bfloat16, float, bf16, bf16)
#ifdef __AVX512BF16__
DECODER(bfloat16_bf16_pairs_bfloat16, bf16, bf16_pair, bf16)
#endif
#ifdef __AMX_BF16__
DECODER(bfloat16_bf16_tiles_bfloat16, bf16, bf16_tiled, bf16)
#endif
}
