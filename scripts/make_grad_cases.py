#!/usr/bin/env python3
"""Makes golden cases with gradients of operators that hand elements on: views, joins, indexing, bags.

    scripts/make_grad_cases.py [--out FOLDER] [--file NAME] [--seed N]
    build/tests/golden_ops --grad FOLDER

Every call is written out below, for its gradients: overlapping views, indices that occur twice, results
that get no cotangent, tensors that are broadcast, empty or strided.  The format is told in
tests/golden/ops/README.md.  Needs PyTorch; the same seed gives the same cases.
"""
import argparse
import warnings

import torch

from make_op_cases import File

f64, c64, i64 = torch.float64, torch.complex64, torch.int64


def floats(*shape, dtype=None):
    return torch.randn(shape, dtype=dtype)


def ints(high, *shape):
    return torch.randint(0, high, shape)


def index(*values):
    return torch.tensor(values, dtype=i64)


class Cases(File):
    def __call__(self, name, *args, constant=(), unused=(), instead=None, **kwargs):
        """constant: tensors by number whose gradient PyTorch does not give; unused: results that get no cotangent;
        instead: the same function, where PyTorch cannot differentiate the op."""
        *space, packet, overload = name.split(".")
        func = getattr(getattr(getattr(torch.ops, *space or ["aten"]), packet), overload)
        case = self.add(func, list(args), kwargs) or self.lines[-1]
        self.add_gradients(case, instead or func, args, kwargs, constant, unused)


# ---- the calls ---------------------------------------------------------------------------


def views(case, x):
    n, m, k = x.shape
    for name in "adjoint mT mH alias_copy positive ravel resolve_conj resolve_neg lift numpy_T".split():
        case(name + ".default", x)
    case("diagonal_copy.default", x, 1, 0, 2)
    case("linalg_diagonal.default", x, offset=-1)
    case("narrow.default", x, 1, 1, 2)
    case("narrow.default", x, -1, -2, 2)
    case("narrow_copy.default", x, 0, 1, 1)
    case("movedim.int", x, 0, -1)
    case("movedim.intlist", x, [0, 1], [2, 0])
    case("moveaxis.int", x, 2, 0)
    case("moveaxis.intlist", x, [2, -3], [0, 1])
    case("swapaxes.default", x, 0, 2)
    case("swapdims.default", x, -1, 0)
    case("transpose_copy.int", x, 0, 1)
    case("permute_copy.default", x, [1, -1, 0])
    case("select_copy.int", x, 1, -1)
    case("slice_copy.Tensor", x, 1, 0, 2**63 - 1, 2)
    case("unsqueeze_copy.default", x, -1)
    case("reshape_as.default", x, floats(x.numel()), constant=[1])
    case("unfold_copy.default", x, 1, 2, 1)
    case("unfold.default", x, 2, 3, 2)
    case("slice_scatter.default", x, floats(n, 2, k), 1, 1, 3)
    case("select_scatter.default", x, floats(n, k), 1, -3)
    case("diagonal_scatter.default", x, floats(*x.diagonal(1, 0, 2).shape), 1, 0, 2)
    case("flip.default", x, [0, -1])
    case("rot90.default", x, 1, [0, 2])
    case("roll.default", x, [1], [])
    case("roll.default", x, [1, 2], [1, 1])
    case("diff.default", x, 1, 1)
    case("tril.default", x, -1)
    case("triu.default", x, 1)
    case("diag_embed.default", x, 1)
    case("repeat.default", x, [2, 1, 3])
    case("tile.default", x, [2])
    case("tile.default", x, [2, 1, 1, 2])
    case("repeat_interleave.self_int", x, 2, 1)
    case("repeat_interleave.self_int", x, 3)
    case("fill.Scalar", x, 2.)
    case("fill.Tensor", x, floats())


def small_views(case):
    case("_reshape_alias.default", floats(3, 4), [2, 6], [6, 1])
    case("matrix_H.default", floats(3, 4))
    case("t_copy.default", floats(3, 4))
    case("t_copy.default", floats(3))
    case("view_as.default", floats(3, 4), floats(12), constant=[1])
    case("view_copy.default", floats(3, 4), [2, 6])
    case("expand_copy.default", floats(3, 1), [2, 3, 4])
    case("broadcast_to.default", floats(3, 1), [2, 3, 4])
    case("expand.default", floats(), [2, 3])
    case("expand.default", floats(1, 3), [0, 3])
    case("expand_as.default", floats(4, 1), floats(2, 4, 3), constant=[1])
    case("squeeze_copy.default", floats(1, 3, 1))
    case("squeeze_copy.dim", floats(1, 3), 0)
    case("squeeze_copy.dims", floats(1, 3, 1), [0, 2])
    case("unfold.default", floats(7), 0, 3, 1)
    case("unfold.default", floats(), 0, 1, 1)
    case("repeat.default", floats(3), [2, 2])
    case("repeat.default", floats(3), [0])
    case("pixel_shuffle.default", floats(2, 8, 3, 3), 2)
    case("pixel_unshuffle.default", floats(2, 4, 4), 2)
    case("channel_shuffle.default", floats(2, 4, 3, 3), 2)
    case("diff.default", floats(3, 4), 2, 0, floats(1, 4), floats(2, 4))
    case("trace.default", floats(3, 4))
    case("diag.default", floats(3), 1)
    case("diag.default", floats(3, 4), -1)
    case("as_strided_copy.default", floats(12), [3, 4], [2, 1], 1)
    case("as_strided.default", floats(3, 4).t(), [5], [2], 1)
    case("as_strided.default", floats(4, 1).expand(4, 3), [2, 2], [1, 1])
    case("as_strided.default", floats(6)[1:], [3, 3], [0, 1])
    case("as_strided.default", floats(12), [3, 2, 2], [3, 1, 1], 2)
    case("as_strided_scatter.default", floats(12), floats(3, 2), [3, 2], [4, 1], 1, constant=[0])  # whose own PyTorch gets wrong
    case("to.other", floats(3), floats(2, dtype=f64), constant=[1])
    case("type_as.default", floats(3), floats(2, dtype=f64), constant=[1])
    case("copy_.default", floats(3, 4), floats(4))
    case("masked_fill_.Scalar", floats(3, 3), torch.tensor([True, False, True]), 1.)
    case("index_put_.default", floats(3, 4), [index(0, 1)], floats(4))
    case("index_add_.default", floats(3, 4), 0, index(0, 0), floats(2, 4))


def lists(case, x):
    n, m, k = x.shape
    case("split.sizes", x, [1, m - 1], 1)
    case("split_copy.Tensor", x, 2, 1)
    case("split_with_sizes_copy.default", x, [1, n - 1])
    case("unbind_copy.int", x, 1)
    case("unbind.int", x, -1, unused=range(1, k))
    case("unbind.int", x, 0, unused=[1])
    case("unsafe_chunk.default", x, 2, 1)
    case("unsafe_split.Tensor", x, 2, 2)
    case("unsafe_split_with_sizes.default", x, [1, n - 1], 0)
    case("chunk.default", x, 2, 2, unused=[0])
    case("tensor_split.sections", x, 2, 1)
    for cuts in [1, 3], [3, 1], [-1, 1]:
        case("tensor_split.indices", x, cuts, 1)
    case("tensor_split.indices", x, [3, 1], 1, unused=[2])
    case("hsplit.array", x, [1, 2])
    case("vsplit.array", x, [2, 1])
    case("dsplit.array", x, [1])
    case("atleast_2d.Sequence", [floats(), floats(3), x])
    case("concat.default", [x, floats(n, 2, k)], 1)


def small_lists(case):
    case("hsplit.int", floats(3, 4, 2), 2)
    case("hsplit.int", floats(6), 3)
    case("vsplit.int", floats(4, 3), 2)
    case("dsplit.int", floats(2, 3, 4), 2)
    case("split.Tensor", floats(0, 3), 1)
    case("atleast_1d.default", floats())
    case("atleast_2d.default", floats(3))
    case("atleast_3d.default", floats(3, 2))
    case("atleast_1d.Sequence", [floats(), floats(3)])
    case("atleast_3d.Sequence", [floats(), floats(3), floats(3, 2)], unused=[1])
    case("block_diag.default", [floats(2, 3), floats(4), floats(), floats(1, 2)])
    case("broadcast_tensors.default", [floats(3, 1), floats(4), floats()])
    case("broadcast_tensors.default", [floats(3, 1), floats(4)], unused=[0])
    case("cat.default", [floats(2, 3), floats(0), floats(1, 3)])
    case("cat.default", [floats(2), floats(0), floats(3)])
    case("concatenate.default", [floats(2, 3), floats(2, 1, dtype=f64)], -1)
    case("stack.default", [floats(2, 3), floats(2, 3)], -1)
    case("hstack.default", [floats(2), floats(3)])
    case("vstack.default", [floats(3), floats(2, 3)])
    case("dstack.default", [floats(3), floats(3)])
    case("column_stack.default", [floats(3), floats(3, 2)])
    case("meshgrid.default", [floats(2), floats(3), floats()])
    case("meshgrid.indexing", [floats(2), floats(3), floats(4)], indexing="xy")
    case("meshgrid.indexing", [floats(2), floats(3)], indexing="ij", unused=[1])


def indexing(case, x):
    n, m, k = x.shape
    case("_unsafe_index.Tensor", x, [ints(3, 4), None, ints(4, 4)])
    case("index.Tensor", x, [None, ints(4, 2, 3)])
    case("index.Tensor", x, [x[..., 0] > 0])
    case("index_put.default", x, [x > 0], floats())
    case("index_put.default", x, [x > 0], floats(1), True)
    case("index_put.default", x, [None, index(1, 2)], floats(n, 2, k))
    case("_unsafe_index_put.default", x, [ints(3, 4)], floats(m, k), True)
    case("take.default", x, index(-1, 0, 0, -2))
    case("masked_select.default", x, x > 0)
    case("masked_select.default", x, torch.arange(k) < 2)
    case("masked_scatter.default", x, x > 0, floats(x.numel() + 3))
    case("masked_scatter.default", x, x[0] > 0, floats(n, m * k))
    case("masked_fill.Tensor", x, x > 0, floats())
    case("where.self", x > 0, x, floats(k))
    case("where.self", x > 0, x, floats(k, dtype=f64))
    case("where.ScalarSelf", x > 0, 1.5, x)
    case("where.ScalarOther", x[0] > 0, x, 2)
    case("index_copy.default", x, 1, index(2, 0), floats(n, 2, k))
    case("index_fill.int_Scalar", x, 1, index(0, 2), 3.)
    case("index_fill.int_Tensor", x, 1, index(0, 2), floats())
    case("index_add.default", x, 2, index(0, 0, 1), floats(n, m, 3), alpha=.5)
    case("take_along_dim.default", x, ints(3, n, 2, k), 1)
    case("scatter.src", x, 1, ints(m, n, 1, k), floats(n, 1, k))
    case("scatter_add.default", x, 0, ints(n, 2, 3, 4), floats(2, 3, 4))
    for reduce in "sum mean prod amax amin".split():
        for include_self in True, False:
            case("scatter_reduce.two", x.round(), 0, ints(n, 2, 3, 4), floats(2, 3, 4).round(), reduce, include_self=include_self)


def small_indexing(case):
    case("take.default", floats(), index(0, 0))
    case("masked_select.default", floats(4), floats(3, 4) > 0)
    case("masked_select.default", floats(3), torch.zeros(3, dtype=torch.bool))
    case("masked_fill.Scalar", floats(4), floats(3, 4) > 0, 2.)
    case("masked_fill.Tensor", floats(4), floats(3, 4) > 0, floats())
    case("index_copy.default", floats(4), 0, index(1), floats(1))
    case("index_select.default", floats(), 0, index(0))
    case("gather.default", floats(), 0, torch.tensor(0))
    case("index.Tensor", floats(3, 4), [index()])
    case("scatter_add.default", floats(3), 0, index(), floats(0))


def complex_numbers(case, x):
    for name in "_conj_physical conj_physical real imag view_as_real mT clone ravel resolve_conj".split():
        case(name + ".default", x)
    case("slice.Tensor", x, 0, 1, 3)
    case("cat.default", [floats(3, 4), x])
    case("stack.default", [floats(3, 4), x])
    case("index.Tensor", x, [ints(3, 4)])
    case("unbind.int", x)
    case("masked_select.default", x, x.real > 0)
    case("tril.default", x)
    case("expand.default", floats(3, 1, dtype=c64), [3, 4])
    case("view_as_complex.default", floats(3, 2))
    case("complex.default", floats(3, 4), floats(4))
    case("_to_copy.default", floats(3), dtype=c64)


def embeddings(case):
    table, where = floats(6, 4), index(0, 2, 1, 2, 5, 3, 3, 2)
    offsets, closed = index(0, 2, 2, 5), index(0, 2, 2, 5, 8)
    for padding in -1, 2:
        for by_frequency in False, True:
            case("embedding.default", floats(5, 3), ints(5, 2, 4), padding, by_frequency)
        case("embedding_dense_backward.default", floats(2, 4, 3), ints(5, 2, 4), 5, padding, False)
        for mode in range(3):
            case("embedding_bag.padding_idx", table, where, offsets, False, mode, False, None, False, padding if padding >= 0 else None)
            case("embedding_bag.padding_idx", table, where, closed, False, mode, False, None, True, padding)
            case("embedding_bag.padding_idx", table.t().contiguous().t(), where, offsets, False, mode, False, None, False, -4)
        case("embedding_bag.padding_idx", table, where, offsets, False, 0, False, floats(8), False, padding)
        case("embedding_bag.padding_idx", table.double(), where, closed, False, 0, False, floats(8, dtype=f64), True, padding)
    case("embedding_bag.default", table, where, offsets, False, 0, False, floats(8))
    case("embedding.default", floats(5, 3), index())


def make_file(doc, name, make):
    """The command line of a script that makes one file of cases: make(case) adds them."""
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default="cases")
    ap.add_argument("--file", default=name, help="the files' name")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    case = Cases()
    make(case)
    case.save(a.out, a.file)
    print(f"{len(case.lines)} cases")


def handed_on(case):
    for x in floats(3, 4, 5), floats(5, 4, 3).transpose(0, 2):
        for some in views, lists, indexing:
            some(case, x)
    for x in floats(3, 4, dtype=c64), floats(4, 3, dtype=c64).t():
        complex_numbers(case, x)
    for some in small_views, small_lists, small_indexing, embeddings:
        some(case)


if __name__ == "__main__":
    make_file(__doc__, "handed_on", handed_on)
