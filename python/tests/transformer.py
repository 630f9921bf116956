"""The small transformer that PyTorch tests its tensor parallelism with, and its plans."""
import numpy as np

import tessera as ts
from tessera import Replicate, Shard, call, nn


class Attention(ts.Module):
    def __init__(self, dim, heads):
        self.heads, self.head_dim = heads, dim // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = call("aten.scaled_dot_product_attention", q, k, v, None, 0.0, True)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(ts.Module):
    def __init__(self, dim, hidden):
        self.w1, self.w2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.w2(self.w1(x).gelu())


class Block(ts.Module):
    def __init__(self, dim, heads):
        self.attention_norm, self.attention = nn.LayerNorm(dim), Attention(dim, heads)
        self.ffn_norm, self.feed_forward = nn.LayerNorm(dim), FeedForward(dim, 4 * dim)

    def forward(self, x):
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(ts.Module):
    def __init__(self, layers=2, vocabulary=8, length=16, dim=16, heads=4, tied=True):
        self.tok_embeddings, self.pos_embeddings = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        self.layers = [Block(dim, heads) for _ in range(layers)]
        self.norm, self.output = nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)
        self.tied = tied
        self.tie()

    def tie(self):
        if self.tied:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens):
        h = self.tok_embeddings(tokens) + self.pos_embeddings(np.arange(tokens.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


def parallelize(model, mesh, sequence=False, output=None, local_output=True):
    """Colwise and rowwise; sequence: norms and what is between them are sharded along the sequence."""
    out = {"output_layouts": Shard(1)} if sequence else {}
    plan = {"tok_embeddings": ts.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1) if sequence else Replicate()),
            "pos_embeddings": ts.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0) if sequence else Replicate()),
            "layers.*.attention.w[qkv]": ts.ColwiseParallel(use_local_output=False),
            "layers.*.attention.wo": ts.RowwiseParallel(**out),
            "layers.*.feed_forward.w1": ts.ColwiseParallel(**({"input_layouts": Shard(1)} if sequence else {})),
            "layers.*.feed_forward.w2": ts.RowwiseParallel(**out),
            "output": ts.ColwiseParallel(output_layouts=output or Replicate(), use_local_output=local_output, **({"input_layouts": Shard(1)} if sequence else {}))}
    if sequence:
        plan |= {"norm": ts.SequenceParallel(), "layers.*.*_norm": ts.SequenceParallel(),
                 "layers.*.attention": ts.PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())}
    ts.parallelize_module(model, mesh, plan)
    model.tie()
    return model
