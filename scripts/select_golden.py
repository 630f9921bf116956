#!/usr/bin/env python3
"""Chooses the golden data that lives in the repository.

    scripts/select_golden.py SOURCE [tests/golden]

SOURCE holds the full data made by PyTorch: ops/*.jsonl with *.safetensors, models/ and ddp/.
Every overload stays represented: per overload, cases are taken as long as they show
something new (a dtype, an empty or strided argument, an option, a gradient ...), small
ones first.  Models are copied whole, graphs of DDP fusion too but for the largest.  Standard library only; the result depends on the
input alone.
"""
import json
import os
import shutil
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

MODELS = """
mlp mlp.core mlp3d mlp_odd mlp_odd.core linear_bn linear_bn.core signature signature.core tied tied.core
encoder resnet resnet.core vit bert gpt2 llama llama_dyn llama_cache t5 mixtral
""".split()

FSDP = """
w2_layers w2_tail_group w2_prefetch w2_bf16 w2_divide_3 w2_frozen w3_uneven w4_dim1 w4_reshard_2 hsdp_2x2_accum2_partial
tp_2x2 tp_2x2_clip2
""".split()

FEWEST, MOST = 3, 9  # cases per overload


# ---- safetensors ---------------------------------------------------------------


def read_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    return {k: (v["dtype"], v["shape"], data[start + v["data_offsets"][0] : start + v["data_offsets"][1]]) for k, v in header.items()}


def write_safetensors(path, arrays):
    width = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
    order = sorted(arrays, key=lambda k: (-width.get(arrays[k][0], 1), int(k)))
    header, at = {}, 0
    for k in order:
        dtype, shape, data = arrays[k]
        header[k] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for k in order:
            f.write(arrays[k][2])


# ---- choosing cases ------------------------------------------------------------


def is_tensor(v):
    return isinstance(v, dict) and "size" in v


def tensors(v):
    if is_tensor(v):
        yield v
    elif isinstance(v, dict):
        for x in v.values():
            yield from tensors(x)
    elif isinstance(v, list):
        for x in v:
            yield from tensors(x)


def contiguous(t):
    expect = 1
    for size, stride in zip(reversed(t["size"]), reversed(t["stride"])):
        if size != 1 and stride != expect:
            return False
        expect *= size
    return True


def shapes_of(t):
    yield "empty" if 0 in t["size"] else "0-d" if not t["size"] else f"{min(len(t['size']), 4)}-d"
    if 0 in [st for st, n in zip(t["stride"], t["size"]) if n > 1]:
        yield "expanded"
    elif not contiguous(t):
        yield "strided"
    if t["offset"]:
        yield "offset"


def number_kind(v):
    if isinstance(v, bool) or v is None:
        return str(v)
    if isinstance(v, (int, float)):
        return type(v).__name__ + ("-" if v < 0 else "0" if v == 0 else "+")
    if isinstance(v, str):
        return v
    if isinstance(v, list):
        return f"[{len(v)}]" + ("T" if any(is_tensor(x) for x in v) else "".join(sorted({number_kind(x) for x in v})))
    return str(v)


def features(case):
    """What a case shows, as a set of strings; a case is worth taking for what is new in it."""
    found = set()
    given = list(enumerate(case["args"])) + list(case["kwargs"].items())
    for place, v in given:
        if is_tensor(v):
            found.add(f"{place}:{v['dtype']}")
            found.update(f"{place}:{s}" for s in shapes_of(v))
        else:
            found.add(f"{place}={number_kind(v)}")
            for t in tensors(v):
                found.add(f"list:{t['dtype']}")
                found.update(f"list:{s}" for s in shapes_of(t))
    found.update(f"out:{t['dtype']}" for t in tensors(case["out"]))
    found.update(k for k in ("mutated", "grad", "complex", "unspecified") if k in case)
    if any("alias" in t for t in tensors(case["out"])):
        found.add("alias")
    found.add("args:" + ",".join(str(p) for p, _ in given))
    return found


def keys_of(case):
    return {t["t"] for part in ("args", "kwargs", "out", "mutated", "cot", "grad") for t in tensors(case.get(part)) if "t" in t}


def cost(case, line, data):
    return len(line) + sum(len(data[k][2]) + 60 for k in keys_of(case))


def choose(cases, data):
    """cases: [(line, case)] of one overload; the chosen ones in their order."""
    left = [(features(c), cost(c, line, data), i) for i, (line, c) in enumerate(cases)]
    seen, chosen = set(), []
    while left and len(chosen) < MOST:
        best = max(left, key=lambda x: (len(x[0] - seen) / (300 + x[1]), -x[2]))
        if not best[0] - seen and len(chosen) >= FEWEST:
            break
        left.remove(best)
        seen |= best[0]
        chosen.append(best[2])
    return [cases[i] for i in sorted(chosen)]


def select_family(source, target, family):
    data = read_safetensors(os.path.join(source, family + ".safetensors"))
    by_op = {}
    with open(os.path.join(source, family + ".jsonl")) as f:
        for line in f:
            case = json.loads(line)
            by_op.setdefault(case["op"], []).append((line, case))
    chosen = [x for cases in by_op.values() for x in choose(cases, data)]
    chosen.sort(key=lambda x: int(x[1]["id"].split("/")[1]))
    with open(os.path.join(target, family + ".jsonl"), "w") as f:
        for line, _ in chosen:
            f.write(line)
    used = set().union(*(keys_of(c) for _, c in chosen))
    write_safetensors(os.path.join(target, family + ".safetensors"), {k: data[k] for k in used})
    return len(by_op), len(chosen)


# ---- DDP fusion ------------------------------------------------------------------

LARGE_GRAPHS = {"transformer_big", "encoder"}


PAIRS = "collectives_tp2 mlp_tp2_by_torch".split()  # programs per rank
AFTER = "inplace copy_form coalesced_3 scalar_and_empty mlp_ce".split()  # of these also what PyTorch's passes wrote


def select_ddp(source, target):
    """CASE.json without long texts, CASE.before.pt2, and of some cases the other programs and what they gave."""
    os.makedirs(target, exist_ok=True)
    count = 0
    for file in sorted(os.listdir(source)):
        name = file.split(".")[0]
        if name in LARGE_GRAPHS or name == "index":
            continue
        if file.endswith(".before.pt2") or (name in AFTER and file.endswith((".pt2", ".safetensors"))):
            shutil.copyfile(os.path.join(source, file), os.path.join(target, file))
        if not file.endswith(".json"):
            continue
        with open(os.path.join(source, file)) as f:
            case = json.load(f)
        for run in case["runs"]:
            if run.get("lint_error"):
                run["lint_error"] = run["lint_error"].split("\n")[0][:100]
        with open(os.path.join(target, file), "w") as f:
            json.dump(case, f, separators=(",", ":"))
            f.write("\n")
        count += 1
    return count


def select_fsdp(source, target):
    """Runs of fully_shard with what they start from, and every eighth row of its arithmetic."""
    for folder in ("fsdp", "train/encoder", "dtensor"):
        os.makedirs(os.path.join(target, folder), exist_ok=True)
    for name in FSDP:
        with open(os.path.join(source, "fsdp", name + ".json")) as f:
            case = json.load(f)
        for key in ("comm_debug_counts_last_step", "totals_last_step", "seed"):
            case.pop(key, None)
        if case["error"]:
            case["error"] = case["error"].split("\n")[0]
        with open(os.path.join(target, "fsdp", name + ".json"), "w") as f:
            json.dump(case, f, separators=(",", ":"))
            f.write("\n")
        if os.path.exists(os.path.join(source, "fsdp", name + ".safetensors")):
            shutil.copyfile(os.path.join(source, "fsdp", name + ".safetensors"), os.path.join(target, "fsdp", name + ".safetensors"))
    for file in ("init.safetensors", "batches.safetensors"):
        shutil.copyfile(os.path.join(source, "train", "encoder", file), os.path.join(target, "train", "encoder", file))
    with open(os.path.join(source, "dtensor", "fsdp_common.jsonl")) as f:
        rows = f.readlines()[::8]
    with open(os.path.join(target, "dtensor", "fsdp_common.jsonl"), "w") as f:
        f.writelines(rows)
    return len(FSDP), len(rows)


def main():
    source = sys.argv[1]
    target = sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, "tests", "golden")
    os.makedirs(os.path.join(target, "ops"), exist_ok=True)
    families = sorted(n[:-6] for n in os.listdir(os.path.join(source, "ops")) if n.endswith(".jsonl"))
    for family in families:
        ops, cases = select_family(os.path.join(source, "ops"), os.path.join(target, "ops"), family)
        print(f"{family:12} {ops:4} overloads, {cases:4} cases")
    for name in MODELS + PAIRS:
        folder = os.path.join(target, "models", name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        for file in sorted(os.listdir(os.path.join(source, "models", name))):
            if file == "README.md":
                continue
            shutil.copyfile(os.path.join(source, "models", name, file), os.path.join(folder, file))
    print(f"{select_ddp(os.path.join(source, 'ddp', 'fusion'), os.path.join(target, 'ddp', 'fusion'))} graphs of DDP fusion")
    print("%d runs and %d rows of fully_shard" % select_fsdp(source, os.path.join(target, "fsdp")))
    os.makedirs(os.path.join(target, "train", "mlp_ce"), exist_ok=True)
    shutil.copyfile(os.path.join(source, "train", "mlp_ce", "batches.safetensors"), os.path.join(target, "train", "mlp_ce", "batches.safetensors"))
    total = sum(os.path.getsize(os.path.join(path, n)) for path, _, names in os.walk(target) for n in names)
    print(f"{total / 1e6:.1f} MB in {target}")


if __name__ == "__main__":
    main()
