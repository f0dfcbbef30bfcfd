// From products of queries and keys to weights: SiLU, the mask, and halves.
#pragma once

#include "ptx.cuh"
#include "tiles.cuh"

namespace hopper {

__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// x / (1 + 2^(factor x)) within 2^-20. Two elements share a reciprocal, 1/a = b/(a b). Exponents are clamped to 63, so
// that the product does not overflow.
template <int Count>
__device__ inline void silu(float (&x)[Count], float factor) {
#pragma unroll
    for (int i = 0; i < Count; i += 2) {
        const float power = exp2_fast(fminf(x[i + 1] * factor, 63.0f));
        const float a = 1.0f + exp2_fast(fminf(x[i] * factor, 63.0f));
        const float r = reciprocal_fast(__fmaf_rn(a, power, a));
        const float quotient = x[i] * r;
        x[i] = __fmaf_rn(quotient, power, quotient);
        x[i + 1] *= r * a;
    }
}

__device__ inline uint32_t packed(float low, float high, __nv_bfloat16) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ inline uint32_t packed(float low, float high, __half) {
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

template <typename T, int Count>
__device__ inline void pack(uint32_t (&to)[Count / 2], const float (&from)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; i += 2) to[i / 2] = packed(from[i], from[i + 1], T{});
}

// One row of a thread: its columns as an interval from the thread's first column, and its own column.
struct Row {
    int begin;
    int width;
    int own;

    __device__ bool sees(int column) const {
        return static_cast<unsigned>(column - begin) < static_cast<unsigned>(width) || column == own;
    }
};

__device__ inline Row row_of(int row, const Tile& tile, Mask mask) {
    const Span span = columns_of(row, tile.first_target, mask);
    return {span.begin, span.end - span.begin, row};
}

// Zero for what a row does not see. `first` is the thread's first column.
template <int Count>
__device__ inline void hide(float (&x)[Count], Row upper, Row lower, int first) {
    upper.begin -= first, upper.own -= first, lower.begin -= first, lower.own -= first;
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int column = 2 * i + j;
            x[i + j] = upper.sees(column) ? x[i + j] : 0.0f;
            x[i + 2 + j] = lower.sees(column) ? x[i + 2 + j] : 0.0f;
        }
    }
}

}  // namespace hopper
