// The launch of the wide form, as a C function for `hopper_launch.py`.
#include "wide.cuh"

namespace hopper_forward {

constexpr int kResetThreads = 256, kResetWords = 4 * kResetThreads;  // of a thread block, words of 16 bytes

// Stages of weights that fit beside the rest of a thread block's shared memory.
int stages_of(const WideLayout& layout, int memory) {
    const int left = (memory - layout.bytes()) / layout.stage_bytes();
    return left < kMostStages ? left : kMostStages;
}

template <typename T, int Head, int Most>
int launch(const WideCall& wide, cudaStream_t stream) {
    const Call& call = wide.call;
    int device = 0, memory = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
    if (error != cudaSuccess) return error;
    WideLayout layout{FactorOf<T>::kParts, sizeof(T), call.groups * kRows, wide.size, wide.chunks, 0, 0};
    layout.stages = stages_of(layout, memory);
    const auto kernel = wide_kernel<T, Head, Most>;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes());
    if (error != cudaSuccess) return error;

    // As much shared memory as the other kernel has: a multiprocessor cannot change it while a kernel runs.
    error = cudaFuncSetAttribute(reset_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
    const int64_t count = wide.workspace_bytes / 16, blocks = (count + kResetWords - 1) / kResetWords;
    reset_kernel<<<static_cast<int>(blocks < 1024 ? blocks : 1024), kResetThreads, 0, stream>>>(
        reinterpret_cast<uint4*>(call.workspace), count);
    error = cudaGetLastError();
    if (error != cudaSuccess) return error;

    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = wide.size;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    // The kernel starts beside the reset, and waits for its end itself.
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(call.sequences * ((call.max_seq_len + kRows - 1) / kRows) * wide.size);
    config.blockDim = dim3(kWideThreads);
    config.dynamicSmemBytes = layout.bytes();
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, wide, layout.stages);
}

template <typename T, int Head>
int launch_most(const WideCall& call, cudaStream_t stream) {
    if (call.chunks > 4 || call.size > 4) return launch<T, Head, 8>(call, stream);
    return launch<T, Head, 4>(call, stream);
}

template <typename T>
int launch_sized(const WideCall& call, cudaStream_t stream) {
    if (call.call.head_size == 64) return launch_most<T, 64>(call, stream);
    if (call.call.head_size == 32) return launch_most<T, 32>(call, stream);
    if (call.call.head_size == 16) return launch_most<T, 16>(call, stream);
    return -1;
}

}  // namespace hopper_forward

// 0, a cudaError_t, or a negative number of `hopper_launch.ERRORS`.
extern "C" int hopper_forward_wide_launch(const hopper_forward::WideCall* call, void* stream) {
    const auto queue = static_cast<cudaStream_t>(stream);
    if (call->call.type == 0) return hopper_forward::launch_sized<float>(*call, queue);
    if (call->call.type == 1) return hopper_forward::launch_sized<__half>(*call, queue);
    return hopper_forward::launch_sized<__nv_bfloat16>(*call, queue);
}
