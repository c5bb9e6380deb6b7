// Where the paged cache keeps a token's key or value of one head, and how it is rounded to 8 bits.
//
//     floats    [blocks, block_size, num_kv_heads, size]
//     int8      [blocks, num_kv_heads, block]      a block of a head: codes [block_size, size], then scales [block_size]
//
// A number in int8 is code * scale. The scale, a float, is the head's largest number / 127, so that the code of that number
// is 127 or -127. It lies in the block, so whatever moves a block moves its scales, too.
//
// vLLM: csrc/cache_kernels.cu (reshape_and_cache_flash_kernel)

#pragma once

#include "rounding.h"

static inline vec load(const int8_t *p) {  // GCC converts bytes one by one, where it is not told
#ifdef __aarch64__
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return (vec)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
#elif defined __AVX512F__
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#else
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#endif
}

template <typename C>
struct Place {  // of one token and one head, in numbers from the start of the cache
    static constexpr bool HAS_SCALE = std::is_same_v<C, int8_t>;

    int64_t first, scale;

    Place(int64_t block, int64_t offset, int64_t head, int64_t block_size, int64_t num_kv_heads, int64_t size) {
        const int64_t run = block * num_kv_heads + head;
        first = HAS_SCALE ? run * block_size * (size + sizeof(float)) + offset * size
                          : ((block * block_size + offset) * num_kv_heads + head) * size;
        scale = (run + 1) * block_size * (size + sizeof(float)) + (offset - block_size) * sizeof(float);
    }
};

static inline float scale_at(const void *cache, int64_t byte) {
    float scale;
    memcpy(&scale, (const char *)cache + byte, sizeof scale);
    return scale;
}

// A head in 8 bits, each number as the nearest code, ties to even. The scale is NaN where a number is not finite.
template <typename T>
inline void store_codes(const T *x, int64_t size, int8_t *codes, int8_t *scale_at) {
    const float scale = largest(x, size) / 127, divisor = scale > 0 ? scale : 1, kept = scale + scale * 0;
    for (int64_t d = 0; d < size; d += LANES) {
        vec number = load(x + d) / divisor;
        number = number > 127.0f ? splat(127.0f) : number;  // a scale of few bits, far below 1e-37, is too small
        number = number < -127.0f ? splat(-127.0f) : number;
        typedef int8_t bytes __attribute__((vector_size(LANES)));
        const bytes rounded = __builtin_convertvector(nearest(number), bytes);
        memcpy(codes + d, &rounded, sizeof rounded);
    }
    memcpy(scale_at, &kept, sizeof kept);
}
