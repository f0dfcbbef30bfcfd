// The steps of a block around its attention, for a group's rows. Each ends before a barrier of the thread block.
#pragma once

#include "shared.cuh"

namespace hopper_forward {

// The weights of a block's biases, and the two barriers of their copies. A block's number decides the parity.
template <typename L>
struct BiasCopies {
    const Call& call;
    const L& layout;
    char* shared;
    uint64_t* barriers;

    // By one thread, as `start`.
    __device__ void init() const { hopper::barrier_init(barriers, 1), hopper::barrier_init(barriers + 1, 1); }

    __device__ void start(int block) const {
        const float* positions = call.position_weights + static_cast<int64_t>(block) * call.position_stride +
                                 call.position_zero - layout.columns;
        copy(shared + layout.positions(), positions, 4 * layout.num_positions(), barriers);
        copy(shared + layout.time_weights(), call.time_weights + static_cast<int64_t>(block) * kBuckets, 4 * kBuckets,
             barriers + 1);
    }

    __device__ void wait(int block) const {
        hopper::barrier_wait(barriers, block % 2);
        hopper::barrier_wait(barriers + 1, block % 2);
    }
};

// The parameters of a block, and the barriers of their copies.
struct Copies {
    const Call& call;
    const Layout& layout;
    char* shared;

    __device__ uint64_t* barrier(int number) const {
        return reinterpret_cast<uint64_t*>(shared + layout.barriers()) + number;
    }
    __device__ BiasCopies<Layout> of_biases() const { return {call, layout, shared, barrier(2)}; }

    __device__ void init() const {
        if (threadIdx.x != 0) return;
        for (int number = 0; number < 2; ++number) hopper::barrier_init(barrier(number), 1);
        of_biases().init();
        fence_for_copies();
    }

    __device__ void rows(const void* from, int offset, int rows, int block, int number) const {
        const int bytes = layout.parts * rows * kRowBytes;
        if (threadIdx.x == 0) {
            const char* own = static_cast<const char*>(from) + static_cast<int64_t>(block) * bytes;
            copy(shared + offset, own, bytes, barrier(number));
        }
    }

    __device__ void uvqk(int block) const { rows(call.uvqk, layout.uvqk(), 4 * kWidth, block, 0); }
    __device__ void output(int block) const { rows(call.output, layout.output(), kWidth, block, 1); }
    __device__ void biases(int block) const {
        if (threadIdx.x == 0) of_biases().start(block);
    }

    __device__ void wait_uvqk(int block) const { hopper::barrier_wait(barrier(0), block % 2); }
    __device__ void wait_output(int block) const { hopper::barrier_wait(barrier(1), block % 2); }
    __device__ void wait_biases(int block) const { of_biases().wait(block); }
};

// The item of a row, 0 behind the end.
__device__ inline int64_t item_of(const Call& call, const Place& place) {
    const int row = place.first + place.row();
    if (row >= place.length) return 0;
    const int64_t at = place.start + row;
    return call.wide_ids ? static_cast<const int64_t*>(call.ids)[at] : static_cast<const int32_t*>(call.ids)[at];
}

// Four columns of x of a row: its item's embedding times the root of D plus its position's, 0 without an item.
template <typename T>
struct Embedding {
    struct alignas(4 * sizeof(T)) Four {
        T x[4];
    };
    Four of_item{}, of_row{};

    __device__ void load(const Call& call, const Place& place, int64_t item, int first) {
        const int size = call.embedding_dim;
        if (item == 0 || first >= size) return;
        const T* item_at = static_cast<const T*>(call.item_weights) + item * size + first;
        const int64_t row = place.first + place.row();
        const T* row_at = static_cast<const T*>(call.input_positions) + row * size + first;
        if (call.has_whole_fours) {
            of_item = *reinterpret_cast<const Four*>(item_at);
            of_row = *reinterpret_cast<const Four*>(row_at);
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (first + i < size) of_item.x[i] = item_at[i], of_row.x[i] = row_at[i];
        }
    }

    __device__ float4 sum(const Call& call) const {
        const float root = sqrtf(static_cast<float>(call.embedding_dim));
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = rounded(as_float(of_item.x[i]) * root + as_float(of_row.x[i]), T());
        return make_float4(x[0], x[1], x[2], x[3]);
    }
};

// x of the rows.
template <typename T>
__device__ inline void embed(const Call& call, const Place& place, const Layout& layout) {
    Embedding<T> embedding;
    embedding.load(call, place, item_of(call, place), place.column());
    *reinterpret_cast<float4*>(place.own + layout.x() + 4 * float_at(place.row(), place.column())) =
        embedding.sum(call);
}

// The layer norm of x, as factors.
template <typename T>
__device__ inline void normalize(const Call& call, const Place& place, const Layout& layout) {
    const float4 read = read_floats(place, layout.x());
    const float inverse = 1.0f / call.embedding_dim;
    const float mean = half_warp_sum(read.x + read.y + read.z + read.w) * inverse;
    float x[4] = {read.x, read.y, read.z, read.w}, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[i] = place.column() + i < call.embedding_dim ? x[i] - mean : 0.0f;
        squares += x[i] * x[i];
    }
    const float deviation = rsqrtf(half_warp_sum(squares) * inverse + call.epsilon);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] *= deviation;
    store_rows<T>(place, place.own + layout.rows(), x);
}

// A state's norm, from the sum of its squares.
__device__ inline float norm_of(const Call& call, float squares) {
    // A comparison with NaN is false, and the norm stays NaN.
    const float root = sqrtf(squares);
    return root < call.l2_epsilon ? call.l2_epsilon : root;
}

// Four columns of a row's state.
template <typename T>
__device__ inline void write_columns(const Call& call, const Place& place, float4 read, float norm, int first) {
    const float x[4] = {read.x, read.y, read.z, read.w};
    const int row = place.first + place.row();
    if (row >= place.length) return;
    T* to = static_cast<T*>(call.out) + (place.start + row) * call.embedding_dim;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (first + i < call.embedding_dim) set(to + first + i, x[i] / norm);
    }
}

// The states: x over its norm.
template <typename T>
__device__ inline void write_states(const Call& call, const Place& place, const Layout& layout) {
    const float4 x = read_floats(place, layout.x());
    const float norm = norm_of(call, half_warp_sum(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w));
    write_columns<T>(call, place, x, norm, place.column());
}

// Store SiLU of a warp's 32 columns of u, q, v or k: `sums` of products of both factors.
template <typename T, typename L>
__device__ inline void store_projected(const Place& place, const L& layout, const float (&sums)[4][4], int buffer) {
    constexpr int kParts = FactorOf<T>::kParts;
    constexpr float kScale = FactorOf<T>::kScale, kUnit = 1.0f / (kScale * kScale);
    const int row = place.lane / 4, position = place.lane % 4, kind = place.warp / 2;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const int column = place.warp % 2 * 32 + 8 * n + 2 * position;
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = silu(sums[n][i] * kUnit);
        if (kind == 0) {
            auto* u = reinterpret_cast<float*>(place.own + layout.u());
            *reinterpret_cast<float2*>(u + float_at(row, column)) = make_float2(rounded(x[0], T()), rounded(x[1], T()));
            *reinterpret_cast<float2*>(u + float_at(row + 8, column)) =
                make_float2(rounded(x[2], T()), rounded(x[3], T()));
            continue;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int own = row + 8 * half;
            // NaN behind a sequence's end times a weight of zero is not zero.
            const float factor = place.first + own < place.length ? kScale : 0.0f;
            const bool is_inside = factor != 0.0f;
            char* keys = keys_of(place, layout, place.first / kRows, buffer);
            const Pair<T> pair(is_inside ? x[2 * half] * factor : 0.0f, is_inside ? x[2 * half + 1] * factor : 0.0f);
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                const int of_part = part * kRows * kRowBytes;
                char* to = keys + of_part + own * kRowBytes + 2 * column;
                uint32_t stored = pair.part[part];
                if (kind == 1) {
                    to = place.own + layout.q() + of_part + chunk_at(own, column / 8) + column % 8 * 2;
                } else if (kind == 2) {
                    // v's thread of a row gets two rows of a column.
                    stored = transposed(stored);
                    const int value = place.warp % 2 * 32 + 8 * n + row;
                    to = keys + layout.factor() + of_part + 2 * (value * kRows + 8 * half + 2 * position);
                }
                L::store(to, stored);
            }
        }
    }
}

// u, q, v and k of the rows from the factors of their norm: SiLU(x W^T). A warp computes 32 columns.
template <typename T>
__device__ inline void project(const Place& place, const Layout& layout, int buffer) {
    constexpr int kParts = FactorOf<T>::kParts;
    const int row = place.lane / 4, position = place.lane % 4;
    const char* weights = place.shared + layout.uvqk() + place.warp * 32 * kRowBytes;
    float sums[4][4] = {};
#pragma unroll
    for (int span = 0; span < 2; ++span) {
        const RowsOfSpan<T> rows(place.own + layout.rows(), span, place.lane);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            uint32_t first[kParts][2], second[kParts][2];
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                const uint4 w =
                    read16(weights + part * 4 * kWidth * kRowBytes + chunk_at(8 * n + row, 4 * span + position));
                first[part][0] = w.x, first[part][1] = w.y, second[part][0] = w.z, second[part][1] = w.w;
            }
            multiply_parts<T>(sums[n], rows.a[0], first);
            multiply_parts<T>(sums[n], rows.a[1], second);
        }
    }
    store_projected<T>(place, layout, sums, buffer);
}

// Four columns of the attention's result: the sum of at most `Splits` shares of the columns, in order.
template <typename T, int Splits, typename L>
__device__ inline void sum_splits(const Call& call, const Place& place, const L& layout, int splits, float (&x)[4]) {
    constexpr float kScale = FactorOf<T>::kScale, kUnit = 1.0f / (kScale * kScale);
    float4 read[Splits] = {};
#pragma unroll
    for (int split = 0; split < Splits; ++split) {
        if (split < splits) read[split] = read_floats(place, layout.sums() + split * kFloatRows);
    }
    x[0] = x[1] = x[2] = x[3] = 0.0f;
#pragma unroll
    for (int split = 0; split < Splits; ++split) {
        x[0] += read[split].x, x[1] += read[split].y, x[2] += read[split].z, x[3] += read[split].w;
    }
    const float unit = kUnit * call.divisor_inverse;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = rounded(x[i] * unit, T());
}

// The factors of the output: the norm over all heads' values times u.
template <typename T, int Head, int Splits>
__device__ inline void gate(const Call& call, const Place& place, const Layout& layout, int splits) {
    float x[4];
    sum_splits<T, Splits>(call, place, layout, splits, x);
    const float inverse = 1.0f / (call.num_heads * call.linear_dim);
    const float mean = half_warp_sum(x[0] + x[1] + x[2] + x[3]) * inverse;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int column = place.column() + i;
        const bool is_value = column % Head < call.linear_dim && column / Head < call.num_heads;
        x[i] = is_value ? x[i] - mean : 0.0f;
        squares += x[i] * x[i];
    }
    const float deviation = rsqrtf(half_warp_sum(squares) * inverse + call.epsilon);
    const float4 u = read_floats(place, layout.u());
    x[0] = rounded(x[0] * deviation, T()) * u.x, x[1] = rounded(x[1] * deviation, T()) * u.y;
    x[2] = rounded(x[2] * deviation, T()) * u.z, x[3] = rounded(x[3] * deviation, T()) * u.w;
    store_rows<T>(place, place.own + layout.rows(), x);
}

// x += gated W_out^T + bias. A warp computes 8 columns.
template <typename T>
__device__ inline void add_output(const Place& place, const Layout& layout, float2 bias, bool is_last) {
    constexpr int kParts = FactorOf<T>::kParts;
    constexpr float kUnit = 1.0f / (FactorOf<T>::kScale * FactorOf<T>::kScale);
    const int row = place.lane / 4, position = place.lane % 4;
    const char* weights = place.shared + layout.output();
    // Independent sums, so that no product waits for another span's.
    float sums[2][4] = {};
#pragma unroll
    for (int span = 0; span < 2; ++span) {
        const RowsOfSpan<T> rows(place.own + layout.rows(), span, place.lane);
        uint32_t first[kParts][2], second[kParts][2];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const uint4 w =
                read16(weights + part * kWidth * kRowBytes + chunk_at(8 * place.warp + row, 4 * span + position));
            first[part][0] = w.x, first[part][1] = w.y, second[part][0] = w.z, second[part][1] = w.w;
        }
        multiply_parts<T>(sums[span], rows.a[0], first);
        multiply_parts<T>(sums[span], rows.a[1], second);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        auto* x = reinterpret_cast<float*>(place.own + layout.x());
        auto* at = reinterpret_cast<float2*>(x + float_at(row + 8 * half, 8 * place.warp + 2 * position));
        float2 sum = *at;
        sum.x += (sums[0][2 * half] + sums[1][2 * half]) * kUnit + bias.x;
        sum.y += (sums[0][2 * half + 1] + sums[1][2 * half + 1]) * kUnit + bias.y;
        // The final norm takes sums that are not rounded.
        *at = is_last ? sum : make_float2(rounded(sum.x, T()), rounded(sum.y, T()));
    }
}

}  // namespace hopper_forward
