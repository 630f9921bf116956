"""Layers: modules whose kind parallelize_module() knows.  Names, parameters and their first values are torch.nn's (with
this library's random numbers); all is f32."""
import math

import numpy as np

from ._call import call
from ._context import Error
from .autograd import no_grad
from .module import Module
from .tensor import tensor


def _parameter(size, fill, *numbers):
    """A leaf that an op fills."""
    made = tensor(np.empty(size, np.float32))
    with no_grad():
        call(fill, made, *numbers)
    return made.requires_grad_()


class Linear(Module):
    """x @ weight.T + bias."""

    _kind = "linear"

    def __init__(self, in_features, out_features, bias=True):
        self.in_features, self.out_features = in_features, out_features
        most = 1 / math.sqrt(in_features)
        self.weight = _parameter((out_features, in_features), "aten.uniform_", -most, most)
        self.bias = _parameter((out_features,), "aten.uniform_", -most, most) if bias else None

    def forward(self, x):
        return call("aten.linear.default", x, self.weight, self.bias)


class Embedding(Module):
    """Rows of weight, by index."""

    _kind = "embedding"

    def __init__(self, num_embeddings, embedding_dim):
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = _parameter((num_embeddings, embedding_dim), "aten.normal_", 0.0, 1.0)

    def forward(self, index):
        return call("aten.embedding.default", self.weight, index)


class LayerNorm(Module):
    """Over the last dimension."""

    _kind = "layer_norm"

    def __init__(self, features, eps=1e-5, bias=True):
        self.eps = eps
        self.weight = _parameter((features,), "aten.fill_", 1.0)
        self.bias = _parameter((features,), "aten.fill_", 0.0) if bias else None

    def forward(self, x):
        return call("aten.layer_norm.default", x, list(self.weight.shape), self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Over the last dimension."""

    _kind = "rms_norm"

    def __init__(self, features, eps=1e-6):
        self.eps = eps
        self.weight = _parameter((features,), "aten.fill_", 1.0)

    def forward(self, x):
        return call("aten.rms_norm.default", x, list(self.weight.shape), self.weight, self.eps)


class Dropout(Module):
    """Zeroes a part p of the elements while `training` is true, and scales up the rest."""

    _kind = "dropout"

    def __init__(self, p=0.5):
        self.p, self.training = p, True

    def forward(self, x):
        return call("aten.dropout.default", x, self.p, self.training)


def cross_entropy(input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """torch.nn.functional.cross_entropy()."""
    kinds = ("none", "mean", "sum")
    if reduction not in kinds:
        raise Error(f"reduction is one of {', '.join(kinds)}, not {reduction!r}")
    return call("aten.cross_entropy_loss.default", input, target, weight, kinds.index(reduction), ignore_index, label_smoothing)
