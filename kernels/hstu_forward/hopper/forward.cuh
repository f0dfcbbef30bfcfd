// The forward as one kernel: a cluster of thread blocks computes all blocks of the model for one sequence.
//
// A row depends on others through k and v alone. These pass through the cache that all multiprocessors share, which is
// faster than reads of other blocks' shared memory; one barrier of the cluster separates two blocks of the model. Two
// buffers take turns: while some threads still read the k and v of a block, the others write those of the next one.
#pragma once

#include "attention.cuh"
#include "block.cuh"
#include "buckets.cuh"

namespace hopper_forward {

template <typename T, int Head, int Splits>
__global__ void __launch_bounds__(2 * kGroupThreads, 1) forward_kernel(const __grid_constant__ Call call) {
    extern __shared__ __align__(128) char shared[];
    // Behind this the results of the kernels before are seen. The next kernel may start, and waits likewise.
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
    const int blocks_of_cluster = call.groups / call.groups_of_cta, rank = blockIdx.x % blocks_of_cluster;
    const Layout layout{FactorOf<T>::kParts, Splits, call.groups * kRows};
    Place place;
    place.sequence = blockIdx.x / blocks_of_cluster;
    place.start = offset_of(call, place.sequence);
    place.length = min(static_cast<int>(offset_of(call, place.sequence + 1) - place.start), call.max_seq_len);
    const int group = threadIdx.x / kGroupThreads;
    place.first = (rank * call.groups_of_cta + group) * kRows;
    place.warp = threadIdx.x / 32 % kWarps;
    place.lane = threadIdx.x % 32;
    place.shared = shared;
    place.own = shared + layout.groups() + group * layout.group();

    place.far = call.workspace + static_cast<int64_t>(place.sequence) * call.groups * 4 * layout.factor();

    if (!place.active() && place.first - kRows < place.length) {
        // A step of the attention reads k and v of two whole groups.
        char* keys = keys_of(place, layout, place.first / kRows, 0);
        for (int i = threadIdx.x % kGroupThreads; i < 4 * layout.factor() / 16; i += kGroupThreads) {
            *reinterpret_cast<uint4*>(keys + 16 * i) = make_uint4(0, 0, 0, 0);
        }
    }
    // A thread block without rows.
    if (rank * call.groups_of_cta * kRows >= place.length) {
#pragma unroll 1
        for (int block = 0; block < call.num_blocks; ++block) cluster_arrive(), cluster_wait();
        return;
    }

    const Copies copies{call, layout, shared};
    copies.init();
    copies.uvqk(0);
    copies.output(0);
    copies.biases(0);
    if (place.active()) embed<T>(call, place, layout);
    // The sums' memory is free.
    find_buckets(call, place, layout, reinterpret_cast<float2*>(shared + layout.groups() + layout.sums()), 0,
                 blockDim.x);
    if (place.active()) normalize<T>(call, place, layout);
    __syncthreads();
    copies.wait_uvqk(0);
    if (place.active()) project<T>(place, layout, 0);
    cluster_arrive();
    for (int block = 0; block < call.num_blocks; ++block) {
        const bool is_last = block + 1 == call.num_blocks;
        const auto* biases = reinterpret_cast<const float2*>(call.output_bias + block * kWidth + 8 * place.warp);
        const float2 bias = __ldg(biases + place.lane % 4);
        Attention<T, Head, Splits> attention(place, layout, block % 2);
        copies.wait_biases(block);
        if (place.active()) attention.prepare();
        cluster_wait();
        if (!is_last) copies.uvqk(block + 1);
        if (place.active()) attention.run();
        __syncthreads();
        if (!is_last) copies.biases(block + 1);
        if (place.active()) {
            gate<T, Head, Splits>(call, place, layout, min(Splits, Attention<T, Head, Splits>::steps(place)));
        }
        __syncthreads();
        copies.wait_output(block);
        if (place.active()) add_output<T>(place, layout, bias, is_last);
        __syncthreads();
        if (is_last) break;
        copies.output(block + 1);
        if (place.active()) normalize<T>(call, place, layout);
        __syncthreads();
        copies.wait_uvqk(block + 1);
        if (place.active()) project<T>(place, layout, (block + 1) % 2);
        cluster_arrive();
    }
    if (place.active()) write_states<T>(call, place, layout);
}

}  // namespace hopper_forward
