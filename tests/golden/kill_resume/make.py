#!/usr/bin/env python3
"""Makes loss.pt2 and data.safetensors beside this file: a small net with everything that a resumed training must bring
back: BatchNorm's buffers, dropout's random numbers, a last batch of another size."""
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.bn, self.d = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.3)
        self.f, self.g = nn.Linear(8 * 64, 16), nn.Linear(16, 4)

    def forward(self, x, y):
        h = self.d(F.relu(self.bn(self.c(x)))).flatten(1)
        return F.cross_entropy(self.g(F.dropout(F.relu(self.f(h)), 0.2, True)), y)


torch.manual_seed(1)
here = Path(__file__).parent
batch = torch.export.Dim("b", min=2, max=64)
program = torch.export.export(Net().train(), (torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)),
                              dynamic_shapes=({0: batch}, {0: batch}), strict=False)
for node in program.graph.nodes:  # a fixture does not tell where it was made
    node.meta.pop("stack_trace", None)
    node.meta.pop("from_node", None)
torch.export.save(program, here / "loss.pt2")
save_file({"x": torch.randn(22, 3, 8, 8), "y": torch.randint(0, 4, (22,))}, here / "data.safetensors")
