"""Finds libtessera.so, loads it, and declares its functions.

Places are tried in this order; the first file that is there is taken:
  1. TESSERA_LIBRARY: the file, or the folder it is in
  2. tessera/lib beside this file (put there by pip install)
  3. build/ of the source tree that this file is in
  4. where pkg-config says that it is installed
  5. wherever the system's loader looks
Two handles on one library: `lib` lets other Python threads run during a call, `quick` does
not and is for functions that only look something up.
"""
import ctypes
import os
import subprocess
from ctypes import CFUNCTYPE, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path

VERSION = "0.1"  # of the library that this package speaks to: major.minor
FILE = "libtessera.so"

P, I, S, D, L = c_void_p, c_int, c_char_p, c_double, c_int64
Pointers = ctypes.POINTER(c_void_p)

ReleaseFn = CFUNCTYPE(None, P)
ForwardFn = CFUNCTYPE(I, P, P, Pointers, I, Pointers, I, P)
VisitFn = CFUNCTYPE(I, P, S, P, P)
PartitionFn = CFUNCTYPE(I, P, S, P, P, P)
GradHookFn = CFUNCTYPE(I, P, P, Pointers, P)
ModuleHookFn = CFUNCTYPE(I, P, P, Pointers, I, P, P)
ShardPlacementFn = CFUNCTYPE(I, P, S, P, ctypes.POINTER(I), Pointers, P)
AllReduceHookFn = CFUNCTYPE(I, P, P, P)


class FsdpEvent(ctypes.Structure):
    _fields_ = [("event", S), ("group", S), ("bytes", L), ("dtype", I), ("op", S), ("ranks", ctypes.POINTER(I)), ("nranks", I)]


FsdpWatchFn = CFUNCTYPE(None, ctypes.POINTER(FsdpEvent), P)

# name: (result, arguments).  Pointers that are only passed on are c_void_p.
FUNCTIONS = {
    "tess_tensor_meta": (P, [P, I, I, P]),
    "tess_fully_shard": (I, [P, P, I, P, P]),
    "tess_fsdp_unshard": (I, [P, P, I]),
    "tess_fsdp_wait": (I, [P, P]),
    "tess_fsdp_reshard": (I, [P, P]),
    "tess_fsdp_materialize": (I, [P, P]),
    "tess_fsdp_reset": (I, [P, P]),
    "tess_ctx_new": (P, [I]),
    "tess_ctx_plan": (P, []),
    "tess_ctx_mpi": (P, [I]),
    "tess_ctx_free": (None, [P]),
    "tess_manual_seed": (None, [P, c_uint64]),
    "tess_call_values": (I, [P, S, P, I, P, I]),
    "tess_open": (P, [P, S]),
    "tess_close": (None, [P]),
    "tess_input_count": (I, [P]),
    "tess_input_name": (S, [P, I]),
    "tess_input_spec": (I, [P, I, P, P, I]),
    "tess_output_count": (I, [P]),
    "tess_run": (I, [P, P, I, P, I]),
    "tess_save": (I, [P, S, P, P, I]),
    "tess_trainer_open": (P, [P, S, P]),
    "tess_trainer_free": (None, [P]),
    "tess_trainer_step": (I, [P, P, I, P]),
    "tess_trainer_evaluate": (I, [P, P, I, P]),
    "tess_trainer_set_data": (I, [P, P]),
    "tess_trainer_next": (I, [P, P]),
    "tess_trainer_evaluate_data": (I, [P, P, L, P]),
    "tess_trainer_state": (P, [P, S]),
    "tess_trainer_load": (I, [P, S]),
    "tess_trainer_save": (I, [P, S, I]),
    "tess_trainer_resume": (I, [P, S]),
    "tess_trainer_write": (I, [P, S]),
    "tess_shard": (P, [P, P, S, I]),
    "tess_shard_rank": (I, [P, P, I, S]),
    "tess_hub_new": (P, [I]),
    "tess_hub_error": (S, [P]),
    "tess_hub_free": (None, [P]),
    "tess_hub_join": (P, [P, I, I]),
    "tess_hub_leave": (None, [P, S]),
    "tess_set_timeout": (None, [P, D]),
    "tess_set_flight": (I, [P, S]),
    "tess_fail": (None, [P, S]),
    "tess_define_group": (I, [P, S, P, I]),
    "tess_barrier": (I, [P]),
    "tess_mesh_from_ranks": (P, [P, I, P, P, P]),
    "tess_mesh_sub": (P, [P, P, P, I]),
    "tess_mesh_flatten": (P, [P, P, P, I, S]),
    "tess_from_local_grad": (P, [P, P, P, S, I, I, P, P, S]),
    "tess_full_tensor_grad": (P, [P, P, S]),
    "tess_redistribute_grad": (P, [P, P, P, S, I, I]),
    "tess_backward": (I, [P, P, P, I, I]),
    "tess_grad": (I, [P, P, P, I, P, I, P, I]),
    "tess_redistribute_start": (P, [P, P, S]),
    "tess_redistribute_wait": (P, [P]),
    "tess_distribute_tensor": (P, [P, P, P, S, I]),
    "tess_dtensor_unflatten": (P, [P, P, P, S]),
    "tess_chunk_list": (I, [P, P, P, P, I]),
    "tess_get_chunk": (P, [P, P, P]),
    "tess_dtensor_full": (P, [P, P, S, I, I, P, D]),
    "tess_dtensor_rand": (P, [P, P, S, I, I, P, I]),
    "tess_equal": (I, [P, P, P]),
    "tess_comm_debug_begin": (I, [P]),
    "tess_comm_debug_end": (P, [P]),
    "tess_flight_json": (P, [P]),
    "tess_module_new": (P, [P, ForwardFn, P]),
    "tess_module_call": (I, [P, P, P, I, P, I]),
    "tess_distribute_module": (I, [P, P, P, PartitionFn, P, P, P]),
    "tess_module_match": (I, [P, P, S, VisitFn, P]),
    "tess_parallelize_module": (I, [P, P, P, P, I, I]),
    "tess_data_parallel": (P, [P, P, P, P]),
    "tess_data_parallel_join_begin": (I, [P, I]),
    "tess_data_parallel_join_end": (I, [P]),
    "tess_optimizer_new": (P, [P, S, P, I]),
    "tess_optimizer_step": (I, [P]),
    "tess_optimizer_set_state": (I, [P, I, S, P]),
    "tess_clip_grad_norm": (I, [P, P, I, D, D, P]),
    "tess_clip_grad_value": (I, [P, P, I, D]),
    "tess_plan_layout": (P, [P, I, P, I, P, S, P]),
    "tess_plan_redistribute": (P, [P, I, I, P, I, P, S, S, I]),
    "tess_plan_tensor": (P, [P, P, S, I, I, P, P]),
    "tess_propagate": (P, [P, S, P, I]),
    "tess_checkpoint_open": (P, [P, S]),
    "tess_checkpoint_verify": (I, [P, P]),
    "tess_checkpoint_load": (P, [P, P, S]),
    "tess_checkpoint_fill": (I, [P, P, S, P]),
    "tess_checkpoint_save": (I, [P, S, S, P, P, I, I]),
    "tess_checkpoint_change": (P, [P, P]),
    "tess_plan_save": (P, [P, I, P, P, I, I]),
    "tess_plan_load": (P, [P, S, I, P, P, I, P]),
}
QUICK_FUNCTIONS = {
    "tess_is_fully_sharded": (I, [P]),
    "tess_fsdp_set": (I, [P, P, I, D, I]),
    "tess_fsdp_prefetch": (I, [P, P, I, P, I]),
    "tess_fsdp_all_reduce_hook": (I, [P, P, AllReduceHookFn, P]),
    "tess_fsdp_watch": (I, [P, P, FsdpWatchFn, P]),
    "tess_fsdp_json": (P, [P, P]),
    "tess_checkpoint_close": (None, [P]),
    "tess_checkpoint_count": (I, [P]),
    "tess_checkpoint_name": (S, [P, I]),
    "tess_version": (S, []),
    "tess_error": (I, [P]),
    "tess_error_message": (S, [P]),
    "tess_error_clear": (None, [P]),
    "tess_scope_begin": (P, [P]),
    "tess_scope_end": (None, [P, P]),
    "tess_tensor_adopt": (P, [P, I, I, P, P, P, ReleaseFn, P]),
    "tess_hold": (P, [P, P]),
    "tess_release": (None, [P]),
    "tess_dtype": (I, [P]),
    "tess_ndim": (I, [P]),
    "tess_size": (ctypes.POINTER(L), [P]),
    "tess_stride": (ctypes.POINTER(L), [P]),
    "tess_data": (P, [P]),
    "tess_op_schema": (S, [S]),
    "tess_op_name": (S, [I]),
    "tess_mpi_launched": (I, []),
    "tess_random_state": (None, [P, P]),
    "tess_set_random_state": (None, [P, P]),
    "tess_dtensor_flatten": (P, [P, P, P, c_size_t]),
    "tess_hub_fail": (None, [P, S]),
    "tess_rank": (I, [P]),
    "tess_world_size": (I, [P]),
    "tess_mesh_ndim": (I, [P]),
    "tess_mesh_size": (I, [P, I]),
    "tess_mesh_name": (S, [P, I]),
    "tess_mesh_coordinate": (I, [P, P]),
    "tess_mesh_ranks": (ctypes.POINTER(I), [P]),
    "tess_mesh_repr": (S, [P, P, c_size_t]),
    "tess_set_mesh": (P, [P, P]),
    "tess_to_local": (P, [P, P]),
    "tess_to_local_grad": (P, [P, P, S]),
    "tess_set_requires_grad": (I, [P, P, I]),
    "tess_requires_grad": (I, [P]),
    "tess_is_leaf": (I, [P]),
    "tess_grad_of": (P, [P, P]),
    "tess_set_grad": (I, [P, P, P]),
    "tess_retain_grad": (I, [P, P]),
    "tess_detach": (P, [P, P]),
    "tess_set_grad_enabled": (I, [P, I]),
    "tess_grad_enabled": (I, [P]),
    "tess_register_hook": (P, [P, P, GradHookFn, P, ReleaseFn]),
    "tess_remove_hook": (None, [P]),
    "tess_forget_hook": (None, [P]),
    "tess_trainer_program": (P, [P]),
    "tess_trainer_steps": (L, [P]),
    "tess_trainer_set_rate": (I, [P, D]),
    "tess_trainer_state_count": (I, [P]),
    "tess_trainer_state_name": (S, [P, I]),
    "tess_trainer_state_kind": (I, [P, S]),
    "tess_trainer_set_state": (I, [P, S, P]),
    "tess_is_dtensor": (I, [P]),
    "tess_mesh_of": (P, [P]),
    "tess_placements": (S, [P, P, c_size_t]),
    "tess_repr": (S, [P, P, c_size_t]),
    "tess_module_hold": (P, [P]),
    "tess_module_free": (None, [P]),
    "tess_module_version": (L, [P]),
    "tess_module_set_kind": (I, [P, P, S]),
    "tess_module_kind": (S, [P]),
    "tess_loss_parallel": (I, [P, I]),
    "tess_data_parallel_free": (None, [P]),
    "tess_data_parallel_sync": (I, [P, I]),
    "tess_data_parallel_buckets": (I, [P]),
    "tess_optimizer_free": (None, [P]),
    "tess_optimizer_add": (I, [P, S, P, I]),
    "tess_optimizer_set": (I, [P, I, S]),
    "tess_optimizer_zero_grad": (I, [P]),
    "tess_optimizer_state_name": (S, [P, I, I]),
    "tess_optimizer_state": (P, [P, I, S]),
    "tess_optimizer_steps": (L, [P, I]),
    "tess_optimizer_set_steps": (I, [P, I, L]),
    "tess_module_add": (I, [P, P, S, P]),
    "tess_module_remove": (I, [P, P, S]),
    "tess_module_child": (P, [P, S]),
    "tess_module_child_count": (I, [P]),
    "tess_module_child_name": (S, [P, I]),
    "tess_module_child_at": (P, [P, I]),
    "tess_module_walk": (I, [P, P, VisitFn, P]),
    "tess_module_set": (I, [P, P, S, P]),
    "tess_module_set_buffer": (I, [P, P, S, P, I]),
    "tess_module_get": (P, [P, S]),
    "tess_module_tensor_count": (I, [P]),
    "tess_module_tensor_name": (S, [P, I]),
    "tess_module_is_buffer": (I, [P, S]),
    "tess_module_requires_grad": (I, [P, S]),
    "tess_module_set_requires_grad": (I, [P, P, S, I]),
    "tess_module_hook": (I, [P, P, I, ModuleHookFn, P]),
    "tess_module_unhook": (None, [P, I]),
    "tess_explicit_redistribution": (I, [P, I]),
    "tess_implicit_replication": (I, [P, I]),
    "tess_free": (None, [P]),
}


def from_environment():
    given = os.environ.get("TESSERA_LIBRARY")
    if not given:
        return []
    path = Path(given)
    return [path / FILE if path.is_dir() else path]


def from_pkg_config():
    try:
        out = subprocess.run(["pkg-config", "--variable=libdir", "tessera"], capture_output=True, text=True, check=True)
        return [Path(out.stdout.strip()) / FILE] if out.stdout.strip() else []
    except (OSError, subprocess.CalledProcessError):
        return []


def candidates():
    """(path, why) of every place in order, lazily."""
    here = Path(__file__).resolve().parent
    for path in from_environment():
        yield path, "TESSERA_LIBRARY"
    yield here / "lib" / FILE, "the installed package"
    yield here.parent.parent / "build" / FILE, "the source tree's build folder"
    for path in from_pkg_config():
        yield path, "pkg-config"


def find():
    """The path of the library, or its bare name if the system's loader has it."""
    looked = []
    for path, why in candidates():
        if path.exists():
            return str(path)
        if why == "TESSERA_LIBRARY":
            raise ImportError(f"TESSERA_LIBRARY says {path}, which is not there")
        looked.append(f"  {path}  ({why})")
    for name in (FILE, FILE + ".0"):
        try:
            ctypes.CDLL(name)
            return name
        except OSError:
            looked.append(f"  {name}  (the system's loader)")
    raise ImportError(
        "libtessera.so was not found. Looked for:\n" + "\n".join(looked) +
        "\nBuild it (cmake -S . -B build -G Ninja && ninja -C build), install it (cmake --install build), "
        "or say where it is: TESSERA_LIBRARY=/path/to/libtessera.so")


def declare(library, functions, path):
    for name, (result, arguments) in functions.items():
        try:
            f = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path} is older than this package: it has no function {name}. Build libtessera again.") from None
        f.restype, f.argtypes = result, arguments
    return library


def load():
    path = find()
    try:
        lib, quick = ctypes.CDLL(path), ctypes.PyDLL(path)
    except OSError as e:
        raise ImportError(f"{path} cannot be loaded: {e}") from e
    declare(quick, QUICK_FUNCTIONS, path)
    version = quick.tess_version().decode()
    if not version.startswith(VERSION + "."):
        raise ImportError(f"{path} is libtessera {version}; this package wants {VERSION}")
    declare(lib, FUNCTIONS, path)
    return path, lib, quick


path, lib, quick = load()
