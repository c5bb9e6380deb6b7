// What is between the products of a decoder layer, each in one pass over its rows: the residual and its norm, the
// norm of heads with the rotary embedding, SwiGLU.
//
// T is the type of the activations, float or bf16. All of it is computed in float32, and rounded once at the end. The
// rows go to several threads only where there is enough work: waking a thread takes longer than a row of 1,024 numbers.
//
// vLLM: csrc/cpu/layernorm.cpp, csrc/cpu/pos_encoding.cpp, csrc/cpu/activation.cpp

#include <cmath>

#include "kernels.h"
#include "pool.h"

namespace {

template <typename T>
float sum_of_squares(const T *x, int64_t size) {
    vec sums = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        vec v = load(x + i);
        sums += v * v;
    }
    float total = sum(sums);
    for (; i < size; i++) total += get(x + i) * get(x + i);
    return total;
}

template <typename T>
void add_rms_norm(const T *x, T *residual, const float *weight, T *out, int64_t rows, int64_t size, float eps) {
    pool::each_row(rows, size, [=](int64_t row) {
        const T *source = x + row * size;
        T *stream = residual ? residual + row * size : nullptr, *target = out + row * size;
        int64_t i = 0;
        if (stream) {
            for (; i + LANES <= size; i += LANES) store(stream + i, load(stream + i) + load(source + i));
            for (; i < size; i++) put(stream + i, get(stream + i) + get(source + i));
            source = stream;
        }
        float scale = 1.0f / sqrtf(sum_of_squares(source, size) / size + eps);
        for (i = 0; i + LANES <= size; i += LANES) store(target + i, load(source + i) * scale * load(weight + i));
        for (; i < size; i++) put(target + i, get(source + i) * scale * weight[i]);
    });
}

// heads [tokens, num_q + num_k (+ num_v), size], rows `stride` apart; cos and sin [tokens, size]. In place.
template <typename T>
void norm_rotary(T *heads, const float *q_weight, const float *k_weight, const float *cos, const float *sin,
                 int64_t tokens, int64_t stride, int64_t num_q, int64_t num_k, int64_t size, float eps) {
    const int64_t half = size / 2;
    pool::each_row(tokens, (num_q + num_k) * size, [=](int64_t token) {
        const float *c = cos + token * size, *s = sin + token * size;
        float x[size];
        for (int64_t head = 0; head < num_q + num_k; head++) {
            T *place = heads + token * stride + head * size;
            const float *weight = head < num_q ? q_weight : k_weight;
            float scale = weight ? 1.0f / sqrtf(sum_of_squares(place, size) / size + eps) : 1.0f;
            int64_t i = 0;
            for (; i + LANES <= size; i += LANES) {
                vec v = load(place + i);
                store(x + i, weight ? v * scale * load(weight + i) : v);
            }
            for (; i < size; i++) x[i] = get(place + i) * scale * (weight ? weight[i] : 1.0f);
            for (i = 0; i + LANES <= half; i += LANES) {
                vec a = load(x + i), b = load(x + half + i);
                store(place + i, a * load(c + i) + b * load(s + i));
                store(place + half + i, b * load(c + half + i) + a * load(s + half + i));
            }
            for (; i < half; i++) {
                put(place + i, x[i] * c[i] + x[half + i] * s[i]);
                put(place + half + i, x[half + i] * c[half + i] + x[i] * s[half + i]);
            }
        }
    });
}

template <typename T>
void silu_mul(const T *gate_up, T *out, int64_t rows, int64_t size) {
    const vec one = splat(1.0f);
    pool::each_row(rows, size, [=](int64_t row) {
        const T *gate = gate_up + row * 2 * size, *up = gate + size;
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES) {
            vec g = load(gate + i);
            store(out + row * size + i, g / (one + exp_(-g)) * load(up + i));
        }
        for (; i < size; i++) {
            vec g = splat(get(gate + i));
            put(out + row * size + i, (g / (one + exp_(-g)))[0] * get(up + i));
        }
    });
}

}  // namespace

extern "C" {

#define LAYERS(NAME, T)                                                                                               \
    void add_rms_norm_##NAME(const T *x, T *residual, const float *weight, T *out, int64_t rows, int64_t size,        \
                             float eps) {                                                                             \
        add_rms_norm(x, residual, weight, out, rows, size, eps);                                                      \
    }                                                                                                                 \
    void norm_rotary_##NAME(T *heads, const float *q_weight, const float *k_weight, const float *cos,                 \
                            const float *sin, int64_t tokens, int64_t stride, int64_t num_q, int64_t num_k,           \
                            int64_t size, float eps) {                                                                \
        norm_rotary(heads, q_weight, k_weight, cos, sin, tokens, stride, num_q, num_k, size, eps);                    \
    }                                                                                                                 \
    void silu_mul_##NAME(const T *gate_up, T *out, int64_t rows, int64_t size) { silu_mul(gate_up, out, rows, size); }

EACH_ACTIVATION(LAYERS)
}
