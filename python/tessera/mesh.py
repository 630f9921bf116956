"""Meshes of ranks."""
import ctypes

import numpy as np

from . import _context
from ._buffers import ints
from ._context import Error
from ._library import lib, quick


def _names(names):
    if names is None:
        return None
    names = (names,) if isinstance(names, str) else tuple(names)
    return (ctypes.c_char_p * len(names))(*(n.encode() for n in names))


def parse_shape(shape, names=None):
    """(sizes, names) of 4, (2, 2), "2,2" or "dp=2,tp=2"."""
    if isinstance(shape, Mesh):
        return shape.shape, shape.names
    if isinstance(shape, str):
        parts = [p.strip() for p in shape.split(",") if p.strip()]
        named = [p.partition("=") for p in parts]
        if not parts or any(bool(e) != bool(named[0][1]) for _, e, _ in named):
            raise Error(f"'{shape}' is no mesh; write dp=2,tp=4")
        try:
            if named[0][1]:
                return tuple(int(size) for _, _, size in named), tuple(name.strip() for name, _, _ in named)
            return tuple(int(p) for p in parts), names
        except ValueError:
            raise Error(f"'{shape}' is no mesh; write dp=2,tp=4") from None
    if isinstance(shape, (int, np.integer)):
        return (int(shape),), names
    return tuple(int(s) for s in shape), names


class Size(int):
    """A number of elements, as in NumPy; called, what PyTorch's size() tells: all sizes, or one."""

    def __new__(cls, total, sizes):
        self = int.__new__(cls, total)
        self._sizes = sizes  # what size() is, and a function of a dimension
        return self

    def __call__(self, dim=None):
        whole, one = self._sizes
        return whole if dim is None else one(dim)

    def __reduce__(self):
        return int, (int(self),)


class Group(str):
    """The ranks along an axis of a mesh: the name of a group, for collectives called by name."""

    ranks = ()

    def __new__(cls, name, ranks, rank):
        self = str.__new__(cls, name)
        self.ranks, self._rank = ranks, rank
        return self

    group_name = property(str.__str__)

    def size(self):
        return len(self.ranks)

    def rank(self):
        """This rank's place in it; -1 outside."""
        return self.ranks.index(self._rank) if self._rank in self.ranks else -1

    def __getnewargs__(self):
        return str(self), self.ranks, self._rank


class Mesh:
    """Ranks along named axes; made by init_device_mesh(), or as PyTorch's DeviceMesh("cpu", [[0, 1],
    [2, 3]], mesh_dim_names=("dp", "tp")).

    shape, names (None: none), coordinate of this rank (None: outside), ranks as an array of
    the mesh's shape.  `with mesh:` makes it the one that functions take where theirs is None.
    mesh["tp"] is the axis through this rank, mesh["dp", "tp"] several."""

    device_type = "cpu"

    def __new__(cls, device_type="cpu", mesh=None, *, mesh_dim_names=None):
        check_device(device_type)
        if mesh is None:
            raise Error("a mesh needs the ranks that it has: Mesh('cpu', [[0, 1], [2, 3]]), or init_device_mesh()")
        ranks = np.asarray(mesh)
        return mesh_from(_context.current(), ranks.shape or (1,), mesh_dim_names, ranks)

    def _fill(self, ctx, ptr):
        self._ctx, self._ptr, self._former = ctx, ptr, []
        n = quick.tess_mesh_ndim(ptr)
        self.shape = tuple(quick.tess_mesh_size(ptr, a) for a in range(n))
        named = [quick.tess_mesh_name(ptr, a) for a in range(n)]
        self.names = tuple(m.decode() if m else None for m in named) if any(named) else None
        coordinate = (ctypes.c_int * n)()
        self.coordinate = None if quick.tess_mesh_coordinate(ptr, coordinate) < 0 else tuple(coordinate)
        total = quick.tess_mesh_size(ptr, -1)
        self.size = Size(total, (total, lambda axis, shape=self.shape: shape[axis]))
        self.ranks = np.array(quick.tess_mesh_ranks(ptr)[:total]).reshape(self.shape)

    ndim = property(lambda self: len(self.shape))
    mesh_dim_names = property(lambda self: self.names)  # PyTorch's names
    mesh = property(lambda self: self.ranks)

    def _pointer(self, ctx):
        if self._ctx is not ctx or not ctx.ptr:
            raise Error(f"{self!r} belongs to another rank or to a run that has ended", 5)
        return self._ptr

    def _axis(self, axis):
        if isinstance(axis, str):
            if not self.names or axis not in self.names:
                raise Error(f"{self!r} has no axis '{axis}'")
            return self.names.index(axis)
        return axis

    def __getitem__(self, names):
        ctx, names = _context.current(), (names,) if isinstance(names, str) else tuple(names)
        return mesh_at(ctx, lib.tess_mesh_sub(ctx.ptr, self._pointer(ctx), _names(names), len(names)))

    def flatten(self, *names, name=None):
        """These axes (none: all) as one, called name (None: their names joined by '_')."""
        ctx, ptr = _context.current(), self._pointer(_context.current())
        if not self.names and not names:
            return mesh_from(ctx, (self.size,), name, self.ranks.ravel())
        names = names or self.names
        return mesh_at(ctx, lib.tess_mesh_flatten(ctx.ptr, ptr, _names(names), len(names), name.encode() if name else None))

    def local_rank(self, axis=0):
        """This rank's place on an axis, by name or number; None outside the mesh."""
        return self.coordinate[self._axis(axis)] if self.coordinate else None

    def _one_axis(self, mesh_dim):
        if mesh_dim is None and self.ndim > 1:
            raise Error(f"{self!r} has {self.ndim} axes: say which one, by name or number")
        axis = 0 if mesh_dim is None else self._axis(mesh_dim)
        if not -self.ndim <= axis < self.ndim:
            raise Error(f"{self!r} has no axis {axis}")
        return axis % self.ndim

    def get_local_rank(self, mesh_dim=None):
        """This rank's place on an axis; mesh_dim may be left out if there is only one."""
        return self.local_rank(self._one_axis(mesh_dim))

    def get_group(self, mesh_dim=None):
        """The ranks along an axis through this one, as a group that collectives called by name take:
        call("_c10d_functional.all_reduce", x, "sum", mesh.get_group("tp")).  Every rank of the world calls
        it.  From then on names of groups mean what they are defined as, no longer all ranks."""
        axis, ctx = self._one_axis(mesh_dim), _context.current()
        self._pointer(ctx)
        lists = np.moveaxis(self.ranks, axis, -1).reshape(-1, self.shape[axis]).tolist()
        name = "|".join(",".join(map(str, ranks)) for ranks in lists)
        if name not in ctx.groups:
            _context.define_group(name, *lists)
            ctx.groups.add(name)
        return Group(name, next((tuple(ranks) for ranks in lists if ctx.rank in ranks), ()), ctx.rank)

    def get_all_groups(self):
        return [self.get_group(axis) for axis in range(self.ndim)]

    def get_coordinate(self):
        return self.coordinate

    def get_rank(self):
        return self._ctx.rank

    def _flatten(self, mesh_dim_name=None):
        return self.flatten(name=mesh_dim_name)

    @staticmethod
    def from_group(*args, **kwargs):
        raise Error("ranks of tessera have no process groups to make a mesh of: DeviceMesh('cpu', ranks), or init_device_mesh()")

    def axis_size(self, axis):
        return self.shape[self._axis(axis)]

    def __enter__(self):
        ctx = _context.current()
        self._former.append(quick.tess_set_mesh(ctx.ptr, self._pointer(ctx)))
        ctx.check()
        return self

    def __exit__(self, *exc):
        quick.tess_set_mesh(_context.current().ptr, self._former.pop())

    def __eq__(self, other):
        if not isinstance(other, Mesh):
            return NotImplemented
        return self.shape == other.shape and self.names == other.names and np.array_equal(self.ranks, other.ranks)

    def __hash__(self):
        return hash((self.shape, self.names))

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self  # the library has one of each

    def __reduce__(self):
        return _again, (self.shape, self.names, self.ranks.ravel().tolist())

    def __repr__(self):
        if self.names:
            return "Mesh(" + ", ".join(f"{n}={s}" for n, s in zip(self.names, self.shape)) + ")"
        return "Mesh(" + ", ".join(map(str, self.shape)) + ")"


DeviceMesh = Mesh


def _again(shape, names, ranks):
    """A pickled mesh, on the rank that reads it."""
    return mesh_from(_context.current(), shape, names, ranks)


def one_mesh(device_mesh, mesh):
    """What functions that take both PyTorch's name and ours are given; None: neither."""
    if device_mesh is not None and mesh is not None and device_mesh is not mesh:
        raise TypeError("mesh and device_mesh are the same argument: give one")
    mesh = device_mesh if mesh is None else mesh
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(f"a mesh of tessera is wanted (init_device_mesh()), not {type(mesh).__name__}")
    return mesh


def check_device(device):
    if str(device).partition(":")[0] != "cpu":
        raise Error(f"there is no device '{device}': tessera computes on the CPU")


def mesh_at(ctx, ptr):
    """The object of a mesh of the library: one per context."""
    if not ptr:
        ctx.check()
    mesh = ctx.meshes.get(ptr)
    if mesh is None:
        mesh = ctx.meshes[ptr] = object.__new__(Mesh)
        mesh._fill(ctx, ptr)
    return mesh


def mesh_from(ctx, sizes, names, ranks=None):
    given = None if ranks is None else ints([int(r) for r in np.ravel(ranks)], ctypes.c_int)
    if names is not None and len((names,) if isinstance(names, str) else tuple(names)) != len(sizes):
        raise Error(f"{len(sizes)} axes with names {names!r}")
    if given is not None and len(given) != int(np.prod(sizes)):
        raise Error(f"{len(given)} ranks for a mesh of {int(np.prod(sizes))}")
    return mesh_at(ctx, lib.tess_mesh_from_ranks(ctx.ptr, len(sizes), ints(sizes, ctypes.c_int), _names(names), given))


def init_device_mesh(shape=None, names=None, *more, ranks=None, mesh_dim_names=None, device_type=None, mesh_shape=None):
    """A mesh over ranks 0, 1, 2 ... row-major, or over the given ones: init_device_mesh((2, 2),
    ("dp", "tp")) or init_device_mesh("dp=2,tp=2").  Every rank calls it, also those outside.
    PyTorch's form, init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), is understood too."""
    if isinstance(shape, str) and shape.isalpha():
        device_type, shape, names = shape, names, more[0] if more else None
    shape = mesh_shape if shape is None else shape
    if device_type is not None:
        check_device(device_type)
    if shape is None:
        raise TypeError("init_device_mesh needs a shape: init_device_mesh((2, 2), ('dp', 'tp'))")
    if more and device_type is None:
        raise Error("init_device_mesh takes a shape and names")
    sizes, names = parse_shape(shape, names if mesh_dim_names is None else mesh_dim_names)
    return mesh_from(_context.current(), sizes, names, ranks)


def current_mesh():
    """The mesh of the innermost `with mesh:`; None if there is none."""
    ctx = _context.current()
    ptr = quick.tess_set_mesh(ctx.ptr, None)
    quick.tess_set_mesh(ctx.ptr, ptr)
    return mesh_at(ctx, ptr) if ptr else None
