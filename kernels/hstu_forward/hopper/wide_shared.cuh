// The shared memory of a thread block of the wide form, and what thread blocks of a cluster send each other.
#pragma once

#include "shared.cuh"
#include "wide_call.h"

namespace hopper_forward {

constexpr int kMostStages = 16;
constexpr int kSpan = 32;                            // inner indices of a stage of the projection
constexpr int kStageBytes = 4 * kWidth * kSpan * 2;  // of a part
constexpr int kSpansOfOutput = 4;                    // a stage of the output has fewer columns and more spans
constexpr int kAttentionSplits = kWarps;

// The barrier of the warps that compute.
constexpr int kRowsBarrier = 1;
__device__ inline void sync_rows() { hopper::named_sync(kRowsBarrier, kGroupThreads); }

// Offsets in bytes. `element`: bytes of a tensor's element. `time_weights` and `positions` are those of the blocks of
// parity `buffer`.
struct WideLayout {
    static constexpr bool kMayComeLate = true;
    __device__ static uint4 read16(const char* at) { return late_read16(at); }
    __device__ static uint2 read8(const char* at) { return late_read8(at); }
    __device__ static void store(char* to, uint32_t x) { late_store(to, x); }

    int parts, element, columns, size, chunks, stages, buffer;

    __host__ __device__ int factor() const { return parts * kRows * kRowBytes; }
    __host__ __device__ int stage_bytes() const { return parts * kStageBytes; }
    __host__ __device__ int gathered_bytes() const { return size * kRows * kWidth * 2 * element; }
    __host__ __device__ int x_bytes() const { return chunks * kFloatRows; }

    __host__ __device__ int ring() const { return 0; }
    __host__ __device__ int num_positions() const { return columns + kColumns; }
    __host__ __device__ int biases() const { return ring() + stages * stage_bytes(); }
    __host__ __device__ int biases_bytes() const { return 4 * (kBuckets + num_positions()); }
    __host__ __device__ int time_weights() const { return biases() + buffer * biases_bytes(); }
    __host__ __device__ int positions() const { return time_weights() + 4 * kBuckets; }
    __host__ __device__ int barriers() const { return biases() + 2 * biases_bytes(); }
    __host__ __device__ int q() const { return barriers() + (2 * kMostStages + 6) * 8; }
    __host__ __device__ int u() const { return q() + factor(); }
    __host__ __device__ int x() const { return u() + kFloatRows; }
    __host__ __device__ int gathered() const { return x() + x_bytes(); }
    // The attention's sums take turns with the factors of both products.
    __host__ __device__ int rows() const { return gathered() + gathered_bytes(); }
    __host__ __device__ int sums() const { return rows(); }
    __host__ __device__ int buckets() const {
        const int factors = (size > chunks ? size : chunks) * factor(), sums = kAttentionSplits * kFloatRows;
        return rows() + (factors > sums ? factors : sums);
    }
    __host__ __device__ int bucket_stride() const { return (columns + 95) / 128 * 128 + 32; }
    __host__ __device__ int bytes() const { return buckets() + kRows * bucket_stride(); }
};

// A group's k and v of the block of the model at `place.far`, which has no other buffer. Groups behind the own one may
// be missing: their columns have no weight, and the own group's stand for them.
__device__ inline char* keys_of(const Place& place, const WideLayout& layout, int group, int) {
    return place.far + static_cast<int64_t>(min(group, place.first / kRows)) * 2 * layout.factor();
}

// A place and the thread block's number in its cluster.
struct WidePlace : Place {
    int rank;
};

// The weights of this thread block in the order of their use, in stages that the copy engine fills.
//
// A stage has `parts` times (columns, 32) elements: all 256 columns of a projection, or 4 spans of 64 columns of the
// output.
struct Ring {
    char* base;
    uint64_t *full, *empty;
    int stages, bytes;
    int stage = 0;
    uint32_t parity = 0;

    __device__ Ring(char* shared, const WideLayout& layout)
        : base(shared + layout.ring()),
          full(reinterpret_cast<uint64_t*>(shared + layout.barriers())),
          empty(full + kMostStages),
          stages(layout.stages),
          bytes(layout.stage_bytes()) {}

    __device__ void init() const {
        for (int i = 0; i < stages; ++i) {
            hopper::barrier_init(full + i, 1);
            hopper::barrier_init(empty + i, kWarps);
        }
    }

    __device__ void advance() {
        if (++stage == stages) stage = 0, parity ^= 1;
    }

    // By one thread: copy stages `first` to `last` of the stream, each when its place is free.
    __device__ void fill(const char* stream, int first, int last) {
        for (int i = first; i < last; ++i) {
            if (i >= stages) hopper::barrier_wait(empty + stage, parity ^ 1);
            copy(base + stage * bytes, stream + static_cast<int64_t>(i) * bytes, bytes, full + stage);
            advance();
        }
    }

    __device__ const char* wait() const {
        hopper::barrier_wait(full + stage, parity);
        return base + stage * bytes;
    }

    // By all warps, when they have read a stage.
    __device__ void release(int lane) {
        __syncwarp();
        if (lane == 0) hopper::barrier_arrive(empty + stage);
        advance();
    }
};

// Shared memory of thread block `rank` of the cluster, at the place of the own one.
__device__ inline uint32_t address_in(uint32_t own, int rank) {
    uint32_t other;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(own), "r"(rank));
    return other;
}

// What all thread blocks of a cluster send to all, block for block of the model: each a slice of the same memory.
struct Exchange {
    uint64_t* barrier;
    char* memory;
    int slice, size;  // bytes of a slice, thread blocks

    __device__ void init() const { hopper::barrier_init(barrier, 1); }
    // By one thread, once a phase.
    __device__ void expect() const { hopper::barrier_expect(barrier, slice * (size - 1)); }

    // By all warps of the rows, which have stored the own slice.
    __device__ void send(const WidePlace& place) const {
        fence_for_copies();
        sync_rows();
        if (place.warp != 0 || place.lane >= size || place.lane == place.rank) return;
        const uint32_t from = hopper::shared_address(memory + place.rank * slice);
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                address_in(from, place.lane)),
            "r"(from), "r"(slice), "r"(address_in(hopper::shared_address(barrier), place.lane))
            : "memory");
    }

    // What others sent is seen after the wait.
    __device__ void wait(uint32_t parity) const {
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "again:\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
            "@done bra ready;\n"
            "bra again;\n"
            "ready:\n"
            "}\n" ::"r"(hopper::shared_address(barrier)),
            "r"(parity)
            : "memory");
    }
};

}  // namespace hopper_forward
