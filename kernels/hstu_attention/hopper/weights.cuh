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

// From x to y / (1 + 2^y) for y = factor x, within 2^-20. Two elements share a reciprocal: with a = 2^u, b = 1 + 2^v and
// r = 1 / (b + a b), 1 / (1 + 2^u) = r b and 1 / (1 + 2^v) = r + r a. Powers are clamped to 2^63, so that the product
// does not overflow.
//
// Parts of 16 elements are in flight together. `zero` is 0, which the compiler does not know: without this dependence
// of a part on the one before, it starts more elements than registers hold, and then waits for each alone. The result
// is 0 as well: what depends on it comes after the last reciprocal.
template <int Count>
__device__ inline uint32_t silu(float (&x)[Count], float factor, uint32_t zero) {
    constexpr int kPart = 16;
    uint32_t all = 0;
#pragma unroll
    for (int part = 0; part < Count; part += kPart) {
        float a[kPart / 2], b[kPart / 2], r[kPart / 2];
#pragma unroll
        for (int i = 0; i < kPart / 2; ++i) {
            x[part + 2 * i] *= factor;
            x[part + 2 * i + 1] *= factor;
            a[i] = fminf(exp2_fast(x[part + 2 * i]), 0x1p63f);
            b[i] = fminf(exp2_fast(x[part + 2 * i + 1]), 0x1p63f) + 1.0f;
        }
#pragma unroll
        for (int i = 0; i < kPart / 2; ++i) {
            r[i] = reciprocal_fast(fmaf(a[i], b[i], b[i]));
            x[part + 2 * i] *= r[i] * b[i];
            x[part + 2 * i + 1] *= fmaf(r[i], a[i], r[i]);
            all |= __float_as_uint(r[i]);
        }
        factor = __uint_as_float(__float_as_uint(factor) | (__float_as_uint(r[0]) & zero));
    }
    return all & zero;
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
