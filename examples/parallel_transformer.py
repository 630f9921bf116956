"""A small transformer, trained on four ranks: tensor and sequence parallel over two, data parallel over two.

    python3 examples/parallel_transformer.py              # four threads
    mpirun -n 4 python3 examples/parallel_transformer.py  # four processes

It is written as for PyTorch: layers, a plan, DistributedDataParallel, an optimizer.  It learns sequences in which every
token follows from the one before; each data-parallel rank has sequences of its own.
"""
import numpy as np

import tessera as ts
from tessera import Replicate, Shard, nn

VOCABULARY, LENGTH, BATCH, DIM, HEADS, LAYERS, STEPS = 32, 12, 8, 32, 4, 2, 60


class Attention(ts.Module):
    def __init__(self):
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).view(BATCH, LENGTH, -1, DIM // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv))  # the heads of this rank
        y = ts.call("aten.scaled_dot_product_attention", q, k, v, None, 0.0, True)
        return self.wo(y.transpose(1, 2).reshape(BATCH, LENGTH, -1))


class Block(ts.Module):
    def __init__(self):
        self.norm1, self.attention = nn.RMSNorm(DIM), Attention()
        self.norm2, self.w1, self.w2 = nn.RMSNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.w2(self.w1(self.norm2(x)).gelu())


class Transformer(ts.Module):
    def __init__(self):
        self.embedding, self.layers = nn.Embedding(VOCABULARY, DIM), [Block() for _ in range(LAYERS)]
        self.norm, self.output = nn.RMSNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


PLAN = {  # between the matrices, activations are sharded along the sequence
    "embedding": ts.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
    "layers.*.norm?": ts.SequenceParallel(),
    "layers.*.attention": ts.PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    "layers.*.attention.w[qkv]": ts.ColwiseParallel(),
    "layers.*.attention.wo": ts.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    "layers.*.w1": ts.ColwiseParallel(input_layouts=Shard(1)),
    "layers.*.w2": ts.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    "norm": ts.SequenceParallel(),
    "output": ts.ColwiseParallel(input_layouts=Shard(1), use_local_output=False),  # logits stay sharded
}


def batch(replica, step):
    tokens = np.empty((BATCH, LENGTH + 1), np.int64)
    tokens[:, 0] = (replica * 17 + step * BATCH + np.arange(BATCH)) % VOCABULARY
    for i in range(LENGTH):
        tokens[:, i + 1] = (5 * tokens[:, i] + 3) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def work():
    mesh = ts.init_device_mesh("dp=2,tp=2")
    ts.manual_seed(0)
    model = ts.parallelize_module(Transformer(), mesh["tp"], PLAN)
    model = ts.DistributedDataParallel(model, mesh["dp"])
    optimizer = ts.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, STEPS + 1):
        x, y = batch(mesh["dp"].get_local_rank(), step)
        with ts.loss_parallel():
            loss = nn.cross_entropy(model(x).transpose(1, 2), y)
            loss.backward()
        ts.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        told = float(loss)
        if ts.rank() == 0 and step % 20 == 0:
            print(f"step {step}  loss {told:.4f}")


if __name__ == "__main__":
    if ts.mpi_launched():
        ts.init()
        work()
    else:
        ts.run_ranks(4, work)
