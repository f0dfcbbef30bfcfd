// The shared memory of a thread block.
#pragma once

#include "call.h"
#include "cluster.cuh"
#include "products.cuh"

namespace hopper_forward {

constexpr int kWarps = 8;
constexpr int kGroupThreads = 32 * kWarps;
constexpr int kColumns = 32;  // of a step of the attention
constexpr int kBuckets = 256;
constexpr int kFloatRows = kRows * kWidth * 4;

// Offsets in bytes. A group of `kWarps` warps owns `kRows` rows.
struct Layout {
    // k and v are there behind a barrier, in the cache that all multiprocessors share.
    static constexpr bool kMayComeLate = false;
    __device__ static uint4 read16(const char* at) { return far_read16(at); }
    __device__ static uint2 read8(const char* at) { return far_read8(at); }
    __device__ static void store(char* to, uint32_t x) { *reinterpret_cast<uint32_t*>(to) = x; }

    int parts, splits, columns;

    __host__ __device__ int factor() const { return parts * kRows * kRowBytes; }
    __host__ __device__ int uvqk() const { return 0; }
    __host__ __device__ int output() const { return uvqk() + parts * 4 * kWidth * kRowBytes; }
    __host__ __device__ int time_weights() const { return output() + parts * kWidth * kRowBytes; }
    __host__ __device__ int positions() const { return time_weights() + 4 * kBuckets; }
    __host__ __device__ int num_positions() const { return columns + kColumns; }
    __host__ __device__ int barriers() const { return positions() + 4 * num_positions(); }
    __host__ __device__ int groups() const { return barriers() + 64; }

    // In a group.
    __host__ __device__ int rows() const { return 0; }
    __host__ __device__ int q() const { return rows() + factor(); }
    __host__ __device__ int u() const { return q() + factor(); }
    __host__ __device__ int x() const { return u() + kFloatRows; }
    __host__ __device__ int sums() const { return x() + kFloatRows; }
    __host__ __device__ int buckets() const { return sums() + splits * kFloatRows; }
    // Threads of a warp that read eight buckets each, of eight rows, read from different banks.
    __host__ __device__ int bucket_stride() const { return (columns + 95) / 128 * 128 + 32; }
    __host__ __device__ int group() const { return buckets() + kRows * bucket_stride(); }

    __host__ __device__ int bytes(int groups_of_cta) const { return groups() + groups_of_cta * group(); }
};

// A thread's place: a group's rows of a sequence, a warp of the group and a lane.
struct Place {
    int64_t start;   // of the sequence in the jagged tensors
    int sequence, length;
    int first;       // row
    int warp, lane;  // in the group
    char* shared;    // the block's
    char* own;       // the group's
    char* far;       // the sequence's k and v in device memory

    __device__ bool active() const { return first < length; }
    // Rows by halves of warps, four columns a lane.
    __device__ int row() const { return 2 * warp + lane / 16; }
    __device__ int column() const { return lane % 16 * 4; }
};

// A group's k in device memory, (parts, rows, columns) in one of two buffers; behind it v, (parts, columns, rows).
__device__ inline char* keys_of(const Place& place, const Layout& layout, int group, int buffer) {
    return place.far + static_cast<int64_t>(group * 2 + buffer) * 2 * layout.factor();
}

__device__ inline float half_warp_sum(float x) {
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) x += __shfl_xor_sync(0xFFFFFFFF, x, distance);
    return x;
}

__device__ inline float4 read_floats(const Place& place, int offset) {
    return *reinterpret_cast<const float4*>(place.own + offset + 4 * float_at(place.row(), place.column()));
}

// A lane's four columns of a row, as factors of a product in `rows`.
template <typename T>
__device__ inline void store_rows(const Place& place, char* rows, const float (&x)[4]) {
    constexpr float kScale = FactorOf<T>::kScale;
    const Pair<T> low(x[0] * kScale, x[1] * kScale), high(x[2] * kScale, x[3] * kScale);
    char* to = rows + chunk_at(place.row(), place.column() / 8) + place.column() % 8 * 2;
#pragma unroll
    for (int part = 0; part < FactorOf<T>::kParts; ++part) {
        *reinterpret_cast<uint2*>(to + part * kRows * kRowBytes) = make_uint2(low.part[part], high.part[part]);
    }
}

}  // namespace hopper_forward
