// Fused HSTU attention for Hopper: SiLU(alpha q k) v over jagged sequences, one persistent block a multiprocessor.
//
// A producer warp copies q, k and v into shared memory. Two consumer warpgroups own 64 rows each: one computes its SiLU
// while the products of the other run. Tiles come from a work list, long ones first, each taken by the block that is
// free. Blocks of columns that no row of a tile sees are not visited. Blocks that all rows of a warpgroup see have no
// mask.
#pragma once

#include "shared.cuh"
#include "weights.cuh"

namespace hopper {

constexpr int kOwn = 1;  // named barriers 1 and 2

template <typename T, int D, int N>
__device__ inline void multiply_keys(float (&s)[N / 2], const uint8_t* q, const uint8_t* k) {
    constexpr int kBytes = Rows<D>::kBytes;
    const Matrix a(shared_address(q), kBytes, 16, 8 * kBytes), b(shared_address(k), kBytes, 16, 8 * kBytes);
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
        const int span = step * 32 / kBytes, inside = step * 32 % kBytes;
        Product<T, N>::multiply_shared(s, a.at(span * kGroupRows * kBytes + inside), b.at(span * N * kBytes + inside),
                                       step > 0);
    }
}

template <typename T, int D, int N>
__device__ inline void multiply_values(float (&o)[D / 2], const uint32_t (&p)[N / 4], const uint8_t* v, bool add) {
    constexpr int kBytes = Rows<D>::kBytes;
    const Matrix b(shared_address(v), kBytes, N * kBytes, 8 * kBytes);
#pragma unroll
    for (int step = 0; step < N / 16; ++step) {
        Product<T, D>::multiply_registers(o, p + 4 * step, b.at(16 * step * kBytes), step > 0 || add);
    }
}

// Values behind the end of a sequence belong to another one, and NaN times zero is not zero.
template <int D, int N>
__device__ inline void clear_rows(uint8_t* v, int from, int thread, int group) {
    constexpr int kChunks = Rows<D>::kBytes / 16;
    const int count = (N - from) * kChunks;
#pragma unroll 1
    for (int i = thread; i < count * Rows<D>::kSpans; i += 128) {
        const int span = i / count, inside = i % count;
        *reinterpret_cast<uint4*>(v + (span * N + from) * Rows<D>::kBytes + inside * 16) = uint4{0, 0, 0, 0};
    }
    fence_for_tensor_cores();
    named_sync(kOwn + group, 128);
}

__device__ inline float scale_of(const Arguments& arguments, int64_t row) {
    const void* scale = arguments.attn_scale;
    if (scale == nullptr) return arguments.scale;
    if (arguments.scale_type == 0) return static_cast<const float*>(scale)[row];
    if (arguments.scale_type == 1) return __half2float(static_cast<const __half*>(scale)[row]);
    return __bfloat162float(static_cast<const __nv_bfloat16*>(scale)[row]);
}

// Four threads of a row exchange pairs of elements, so that each stores 16 bytes side by side.
template <typename T, int D>
__device__ inline void store(const Arguments& arguments, const float (&o)[D / 2], const Tile& tile, int head, int row) {
    const int lane = threadIdx.x % 32, quarter = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half, row += 8) {
        const bool inside = row < tile.length;
        const int64_t at = static_cast<int64_t>(tile.start) + row;
        const float factor = inside ? arguments.alpha * scale_of(arguments, at) : 0.0f;
        T* out = static_cast<T*>(arguments.out) + at * arguments.out_row + head * arguments.out_head;
#pragma unroll
        for (int column = 0; column < D; column += 32) {
            uint32_t own[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at_o = column / 2 + 4 * i + 2 * half;
                own[i] = packed(o[at_o] * factor, o[at_o + 1] * factor, T{});
            }
            uint32_t all[4];
#pragma unroll
            for (int turn = 0; turn < 4; ++turn) {
                // In turn t, thread a sends what thread a ^ t stores, and gets its own part of that thread's.
                const int to = quarter ^ turn;
                const uint32_t sent = to & 2 ? (to & 1 ? own[3] : own[2]) : (to & 1 ? own[1] : own[0]);
                const uint32_t got = __shfl_xor_sync(0xFFFFFFFF, sent, turn);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if (to == i) all[i] = got;
                }
            }
            if (inside) {
                *reinterpret_cast<uint4*>(out + column + 8 * quarter) = uint4{all[0], all[1], all[2], all[3]};
            }
        }
    }
}

// What a warpgroup knows of its rows of a tile.
template <int N>
struct Group {
    Tile tile;
    Blocks blocks;
    Visible visible;
    int begin, end;

    __device__ Group(const Tile& tile, int number, Mask mask) : tile(tile) {
        const int tile_end = min(tile.row + kTileRows, tile.length);
        blocks = blocks_of(tile.row, tile_end, tile.first_target, mask, N);
        begin = tile.row + number * kGroupRows;
        end = min(begin + kGroupRows, tile.length);
        visible = visible_to(begin, end, tile.first_target, mask);
    }

    __device__ bool has_rows() const { return begin < end; }

    __device__ bool sees(int block) const {
        const int column = blocks.at(block) * N, behind = column + N;
        return (column < visible.some.end && behind > visible.some.begin) || (column < end && behind > begin);
    }

    __device__ bool cuts(int block) const {
        const int column = blocks.at(block) * N;
        return column < visible.all.begin || column + N > visible.all.end;
    }
};

template <typename T, int D, int N, int Stages>
__device__ inline void consume(const Arguments& arguments, Shared<D, N, Stages>& shared, int number) {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const float factor = -1.4426950408889634f * arguments.alpha;
    Place<Stages> place;
    Place<Shared<D, N, Stages>::kSlots> slot;
    const auto release = [&](uint64_t* barrier) {
        if (lane == 0) barrier_arrive(barrier);
    };
    // Lane 0 arrives for its warp. A lane that still waits would miss the phases that this arrival lets pass, and wait
    // for ever. A product gathers its warp; without one, the warp gathers here.
    const auto release_unused = [&](uint64_t* barrier) {
        __syncwarp();
        release(barrier);
    };
    const auto skip = [&] {
        barrier_wait(&shared.k_full[place.stage], place.parity);
        release_unused(&shared.k_empty[place.stage]);
        barrier_wait(&shared.v_full[place.stage], place.parity);
        release_unused(&shared.v_empty[place.stage]);
        place.next();
    };
    for (;; slot.next()) {
        barrier_wait(&shared.q_full[slot.stage], slot.parity);
        if (shared.tile[slot.stage].length == 0) break;
        const Group<N> group(shared.tile[slot.stage], number, arguments.mask);
        const Tile& tile = group.tile;
        const int head = shared.head[slot.stage];
        const int row = group.begin + thread / 32 * 16 + lane / 4;
        const int first_column = 2 * (lane % 4);
        const uint8_t* q = shared.q[slot.stage][number];
        const auto weigh = [&](float(&s)[N / 2], int block) {
            if (group.cuts(block)) {
                hide(s, row_of(row, tile, arguments.mask), row_of(row + 8, tile, arguments.mask),
                     group.blocks.at(block) * N + first_column);
            }
            silu(s, factor);
        };
        const auto values = [&](const Place<Stages>& at, int block) {
            barrier_wait(&shared.v_full[at.stage], at.parity);
            const int inside = tile.length - group.blocks.at(block) * N;
            if (inside < N) clear_rows<D, N>(shared.v[at.stage], inside, thread, number);
        };
        int block = 0;
        if (group.has_rows()) {
            int last = group.blocks.count - 1;
            while (!group.sees(last)) --last;
#pragma unroll 1
            for (; !group.sees(block); ++block) skip();
            float o[D / 2];
            uint32_t p[N / 4];
            {
                float s[N / 2];
                barrier_wait(&shared.k_full[place.stage], place.parity);
                products_fence();
                multiply_keys<T, D, N>(s, q, shared.k[place.stage]);
                products_commit();
                products_wait<0>();
                release(&shared.k_empty[place.stage]);
                weigh(s, block);
                pack<T>(p, s);
            }
            bool has_sum = false;
            Place<Stages> behind = place;
            int weighed = block++;
            place.next();
            while (weighed != last) {
#pragma unroll 1
                for (; !group.sees(block); ++block) skip();
                float s[N / 2];
                barrier_wait(&shared.k_full[place.stage], place.parity);
                values(behind, weighed);
                products_fence();
                multiply_keys<T, D, N>(s, q, shared.k[place.stage]);
                products_commit();
                multiply_values<T, D, N>(o, p, shared.v[behind.stage], has_sum);
                products_commit();
                products_wait<1>();
                release(&shared.k_empty[place.stage]);
                weigh(s, block);
                products_wait<0>();
                release(&shared.v_empty[behind.stage]);
                pack<T>(p, s);
                has_sum = true;
                behind = place;
                weighed = block++;
                place.next();
            }
            release(&shared.q_empty[slot.stage]);
            values(behind, weighed);
            products_fence();
            multiply_values<T, D, N>(o, p, shared.v[behind.stage], has_sum);
            products_commit();
            products_wait<0>();
            release(&shared.v_empty[behind.stage]);
            store<T, D>(arguments, o, tile, head, row);
        } else {
            release_unused(&shared.q_empty[slot.stage]);
        }
#pragma unroll 1
        for (; block < group.blocks.count; ++block) skip();
    }
}

template <typename T, int D, int N, int Stages>
__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const __grid_constant__ Arguments arguments) {
    extern __shared__ uint8_t memory[];
    auto& shared = *reinterpret_cast<Shared<D, N, Stages>*>((reinterpret_cast<uintptr_t>(memory) + 1023) & ~1023ull);
    if (threadIdx.x == 0) {
        for (int i = 0; i < shared.kSlots; ++i) {
            barrier_init(&shared.q_full[i], 1);
            barrier_init(&shared.q_empty[i], 4 * kGroups);
        }
        for (int i = 0; i < Stages; ++i) {
            barrier_init(&shared.k_full[i], 1);
            barrier_init(&shared.v_full[i], 1);
            barrier_init(&shared.k_empty[i], 4 * kGroups);
            barrier_init(&shared.v_empty[i], 4 * kGroups);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        prefetch_map(&arguments.q);
        prefetch_map(&arguments.k);
        prefetch_map(&arguments.v);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<40>();
        if (threadIdx.x == 0) produce<D, N, Stages>(arguments, shared);
    } else {
        more_registers<232>();
        consume<T, D, N, Stages>(arguments, shared, threadIdx.x / 128 - 1);
    }
}

}  // namespace hopper
