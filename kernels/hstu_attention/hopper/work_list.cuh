// The work list: tiles of all sequences, in groups whose keys and values fit the L2 cache, long tiles first.
#pragma once

#include "tiles.cuh"

namespace hopper {

constexpr int kListThreads = 1024;
constexpr int kClasses = 2048;  // of tiles, by group and number of blocks

struct Sequences {
    const void* offsets;
    const void* num_targets;  // or null
    bool wide_offsets, wide_targets;
    int count;
    int max_seq_len;
    int columns;     // of a block
    int group_rows;  // rows of the jagged tensor in one group
    int groups;
    Mask mask;
};

__device__ inline int64_t element(const void* values, bool wide, int index) {
    return wide ? static_cast<const int64_t*>(values)[index] : static_cast<const int32_t*>(values)[index];
}

__device__ inline int class_of(const Sequences& of, const Tile& tile) {
    const int end = min(tile.row + kTileRows, tile.length);
    const int count = blocks_of(tile.row, end, tile.first_target, of.mask, of.columns).count;
    const int most = (of.max_seq_len + of.columns - 1) / of.columns + 1, lengths = kClasses / of.groups;
    const int length = most < lengths ? count : count * (lengths - 1) / most;
    return (of.groups > 1 ? min(tile.start / of.group_rows, of.groups - 1) : 0) * lengths + lengths - 1 -
           min(length, lengths - 1);
}

// One block. A warp takes 32 sequences at a time, and its lanes the tiles of one of them.
template <typename Visit>
__device__ inline void each_tile(const Sequences& of, Visit visit) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = kListThreads / 32;
    for (int first = warp; first < of.count; first += warps * 32) {
        const int mine = first + lane * warps;
        int64_t start = 0;
        int length = 0, targets = 0;
        if (mine < of.count) {
            start = element(of.offsets, of.wide_offsets, mine);
            length = static_cast<int>(element(of.offsets, of.wide_offsets, mine + 1) - start);
            length = min(length, of.max_seq_len);
            if (of.num_targets != nullptr) targets = static_cast<int>(element(of.num_targets, of.wide_targets, mine));
        }
        for (int i = 0; i < 32 && first + i * warps < of.count; ++i) {
            Tile tile;
            tile.start = __shfl_sync(0xFFFFFFFF, static_cast<int>(start), i);
            tile.length = __shfl_sync(0xFFFFFFFF, length, i);
            tile.first_target = tile.length - __shfl_sync(0xFFFFFFFF, targets, i);
            for (tile.row = lane * kTileRows; tile.row < tile.length; tile.row += 32 * kTileRows) visit(tile);
        }
    }
}

__global__ void __launch_bounds__(kListThreads, 1) list_kernel(Sequences of, WorkList* list) {
    __shared__ int places[kClasses];
    __shared__ int sums[kListThreads / 32];
    const int thread = threadIdx.x, lane = thread % 32;
    for (int i = thread; i < kClasses; i += kListThreads) places[i] = 0;
    __syncthreads();
    each_tile(of, [&](const Tile& tile) { atomicAdd(&places[class_of(of, tile)], 1); });
    __syncthreads();
    // Exclusive sums of the classes' sizes; a thread has two classes.
    const int first = places[2 * thread], second = places[2 * thread + 1];
    int sum = first + second;
    for (int distance = 1; distance < 32; distance *= 2) {
        const int left = __shfl_up_sync(0xFFFFFFFF, sum, distance);
        if (lane >= distance) sum += left;
    }
    if (lane == 31) sums[thread / 32] = sum;
    __syncthreads();
    if (thread < 32) {
        int total = sums[thread];
        for (int distance = 1; distance < 32; distance *= 2) {
            const int left = __shfl_up_sync(0xFFFFFFFF, total, distance);
            if (lane >= distance) total += left;
        }
        sums[thread] = total;
    }
    __syncthreads();
    const int before = (thread >= 32 ? sums[thread / 32 - 1] : 0) + sum - first - second;
    places[2 * thread] = before;
    places[2 * thread + 1] = before + first;
    if (thread == kListThreads - 1) {
        list->count = before + first + second;
        list->next = 0;
    }
    __syncthreads();
    each_tile(of, [&](const Tile& tile) { list->tiles[atomicAdd(&places[class_of(of, tile)], 1)] = tile; });
}

static_assert(kClasses == 2 * kListThreads, "a thread has two classes");

}  // namespace hopper
