"""Makes files/ beside this script with live PyTorch: one small state in the formats of torch.save and of a distributed
checkpoint, with values that are no tensors, views, parameters and dtypes that are seldom."""
import json, os, shutil
import torch, torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "files")
shutil.rmtree(folder, ignore_errors=True)
os.makedirs(folder)
os.chdir(folder)  # paths in the files are relative
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
optim = torch.optim.AdamW(model.parameters(), lr=0.01)
model(torch.randn(2, 3)).sum().backward()
optim.step()
base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
state = {
    "model": model.state_dict(),
    "optim": optim.state_dict(),
    "more": {
        "view": base.t()[1:4, ::2],
        "parameter": torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16)),
        "bool": torch.tensor([True, False]),
        "u16": torch.arange(3).to(torch.uint16),
        "f8": torch.randn(5).to(torch.float8_e4m3fn),
        "half": torch.randn(2, 3).half(),
        "count": torch.tensor(7),
        "empty": torch.zeros(0, 3),
    },
    "epoch": 3, "name": "it's", "lr": 1e-05, "flags": [True, None, (1, 2.5)],
}
flat = {}
def flatten(prefix, v):
    if isinstance(v, torch.Tensor): flat[prefix] = v.detach().contiguous().clone()
    elif isinstance(v, dict): [flatten(f"{prefix}.{k}" if prefix else str(k), x) for k, x in v.items()]
    elif isinstance(v, (list, tuple)): [flatten(f"{prefix}.{i}", x) for i, x in enumerate(v)]
flatten("", state)
save_file(flat, "full.safetensors")
torch.save(state, "state.pt")
dcp.save(state, checkpoint_id="dcp", no_dist=True)
meta = {"other_values": {"epoch": "3", "name": repr("it's"), "lr": "1e-05", "optim.param_groups.0.lr": "0.01"}}
json.dump(meta, open("metadata.json", "w"))
