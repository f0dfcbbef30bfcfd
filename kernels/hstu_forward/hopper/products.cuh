// Products on tensor cores by warps, factors of one or two parts, and the layouts of their factors in shared memory.
//
// The order of a product's inner index is free as long as both factors have the same. A thread's elements of 32
// inner indices are eight neighbours: it reads them at once.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace hopper_forward {

// Columns of u, of q, of v and of k, and of an embedding, as stored.
constexpr int kWidth = 64;
constexpr int kRows = 16;
constexpr int kRowBytes = 2 * kWidth;

// A factor's type, its number of parts and its scale before the split: see `triton_kernel_products`.
template <typename T>
struct FactorOf {
    using Type = T;
    static constexpr int kParts = 1;
    static constexpr float kScale = 1.0f;
};

template <>
struct FactorOf<float> {
    using Type = __half;
    static constexpr int kParts = 2;
    static constexpr float kScale = 32.0f;
};

__device__ inline uint32_t packed(float low, float high, __half) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
}

__device__ inline uint32_t packed(float low, float high, __nv_bfloat16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
}

__device__ inline float2 unpacked(uint32_t pair, __half) { return __half22float2(reinterpret_cast<__half2&>(pair)); }

__device__ inline float2 unpacked(uint32_t pair, __nv_bfloat16) {
    return __bfloat1622float2(reinterpret_cast<__nv_bfloat162&>(pair));
}

template <typename T>
struct Pair {
    using Factor = typename FactorOf<T>::Type;
    uint32_t part[FactorOf<T>::kParts];

    // Of two float32 times the scale.
    __device__ Pair(float low, float high) {
        part[0] = packed(low, high, Factor());
        if constexpr (FactorOf<T>::kParts == 2) {
            const float2 first = unpacked(part[0], Factor());
            part[1] = packed(low - first.x, high - first.y, Factor());
        }
    }
};

__device__ inline float rounded(float x, float) { return x; }
__device__ inline float rounded(float x, __half) { return __half2float(__float2half_rn(x)); }
__device__ inline float rounded(float x, __nv_bfloat16) { return __bfloat162float(__float2bfloat16_rn(x)); }

__device__ inline float as_float(float x) { return x; }
__device__ inline float as_float(__half x) { return __half2float(x); }
__device__ inline float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ inline void set(float* to, float x) { *to = x; }
__device__ inline void set(__half* to, float x) { *to = __float2half_rn(x); }
__device__ inline void set(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// x / (1 + e^-x). A power that overflows has the reciprocal 0, which is the right result.
__device__ inline float silu(float x) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
    return x * inverse;
}

__device__ inline void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Of 8 x 8 elements, two neighbours in a row a thread: two neighbours in a column.
__device__ inline uint32_t transposed(uint32_t pair) {
    uint32_t turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
    return turned;
}

// d += a b, times both scales; a: 16 rows, b: 8 columns, 16 inner indices. With two parts, the product of the small
// ones is left out.
template <typename T>
__device__ inline void multiply_parts(float (&d)[4], const uint32_t (&a)[FactorOf<T>::kParts][4],
                                      const uint32_t (&b)[FactorOf<T>::kParts][2]) {
    const typename FactorOf<T>::Type type{};
    if constexpr (FactorOf<T>::kParts == 2) {
        multiply(d, a[1], b[0][0], b[0][1], type);
        multiply(d, a[0], b[1][0], b[1][1], type);
    }
    multiply(d, a[0], b[0][0], b[0][1], type);
}

// Offset in bytes of a chunk of eight elements in rows of `kWidth`: neighbours in a column lie in different banks.
__device__ inline int chunk_at(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ (row & 1) << 2 ^ (row >> 3 & 1) << 1) << 4);
}

// Index of an element in rows of `kWidth` float32; neighbours in multiples of 8 stay together.
__device__ inline int float_at(int row, int column) { return row * kWidth + (column ^ (row & 3) << 3); }

__device__ inline uint4 read16(const char* at) { return *reinterpret_cast<const uint4*>(at); }

// A thread's elements of 16 rows and 32 inner indices, the factors `a` of two products of 16.
template <typename T>
struct RowsOfSpan {
    uint32_t a[2][FactorOf<T>::kParts][4];

    // From parts of `kRows` rows. lane = 4 row + position.
    __device__ RowsOfSpan(const char* from, int span, int lane) {
#pragma unroll
        for (int part = 0; part < FactorOf<T>::kParts; ++part) {
            const char* own = from + part * kRows * kRowBytes;
            const uint4 low = read16(own + chunk_at(lane / 4, lane % 4 + 4 * span));
            const uint4 high = read16(own + chunk_at(lane / 4 + 8, lane % 4 + 4 * span));
            const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) a[0][part][i] = first[i], a[1][part][i] = second[i];
        }
    }
};

}  // namespace hopper_forward
