// The product of a few rows by WIDTH columns, with its results in registers.
//
// vLLM: csrc/cpu/cpu_attn_vec.hpp

#pragma once

#include "panels.h"

// out[r] = keep[r] * out[r] + the sum over k of x[r, k] * w[k], WIDTH numbers each. keep may be null: 0. A row of x is
// X_STRIDE long; where that is 1, its rows lie side by side instead.
template <int ROWS, int X_STRIDE, typename X>
void multiply_rows(const X *x, const X *w, int64_t size, const float *keep, float *out, int64_t out_stride) {
    constexpr int ROW = X_STRIDE, STEP = X_STRIDE == 1 ? ROWS : 1;
    vec low[ROWS], high[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
        low[r] = keep ? load(out + r * out_stride) * keep[r] : vec{};
        high[r] = keep ? load(out + r * out_stride + LANES) * keep[r] : vec{};
    }
    for (int64_t k = 0; k < size; k++, w += WIDTH) {
        const auto a = load(w), b = load(w + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            low[r] = multiply_add(low[r], x[r * ROW + k * STEP], a);
            high[r] = multiply_add(high[r], x[r * ROW + k * STEP], b);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
        store(out + r * out_stride, low[r]);
        store(out + r * out_stride + LANES, high[r]);
    }
}

template <int X_STRIDE, typename X>
void multiply_rows(int rows, const X *x, const X *w, int64_t size, const float *keep, float *out, int64_t out_stride) {
    switch (rows) {
#define CASE(N) \
    case N:     \
        if constexpr (N <= MAX_ROWS) return multiply_rows<N, X_STRIDE>(x, w, size, keep, out, out_stride);
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
    }
}
