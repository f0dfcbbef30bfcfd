// The launch of the kernels, as a C function for `hopper_launch.py`.
#include "attention.cuh"
#include "call.h"
#include "work_list.cuh"

namespace hopper {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
    static Encode found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
        return result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
    }();
    return found;
}

bool encode(CUtensorMap* map, const Call& call, const void* x, int64_t row, int64_t head, int rows) {
    const int span = call.size < 64 ? call.size : 64;
    const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(call.size), static_cast<cuuint64_t>(call.heads),
                                 static_cast<cuuint64_t>(call.rows)};
    const cuuint64_t strides[2] = {static_cast<cuuint64_t>(head) * 2, static_cast<cuuint64_t>(row) * 2};
    const cuuint32_t box[3] = {static_cast<cuuint32_t>(span), 1, static_cast<cuuint32_t>(rows)};
    const cuuint32_t steps[3] = {1, 1, 1};
    return encoder()(map, call.is_half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3,
                     const_cast<void*>(x), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     span == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename T, int D, int N, int Stages>
int launch(const Call& call, cudaStream_t stream) {
    auto* list = static_cast<WorkList*>(call.workspace);
    const Mask mask{call.contextual, call.window};
    Arguments arguments{{}, {}, {}, list, call.out, call.attn_scale, call.out_row, call.out_head, call.heads,
                        call.scale_type, mask, call.alpha, call.scale};
    if (!encode(&arguments.q, call, call.q, call.q_row, call.q_head, kGroupRows) ||
        !encode(&arguments.k, call, call.k, call.k_row, call.k_head, N) ||
        !encode(&arguments.v, call, call.v, call.v_row, call.v_head, N)) {
        return -1;
    }
    constexpr int kBytes = sizeof(Shared<D, N, Stages>) + 1024;
    static_assert(kBytes <= 227 * 1024, "a block has no more shared memory");
    const auto kernel = attention_kernel<T, D, N, Stages>;
    const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (allowed != cudaSuccess) return allowed;
    const Sequences sequences{call.offsets,
                              call.num_targets,
                              call.wide_offsets != 0,
                              call.wide_targets != 0,
                              call.sequences,
                              call.max_seq_len,
                              N,
                              call.group_rows,
                              call.groups,
                              mask};
    list_kernel<<<1, kListThreads, 0, stream>>>(sequences, list);
    kernel<<<call.multiprocessors, kThreads, kBytes, stream>>>(arguments);
    return cudaGetLastError();
}

template <typename T>
int launch_sized(const Call& call, cudaStream_t stream) {
    if (call.size == 128) return launch<T, 128, 128, 2>(call, stream);
    if (call.size == 64) return launch<T, 64, 128, 3>(call, stream);
    if (call.size == 32) return launch<T, 32, 128, 3>(call, stream);
    return -2;
}

}  // namespace hopper

// 0, a cudaError_t, or a negative number of `hopper_launch._ERRORS`.
extern "C" int hopper_attention(const hopper::Call* call, void* stream) {
    if (hopper::encoder() == nullptr) return -3;
    const auto queue = static_cast<cudaStream_t>(stream);
    return call->is_half ? hopper::launch_sized<__half>(*call, queue) : hopper::launch_sized<__nv_bfloat16>(*call, queue);
}
