// The element types that the kernels take, and their conversion to and from float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace dlrm {

enum class Element : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

#ifdef __CUDACC__
__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ T narrow(float value);
template <>
__device__ inline float narrow<float>(float value) { return value; }
template <>
__device__ inline __half narrow<__half>(float value) { return __float2half_rn(value); }
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }

// kWidth neighbours that one access moves.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
    T values[kWidth];
};
#endif

}  // namespace dlrm
