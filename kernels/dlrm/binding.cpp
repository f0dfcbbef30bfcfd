// The Python binding of the CUDA C++. The Python side checks shapes and dtypes. This file checks the conditions of
// memory safety again, except the values of indices and offsets.
#include <optional>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

#include "bags_interaction.cuh"
#include "pointwise.cuh"

namespace {

dlrm::Element element_of(at::ScalarType type) {
    switch (type) {
        case at::kFloat: return dlrm::Element::kFloat32;
        case at::kHalf: return dlrm::Element::kFloat16;
        case at::kBFloat16: return dlrm::Element::kBFloat16;
        default: TORCH_CHECK(false, "dtype ", type, ": give float32, float16 or bfloat16");
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
    C10_CUDA_CHECK(dlrm::launch_pointwise(
        x.const_data_ptr(), y.has_value() ? y->const_data_ptr() : nullptr, bias.const_data_ptr(),
        out.mutable_data_ptr(), x.numel(), x.size(-1), static_cast<float>(scale), element_of(x.scalar_type()),
        sigmoid ? dlrm::Activation::kSigmoid : dlrm::Activation::kRelu,
        c10::cuda::getCurrentCUDAStream()));
}

void bags_interaction(const at::Tensor& dense, const at::Tensor& addresses, const at::Tensor& indices,
                      const std::optional<at::Tensor>& weights, const at::Tensor& offsets, at::ScalarType table,
                      bool itself, const at::Tensor& out) {
    TORCH_CHECK(dense.dim() == 2 && out.dim() == 2, "dense and out must be matrices");
    const int64_t batch = dense.size(0), columns = dense.size(1), tables = addresses.numel();
    const int64_t pairs = (tables + 1) * (itself ? tables + 2 : tables) / 2;
    check(dense, dense, dense.numel(), "dense");
    for (const at::Tensor& tensor : {addresses, indices, offsets}) {
        TORCH_CHECK(tensor.device() == dense.device() && tensor.is_contiguous(), "put all on dense's device");
    }
    TORCH_CHECK(addresses.scalar_type() == at::kLong, "addresses must be int64");
    TORCH_CHECK(indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt, "indices' dtype");
    TORCH_CHECK(offsets.scalar_type() == indices.scalar_type(), "offsets must have the indices' dtype");
    TORCH_CHECK(offsets.numel() == tables * batch + 1, "give tables * batch + 1 offsets");
    if (weights.has_value()) {
        TORCH_CHECK(weights->device() == dense.device() && weights->is_contiguous(), "weights' memory");
        TORCH_CHECK(weights->numel() == indices.numel() && weights->scalar_type() == table, "weights' form");
    }
    TORCH_CHECK(out.device() == dense.device() && out.scalar_type() == dense.scalar_type(), "out's form");
    TORCH_CHECK(out.size(0) == batch && out.size(1) == columns + pairs && out.stride(1) == 1, "out's shape");
    const c10::cuda::CUDAGuard guard(dense.device());
    dlrm::BagsInteraction work{};
    work.dense = dense.const_data_ptr();
    work.addresses = addresses.const_data_ptr<int64_t>();
    work.indices = indices.const_data_ptr();
    work.weights = weights.has_value() ? weights->const_data_ptr() : nullptr;
    work.offsets = offsets.const_data_ptr();
    work.out = out.mutable_data_ptr();
    work.batch = batch;
    work.out_stride = out.stride(0);
    work.tables = static_cast<int>(tables);
    work.columns = static_cast<int>(columns);
    work.itself = itself;
    work.wide_indices = indices.scalar_type() == at::kLong;
    work.table = element_of(table);
    work.vector = element_of(dense.scalar_type());
    C10_CUDA_CHECK(dlrm::launch_bags_interaction(work, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("pointwise", &pointwise, "activation(x + scale * y + bias) into out");
    module.def("bags_interaction", [](const at::Tensor& dense, const at::Tensor& addresses,
                                      const at::Tensor& indices, const std::optional<at::Tensor>& weights,
                                      const at::Tensor& offsets, const at::Tensor& table, bool itself,
                                      const at::Tensor& out) {
        bags_interaction(dense, addresses, indices, weights, offsets, table.scalar_type(), itself, out);
    });
}
