// What the library exports, and what each function takes. The files that define these functions include this one, so a
// definition that takes something else does not compile. ARGTYPES in utils/cpu_kernels.py says the same for ctypes. The
// rest of a name says the types: linear_float32, store_kv_float32_bfloat16.
//
// T is the type of the activations, W of the packed weights, C of the cache.
//
// vLLM: csrc/cpu/torch_bindings.cpp

#pragma once

#include "extras.h"

#ifdef __AMX_BF16__
struct bf16_tiled : bf16_pair {};  // the same numbers, for the other product
#define IF_TILES(...) __VA_ARGS__
#else
#define IF_TILES(...)
#endif

// A weight in 4 or 8 bits: codes with scales (codes.h), by x as it is or in 8 bits, or 8 bits on both sides
// (linear_int8.cpp).
struct codes4 {};
struct codes8 {};
struct codes4_int8 {};
struct int8s {};

// The combinations that there are.
#define EACH_QUANTIZED(APPLY)                                                                                         \
    APPLY(float32_codes4, float, codes4) APPLY(float32_codes8, float, codes8)                                         \
    APPLY(float32_codes4_int8, float, codes4_int8) APPLY(float32_int8, float, int8s)                                  \
    IF_PAIRS(APPLY(bfloat16_codes4, bf16, codes4) APPLY(bfloat16_codes8, bf16, codes8)                                \
             APPLY(bfloat16_codes4_int8, bf16, codes4_int8) APPLY(bfloat16_int8, bf16, int8s))
#define EACH_ACTIVATION(APPLY) APPLY(float32, float) APPLY(bfloat16, bf16)
#define EACH_CACHE(APPLY)                                                                                             \
    APPLY(float32_float32, float, float) APPLY(float32_bfloat16, float, bf16) APPLY(bfloat16_bfloat16, bf16, bf16)    \
    APPLY(float32_int8, float, int8_t) APPLY(bfloat16_int8, bf16, int8_t)
#define EACH_LINEAR(APPLY)                                                                                            \
    APPLY(float32, float, float) APPLY(bfloat16, float, bf16) IF_PAIRS(APPLY(bf16_pairs, bf16, bf16_pair))            \
    IF_TILES(APPLY(bf16_tiles, bf16, bf16_tiled)) EACH_QUANTIZED(APPLY)
#define EACH_DECODER(APPLY)                                                                                           \
    APPLY(float32_float32_float32, float, float, float) APPLY(float32_float32_bfloat16, float, float, bf16)           \
    APPLY(float32_bfloat16_float32, float, bf16, float) APPLY(float32_bfloat16_bfloat16, float, bf16, bf16)           \
    APPLY(float32_float32_int8, float, float, int8_t) APPLY(float32_bfloat16_int8, float, bf16, int8_t)               \
    IF_PAIRS(APPLY(bfloat16_bf16_pairs_bfloat16, bf16, bf16_pair, bf16)                                               \
             APPLY(bfloat16_bf16_pairs_int8, bf16, bf16_pair, int8_t))                                                \
    IF_TILES(APPLY(bfloat16_bf16_tiles_bfloat16, bf16, bf16_tiled, bf16)                                              \
             APPLY(bfloat16_bf16_tiles_int8, bf16, bf16_tiled, int8_t))                                               \
    QUANTIZED_DECODER(APPLY, codes4, codes4) QUANTIZED_DECODER(APPLY, codes8, codes8)                                 \
    QUANTIZED_DECODER(APPLY, codes4_int8, codes4_int8) QUANTIZED_DECODER(APPLY, int8, int8s)
#define QUANTIZED_DECODER(APPLY, NAME, W)                                                                             \
    APPLY(float32_##NAME##_float32, float, W, float) APPLY(float32_##NAME##_bfloat16, float, W, bf16)                 \
    APPLY(float32_##NAME##_int8, float, W, int8_t)                                                                    \
    IF_PAIRS(APPLY(bfloat16_##NAME##_bfloat16, bf16, W, bf16) APPLY(bfloat16_##NAME##_int8, bf16, W, int8_t))

extern "C" {  // layers.cpp, attention.cpp and prefill.cpp, linear.cpp and linear_tiles.cpp
#define DECLARE_LAYERS(NAME, T)                                                                                       \
    void add_rms_norm_##NAME(const T *x, T *residual, const float *weight, T *out, int64_t rows, int64_t size,        \
                             float eps);                                                                              \
    void norm_rotary_##NAME(T *heads, const float *q_weight, const float *k_weight, const float *cos,                 \
                            const float *sin, int64_t tokens, int64_t stride, int64_t num_q, int64_t num_k,           \
                            int64_t size, float eps);                                                                 \
    void silu_mul_##NAME(const T *gate_up, T *out, int64_t rows, int64_t size);
EACH_ACTIVATION(DECLARE_LAYERS)
#define DECLARE_PAGED(NAME, T, C)                                                                                     \
    void store_kv_##NAME(const T *k, const T *v, int64_t k_stride, int64_t v_stride, C *keys, C *values,              \
                         const int64_t *slots, int64_t tokens, int64_t block_size, int64_t num_kv_heads,              \
                         int64_t size);                                                                               \
    void decode_##NAME(const T *q, int64_t q_stride, const C *keys, const C *values, const int64_t *queries,          \
                       const int64_t *seqs, const int32_t *seq_lens, const int32_t *tables, int64_t max_blocks,       \
                       int64_t entries, int64_t block_size, int64_t num_heads, int64_t num_kv_heads, int64_t size,    \
                       float scale, const Extras *extras, T *out);                                                    \
    void prefill_##NAME(const T *q, int64_t q_stride, const C *keys, const C *values, const int64_t *spans,           \
                        const int64_t *seqs, const int32_t *seq_lens, const int32_t *tables, int64_t max_blocks,      \
                        int64_t entries, int64_t block_size, int64_t num_heads, int64_t num_kv_heads, int64_t size,   \
                        float scale, const Extras *extras, T *out);
EACH_CACHE(DECLARE_PAGED)

#define DECLARE_LINEAR(NAME, T, W)                                                                                    \
    void linear_##NAME(const T *x, const W *weight, const float *bias, T *out, int64_t rows, int64_t in, int64_t outs);
EACH_LINEAR(DECLARE_LINEAR)
#define LINEAR(NAME, T, W, ...)                                                                                       \
    void linear_##NAME(const T *x, const W *weight, const float *bias, T *out, int64_t rows, int64_t in,              \
                       int64_t outs) {                                                                                \
        __VA_ARGS__(x, weight, bias, out, rows, in, outs);                                                            \
    }

// A group of ranks, as one of them sees it (group.cpp). distributed/collectives.py fills it in.
struct Group {
    int64_t rank, size, slot_bytes, timeout_ms;
    char *memory;
    const int32_t *sockets;
    int64_t num_sockets;
    int64_t turn, failed;  // 0: none has; 1 + the number of a socket that was closed; -1 - a rank that did not come
    int64_t sums, bytes;
};
#define DECLARE_SUM(NAME, T) void all_reduce_##NAME(Group *group, T *x, int64_t count);
EACH_ACTIVATION(DECLARE_SUM)
void all_gather_bytes(Group *group, const char *mine, const int64_t *sizes, char *const *outs);

// One call for all layers (decoder.cpp). models/one_call.py fills these in, field by field in the same order.
struct Shape {
    int64_t hidden, intermediate, num_heads, num_kv_heads, head_size, block_size;
    Group *group;  // null: the products of o and down are whole
    float eps, scale;
};

// What an adapter adds to a product: B A x, its scale inside B.
struct Adapter {
    const void *a, *b;  // packed, bfloat16 or float32; null: it adds nothing
    int64_t rank, is_bfloat16;
};

// Rows that have an adapter, side by side by adapter: [ends[g - 1], ends[g]) of `rows` have that of slots[g].
struct Rows {
    int64_t num_groups;
    const int64_t *slots, *ends, *rows;
};

struct Product {
    const void *weight;       // packed
    const float *bias;        // may be null
    const Adapter *adapters;  // of each slot; null: none changes it
};

// What a layer with experts has in the place of its MLP (layers/moe.py). The small products read x in float32.
struct ExpertsOfLayer {
    int64_t count, top_k, size, shared_size, renormalize;
    Product gate, shared_gate, shared_gate_up, shared_down;
    const Product *products;  // gate_up and down of each expert
};

struct Layer {
    const float *input_norm, *post_norm;
    const float *q_norm, *k_norm;  // may be null
    Product qkv, o, gate_up, down;
    const ExpertsOfLayer *experts;  // null: it has gate_up and down
    void *keys, *values;
    const Extras *extras;  // of attention; null: none
};

// What the step is about. `decodes` and `prefills` say whose the queries and the spans are.
struct Step {
    int64_t tokens, num_decodes, num_prefills, max_blocks, num_wanted;
    const float *cos, *sin;
    const int64_t *slots, *queries, *decodes, *spans, *prefills;
    const int32_t *seq_lens, *tables;
    const int64_t *wanted;  // rows of the last layer, rising
    Rows adapted, adapted_wanted;  // of all rows; of the wanted ones, by their new numbers
};

#define DECLARE_DECODER(NAME, T, W, C)                                                                                \
    void decoder_##NAME(const Shape *shape, const Step *step, const Layer *layers, int64_t first, int64_t end,        \
                        int64_t all, const float *final_norm, T *residual, T *scratch, T *out);
EACH_DECODER(DECLARE_DECODER)

void set_threads(int (*count)());  // torch's own
int panel_width();
int has_bf16_pairs();
int has_tiles();  // and the system lets us
void wait_idle();
}
