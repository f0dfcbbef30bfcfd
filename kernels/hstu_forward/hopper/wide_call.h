// The arguments of `hopper_forward_wide_launch`, in step with `hopper_launch.WideArguments`.
#pragma once

#include "call.h"

namespace hopper_forward {

// `call.uvqk` is the stream of weights, see `Ring`; `call.output` is unused. Rows of `output_bias` have `chunks` * 64
// elements.
struct WideCall {
    Call call;
    int64_t workspace_bytes;
    int32_t size;    // thread blocks of a cluster: each has 64 columns of u, of q, of v and of k
    int32_t chunks;  // of 64 columns of an embedding as stored, a multiple of `size`
};

}  // namespace hopper_forward
