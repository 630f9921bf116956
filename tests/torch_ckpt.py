"""torch_ckpt.py TESSERA [--bits]: checkpoints beside live PyTorch, in both directions.

What `tessera ckpt` writes is loaded by torch.distributed.checkpoint (its default reader and its Hugging Face reader, in
one process and in two), safetensors, torch.export and transformers; what PyTorch writes is read by tessera.  Parts whose
packages are missing are left out, and said to be.
"""
import os, subprocess, sys, tempfile, traceback

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file, save_file
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

tessera = os.path.abspath(sys.argv[1])
golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden/train/gpt_tied")
passed, failed = 0, 0


def run(*args, ok=True):
    r = subprocess.run([tessera, "ckpt", *args], capture_output=True, text=True)
    if ok and r.returncode:
        raise AssertionError(f"tessera ckpt {' '.join(args)}: {r.stderr}")
    return r


def model_state(seed=0):
    torch.manual_seed(seed)
    return {
        "embed.weight": torch.randn(37, 16),
        "layers.0.q.weight": torch.randn(16, 16).bfloat16(),
        "layers.0.q.bias": torch.randn(16).half(),
        "layers.1.w": torch.randn(3, 5, 7, dtype=torch.float64),
        "steps": torch.tensor(12),
        "mask": torch.tensor([True, False, True]),
        "small": torch.arange(9, dtype=torch.int8),
        "u16": torch.arange(5).to(torch.uint16),
        "f8": torch.randn(6).to(torch.float8_e4m3fn),
        "empty": torch.zeros(0, 4),
    }


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    assert torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)) if a.numel() else True


def check_state(got, want):
    assert set(got) == set(want), set(got) ^ set(want)
    for k in want:
        same(got[k], want[k])


def zeros_like(state):
    return {k: torch.zeros_like(v) for k, v in state.items()}


def dcp_written_by_us():
    state = model_state()
    save_file(state, "s.safetensors")
    run("convert", "s.safetensors", "--to", "dcp", "-o", "dcp")
    got = zeros_like(state)
    dcp.load(got, checkpoint_id="dcp", no_dist=True)
    check_state(got, state)


def sharded_dcp_written_by_us():
    state = {k: v for k, v in model_state().items() if k not in ("u16", "f8")}
    save_file(state, "s.safetensors")
    run("reshard", "s.safetensors", "--mesh", "dp=3,tp=2", "--to", "dcp", "-o", "dcp")
    got = zeros_like(state)
    dcp.load(got, checkpoint_id="dcp", no_dist=True)
    check_state(got, state)
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save("dcp", "all.pt")
    check_state(torch.load("all.pt"), state)


def dcp_values_go_along():
    model = torch.nn.Linear(3, 4)
    optim = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3)).sum().backward()
    optim.step()
    state = {"model": model.state_dict(), "optim": optim.state_dict(), "epoch": 4}
    dcp.save(state, checkpoint_id="first", no_dist=True)
    run("convert", "first", "--to", "dcp", "-o", "second")
    other = torch.nn.Linear(3, 4)
    got = {"model": other.state_dict(), "optim": state["optim"], "epoch": 0}
    dcp.load(got, checkpoint_id="second", no_dist=True)
    assert got["epoch"] == 4
    check_state(got["model"], model.state_dict())


def hugging_face_reader():
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    state = {k: v for k, v in model_state().items() if k not in ("u16", "empty")}
    save_file(state, "s.safetensors")
    run("reshard", "s.safetensors", "--mesh", "tp=3", "-o", "ours")
    got = zeros_like(state)
    dcp.load(got, storage_reader=HuggingFaceStorageReader("ours"), no_dist=True)
    check_state(got, state)


def shards_of_a_training():
    """What ranks saved together is loaded by the Hugging Face reader; a training begins with what PyTorch saved."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    train = [tessera, "train", f"{golden}/forward.pt2", "--data", f"{golden}/batches.safetensors", "--batched", "-q", "-f", "--threads", "1"]
    subprocess.run([*train, "--mesh", "replica=2,dp=2", "--fsdp", "--steps", "3", "--save", "run", "-o", "out.safetensors"], check=True)
    want = load_file("out.safetensors")
    got = zeros_like(want)
    dcp.load(got, storage_reader=HuggingFaceStorageReader("run/step-00000003"), no_dist=True)
    check_state(got, want)
    dcp.save({f"net.{k}": v for k, v in want.items()}, checkpoint_id="dcp", no_dist=True)
    torch.save(want, "out.pt")
    for init in ["dcp", "--init-rename", "net.*=*"], ["out.pt"]:
        subprocess.run([*train, "--optim", "sgd,lr=0", "--steps", "1", "--mesh", "tp=2", "-o", "same.safetensors", "--init", *init], check=True)
        check_state(load_file("same.safetensors"), want)


def whole_folders():
    state = model_state()
    torch.save(state, "s.pt")
    run("convert", "s.pt", "--to", "hf", "--max-shard-size", "2K", "-o", "hf")
    got = {}
    for name in os.listdir("hf"):
        if name.endswith(".safetensors"):
            got.update(load_file(f"hf/{name}"))
    check_state(got, state)
    run("convert", "hf", "-o", "one.safetensors")
    check_state(load_file("one.safetensors"), state)


def written_by_torch():
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    state = {k: v for k, v in model_state().items() if k not in ("u16", "f8")}
    save_file(state, "s.safetensors")
    torch.save({"nested": state}, "s.pt")
    dcp.save(dict(state), checkpoint_id="dcp", no_dist=True)
    dcp.save(dict(state), storage_writer=HuggingFaceStorageWriter("hf", save_distributed=True), no_dist=True)
    run("verify", "dcp", "hf", "s.pt")
    run("diff", "dcp", "s.safetensors")
    run("diff", "hf", "s.safetensors")
    run("diff", "s.pt", "s.safetensors", "--rename", "nested.*=*")
    torch.save(torch.nn.Linear(2, 2), "module.pt")
    r = run("ls", "module.pt")
    assert "torch.nn.modules.linear.Linear" in r.stdout, r.stdout
    torch.save(state, "old.pt", _use_new_zipfile_serialization=False)
    r = run("verify", "old.pt", ok=False)
    assert r.returncode == 3 and "before PyTorch 1.6" in r.stderr, r.stderr


def program_with_new_weights():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).eval()
    x = torch.randn(2, 4)
    torch.export.save(torch.export.export(model, (x,)), "p.pt2")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    save_file(model.state_dict(), "new.safetensors")
    run("convert", "new.safetensors", "--program", "p.pt2", "-o", "q.pt2")
    got = torch.export.load("q.pt2").module()(x)
    torch.testing.assert_close(got, model(x))


def worker(rank, world, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("CKPT_PORT", "29531"))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    want = {k: v for k, v in model_state().items() if k not in ("u16", "f8", "empty")}
    for path in ("dcp", "ours"):
        got = {k: distribute_tensor(torch.zeros_like(v), mesh, [Shard(v.ndim - 1) if v.ndim else Replicate()]) for k, v in want.items()}
        if path == "ours":
            from torch.distributed.checkpoint import HuggingFaceStorageReader

            dcp.load(got, storage_reader=HuggingFaceStorageReader(f"{folder}/{path}"))
        else:
            dcp.load(got, checkpoint_id=f"{folder}/{path}")
        for k, v in want.items():
            same(got[k].full_tensor(), v)
    state = {k: distribute_tensor(v, mesh, [Shard(0) if v.ndim else Replicate()]) for k, v in want.items()}
    dcp.save(state, checkpoint_id=f"{folder}/back")
    dist.destroy_process_group()


def another_world():
    state = {k: v for k, v in model_state().items() if k not in ("u16", "f8", "empty")}
    save_file(state, "s.safetensors")
    run("reshard", "s.safetensors", "--mesh", "tp=3", "--to", "dcp", "-o", "dcp")
    run("reshard", "s.safetensors", "--mesh", "tp=3", "-o", "ours")
    torch.multiprocessing.spawn(worker, (2, os.getcwd()), nprocs=2)
    run("diff", "back", "s.safetensors")


def transformers_load():
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        print("skipped: transformers is not installed")
        return
    config = LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=40)
    model = LlamaForCausalLM(config)
    model.save_pretrained("first")
    run("convert", "first", "--to", "dcp", "-o", "dcp")
    run("convert", "dcp", "--to", "hf", "--max-shard-size", "5K", "-o", "second")
    config.save_pretrained("second")
    check_state(LlamaForCausalLM.from_pretrained("second").state_dict(), model.state_dict())


tests = [dcp_written_by_us, sharded_dcp_written_by_us, dcp_values_go_along, hugging_face_reader, shards_of_a_training, whole_folders, written_by_torch,
         program_with_new_weights, another_world, transformers_load]
if __name__ == "__main__":
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                test()
                passed += 1
            except Exception:
                failed += 1
                print(f"FAILED {test.__name__}")
                traceback.print_exc()
            os.chdir("/")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
