"""How a program is trained, and on what: Python values as the texts of `tessera train`'s options, in the library's
structures."""
import ctypes
import json
import os
from collections.abc import Mapping

from . import _dtypes
from ._context import Error
from ._library import D, I, L, P, S


class TrainingStruct(ctypes.Structure):
    _fields_ = [("optim", S), ("groups", P), ("ngroups", I), ("freeze", S), ("clip", S), ("schedule", S), ("steps", L), ("accumulate", I), ("dtype", S),
                ("param_dtype", S), ("state_dtype", S), ("memory", S), ("loss", S), ("nonfinite", S), ("check_finite", I), ("mesh", S),
                ("plan", S), ("data_axis", S), ("data_parallel", S), ("fsdp", S), ("wrap", S), ("keep_gathered", I), ("prefetch", I), ("rank_rows", S), ("bucket_mb", S),
                ("reduce_dtype", S), ("whole_updates", I)]


class StepStruct(ctypes.Structure):
    _fields_ = [("step", L), ("loss", D), ("grad_norm", D), ("lr", D), ("loss_scale", D), ("skipped", I)]


class DataStruct(ctypes.Structure):
    _fields_ = [("files", P), ("nfiles", I), ("tokens", S), ("unshifted", I), ("window", L), ("token_dtype", S), ("batch", L), ("batched", I),
                ("no_shuffle", I), ("drop_last", I), ("seed", ctypes.c_uint64)]


def _number(value):
    return str(value) if isinstance(value, (str, int)) else repr(float(value))


def _setting(name, value):
    """One of "lr=0.1", "betas=0.9:0.95", "nesterov"; None: as if it were not given."""
    if value is None:
        return []
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return [name if value else f"{name}=false"]
    return [f"{name}={':'.join(map(_number, value)) if isinstance(value, (tuple, list)) else _number(value)}"]


def _settings(values):
    return [text for name, value in values.items() for text in _setting(name, value)]


def named(what, value):
    """"adamw,lr=3e-4", or {"name": "adamw", "lr": 3e-4}."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping) or "name" not in value:
        raise Error(f"{what} is text as on the command line, or a dict with its \"name\" and settings, not {value!r}")
    return ",".join([value["name"], *_settings({k: v for k, v in value.items() if k != "name"})])


def patterns(value):
    """"*.bias,*norm*", or a list of such."""
    return value if value is None or isinstance(value, str) else ",".join(value)


def group_list(groups):
    """["no_decay=*.bias:weight_decay=0"], or {"no_decay": {"params": "*.bias", "weight_decay": 0}}."""
    if groups is None:
        return []
    if isinstance(groups, str):
        return [groups]
    if not isinstance(groups, Mapping):
        return list(groups)
    out = []
    for name, group in groups.items():
        if not isinstance(group, Mapping) or "params" not in group:
            raise Error(f"group {name!r} is a dict with \"params\", patterns of names, and settings, not {group!r}")
        settings = ",".join(_settings({k: v for k, v in group.items() if k != "params"}))
        out.append(f"{name}={patterns(group['params'])}:{settings}")
    return out


def clip_text(clip):
    """1.0, "0.05,norm=inf", or {"max_norm": 1.0, "norm_type": 2.0} as clip_grad_norm_ has it."""
    if clip is None or isinstance(clip, str):
        return clip
    if not isinstance(clip, Mapping):
        return _number(clip)
    unknown = clip.keys() - {"max_norm", "norm_type", "value"}
    if unknown or not clip:
        raise Error(f"clip is a dict with max_norm and norm_type, or with value, not {dict(clip)!r}")
    texts = ([_number(clip["max_norm"])] if "max_norm" in clip else []) + ([f"norm={_number(clip['norm_type'])}"] if "norm_type" in clip else [])
    return ",".join(texts + ([f"value={_number(clip['value'])}"] if "value" in clip else []))


def _bytes(text):
    return None if text is None else os.fsencode(text if isinstance(text, (str, os.PathLike)) else str(text))


def _dtype(d):
    return None if d is None else _dtypes.NAMES[_dtypes.code_of(d)].encode()


def text_array(texts):
    return (ctypes.c_char_p * max(1, len(texts)))(*map(_bytes, texts))


def mesh_text(mesh):
    """"dp=2,tp=2", or {"dp": 2, "tp": 2}."""
    return mesh if mesh is None or isinstance(mesh, str) else ",".join(f"{name}={n}" for name, n in mesh.items())


def plan_text(plan):
    """A path, "auto", or the plan itself as a dict."""
    return json.dumps(plan) if isinstance(plan, Mapping) else plan


def ranks(mesh, plan, data_axis, data_parallel, fsdp, wrap, keep_gathered, prefetch, rank_rows, bucket_mb, reduce_dtype,
          whole_updates):
    rows = rank_rows if rank_rows is None or isinstance(rank_rows, str) else ",".join(map(str, rank_rows))
    return {"mesh": _bytes(mesh_text(mesh)), "plan": _bytes(plan_text(plan)), "data_axis": _bytes(data_axis), "data_parallel": _bytes(data_parallel),
            "fsdp": _bytes("" if fsdp is True else fsdp or None), "wrap": _bytes(patterns(wrap)), "keep_gathered": bool(keep_gathered),
            "prefetch": prefetch or 0, "rank_rows": _bytes(rows), "bucket_mb": None if bucket_mb is None else _number(bucket_mb).encode(),
            "reduce_dtype": _bytes(reduce_dtype), "whole_updates": bool(whole_updates)}


def training(optim, groups, freeze, clip, schedule, steps, accumulate, dtype, param_dtype, state_dtype, memory, loss, nonfinite, check_finite, spread):
    listed = group_list(groups)
    array = text_array(listed)
    out = TrainingStruct(_bytes(named("optim", optim)), ctypes.cast(array, P), len(listed), _bytes(patterns(freeze)), _bytes(clip_text(clip)),
                         _bytes(named("schedule", schedule)), steps or 0, accumulate, _dtype(dtype), _dtype(param_dtype), _dtype(state_dtype),
                         _bytes(memory), _bytes(loss), _bytes(nonfinite), bool(check_finite), **ranks(**spread))
    out.kept = array
    return out


def data(files, tokens=None, unshifted=False, window=None, token_dtype=None, batch=None, batched=False, shuffle=True, drop_last=False, seed=0):
    array = text_array(files)
    tokens = tokens if tokens is None or isinstance(tokens, str) else ",".join(tokens)
    out = DataStruct(ctypes.cast(array, P), len(files), _bytes(tokens), bool(unshifted), window or 0, _bytes(token_dtype), batch or 0, bool(batched),
                     not shuffle, bool(drop_last), seed & (2**64 - 1))
    out.kept = array
    return out
