"""Modules: the library's tree of named tensors, as Python objects.

The tree is the library's (TessModule): names, parameters, buffers, children, hooks and their order
are there, and what C code changes is seen here.  A Python object owns a reference of its module
and keeps what the library cannot: attributes that are no tensors, and the arrays that were given
for tensors, as long as the library's tensors are those of the arrays.
"""
import copy
import ctypes
import sys
import weakref
from collections.abc import MutableMapping, MutableSequence

from . import _module_call
from ._buffers import is_torch
from ._context import Error, current, scope
from ._library import VisitFn, lib, quick
from ._module_call import AFTER_FORWARD, BEFORE_FORWARD, Call, DeepCall, is_tensor, objects, pointer_of, value_of
from .dtensor import DTensor
from .tensor import Tensor

_OWN = ("_ptr", "_kept", "_modules", "_version", "_made", "_home")  # of this object, not of its copies


def _holds_modules(x):
    """Is this list or dict one that becomes part of the tree?"""
    if isinstance(x, dict):
        return any(is_tensor(v) or isinstance(v, Module) or _holds_modules(v) for v in x.values())
    return isinstance(x, (list, tuple)) and any(isinstance(v, Module) or _holds_modules(v) for v in x)


def _as_module(x):
    return x if isinstance(x, Module) else ModuleDict(x) if isinstance(x, dict) else ModuleList(x)


class Module:
    """Attributes that are arrays or DTensors are its parameters, attributes that are Modules (or
    lists and dicts of them) its children; forward() is what a call does.

        class Linear(ts.Module):
            def __init__(self, weight):
                self.weight = weight
            def forward(self, x):
                return x @ self.weight.T

    Lists and dicts with modules become ModuleLists and ModuleDicts.  Arrays that are no parameters
    are set with register_buffer()."""

    _kind = None  # what styles of parallelism know it as: "linear", "embedding"

    def __new__(cls, *args, **kwargs):
        self = object.__new__(cls)
        ctx = current()
        own = vars(self)
        own["_ptr"] = lib.tess_module_new(ctx.ptr, _module_call.forward, None)
        if not own["_ptr"]:
            ctx.check()
        own["_kept"], own["_modules"] = {}, {}  # name: what Python has of a tensor; of a module
        own["_version"], own["_made"], own["_home"] = 0, [], None
        objects[own["_ptr"]] = self
        if cls._kind and quick.tess_module_set_kind(ctx.ptr, own["_ptr"], cls._kind.encode()) < 0:
            ctx.check()
        return self

    def __del__(self, finalizing=sys.is_finalizing):
        ptr = vars(self).pop("_ptr", None)
        if ptr and not finalizing():
            for number in self._made:
                _module_call.hooks.pop(number, None)
            quick.tess_module_free(ptr)

    # ---- attributes -----------------------------------------------------------------------

    def __setattr__(self, name, value):
        if self._put_any(name, value):
            vars(self).pop(name, None)
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name):
        found = self._find(name) if not name.startswith("__") and "_ptr" in vars(self) else None
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")
        return found

    def _find(self, name):
        """The tensor or module of its own that is called so; None: there is none."""
        own, encoded = vars(self), name.encode()
        self._look()
        found = own["_kept"].get(name)
        if found is not None:
            return found
        t = quick.tess_module_get(self._ptr, encoded)
        if t:
            found = own["_kept"][name] = value_of(current(), t, own.get("_torch", False), own["_home"], own.get("_gathers", False))
            return found
        child = quick.tess_module_child(self._ptr, encoded) if name else None
        return own["_modules"].setdefault(name, module_at(child)) if child else None

    def __delattr__(self, name):
        if not self._drop(name):
            if name not in vars(self):
                raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")
            del vars(self)[name]

    def __dir__(self):
        return [*super().__dir__(), *self._tensor_names(), *(name for name, _ in self.named_children())]

    def _look(self):
        """Forgets what Python kept if the library has changed the module since."""
        version = quick.tess_module_version(self._ptr)
        if version != self._version:
            self._forget(version)

    def _forget(self, version):
        own = vars(self)
        own["_version"] = version
        own["_kept"].clear()
        for name, module in list(own["_modules"].items()):
            if quick.tess_module_child(self._ptr, name.encode()) != module._ptr:
                del own["_modules"][name]

    def _changed(self, ctx, failed, name, value):
        """Notes a change that was made from here."""
        if failed:
            ctx.check()
        own, version = vars(self), quick.tess_module_version(self._ptr)
        if version != self._version + 1:  # others changed it before
            self._forget(version)
        own["_version"] = version
        own["_kept"].pop(name, None)
        own["_modules"].pop(name, None)
        if value is not None:
            own["_modules" if isinstance(value, Module) else "_kept"][name] = value

    def _put(self, name, value, persistent=None):
        ctx = current()
        if quick.tess_module_child(self._ptr, name.encode()):
            self._drop(name)
        if is_torch(value) or getattr(value, "_torch", False):
            vars(self)["_torch"] = True
        if isinstance(value, DTensor):
            vars(self)["_home"] = ctx
        with scope(ctx):
            t = pointer_of(ctx, value)
            if persistent is None:
                failed = quick.tess_module_set(ctx.ptr, self._ptr, name.encode(), t)
            else:
                failed = quick.tess_module_set_buffer(ctx.ptr, self._ptr, name.encode(), t, bool(persistent))
        self._changed(ctx, failed, name, value)

    def _put_any(self, name, value):
        """False if the value is nothing that the tree takes: then it has nothing of that name."""
        if is_tensor(value):
            self._put(name, value)
        elif isinstance(value, Module) or _holds_modules(value):
            self._put_child(name, _as_module(value))
        else:
            self._drop(name)
            return False
        return True

    def _put_child(self, name, child):
        ctx = current()
        if name in self._tensor_names():
            self._drop(name)
        failed = quick.tess_module_add(ctx.ptr, self._ptr, name.encode(), quick.tess_module_hold(child._ptr))
        if failed:
            quick.tess_module_free(child._ptr)
        self._changed(ctx, failed, name, child)

    def _drop(self, name):
        """True if the library had something of that name."""
        ctx, encoded = current(), name.encode()
        if not quick.tess_module_get(self._ptr, encoded) and not (name and quick.tess_module_child(self._ptr, encoded)):
            return False
        self._changed(ctx, quick.tess_module_remove(ctx.ptr, self._ptr, encoded), name, None)
        return True

    def _tensor_names(self):
        return [quick.tess_module_tensor_name(self._ptr, i).decode() for i in range(quick.tess_module_tensor_count(self._ptr))]

    # ---- tensors --------------------------------------------------------------------------

    def register_parameter(self, name, param):
        """The same as setting the attribute; None: there is none."""
        setattr(self, name, param)

    def register_buffer(self, name, tensor, persistent=True):
        """A tensor that is no parameter; persistent: saved with them."""
        if tensor is None:
            setattr(self, name, None)
        else:
            self._put(name, tensor, persistent)

    def get_parameter(self, target):
        owner, _, name = target.rpartition(".")
        if quick.tess_module_is_buffer(self._ptr, target.encode()) < 0:
            raise AttributeError(f"{type(self).__name__} has no tensor '{target}'")
        return self.get_submodule(owner)._find(name)

    get_buffer = get_parameter

    def _named(self, want, prefix, recurse):
        modules = self.named_modules() if recurse else [("", self)]
        for path, module in modules:
            for name in module._tensor_names():
                if want(quick.tess_module_is_buffer(module._ptr, name.encode())):
                    yield ".".join(p for p in (prefix, path, name) if p), module._find(name)

    def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
        """(dotted name, tensor); one that is in several places (tied) under its first name."""
        seen = set()
        for name, value in self._named(lambda kind: kind == 0, prefix, recurse):
            key = (quick.tess_data(value._handle.ptr), value.shape) if isinstance(value, Tensor) else id(value)
            if not remove_duplicate or key not in seen:
                seen.add(key)
                yield name, value

    def named_buffers(self, prefix="", recurse=True):
        return self._named(lambda kind: kind > 0, prefix, recurse)

    def parameters(self, recurse=True):
        return (p for _, p in self.named_parameters(recurse=recurse))

    def buffers(self, recurse=True):
        return (b for _, b in self.named_buffers(recurse=recurse))

    def state_dict(self):
        """{name: tensor} of parameters and the buffers that are saved."""
        return dict(self._named(lambda kind: kind in (0, 1), "", True))

    def load_state_dict(self, state_dict, strict=True):
        """Puts the tensors of a state_dict() in place of those of the same names."""
        mine = self.state_dict()
        missing, unexpected = [k for k in mine if k not in state_dict], [k for k in state_dict if k not in mine]
        if strict and (missing or unexpected):
            raise Error(f"state_dict: missing {missing}, unexpected {unexpected}; strict=False takes what fits")
        for name, value in state_dict.items():
            if name in mine:
                owner, _, last = name.rpartition(".")
                self.get_submodule(owner)._put(last, value)

    def requires_grad_(self, requires_grad=True):
        """Sets the flag of all parameters; returns the module."""
        ctx = current()
        for module in self.modules():
            for name in module._tensor_names():
                if quick.tess_module_is_buffer(module._ptr, name.encode()) == 0 and quick.tess_module_set_requires_grad(ctx.ptr, module._ptr, name.encode(), bool(requires_grad)) < 0:
                    ctx.check()
        return self

    def requires_grad(self, name):
        """The flag of one tensor, by its dotted name."""
        flag = quick.tess_module_requires_grad(self._ptr, name.encode())
        if flag < 0:
            raise Error(f"{type(self).__name__} has no tensor '{name}'")
        return bool(flag)

    # ---- the tree -------------------------------------------------------------------------

    def named_modules(self):
        """(path, module) of this and all inside, this first: ("", self), ("mlp", ...), ("mlp.up", ...)."""
        found, ctx = [], current()

        def note(_, path, m, __):
            found.append((path.decode(), module_at(m)))
            return 0
        if quick.tess_module_walk(ctx.ptr, self._ptr, VisitFn(note), None) < 0:
            ctx.check()
        return iter([(path, m) for path, m in found if not isinstance(m, ModuleList)])

    def modules(self):
        return (m for _, m in self.named_modules())

    def named_children(self):
        for i in range(quick.tess_module_child_count(self._ptr)):
            yield quick.tess_module_child_name(self._ptr, i).decode(), module_at(quick.tess_module_child_at(self._ptr, i))

    def children(self):
        return (m for _, m in self.named_children())

    def add_module(self, name, module):
        setattr(self, name, module)

    register_module = add_module

    def get_submodule(self, target):
        child = quick.tess_module_child(self._ptr, target.encode())
        if not child:
            raise AttributeError(f"{type(self).__name__} has no module '{target}'")
        return module_at(child)

    # ---- calling --------------------------------------------------------------------------

    def forward(self, *inputs, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def _add_hook(self, at, fn, with_kwargs=False):
        ctx, number = current(), next(_module_call.numbers)
        _module_call.hooks[number] = (at, fn, with_kwargs)
        self._made.append(number)
        made = quick.tess_module_hook(ctx.ptr, self._ptr, at, _module_call.hook, number)
        if made < 0:
            ctx.check()
        return Hook(self, made, number)

    def register_forward_pre_hook(self, hook, *, with_kwargs=False):
        """hook(module, inputs) before forward() may return other inputs; with_kwargs: hook(module, inputs,
        kwargs) both.  remove() of what is returned takes it away."""
        return self._add_hook(BEFORE_FORWARD, hook, with_kwargs)

    def register_forward_hook(self, hook):
        """hook(module, inputs, outputs) after forward() may return other outputs."""
        return self._add_hook(AFTER_FORWARD, hook)

    def __call__(self, *inputs, **kwargs):
        call = (DeepCall if vars(self).get("_gathers") else Call)(current(), inputs, kwargs)
        n, cap = len(call.shown), 64
        given, out = (ctypes.c_void_p * max(1, n))(), (ctypes.c_void_p * cap)()
        with scope(call.ctx):
            call.show_inputs(given)
            call.run(lib.tess_module_call, call.ctx.ptr, self._ptr, given, n, out, cap)
            call.see_outputs(out)
        return call.outputs

    def _settle(self):
        """Its rank ends: DTensors fetch what they need of it."""
        for module in self.modules():
            for name in module._tensor_names():
                value = module._find(name)
                if isinstance(value, DTensor):
                    value._settle()

    # ---- copies ---------------------------------------------------------------------------

    def __getstate__(self):
        """Attributes in the order of the tree: tensors with their kind and flag, modules, the rest."""
        tensors = [(name, self._find(name), quick.tess_module_is_buffer(self._ptr, name.encode()), self.requires_grad(name)) for name in self._tensor_names()]
        rest = {k: v for k, v in vars(self).items() if k not in _OWN}
        return {"tensors": tensors, "modules": list(self.named_children()), "rest": rest}

    def __setstate__(self, state):
        vars(self).update(state["rest"])
        ctx = current()
        for name, value, kind, requires_grad in state["tensors"]:
            self._put(name, value, None if kind == 0 else kind == 1)
            quick.tess_module_set_requires_grad(ctx.ptr, self._ptr, name.encode(), requires_grad)
            ctx.check()
        for name, module in state["modules"]:
            self._put_child(name, module)

    def __reduce_ex__(self, protocol):
        return _new, (type(self),), self.__getstate__()

    def __deepcopy__(self, memo):
        made = memo[id(self)] = _new(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        for number in self._made:
            made._add_hook(*_module_call.hooks[number])
        return made

    def __repr__(self):
        inside = [f"{name}: {type(m).__name__}" for name, m in self.named_children()] + self._tensor_names()
        return f"{type(self).__name__}({', '.join(inside)})"


def _new(kind):
    return Module.__new__(kind)


def module_at(ptr):
    """The Python object of a module; one that C code made gets one."""
    found = objects.get(ptr)
    if found is None:
        found = Module.__new__(Module)
        quick.tess_module_free(found._ptr)
        del objects[found._ptr]
        vars(found)["_ptr"] = quick.tess_module_hold(ptr)
        objects[ptr] = found
    return found


class Hook:
    """What register_forward_hook() returns."""

    def __init__(self, module, made, number):
        self._module, self._made, self._number = weakref.ref(module), made, number

    def remove(self):
        module = self._module()
        if module is not None and self._number in module._made:
            quick.tess_module_unhook(module._ptr, self._made)
            module._made.remove(self._number)
            _module_call.hooks.pop(self._number, None)


class ModuleList(Module, MutableSequence):
    """Modules in a row, called "0", "1" ...; the other items of a list stay what they are."""

    def __init__(self, modules=()):
        self.extend(modules)

    def __len__(self):
        return vars(self).get("_n", 0)

    def _name(self, i):
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"item {i} of a list of {n}")
        return str(i % n)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        return getattr(self, self._name(i))

    def __setitem__(self, i, value):
        setattr(self, self._name(i), value)

    def _refill(self, items):
        for i in range(len(self)):
            delattr(self, str(i))
        vars(self)["_n"] = 0
        for item in items:
            vars(self)["_n"] += 1
            setattr(self, str(len(self) - 1), item)

    def __delitem__(self, i):
        items = list(self)
        del items[i]
        self._refill(items)

    def insert(self, i, value):
        items = list(self)
        items.insert(i, value)
        if i >= len(self):
            vars(self)["_n"] = len(items)
            setattr(self, str(len(items) - 1), value)
        else:
            self._refill(items)

    __hash__ = object.__hash__


class ModuleDict(Module, MutableMapping):
    """Modules and tensors by key; other values stay what they are.  A key with dots is a path:
    "layers.0.weight" is the weight of the module "0" in "layers"."""

    def __init__(self, items=()):
        vars(self)["_plain"] = {}  # every key, and its value if the tree does not take it
        self.update(items)

    def __len__(self):
        return len(self._plain)

    def __iter__(self):
        return iter(list(self._plain))

    def _owner(self, key):
        """The module that has the last part of a path, and that part."""
        module, (*path, last) = self, str(key).split(".")
        for name in path:
            inner = module._find(name)
            if inner is None:
                module._put_child(name, inner := ModuleDict())
            elif not isinstance(inner, Module):
                raise Error(f"{key!r}: '{name}' is a tensor, no module")
            module = inner
        return module, last

    def __getitem__(self, key):
        plain = self._plain[key]
        owner, name = self._owner(key)
        return plain if owner._find(name) is None else owner._find(name)

    def __setitem__(self, key, value):
        owner, name = self._owner(key)
        taken = owner._put_any(name, value)
        if owner is not self and isinstance(owner, ModuleDict):
            owner._plain.setdefault(name, None)
        self._plain[key] = None if taken else value

    def __delitem__(self, key):
        del self._plain[key]
        owner, name = self._owner(key)
        owner._drop(name)
        if owner is not self and isinstance(owner, ModuleDict):
            owner._plain.pop(name, None)

    __hash__ = object.__hash__
    __eq__ = object.__eq__
