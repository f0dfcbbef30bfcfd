// All bags of all tables, the "dot" interaction and the concatenation in one launch, see bags.py. Plain CUDA.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "element.cuh"

namespace dlrm {

constexpr int kMostVectors = 64;

struct BagsInteraction {
    const void* dense;         // (batch, columns) of `vector`, aligned to 16 bytes
    const int64_t* addresses;  // (tables,): where each table begins, aligned to 16 bytes
    const void* indices;       // 64 bits if wide_indices, else 32
    const void* weights;       // one for each index, of `table`; null for none
    const void* offsets;       // (tables * batch + 1), as wide as the indices
    void* out;                 // (batch, D + pairs) of `vector`, rows out_stride elements apart
    int64_t batch, out_stride;
    int tables, columns;       // columns: a multiple of 16; tables + 1 is at most kMostVectors
    bool itself, wide_indices;
    Element table, vector;     // vector: kFloat16 or kBFloat16
};

// Returns the launch's error; cudaErrorInvalidValue for what the kernel does not take.
cudaError_t launch_bags_interaction(const BagsInteraction& work, cudaStream_t stream);

}  // namespace dlrm
