#include "pointwise.cuh"

namespace dlrm {
namespace {

constexpr int kThreads = 256;
constexpr int kAccessBytes = 16;

template <Activation kActivation>
__device__ inline float activate(float value) {
    if constexpr (kActivation == Activation::kRelu) {
        return value < 0.0f ? 0.0f : value;  // a comparison, and not fmaxf, so that NaN stays NaN
    } else {
        return 1.0f / (1.0f + expf(-value));
    }
}

template <typename T, int kWidth, bool kScaled, Activation kActivation>
__global__ void __launch_bounds__(kThreads)
    pointwise_kernel(const T* x, const T* y, const T* __restrict__ bias, T* out, int64_t numel, int columns,
                     float scale) {
    using Packed = Pack<T, kWidth>;
    const int64_t start = static_cast<int64_t>(blockIdx.x) * kThreads * kWidth;
    const int64_t at = start + static_cast<int64_t>(threadIdx.x) * kWidth;
    if (at >= numel) return;
    // One 64-bit remainder a block, the same for all its threads. A pack never crosses a row's end: kWidth is 1
    // or divides the columns.
    const unsigned first = static_cast<unsigned>(start % columns);
    const unsigned column = (first + threadIdx.x * kWidth) % static_cast<unsigned>(columns);

    const Packed x_pack = *reinterpret_cast<const Packed*>(x + at);
    const Packed bias_pack = *reinterpret_cast<const Packed*>(bias + column);
    Packed y_pack;
    if constexpr (kScaled) y_pack = *reinterpret_cast<const Packed*>(y + at);
    Packed result;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
        float value = widen(x_pack.values[i]);
        if constexpr (kScaled) value += scale * widen(y_pack.values[i]);
        value += widen(bias_pack.values[i]);
        result.values[i] = narrow<T>(activate<kActivation>(value));
    }
    *reinterpret_cast<Packed*>(out + at) = result;
}

struct Arguments {
    const void *x, *y, *bias;
    void* out;
    int64_t numel, columns;
    float scale;
    cudaStream_t stream;
};

template <typename T, int kWidth, bool kScaled, Activation kActivation>
cudaError_t launch(const Arguments& a) {
    const int64_t blocks = (a.numel + kThreads * kWidth - 1) / (kThreads * kWidth);
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    pointwise_kernel<T, kWidth, kScaled, kActivation><<<static_cast<unsigned>(blocks), kThreads, 0, a.stream>>>(
        static_cast<const T*>(a.x), static_cast<const T*>(a.y), static_cast<const T*>(a.bias),
        static_cast<T*>(a.out), a.numel, static_cast<int>(a.columns), a.scale);
    return cudaGetLastError();
}

template <typename T, int kWidth>
cudaError_t launch_form(const Arguments& a, Activation activation) {
    const bool sigmoid = activation == Activation::kSigmoid;
    if (a.y == nullptr) {
        return sigmoid ? launch<T, kWidth, false, Activation::kSigmoid>(a)
                       : launch<T, kWidth, false, Activation::kRelu>(a);
    }
    return sigmoid ? launch<T, kWidth, true, Activation::kSigmoid>(a)
                   : launch<T, kWidth, true, Activation::kRelu>(a);
}

template <typename T>
cudaError_t launch_width(const Arguments& a, Activation activation) {
    constexpr int kWidth = kAccessBytes / static_cast<int>(sizeof(T));
    uintptr_t addresses = 0;
    for (const void* pointer : {a.x, a.y, a.bias, static_cast<const void*>(a.out)}) {
        addresses |= reinterpret_cast<uintptr_t>(pointer);
    }
    const bool wide = a.columns % kWidth == 0 && addresses % kAccessBytes == 0;
    return wide ? launch_form<T, kWidth>(a, activation) : launch_form<T, 1>(a, activation);
}

}  // namespace

cudaError_t launch_pointwise(const void* x, const void* y, const void* bias, void* out, int64_t numel,
                             int64_t columns, float scale, Element element, Activation activation,
                             cudaStream_t stream) {
    if (numel == 0) return cudaSuccess;
    if (columns <= 0 || columns > INT32_MAX) return cudaErrorInvalidValue;
    const Arguments a{x, y, bias, out, numel, columns, scale, stream};
    switch (element) {
        case Element::kFloat32: return launch_width<float>(a, activation);
        case Element::kFloat16: return launch_width<__half>(a, activation);
        case Element::kBFloat16: return launch_width<__nv_bfloat16>(a, activation);
    }
    return cudaErrorInvalidValue;
}

}  // namespace dlrm
