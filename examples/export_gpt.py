#!/usr/bin/env python3
"""A small GPT on bytes, exported as a program that returns its loss, for `tessera train`.

    examples/export_gpt.py examples/gpt.pt2
    tessera train examples/gpt.pt2 --data README.md --tokens input_ids,labels --token-dtype uint8 --steps 100

Needs PyTorch 2.9 or later; training does not.
"""
import re
import sys

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, CONTEXT = 256, 128
LAYERS, WIDTH, HEADS = 3, 64, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))

    def forward(self, x):
        x = x + self.attend(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.apply(self.init)

    @staticmethod
    def init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, input_ids, labels):
        x = self.wte(input_ids) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.wte.weight.T  # the head is the table of tokens
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    torch.manual_seed(0)
    ids = torch.zeros(8, CONTEXT, dtype=torch.long)  # 8: the batch unless --batch says otherwise
    batch = {0: torch.export.Dim("batch", min=1, max=4096)}
    program = torch.export.export(GPT(), (ids, ids.clone()), dynamic_shapes={"input_ids": batch, "labels": batch})
    for node in program.graph.nodes:  # errors and profiles name lines of files, wherever those stood
        if trace := node.meta.get("stack_trace"):
            node.meta["stack_trace"] = re.sub(r'File "[^"]*/', 'File "', trace)
    torch.export.save(program, sys.argv[1])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: export_gpt.py FILE.pt2")
    main()
