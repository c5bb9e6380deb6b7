// What some models' layers compute beside softmax(q @ k * scale) @ v over all keys so far: AttentionExtras in
// attention/backend.py. attention/backends/cpu.py fills this in, field by field in the same order.
//
//     window      a lower bound of the keys: those before it are never read, their blocks may hold other tokens
//     soft-cap    a step on the scores
//     sink        where the running maximum and the running sum of a row begin
//
// vLLM: csrc/cpu/cpu_attn_impl.hpp

#pragma once

#include <algorithm>

#include "vector.h"

// Within some units in the last place. Near 0 a polynomial (Cephes' tanhf), where the other way would lose digits.
static inline vec tanh_(vec x) {
    const vec square = x * x, size = x < 0.0f ? -x : x;
    vec p = splat(-5.70498872745e-3f);
    p = p * square + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    const vec far = 1.0f - 2.0f / (exp_(2.0f * size) + 1.0f);
    return size < 0.625f ? p * square * x + x : x < 0.0f ? -far : far;
}

struct Extras {
    int64_t window = INT64_MAX / 2;  // keys that a query sees, its own among them
    float soft_cap = 0;              // 0: none
    const float *sinks = nullptr;    // [num_heads] scores

    int64_t first_key(int64_t position) const { return std::max<int64_t>(0, position + 1 - window); }

    // `count` scores and what is behind them, to the end of a vector.
    void cap(float *scores, int64_t count) const {
        if (soft_cap != 0)
            for (int64_t i = 0; i < count; i += LANES) store(scores + i, soft_cap * tanh_(load(scores + i) / soft_cap));
    }
};
