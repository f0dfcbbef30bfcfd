// activation(x + scale * y + bias) over a row-major (M, N) array, see pointwise.py. Plain CUDA, no PyTorch.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "element.cuh"

namespace dlrm {

enum class Activation : int { kRelu = 0, kSigmoid = 1 };

// y may be null: then activation(x + bias). `out` may be `x`. Every pointer is aligned to its element at least;
// 16-byte accesses are used where all pointers and the columns allow them. Returns the launch's error.
cudaError_t launch_pointwise(const void* x, const void* y, const void* bias, void* out, int64_t numel,
                             int64_t columns, float scale, Element element, Activation activation,
                             cudaStream_t stream);

}  // namespace dlrm
