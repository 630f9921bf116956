#!/usr/bin/env python3
"""Joint programs in real PyTorch: `tessera opt --passes grad` of programs that return a loss, loaded and run there.

    tests/torch_joint.py TESSERA FOLDER...          # folders as golden_grads takes them

The loss and every gradient must be those of grads.safetensors.  Skipped (exit code 77) where torch is missing.
"""
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file
except ImportError:
    print("torch is not there")
    sys.exit(77)

try:
    import transformers.integrations.moe  # registers the grouped products of mixtures of experts
except ImportError:
    pass
warnings.filterwarnings("ignore")
torch.set_num_threads(1)


def tolerance(dtype):
    return 3e-2 if dtype in (torch.bfloat16, torch.float16) else 1e-4


def run_flat(program, inputs):
    """The graph of an exported program on its state and these inputs: [(kind, target, value)]."""
    args = []
    for spec in program.graph_signature.input_specs:
        kind = spec.kind.name
        if kind == "USER_INPUT":
            args.append(inputs[spec.arg.name] if hasattr(spec.arg, "name") and spec.arg.name in inputs else getattr(spec.arg, "value", None))
        elif spec.target in program.state_dict:
            args.append(program.state_dict[spec.target])
        else:
            args.append(program.constants[spec.target])
    with torch.no_grad():
        outputs = program.graph_module(*args)
    return [(s.kind.name, s.target, v) for s, v in zip(program.graph_signature.output_specs, outputs, strict=True)]


def check(tessera, folder, name, work):
    about = next(p for p in (folder / "about.json", folder / "meta.json") if p.exists())
    about = json.loads(about.read_text())
    joint = Path(work) / "joint.pt2"
    subprocess.run([tessera, "opt", str(folder / name), "--passes", "grad", "-o", str(joint), "-f"], check=True)
    program = torch.export.load(joint)
    inputs = load_file(folder / "inputs.safetensors")
    want = {k.removeprefix("grad/"): v for k, v in load_file(folder / "grads.safetensors").items()}
    got = {("loss" if kind == "LOSS_OUTPUT" else target): value for kind, target, value in run_flat(program, inputs)
           if kind in ("LOSS_OUTPUT", "GRADIENT_TO_PARAMETER")}
    noise = set(about.get("noise", [])) | set(about.get("noise_gradient", []))
    own = about.get("f32_grad_error") or {}
    compared = 0
    for key, w in want.items():
        if key in noise or key not in got:
            continue
        g = got[key]
        assert g.dtype == w.dtype and g.shape == w.shape, f"{key}: {g.dtype} {list(g.shape)}, should be {w.dtype} {list(w.shape)}"
        largest = w.abs().max().item() if w.numel() else 0
        off = (g.double() - w.double()).abs().max().item() if w.numel() else 0
        most = tolerance(w.dtype) + (own.get(key) or 0)
        if key == "loss":
            most += about.get("loss_of_file_off_by") or 0
        assert off <= most * max(largest, 1e-12), f"{key} is off by {off:.3g}, its largest element is {largest:.3g}"
        compared += 1
    assert "loss" in got and compared >= len(want) - len(noise) - 1, f"only {sorted(got)} came out"


def main():
    tessera, folders = sys.argv[1], [Path(f) for f in sys.argv[2:]]
    passed, failed = 0, 0
    with tempfile.TemporaryDirectory() as work:
        for folder in sorted(m for f in folders for m in f.iterdir() if (m / "grads.safetensors").exists()):
            for name in ("program.pt2", "forward.pt2", "forward_core.pt2"):
                if not (folder / name).exists():
                    continue
                try:
                    check(tessera, folder, name, work)
                    passed += 1
                except Exception as error:
                    failed += 1
                    text = str(error).strip().splitlines()
                    print(f"FAIL {folder.name}/{name}: {type(error).__name__}: {text[0][:300] if text else ''}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed > 0 or passed == 0


sys.exit(main())
