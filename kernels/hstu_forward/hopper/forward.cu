// The launch of the kernel, as a C function for `hopper_launch.py`.
#include "forward.cuh"

namespace hopper_forward {

template <typename T, int Head, int Splits>
int launch(const Call& call, cudaStream_t stream) {
    const Layout layout{FactorOf<T>::kParts, Splits, call.groups * kRows};
    const auto kernel = forward_kernel<T, Head, Splits>;
    const int bytes = layout.bytes(call.groups_of_cta), blocks = call.groups / call.groups_of_cta;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess) {
        // More than 8 blocks.
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = blocks;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    // The kernel starts before its predecessor ends, for which it waits itself.
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(call.sequences * blocks);
    config.blockDim = dim3(call.groups_of_cta * kGroupThreads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, call);
}

// Short rows have few steps of columns: more warps share the heads.
template <typename T>
int launch_sized(const Call& call, cudaStream_t stream) {
    const bool is_short = call.groups <= 4;
    if (call.head_size == 64) return launch<T, 64, 8>(call, stream);
    if (call.head_size == 32) return launch<T, 32, 8>(call, stream);
    if (call.head_size == 16) return is_short ? launch<T, 16, 2>(call, stream) : launch<T, 16, 8>(call, stream);
    if (call.head_size == 8) return is_short ? launch<T, 8, 2>(call, stream) : launch<T, 8, 8>(call, stream);
    return -1;
}

}  // namespace hopper_forward

// 0, a cudaError_t, or a negative number of `hopper_launch.ERRORS`.
extern "C" int hopper_forward_launch(const hopper_forward::Call* call, void* stream) {
    const auto queue = static_cast<cudaStream_t>(stream);
    if (call->type == 0) return hopper_forward::launch_sized<float>(*call, queue);
    if (call->type == 1) return hopper_forward::launch_sized<__half>(*call, queue);
    return hopper_forward::launch_sized<__nv_bfloat16>(*call, queue);
}
