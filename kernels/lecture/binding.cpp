// What Python sees of pointwise.cu. pointwise.py has checked shapes and dtypes; what memory safety rests on is
// checked here again.
#include <optional>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include "pointwise.cuh"

namespace {

lecture::Element element_of(const at::Tensor& tensor) {
    switch (tensor.scalar_type()) {
        case at::kFloat: return lecture::Element::kFloat32;
        case at::kHalf: return lecture::Element::kFloat16;
        case at::kBFloat16: return lecture::Element::kBFloat16;
        default: TORCH_CHECK(false, "dtype ", tensor.scalar_type(), ": give float32, float16 or bfloat16");
    }
}

void check(const at::Tensor& tensor, const at::Tensor& x, int64_t numel, const char* name) {
    TORCH_CHECK(tensor.is_cuda() && tensor.device() == x.device(), name, " must be on x's CUDA device");
    TORCH_CHECK(tensor.scalar_type() == x.scalar_type(), name, " must have x's dtype");
    TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous");
    TORCH_CHECK(tensor.numel() == numel, name, " must have ", numel, " elements");
}

void pointwise(const at::Tensor& x, const std::optional<at::Tensor>& y, const at::Tensor& bias, double scale,
               bool sigmoid, const at::Tensor& out) {
    TORCH_CHECK(x.dim() > 0, "x must have an axis of columns");
    check(x, x, x.numel(), "x");
    if (y.has_value()) check(*y, x, x.numel(), "y");
    check(bias, x, x.size(-1), "bias");
    check(out, x, x.numel(), "out");
    const c10::cuda::CUDAGuard guard(x.device());
    C10_CUDA_CHECK(lecture::launch_pointwise(
        x.const_data_ptr(), y.has_value() ? y->const_data_ptr() : nullptr, bias.const_data_ptr(),
        out.mutable_data_ptr(), x.numel(), x.size(-1), static_cast<float>(scale), element_of(x),
        sigmoid ? lecture::Activation::kSigmoid : lecture::Activation::kRelu,
        c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("pointwise", &pointwise, "activation(x + scale * y + bias) into out");
}
