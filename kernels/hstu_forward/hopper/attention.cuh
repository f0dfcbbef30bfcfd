// The attention of a group's rows over the columns of its sequence.
#pragma once

#include "shared.cuh"

namespace hopper_forward {

// A warp owns one of `Splits` shares of the columns, and one of the others of the heads. Heads of 8 elements lie in
// pairs: the products of one have zeros in place of the other's elements.
template <typename T, int Head, int Splits, typename L = Layout>
struct Attention {
    using Factor = typename FactorOf<T>::Type;
    static constexpr int kParts = FactorOf<T>::kParts;
    static constexpr float kUnit = 1.0f / (FactorOf<T>::kScale * FactorOf<T>::kScale);
    static constexpr int kTile = Head < 16 ? 16 : Head;  // columns of heads in one product
    static constexpr int kMembers = kTile / Head;
    static constexpr int kShares = kWarps / Splits;
    static constexpr int kTiles = kWidth / kTile / kShares;
    static constexpr int kSteps = kTile / 16;         // products over a tile's depth
    static constexpr int kValues = kTile / 8;         // products over a tile's values
    static constexpr int kOfMember = kValues / kMembers;
    static_assert(kTiles >= 1, "as many tiles as shares");

    const Place& place;
    const L& layout;
    const int buffer;
    const int row = place.lane / 4, position = place.lane % 4;  // of the thread in a product's result
    float bias[4][4];  // of a step
    float sums[kTiles][kValues][4];

    __device__ Attention(const Place& place, const L& layout, int buffer)
        : place(place), layout(layout), buffer(buffer), sums() {}

    __device__ static int steps(const Place& place) {
        return (min(place.first + kRows, place.length) + kColumns - 1) / kColumns;
    }

    __device__ int split() const { return place.warp % Splits; }
    __device__ int tile(int number) const { return place.warp / Splits * kTiles + number; }

    // Of row `row` + 8 half and columns 8 position + (0 .. 7): [pair][2 half + column of the pair].
    __device__ void find_biases(int step, int half) {
        const auto* weights = reinterpret_cast<const float*>(place.shared + layout.time_weights());
        const auto* positions = reinterpret_cast<const float*>(place.shared + layout.positions());
        const int column = step * kColumns + 8 * position, own = row + 8 * half;
        const char* at = place.own + layout.buckets() + own * layout.bucket_stride() + column;
        const uint2 buckets = *reinterpret_cast<const uint2*>(at);
        const float* distances = positions + layout.columns + column - place.first - own;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t bucket = (i < 4 ? buckets.x : buckets.y) >> 8 * (i % 4) & 0xFF;
            bias[i / 2][2 * half + i % 2] = distances[i] + weights[bucket];
        }
    }

    __device__ void find_biases(int step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) find_biases(step, half);
    }

    // k of 32 columns, as a product's second factor. Column 8 n + (0 .. 7) of the product is n-th pair of each of four
    // spans of 8 columns, so that a thread's results are 8 neighbours.
    __device__ void keys(int step, int tile, uint32_t (&k)[4][kSteps][kParts][2]) const {
        const char* base = keys_of(place, layout, 2 * step + row / 4, buffer);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int at = row / 2 % 2 * 8 + 2 * n + row % 2;
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                const char* from = base + part * kRows * kRowBytes + at * kRowBytes;
                if constexpr (kTile == 16) {
                    const uint2 x = L::read8(from + 32 * tile + 8 * position);
                    k[n][0][part][0] = x.x, k[n][0][part][1] = x.y;
                } else {
#pragma unroll
                    for (int span = 0; span < kTile / 32; ++span) {
                        const uint4 x = L::read16(from + 2 * kTile * tile + 64 * span + 16 * position);
                        k[n][2 * span][part][0] = x.x, k[n][2 * span][part][1] = x.y;
                        k[n][2 * span + 1][part][0] = x.z, k[n][2 * span + 1][part][1] = x.w;
                    }
                }
            }
        }
    }

    __device__ void queries(int tile, uint32_t (&q)[kSteps][kParts][4]) const {
        const char* from = place.own + layout.q();
        if constexpr (kTile == 16) {
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                const char* at = from + part * kRows * kRowBytes + position % 2 * 8;
                const auto low = *reinterpret_cast<const uint2*>(at + chunk_at(row, 2 * tile + position / 2));
                const auto high = *reinterpret_cast<const uint2*>(at + chunk_at(row + 8, 2 * tile + position / 2));
                q[0][part][0] = low.x, q[0][part][1] = high.x, q[0][part][2] = low.y, q[0][part][3] = high.y;
            }
        } else {
#pragma unroll
            for (int span = 0; span < kTile / 32; ++span) {
                const RowsOfSpan<T> rows(from, tile * (kTile / 32) + span, place.lane);
#pragma unroll
                for (int i = 0; i < 2 * kParts * 4; ++i) {
                    q[2 * span + i / (4 * kParts)][i / 4 % kParts][i % 4] = rows.a[i / (4 * kParts)][i / 4 % kParts][i % 4];
                }
            }
        }
    }

    // v of 32 columns for values 8 n + `row` of the tile.
    __device__ void values(int step, int tile, uint4 (&v)[kValues][kParts]) const {
        const char* base = keys_of(place, layout, 2 * step + position / 2, buffer) + layout.factor() + position % 2 * 16;
#pragma unroll
        for (int n = 0; n < kValues; ++n) {
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                v[n][part] = L::read16(base + part * kRows * kRowBytes + (tile * kTile + 8 * n + row) * 2 * kRows);
            }
        }
    }

    // Where k and v may come late, read them until they are there.
    __device__ void await_keys(int step, int tile, uint32_t (&k)[4][kSteps][kParts][2]) const {
        if constexpr (L::kMayComeLate) {
            while (!all_there(reinterpret_cast<const uint32_t(&)[8 * kSteps * kParts]>(k))) keys(step, tile, k);
        }
    }

    __device__ void await_values(int step, int tile, uint4 (&v)[kValues][kParts]) const {
        if constexpr (L::kMayComeLate) {
            while (!all_there(reinterpret_cast<const uint32_t(&)[4 * kValues * kParts]>(v))) values(step, tile, v);
        }
    }

    // Add the columns' SiLU(q k + bias) v, times both scales.
    __device__ void add(int step) {
#pragma unroll
        for (int number = 0; number < kTiles; ++number) {
            uint32_t k[4][kSteps][kParts][2], q[kSteps][kParts][4];
            keys(step, tile(number), k);
            uint4 v[kValues][kParts];
            constexpr bool kEarly = kValues * kParts <= 8;
            if constexpr (kEarly) values(step, tile(number), v);
            queries(tile(number), q);
            await_keys(step, tile(number), k);
#pragma unroll
            for (int member = 0; member < kMembers; ++member) {
                uint32_t weights[2][kParts][4];
                weigh(q, k, member, weights);
                if constexpr (!kEarly) values(step, tile(number), v);
                await_values(step, tile(number), v);
#pragma unroll
                for (int i = 0; i < kOfMember; ++i) {
                    const int n = member * kOfMember + i;
                    uint32_t first[kParts][2], second[kParts][2];
#pragma unroll
                    for (int part = 0; part < kParts; ++part) {
                        first[part][0] = v[n][part].x, first[part][1] = v[n][part].y;
                        second[part][0] = v[n][part].z, second[part][1] = v[n][part].w;
                    }
                    multiply_parts<T>(sums[number][n], weights[0], first);
                    multiply_parts<T>(sums[number][n], weights[1], second);
                }
            }
        }
    }

    // SiLU(q k + bias) of 32 columns, as the first factors of two products.
    __device__ void weigh(const uint32_t (&q)[kSteps][kParts][4], const uint32_t (&k)[4][kSteps][kParts][2],
                          int member, uint32_t (&weights)[2][kParts][4]) const {
        constexpr float kScale = FactorOf<T>::kScale;
        const bool is_own = kMembers == 1 || position / 2 == member;
        float dots[4][4] = {};
#pragma unroll
        for (int inner = 0; inner < kSteps; ++inner) {
            uint32_t own[kParts][4];
#pragma unroll
            for (int i = 0; i < 4 * kParts; ++i) own[i / 4][i % 4] = is_own ? q[inner][i / 4][i % 4] : 0;
#pragma unroll
            for (int n = 0; n < 4; ++n) multiply_parts<T>(dots[n], own, k[n][inner]);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            float x[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = silu(dots[n][i] * kUnit + bias[n][i]) * kScale;
            const Pair<T> low(x[0], x[1]), high(x[2], x[3]);
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                weights[n / 2][part][n % 2 * 2] = low.part[part];
                weights[n / 2][part][n % 2 * 2 + 1] = high.part[part];
            }
        }
    }

    // Store the sums of this share of the columns.
    __device__ void store() const {
        auto* to = reinterpret_cast<float*>(place.own + layout.sums()) + split() * kRows * kWidth;
#pragma unroll
        for (int number = 0; number < kTiles; ++number) {
#pragma unroll
            for (int n = 0; n < kValues; ++n) {
                const float(&sum)[4] = sums[number][n];
                const int column = tile(number) * kTile + 8 * n + 2 * position;
                *reinterpret_cast<float2*>(to + float_at(row, column)) = make_float2(sum[0], sum[1]);
                *reinterpret_cast<float2*>(to + float_at(row + 8, column)) = make_float2(sum[2], sum[3]);
            }
        }
    }

    // The part that needs no k and no v, for a half of the rows and for both.
    __device__ void prepare(int half) {
        if (split() < steps(place)) find_biases(split(), half);
    }
    __device__ void prepare() { prepare(0), prepare(1); }

    // Begin another block's sums.
    __device__ void clear() {
#pragma unroll
        for (int number = 0; number < kTiles; ++number) {
#pragma unroll
            for (int n = 0; n < kValues; ++n) {
#pragma unroll
                for (float& sum : sums[number][n]) sum = 0.0f;
            }
        }
    }

    __device__ void run() {
        const int all = steps(place);
        if (split() >= all) return;
        for (int step = split(); step < all; step += Splits) {
            if (step != split()) find_biases(step);
            add(step);
        }
        store();
    }
};

}  // namespace hopper_forward
