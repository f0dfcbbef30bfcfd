// One block for each row of the batch. Its warps gather the tables' rows, four bags of a warp at a time so that
// many reads are under way, and round them into shared memory; there the tensor cores find the vectors, and their
// products go out through shared memory as well, so that the result is written in whole sectors.
#include "bags_interaction.cuh"

#include <type_traits>

namespace dlrm {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kBags = 4;      // of a warp, in flight together
constexpr int kAccess = 16;   // bytes
constexpr int kSkew = 8;      // elements between vectors, so that eight rows of a fragment lie in eight banks

struct Shape {
    int vectors, columns, pitch, width;  // pitch: elements from vector to vector; width: columns of the result
    bool itself;
};

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ inline void load_fragment_a(unsigned (&a)[4], const void* pointer) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_address(pointer)));
}

__device__ inline void load_fragment_b(unsigned (&b)[2], const void* pointer) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1])
                 : "r"(shared_address(pointer)));
}

template <typename V>
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (std::is_same_v<V, __half>) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

// Sums the bags of row `row` into vectors 1 to `tables` of `features`.
template <typename T, typename V, typename I, bool kWeighted>
__device__ inline void gather(const BagsInteraction& work, int64_t row, const Shape& shape, V* features) {
    constexpr int kWidth = kAccess / static_cast<int>(sizeof(T));
    const I* offsets = static_cast<const I*>(work.offsets);
    const I* indices = static_cast<const I*>(work.indices);
    const T* weights = static_cast<const T*>(work.weights);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int first = warp; first < work.tables; first += kWarps * kBags) {
        const T* tables[kBags];
        I at[kBags];
        int left[kBags];
        int longest = 0;
#pragma unroll
        for (int bag = 0; bag < kBags; ++bag) {
            const int table = first + bag * kWarps;
            at[bag] = 0;
            left[bag] = 0;
            tables[bag] = nullptr;
            if (table < work.tables) {
                const int64_t place = table * work.batch + row;
                at[bag] = offsets[place];
                left[bag] = static_cast<int>(offsets[place + 1] - at[bag]);
                tables[bag] = reinterpret_cast<const T*>(work.addresses[table]);
            }
            longest = max(longest, left[bag]);
        }
#pragma unroll 1
        for (int column = lane * kWidth; column < shape.columns; column += 32 * kWidth) {
            float total[kBags][kWidth] = {};
            // Not unrolled: registers that it would take are blocks that could not be resident.
#pragma unroll 1
            for (int step = 0; step < longest; ++step) {
                Pack<T, kWidth> values[kBags];
                float weight[kBags];
#pragma unroll
                for (int bag = 0; bag < kBags; ++bag) {
                    if (step < left[bag]) {
                        const int64_t index = indices[at[bag] + step];
                        if constexpr (kWeighted) weight[bag] = widen(weights[at[bag] + step]);
                        values[bag] = *reinterpret_cast<const Pack<T, kWidth>*>(tables[bag] +
                                                                                index * shape.columns + column);
                    }
                }
#pragma unroll
                for (int bag = 0; bag < kBags; ++bag) {
                    if (step < left[bag]) {
#pragma unroll
                        for (int i = 0; i < kWidth; ++i) {
                            const float value = widen(values[bag].values[i]);
                            total[bag][i] += kWeighted ? weight[bag] * value : value;
                        }
                    }
                }
            }
#pragma unroll
            for (int bag = 0; bag < kBags; ++bag) {
                const int table = first + bag * kWarps;
                if (table < work.tables) {
                    Pack<V, kWidth> rounded;
#pragma unroll
                    for (int i = 0; i < kWidth; ++i) rounded.values[i] = narrow<V>(total[bag][i]);
                    *reinterpret_cast<Pack<V, kWidth>*>(features + (table + 1) * shape.pitch + column) = rounded;
                }
            }
        }
    }
}

// Writes the lower triangle of the vectors' products to `result`, a tile of 16 x 8 products a warp at a time.
template <typename V>
__device__ inline void interact(const Shape& shape, const V* features, V* result) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row_tiles = (shape.vectors + 15) / 16;
    // Row tile r has 2 (r + 1) column tiles up to the diagonal, so r (r + 1) tiles come before it.
    for (int tile = warp; tile < row_tiles * (row_tiles + 1); tile += kWarps) {
        int row_tile = 0;
        while ((row_tile + 1) * (row_tile + 2) <= tile) ++row_tile;
        const int column_tile = tile - row_tile * (row_tile + 1);
        const V* a_row = features + (row_tile * 16 + lane % 16) * shape.pitch + (lane / 16) * 8;
        const V* b_row = features + (column_tile * 8 + lane % 8) * shape.pitch + ((lane / 8) % 2) * 8;
        float c[4] = {};
#pragma unroll 4
        for (int k = 0; k < shape.columns; k += 16) {
            unsigned a[4], b[2];
            load_fragment_a(a, a_row + k);
            load_fragment_b(b, b_row + k);
            multiply<V>(c, a, b);
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int i = row_tile * 16 + lane / 4 + (part / 2) * 8;
            const int j = column_tile * 8 + (lane % 4) * 2 + part % 2;
            const bool below = shape.itself ? j <= i : j < i;
            const int before = shape.itself ? i * (i + 1) / 2 : i * (i - 1) / 2;
            if (below && i < shape.vectors) result[shape.columns + before + j] = narrow<V>(c[part]);
        }
    }
}

template <typename T, typename V, typename I, bool kWeighted>
__global__ void __launch_bounds__(kThreads) bags_interaction_kernel(const BagsInteraction work, const Shape shape) {
    extern __shared__ uint4 memory[];
    V* features = reinterpret_cast<V*>(memory);
    V* result = features + (shape.vectors + 15) / 16 * 16 * shape.pitch;
    const int64_t row = blockIdx.x;
    constexpr int kWidth = kAccess / static_cast<int>(sizeof(V));
    using Packed = Pack<V, kWidth>;

    const V* dense = static_cast<const V*>(work.dense) + row * shape.columns;
    for (int column = threadIdx.x * kWidth; column < shape.columns; column += kThreads * kWidth) {
        const Packed values = *reinterpret_cast<const Packed*>(dense + column);
        *reinterpret_cast<Packed*>(features + column) = values;
        *reinterpret_cast<Packed*>(result + column) = values;
    }
    gather<T, V, I, kWeighted>(work, row, shape, features);
    __syncthreads();
    // Vectors beyond the last are whatever is there: they meet each other and rows that are not written.
    interact<V>(shape, features, result);
    __syncthreads();

    V* out = static_cast<V*>(work.out) + row * work.out_stride;
    const bool aligned = reinterpret_cast<uintptr_t>(out) % kAccess == 0;
    const int packed = aligned ? shape.width / kWidth : 0;
    for (int number = threadIdx.x; number < packed; number += kThreads) {
        reinterpret_cast<Packed*>(out)[number] = reinterpret_cast<const Packed*>(result)[number];
    }
    for (int column = packed * kWidth + threadIdx.x; column < shape.width; column += kThreads) {
        out[column] = result[column];
    }
}

template <typename T, typename V, typename I>
cudaError_t launch(const BagsInteraction& work, cudaStream_t stream) {
    const int vectors = work.tables + 1;
    Shape shape{vectors, work.columns, work.columns + kSkew, 0, work.itself};
    shape.width = work.columns + vectors * (vectors + (work.itself ? 1 : -1)) / 2;
    const int elements = (vectors + 15) / 16 * 16 * shape.pitch + (shape.width + 7) / 8 * 8;
    const int bytes = elements * static_cast<int>(sizeof(V));
    const auto kernel = work.weights == nullptr ? bags_interaction_kernel<T, V, I, false>
                                                : bags_interaction_kernel<T, V, I, true>;
    if (bytes > 48 * 1024) {
        const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (error != cudaSuccess) return error;
    }
    kernel<<<static_cast<unsigned>(work.batch), kThreads, bytes, stream>>>(work, shape);
    return cudaGetLastError();
}

template <typename T, typename V>
cudaError_t launch_indices(const BagsInteraction& work, cudaStream_t stream) {
    return work.wide_indices ? launch<T, V, int64_t>(work, stream) : launch<T, V, int32_t>(work, stream);
}

template <typename V>
cudaError_t launch_table(const BagsInteraction& work, cudaStream_t stream) {
    switch (work.table) {
        case Element::kFloat32: return launch_indices<float, V>(work, stream);
        case Element::kFloat16: return launch_indices<__half, V>(work, stream);
        case Element::kBFloat16: return launch_indices<__nv_bfloat16, V>(work, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_bags_interaction(const BagsInteraction& work, cudaStream_t stream) {
    if (work.batch == 0) return cudaSuccess;
    const bool fits = work.batch > 0 && work.batch <= INT32_MAX && work.tables >= 1 &&
                      work.tables < kMostVectors && work.columns >= 16 && work.columns % 16 == 0;
    if (!fits || reinterpret_cast<uintptr_t>(work.dense) % kAccess != 0) return cudaErrorInvalidValue;
    switch (work.vector) {
        case Element::kFloat16: return launch_table<__half>(work, stream);
        case Element::kBFloat16: return launch_table<__nv_bfloat16>(work, stream);
        case Element::kFloat32: break;
    }
    return cudaErrorInvalidValue;
}

}  // namespace dlrm
