// The arguments of `hopper_forward`, in step with `hopper_launch.Arguments`.
#pragma once

#include <cstdint>

namespace hopper_forward {

struct Call {
    const void *ids, *offsets, *timestamps;
    const void *item_weights, *input_positions;  // (items + 1, D), (W, D)
    const void *uvqk, *output;                   // (blocks, parts, 256, 64), (blocks, parts, 64, 64), see `chunk_at`
    const float *output_bias;                    // (blocks, 64)
    const float *position_weights;               // (blocks, position_stride), the one of distance 0 at `position_zero`
    const float *time_weights;                   // (blocks, 256), the last NaN
    const int64_t *buckets;                      // `kernels.hstu_attention.buckets.bucket_table`, or none
    void *out;                                   // (L, D)
    char *workspace;                             // k and v, see `keys_of`
    int64_t timestamps_row;                      // stride in elements
    int32_t type, head_size, sequences, max_seq_len;
    int32_t wide_ids, wide_offsets, num_times, shift;
    int32_t num_blocks, num_heads, linear_dim, embedding_dim;
    int32_t position_stride, position_zero, groups, groups_of_cta;
    int32_t has_whole_fours;  // rows of embeddings start at multiples of four elements
    float divisor_inverse, epsilon, l2_epsilon;
};

}  // namespace hopper_forward
