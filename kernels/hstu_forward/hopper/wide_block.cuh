// The steps of a block around its attention in the wide form, for a group's rows and a thread block's columns.
#pragma once

#include "block.cuh"
#include "wide_shared.cuh"

namespace hopper_forward {

// Of a chunk of 64 columns of x, or of factors of a product.
__device__ inline float4* x_at(const WidePlace& place, const WideLayout& layout, int chunk) {
    char* at = place.own + layout.x() + chunk * kFloatRows + 4 * float_at(place.row(), place.column());
    return reinterpret_cast<float4*>(at);
}

template <typename T>
__device__ inline void store_factors(const WidePlace& place, const WideLayout& layout, int chunk, const float (&x)[4]) {
    store_rows<T>(place, place.own + layout.rows() + chunk * layout.factor(), x);
}

// x of the rows in whole, from the row's item. All loads come first.
template <typename T, int Most>
__device__ inline void embed_wide(const Call& call, const WidePlace& place, const WideLayout& layout, int64_t item) {
    Embedding<T> chunks[Most];
#pragma unroll
    for (int chunk = 0; chunk < Most; ++chunk) {
        if (chunk < layout.chunks) chunks[chunk].load(call, place, item, chunk * kWidth + place.column());
    }
#pragma unroll
    for (int chunk = 0; chunk < Most; ++chunk) {
        if (chunk < layout.chunks) *x_at(place, layout, chunk) = chunks[chunk].sum(call);
    }
}

// The layer norm of x, as factors. `inverse`: of the elements of a row.
template <typename T, int Most>
__device__ inline void normalize_wide(const Call& call, const WidePlace& place, const WideLayout& layout,
                                      float inverse) {
    float4 read[Most] = {};
#pragma unroll
    for (int chunk = 0; chunk < Most; ++chunk) {
        if (chunk < layout.chunks) read[chunk] = *x_at(place, layout, chunk);
    }
    float total = 0.0f, squares = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < Most; ++chunk) {
        total += (read[chunk].x + read[chunk].y) + (read[chunk].z + read[chunk].w);
    }
    const float mean = half_warp_sum(total) * inverse;
    float x[Most][4];
#pragma unroll
    for (int chunk = 0; chunk < Most; ++chunk) {
        x[chunk][0] = read[chunk].x, x[chunk][1] = read[chunk].y;
        x[chunk][2] = read[chunk].z, x[chunk][3] = read[chunk].w;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool is_inside = chunk * kWidth + place.column() + i < call.embedding_dim;
            x[chunk][i] = is_inside ? x[chunk][i] - mean : 0.0f;
            squares += x[chunk][i] * x[chunk][i];
        }
    }
    const float deviation = rsqrtf(half_warp_sum(squares) * inverse + call.epsilon);
#pragma unroll
    for (int chunk = 0; chunk < Most; ++chunk) {
        if (chunk >= layout.chunks) break;
#pragma unroll
        for (int i = 0; i < 4; ++i) x[chunk][i] *= deviation;
        store_factors<T>(place, layout, chunk, x[chunk]);
    }
}

// The second factor of a product of 8 columns and 32 inner indices, in parts that lie `distance` bytes apart.
template <typename T>
struct ColumnsOfSpan {
    uint32_t b[2][FactorOf<T>::kParts][2];

    __device__ ColumnsOfSpan(const char* from, int distance, int lane) {
#pragma unroll
        for (int part = 0; part < FactorOf<T>::kParts; ++part) {
            const uint4 w = read16(from + part * distance + 16 * lane);
            b[0][part][0] = w.x, b[0][part][1] = w.y, b[1][part][0] = w.z, b[1][part][1] = w.w;
        }
    }
};

// The factors of a stage of the projection: a warp's 32 columns and the rows.
template <typename T>
struct ProjectionStage {
    RowsOfSpan<T> rows;
    ColumnsOfSpan<T> columns[4];

    __device__ ProjectionStage(const char* weights, const WidePlace& place, const WideLayout& layout, int span)
        : rows(place.own + layout.rows() + span / 2 * layout.factor(), span % 2, place.lane),
          columns{{weights + 0 * 8 * kSpan * 2, kStageBytes, place.lane},
                  {weights + 1 * 8 * kSpan * 2, kStageBytes, place.lane},
                  {weights + 2 * 8 * kSpan * 2, kStageBytes, place.lane},
                  {weights + 3 * 8 * kSpan * 2, kStageBytes, place.lane}} {}

    __device__ void multiply(float (&sums)[4][4]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int n = 0; n < 4; ++n) multiply_parts<T>(sums[n], rows.a[i], columns[n].b[i]);
        }
    }
};

// Sums of the products of a warp's 32 columns of u, q, v or k, of the factors of the rows' norm.
template <typename T>
__device__ inline void project_wide(const WidePlace& place, const WideLayout& layout, Ring& ring,
                                    float (&sums)[4][4]) {
    const int offset = place.warp * 4 * 8 * kSpan * 2;
#pragma unroll 2
    for (int span = 0; span < 2 * layout.chunks; ++span) {
        const ProjectionStage<T> stage(ring.wait() + offset, place, layout, span);
        ring.release(place.lane);
        stage.multiply(sums);
    }
}

// a and u of 16 rows and 64 columns of each thread block: pairs in half types, else two planes.
template <typename T>
struct Gathered {
    static constexpr int kBytes = kRows * kWidth * 2 * static_cast<int>(sizeof(T));
    static constexpr int kPlanes = sizeof(T) == 4 ? 2 : 1;
    static constexpr int kPlane = kBytes / kPlanes;

    __device__ static char* at(const WidePlace& place, const WideLayout& layout, int rank) {
        return place.own + layout.gathered() + rank * kBytes + (place.row() * kWidth + place.column()) * 4;
    }

    __device__ static void store(char* to, const float (&a)[4], const float4& u) {
        if constexpr (kPlanes == 2) {
            *reinterpret_cast<float4*>(to) = make_float4(a[0], a[1], a[2], a[3]);
            *reinterpret_cast<float4*>(to + kPlane) = u;
        } else {
            *reinterpret_cast<uint4*>(to) = make_uint4(packed(a[0], u.x, T()), packed(a[1], u.y, T()),
                                                       packed(a[2], u.z, T()), packed(a[3], u.w, T()));
        }
    }

    float4 planes[kPlanes] = {};

    __device__ void load(const char* from) {
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
            planes[plane] = *reinterpret_cast<const float4*>(from + plane * kPlane);
        }
    }

    __device__ void split(float (&a)[4], float (&u)[4]) const {
        const float first[4] = {planes[0].x, planes[0].y, planes[0].z, planes[0].w};
        if constexpr (kPlanes == 2) {
            const float second[4] = {planes[1].x, planes[1].y, planes[1].z, planes[1].w};
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = first[i], u[i] = second[i];
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 pair = unpacked(__float_as_uint(first[i]), T());
                a[i] = pair.x, u[i] = pair.y;
            }
        }
    }
};

// Send a, the sum of `splits` shares of the columns in order, and u to all thread blocks.
template <typename T>
__device__ inline void send_mixed(const Call& call, const WidePlace& place, const WideLayout& layout,
                                  const Exchange& exchange, int splits) {
    float a[4];
    sum_splits<T, kAttentionSplits>(call, place, layout, splits, a);
    Gathered<T>::store(Gathered<T>::at(place, layout, place.rank), a, read_floats(place, layout.u()));
    exchange.send(place);
}

// The factors of the output: the norm over all heads' values times u. `inverse`: of the values of a row.
template <typename T, int Head, int Most>
__device__ inline void gate_wide(const Call& call, const WidePlace& place, const WideLayout& layout, float inverse) {
    Gathered<T> read[Most];
#pragma unroll
    for (int rank = 0; rank < Most; ++rank) {
        if (rank < layout.size) read[rank].load(Gathered<T>::at(place, layout, rank));
    }
    float a[Most][4], u[Most][4], total = 0.0f, squares = 0.0f;
#pragma unroll
    for (int rank = 0; rank < Most; ++rank) {
        read[rank].split(a[rank], u[rank]);
        total += (a[rank][0] + a[rank][1]) + (a[rank][2] + a[rank][3]);
    }
    const float mean = half_warp_sum(total) * inverse;
#pragma unroll
    for (int rank = 0; rank < Most; ++rank) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = rank * kWidth + place.column() + i;
            const bool is_value = column % Head < call.linear_dim && column / Head < call.num_heads;
            a[rank][i] = is_value ? a[rank][i] - mean : 0.0f;
            squares += a[rank][i] * a[rank][i];
        }
    }
    const float deviation = rsqrtf(half_warp_sum(squares) * inverse + call.epsilon);
#pragma unroll
    for (int rank = 0; rank < Most; ++rank) {
        if (rank >= layout.size) break;
#pragma unroll
        for (int i = 0; i < 4; ++i) a[rank][i] = rounded(a[rank][i] * deviation, T()) * u[rank][i];
        store_factors<T>(place, layout, rank, a[rank]);
    }
}

// Biases of a thread's two columns of the output in each of the thread block's chunks.
template <int Most>
struct OutputBiases {
    float2 of_chunk[Most / 2];

    __device__ void load(const float* biases, const WidePlace& place, int own_chunks) {
        const float* own = biases + place.rank * own_chunks * kWidth + 8 * place.warp + place.lane % 4 * 2;
#pragma unroll
        for (int chunk = 0; chunk < Most / 2; ++chunk) {
            if (chunk < own_chunks) of_chunk[chunk] = __ldg(reinterpret_cast<const float2*>(own + chunk * kWidth));
        }
    }
};

// Send x + gated W_out^T + bias to all thread blocks. A warp computes 8 columns of each of this one's chunks.
template <typename T, int Most>
__device__ inline void send_output(const WidePlace& place, const WideLayout& layout, Ring& ring,
                                   const Exchange& exchange, const OutputBiases<Most>& biases, int own_chunks,
                                   bool is_last) {
    constexpr float kUnit = 1.0f / (FactorOf<T>::kScale * FactorOf<T>::kScale);
    const int row = place.lane / 4, column = 8 * place.warp + place.lane % 4 * 2;
#pragma unroll
    for (int number = 0; number < Most / 2; ++number) {
        if (number >= own_chunks) break;
        // Independent sums, so that no product waits for another span's.
        float sums[2][4] = {};
        for (int stage = 0; stage < layout.size * 2 / kSpansOfOutput; ++stage) {
            const char* weights = ring.wait() + place.warp * 8 * kSpan * 2;
#pragma unroll
            for (int i = 0; i < kSpansOfOutput; ++i) {
                const int span = stage * kSpansOfOutput + i;
                const RowsOfSpan<T> rows(place.own + layout.rows() + span / 2 * layout.factor(), i % 2, place.lane);
                const ColumnsOfSpan<T> columns(weights + i * kWidth * kSpan * 2, kStageBytes, place.lane);
                multiply_parts<T>(sums[i % 2], rows.a[0], columns.b[0]);
                multiply_parts<T>(sums[i % 2], rows.a[1], columns.b[1]);
            }
            ring.release(place.lane);
        }
        char* x = place.own + layout.x() + (place.rank * own_chunks + number) * kFloatRows;
        const float2 bias = biases.of_chunk[number];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            auto* at = reinterpret_cast<float2*>(x + 4 * float_at(row + 8 * half, column));
            float2 sum = *at;
            sum.x += (sums[0][2 * half] + sums[1][2 * half]) * kUnit + bias.x;
            sum.y += (sums[0][2 * half + 1] + sums[1][2 * half + 1]) * kUnit + bias.y;
            // The final norm takes sums that are not rounded.
            *at = is_last ? sum : make_float2(rounded(sum.x, T()), rounded(sum.y, T()));
        }
    }
    exchange.send(place);
}

// The states of this thread block's columns: x over its norm.
template <typename T>
__device__ inline void write_states_wide(const Call& call, const WidePlace& place, const WideLayout& layout,
                                         int own_chunks) {
    float squares = 0.0f;
    for (int chunk = 0; chunk < layout.chunks; ++chunk) {
        const float4 x = *x_at(place, layout, chunk);
        squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
    const float norm = norm_of(call, half_warp_sum(squares));
    for (int chunk = place.rank * own_chunks; chunk < (place.rank + 1) * own_chunks; ++chunk) {
        write_columns<T>(call, place, *x_at(place, layout, chunk), norm, chunk * kWidth + place.column());
    }
}

}  // namespace hopper_forward
