// The forward of a wide model and few rows as one kernel: a cluster of thread blocks computes all blocks of the model
// for a group of 16 rows of a sequence.
//
// A thread block has 64 columns of the heads, and the weights of its columns stream through its shared memory. Thread
// blocks of a cluster send each other their columns of the attention's result and of x. A row depends on rows of other
// clusters through k and v alone: these pass through the cache that all multiprocessors share, each block of the model
// in memory of its own. Signals would wait for stores: instead a reader reads until no word is missing. A group waits
// for groups of lower numbers alone. Thread blocks start in the order of their numbers, so that all reach their ends
// however many clusters run at once.
#pragma once

#include "attention.cuh"
#include "buckets.cuh"
#include "wide_block.cuh"

namespace hopper_forward {

constexpr int kWideThreads = kGroupThreads + 32;  // the last warp copies weights

// Let words of k and v be missing.
__global__ void reset_kernel(uint4* workspace, int64_t count) {
    asm volatile("griddepcontrol.launch_dependents;");
    const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
        workspace[i] = make_uint4(kMissing, kMissing, kMissing, kMissing);
    }
}

// At most `Most` chunks of an embedding, and thread blocks of a cluster.
template <typename T, int Head, int Most>
__global__ void __launch_bounds__(kWideThreads, 1) wide_kernel(const __grid_constant__ WideCall wide, int stages) {
    extern __shared__ __align__(128) char shared[];
    const Call& call = wide.call;
    WideLayout layout{FactorOf<T>::kParts, sizeof(T), call.groups * kRows, wide.size, wide.chunks, stages, 0};
    const int groups = (call.max_seq_len + kRows - 1) / kRows, cluster = blockIdx.x / wide.size;
    WidePlace place;
    place.rank = blockIdx.x % wide.size;
    place.sequence = cluster / groups;
    place.start = offset_of(call, place.sequence);
    place.length = min(static_cast<int>(offset_of(call, place.sequence + 1) - place.start), call.max_seq_len);
    place.first = cluster % groups * kRows;
    place.warp = threadIdx.x / 32, place.lane = threadIdx.x % 32;
    place.shared = place.own = shared;
    if (!place.active()) return;

    Ring ring(shared, layout);
    const int own_chunks = layout.chunks / layout.size;
    uint64_t* barriers = ring.empty + kMostStages;
    const Exchange mixed{barriers, shared + layout.gathered(), layout.gathered_bytes() / layout.size, layout.size};
    const Exchange outputs{barriers + 1, shared + layout.x(), own_chunks * kFloatRows, layout.size};
    // Those of even blocks and those of odd ones.
    const auto biases_of = [&](int block) {
        return BiasCopies<WideLayout>{call, layout, shared, barriers + 2 + 2 * (block % 2)};
    };
    const auto copy_biases = [&](int block) {
        layout.buffer = block % 2;
        if (block < call.num_blocks) biases_of(block).start(block);
    };
    const int all_stages = call.num_blocks * (2 * layout.chunks + layout.chunks / 2);
    const char* stream = static_cast<const char*>(call.uvqk) +
                         static_cast<int64_t>(place.rank) * all_stages * layout.stage_bytes();
    const int early = min(all_stages, stages);
    if (threadIdx.x == kGroupThreads) {
        ring.init();
        mixed.init(), outputs.init();
        biases_of(0).init(), biases_of(1).init();
        fence_for_copies();
        mixed.expect(), outputs.expect();
        ring.fill(stream, 0, early);
        copy_biases(0), copy_biases(1);
    }
    __syncwarp();
    cluster_arrive();
    if (place.warp < kWarps) {
        const int64_t item = item_of(call, place);
        // The sums' memory is free.
        find_buckets(call, place, layout, reinterpret_cast<float2*>(shared + layout.sums()), kRowsBarrier,
                     kGroupThreads);
        embed_wide<T, Most>(call, place, layout, item);
        sync_rows();
    }
    cluster_wait();
    if (place.warp == kWarps) {
        if (place.lane == 0) ring.fill(stream, early, all_stages);
        return;
    }

    // All words of k and v are missing behind this wait.
    asm volatile("griddepcontrol.wait;" ::: "memory");
    Attention<T, Head, kAttentionSplits, WideLayout> attention(place, layout, 0);
    OutputBiases<Most> output_biases;
    const float of_row = 1.0f / call.embedding_dim, of_values = 1.0f / (call.num_heads * call.linear_dim);
    layout.buffer = 0;
    biases_of(0).wait(0);
    attention.prepare();
    normalize_wide<T, Most>(call, place, layout, of_row);
    sync_rows();
    for (int block = 0; block < call.num_blocks; ++block) {
        const bool is_last = block + 1 == call.num_blocks;
        // Of this thread block's columns and all groups of the sequence.
        const int64_t number = static_cast<int64_t>(block * call.sequences + place.sequence) * wide.size + place.rank;
        place.far = call.workspace + number * call.groups * 2 * layout.factor();
        output_biases.load(call.output_bias + static_cast<int64_t>(block) * layout.chunks * kWidth, place, own_chunks);
        {
            float sums[4][4] = {};
            project_wide<T>(place, layout, ring, sums);
            store_projected<T>(place, layout, sums, 0);
        }
        sync_rows();
        attention.clear();
        layout.buffer = block % 2;
        attention.run();
        sync_rows();
        // The next block's biases are found in the times of the exchanges.
        if (threadIdx.x == 0) copy_biases(block + 2);
        layout.buffer = (block + 1) % 2;
        send_mixed<T>(call, place, layout, mixed, min(kAttentionSplits, attention.steps(place)));
        if (!is_last) biases_of(block + 1).wait((block + 1) / 2), attention.prepare(0);
        mixed.wait(block % 2);
        if (threadIdx.x == 0) mixed.expect();
        gate_wide<T, Head, Most>(call, place, layout, of_values);
        sync_rows();
        send_output<T, Most>(place, layout, ring, outputs, output_biases, own_chunks, is_last);
        if (!is_last) attention.prepare(1);
        outputs.wait(block % 2);
        if (is_last) break;
        if (threadIdx.x == 0) outputs.expect();
        normalize_wide<T, Most>(call, place, layout, of_row);
        sync_rows();
    }
    // The others have received what this thread block's memory still sends.
    cluster_arrive();
    write_states_wide<T>(call, place, layout, own_chunks);
    cluster_wait();
}

}  // namespace hopper_forward
