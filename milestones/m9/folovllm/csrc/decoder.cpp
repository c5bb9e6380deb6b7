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
// vLLM: none, its layers are compiled one by one (compilation/)

#include <algorithm>
#include <cstring>

#include "kernels.h"

namespace {

// The same functions, found by the types of what they take.

template <typename T>
struct Between;  // between the products
#define OF_ACTIVATION(NAME, T)                                                                                        \
    template <>                                                                                                       \
    struct Between<T> {                                                                                               \
        static constexpr auto add_rms_norm = add_rms_norm_##NAME;                                                     \
        static constexpr auto norm_rotary = norm_rotary_##NAME;                                                       \
        static constexpr auto silu_mul = silu_mul_##NAME;                                                             \
        static constexpr auto all_reduce = all_reduce_##NAME;                                                         \
    };
EACH_ACTIVATION(OF_ACTIVATION)

template <typename T, typename C>
struct Paged;
#define OF_CACHE(NAME, T, C)                                                                                          \
    template <>                                                                                                       \
    struct Paged<T, C> {                                                                                              \
        static constexpr auto store_kv = store_kv_##NAME;                                                             \
        static constexpr auto decode = decode_##NAME;                                                                 \
        static constexpr auto prefill = prefill_##NAME;                                                               \
    };
EACH_CACHE(OF_CACHE)

template <typename T, typename W>
struct Multiply;
#define OF_WEIGHT(NAME, T, W)                                                                                         \
    template <>                                                                                                       \
    struct Multiply<T, W> {                                                                                           \
        static constexpr auto linear = linear_##NAME;                                                                 \
    };
EACH_LINEAR(OF_WEIGHT)

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
        Multiply<T, W>::linear(x, (const W *)product.weight, product.bias, out, rows, in, outs);
    }

    // The product of o or down: of some of its columns only, where other ranks have the rest.
    void reduced(const T *x, const Product &product, T *out, int64_t rows, int64_t in) const {
        linear(x, product, out, rows, in, s.hidden);
        if (s.group) Between<T>::all_reduce(s.group, out, rows * s.hidden);
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
        Paged<T, C>::store_kv(heads + q, heads + q + kv, all, all, keys, values, step.slots, step.tokens, s.block_size,
                              s.num_kv_heads, s.head_size);
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
        reduced(product, layer.down, branch, rows, s.intermediate);
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
            reduced(attended, layer.o, branch, rows, s.num_heads * s.head_size);
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

EACH_DECODER(DECODER)
}
