"""Small functions that together use every lowering: for the GPU tests, and their rehearsal without a GPU."""

import nvtripy as tp
import torch

X = torch.tensor([[0.5, -1.5, 3.0], [2.0, 0.25, -0.125]])


def _image(x):
    return tp.reshape(x, (1, 1, 2, 3))


def _convolved(make, extent):
    def function(x):
        layer = make(1, 2, (2, 2), dtype=tp.float32)
        layer.weight = tp.ones(layer.weight.shape)
        layer.bias = tp.ones((2,))
        return layer(tp.resize(_image(x), mode="nearest", output_shape=(1, 1, extent, extent)))

    return function


def _normalized(make, shape):
    def function(x):
        layer = make()
        layer.weight, layer.bias = tp.ones(layer.weight.shape), tp.zeros(layer.bias.shape)
        return layer(tp.reshape(x, shape))

    return function


def _quantized(scale, dtype, dim=None):
    def function(x):
        factor = tp.Tensor(scale)
        return tp.dequantize(tp.quantize(x, factor, dtype, dim), factor, tp.float32, dim)

    return function


OPERATIONS = {
    "gather": lambda x: tp.gather(x, 1, tp.cast(x, tp.int32)),
    "gather rows": lambda x: tp.gather(x, 0, tp.cast(x, tp.int32)),
    "cast": lambda x: tp.cast(x, tp.int64),
    "cast to bool": lambda x: tp.cast(x, tp.bool),
    "pad": lambda x: tp.pad(x, ((1, 1), (2, 0)), value=3),
    "reflect": lambda x: tp.pad(x, ((0, 1), (1, 1)), mode="reflect"),
    "flip": lambda x: tp.flip(x, 1),
    "topk": lambda x: tp.topk(x, 2, dim=1)[0],
    "argmax": lambda x: tp.argmax(x, 1),
    "softmax": lambda x: tp.softmax(x, 1),
    "cumsum": lambda x: tp.cumsum(x, 1),
    "where": lambda x: tp.where(x > 0.0, x, x * 2.0),
    "floor": lambda x: x // 0.5,
    "integers": lambda x: tp.cast(x, tp.int32) // tp.cast(x * 2.0, tp.int32),
    "powers": lambda x: tp.cast(x, tp.int64) ** tp.cast(x * 2.0, tp.int64),
    "linear": lambda x: tp.resize(_image(x), mode="linear", output_shape=(1, 1, 4, 6)),
    "cubic": lambda x: tp.resize(_image(x), mode="cubic", output_shape=(1, 1, 4, 6)),
    "nearest": lambda x: tp.resize(_image(x), mode="nearest", output_shape=(1, 1, 4, 6)),
    "average pool": lambda x: tp.avgpool(_image(x), (2, 2), padding=((1, 1), (0, 0))),
    "max pool": lambda x: tp.maxpool(_image(x), (2, 2)),
    "convolution": _convolved(tp.Conv, 3),
    "deconvolution": _convolved(tp.ConvTranspose, 2),
    "layer norm": _normalized(lambda: tp.LayerNorm(3), (2, 3)),
    "instance norm": _normalized(lambda: tp.InstanceNorm(2), (1, 2, 3)),
    "group norm": _normalized(lambda: tp.GroupNorm(1, 2), (1, 2, 3)),
    "int8": _quantized(0.5, tp.int8),
    "float8": _quantized(0.5, tp.float8),
    "a channel": _quantized([0.5, 0.25], tp.int8, 0),
    "a block": _quantized([[0.5, 0.25, 0.5]], tp.int4),
    "matmul": lambda x: x @ tp.transpose(x, 0, 1),
    "one matrix": lambda x: tp.reshape(x, (2, 1, 3)) @ tp.ones((1, 3, 3)),
    "iota": lambda x: tp.iota_like(x, dim=1) + x,
    "tril": lambda x: tp.tril(x),
    "concatenate": lambda x: tp.concatenate([x, x], 0),
    "expand": lambda x: tp.expand(tp.unsqueeze(x, 0), (4, 2, 3)),
    "mean": lambda x: tp.mean(x, 1),
    "product": lambda x: tp.prod(x, (0, 1)),
    "greatest": lambda x: tp.max(tp.cast(x, tp.int32), 0),
    "any": lambda x: tp.any(x > 0.0, 0),
    "gelu": lambda x: tp.gelu(tp.relu(x)),
    "exp": lambda x: tp.exp(abs(x)),
    "constant": lambda x: tp.ones((2, 3)),
    "argument": lambda x: x,
}
