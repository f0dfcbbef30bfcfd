// The arguments of `hopper_attention`, in step with `hopper_launch._Arguments`.
#pragma once

#include <cstdint>

namespace hopper {

struct Call {
    const void *q, *k, *v;
    void* out;
    const void *offsets, *num_targets, *attn_scale;
    void* workspace;
    int64_t q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head;  // strides in elements
    int64_t rows;
    int32_t heads, size, sequences, max_seq_len;
    int32_t is_half, wide_offsets, wide_targets, scale_type;
    int32_t contextual, window, multiprocessors, group_rows, groups;
    float alpha, scale;
};

}  // namespace hopper
