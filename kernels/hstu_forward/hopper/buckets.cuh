// The time buckets of a group's rows, and a sequence's place in the jagged tensors.
#pragma once

#include "shared.cuh"

namespace hopper_forward {

// The last bucket's weight is NaN.
constexpr int kNoBucket = kBuckets - 1;

// A sequence's time at a position as seconds from its first, 2^24 high + low: a difference of two such pairs rounds
// once, like a conversion of int64 to float32. False where `high` would round.
__device__ inline bool time_of(const int64_t* times, int position, float2* pair) {
    const int64_t time = times[position] - times[0], high = time >> 24;
    *pair = make_float2(static_cast<float>(high), static_cast<float>(time & 0xFFFFFF));
    return high >= -(1 << 23) && high < 1 << 23;
}

// Whether the value is true for any of so many threads, at their barrier of this number.
__device__ inline bool any_of(bool value, int barrier, int threads) {
    int any;
    asm volatile(
        "{\n"
        ".reg .pred own, all;\n"
        "setp.ne.b32 own, %1, 0;\n"
        "barrier.red.or.pred all, %2, %3, own;\n"
        "selp.b32 %0, 1, 0, all;\n"
        "}\n"
        : "=r"(any)
        : "r"(static_cast<int>(value)), "r"(barrier), "r"(threads)
        : "memory");
    return any != 0;
}

// The buckets of a group's rows and their columns, which no block changes. The first `threads` call it, since those of
// a row and column beyond reach spoil the whole sequence; `times` is memory for a pair a position.
template <typename L>
__device__ inline void find_buckets(const Call& call, const Place& place, const L& layout, float2* times, int barrier,
                                    int threads) {
    bool is_far = false;
    if (call.buckets != nullptr) {
        const auto* own = static_cast<const int64_t*>(call.timestamps) + place.sequence * call.timestamps_row;
        const int last = min(place.length, call.num_times - 1);
        for (int i = threadIdx.x; i < layout.columns + 1; i += threads) {
            // Nothing depends on the time of a position behind the end.
            is_far |= !time_of(own, min(i, last), times + i);
        }
    }
    is_far = any_of(is_far, barrier, threads);
    if (!place.active()) return;
    const int columns = (min(place.first + kRows, place.length) + kColumns - 1) / kColumns * kColumns;
    const int quads = columns / 4;
    for (int i = threadIdx.x % kGroupThreads; i < kRows * quads; i += kGroupThreads) {
        const int row = i / quads, column = i % quads * 4;
        uint32_t four = is_far ? kNoBucket * 0x01010101u : 0;
        if (call.buckets != nullptr && !is_far) {
            const float2 successor = times[place.first + row + 1];
            int64_t entry[4];
            int pattern[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 time = times[column + j];
                const float delta = (successor.x - time.x) * 16777216.0f + (successor.y - time.y);
                pattern[j] = max(__float_as_int(fabsf(delta)) - 0x3F800000, 0);
                entry[j] = __ldg(call.buckets + (pattern[j] >> call.shift));
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int bucket = static_cast<int>(entry[j] >> 32) + (pattern[j] >= static_cast<int>(entry[j]));
                four |= static_cast<uint32_t>(bucket) << 8 * j;
            }
        }
        char* to = place.own + layout.buckets() + row * layout.bucket_stride() + column;
        *reinterpret_cast<uint32_t*>(to) = four;
    }
}

__device__ inline int64_t offset_of(const Call& call, int sequence) {
    return call.wide_offsets ? static_cast<const int64_t*>(call.offsets)[sequence]
                             : static_cast<const int32_t*>(call.offsets)[sequence];
}

}  // namespace hopper_forward
