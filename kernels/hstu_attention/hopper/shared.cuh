// What the producer and the consumers of a block share, and the producer.
#pragma once

#include "ptx.cuh"
#include "tiles.cuh"

namespace hopper {

constexpr int kThreads = 128 * (kGroups + 1);

struct Arguments {
    CUtensorMap q, k, v;
    WorkList* list;
    void* out;
    const void* attn_scale;  // of each row, or null
    int64_t out_row, out_head;
    int heads;
    int scale_type;  // of attn_scale: 0 float32, 1 float16, 2 bfloat16
    Mask mask;
    float alpha, scale;
};

// What a block has in shared memory.
template <int D, int N, int Stages>
struct Shared {
    static constexpr int kMatrix = D * 2;  // bytes of a row
    // Places of q: two where they fit beside the stages of k and v.
    static constexpr int kSlots = (2 * kTileRows + 2 * Stages * N) * D * 2 <= 225 * 1024 ? 2 : 1;
    alignas(1024) uint8_t q[kSlots][kGroups][kGroupRows * kMatrix];
    alignas(1024) uint8_t k[Stages][N * kMatrix];
    alignas(1024) uint8_t v[Stages][N * kMatrix];
    uint64_t q_full[kSlots], q_empty[kSlots];
    uint64_t k_full[Stages], k_empty[Stages], v_full[Stages], v_empty[Stages];
    Tile tile[kSlots];
    int head[kSlots];
};

// A place in a ring of stages, and the parity of its phase.
template <int Stages>
struct Place {
    int stage = 0;
    uint32_t parity = 0;

    __device__ void next() {
        if (++stage == Stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// Rows of `D` elements as spans of at most 128 bytes, one behind the other: the largest swizzle.
template <int D>
struct Rows {
    static constexpr int kSpan = D < 64 ? D : 64;
    static constexpr int kSpans = D / kSpan;
    static constexpr int kBytes = kSpan * 2;

    template <int Count>
    static __device__ void load(uint8_t* to, const CUtensorMap* map, uint64_t* barrier, int head, int row) {
#pragma unroll
        for (int span = 0; span < kSpans; ++span) {
            copy_box(to + span * Count * kBytes, map, barrier, span * kSpan, head, row);
        }
    }
};

template <int D, int N, int Stages>
__device__ inline void produce(const Arguments& arguments, Shared<D, N, Stages>& shared) {
    WorkList* list = arguments.list;
    const int heads = arguments.heads, total = list->count * heads;
    Place<Stages> keys, values;
    Place<Shared<D, N, Stages>::kSlots> slot;
    int index = atomicAdd(&list->next, 1);
    Tile tile = list->tiles[(index < total ? index : 0) / heads];
    for (;;) {
        barrier_wait(&shared.q_empty[slot.stage], slot.parity ^ 1);
        if (index >= total) {
            shared.tile[slot.stage].length = 0;
            barrier_arrive(&shared.q_full[slot.stage]);
            return;
        }
        const int head = index % heads, rows = tile.length - tile.row;
        shared.tile[slot.stage] = tile;
        shared.head[slot.stage] = head;
        const int groups = min(kGroups, (rows + kGroupRows - 1) / kGroupRows);
        barrier_expect(&shared.q_full[slot.stage], groups * kGroupRows * D * 2);
        for (int group = 0; group < groups; ++group) {
            Rows<D>::template load<kGroupRows>(shared.q[slot.stage][group], &arguments.q, &shared.q_full[slot.stage],
                                               head, tile.start + tile.row + group * kGroupRows);
        }
        slot.next();
        index = atomicAdd(&list->next, 1);
        const int end = min(tile.row + kTileRows, tile.length);
        const Blocks blocks = blocks_of(tile.row, end, tile.first_target, arguments.mask, N);
        const int start = tile.start;
        // Keys run one block ahead of values.
        for (int i = 0; i <= blocks.count; ++i) {
            if (i < blocks.count) {
                barrier_wait(&shared.k_empty[keys.stage], keys.parity ^ 1);
                barrier_expect(&shared.k_full[keys.stage], N * D * 2);
                Rows<D>::template load<N>(shared.k[keys.stage], &arguments.k, &shared.k_full[keys.stage], head,
                                          start + blocks.at(i) * N);
                keys.next();
            }
            if (i == 0) {
                tile = list->tiles[(index < total ? index : 0) / heads];
                continue;
            }
            barrier_wait(&shared.v_empty[values.stage], values.parity ^ 1);
            barrier_expect(&shared.v_full[values.stage], N * D * 2);
            Rows<D>::template load<N>(shared.v[values.stage], &arguments.v, &shared.v_full[values.stage], head,
                                      start + blocks.at(i - 1) * N);
            values.next();
        }
    }
}

}  // namespace hopper
