#!/usr/bin/env python3
"""Makes golden cases with gradients of the products of rows with their experts' matrices (tess.expert_mm).

    scripts/make_expert_cases.py [--out FOLDER] [--file NAME] [--seed N]
    build/tests/golden_ops FOLDER && build/tests/golden_ops --grad --ranks 3 FOLDER

PyTorch has no such op: its answer and its gradients are those of the loop over rows below, in the dtype of sums.
The format is told in tests/golden/ops/README.md.  Needs PyTorch; the same seed gives the same cases.
"""
import torch

from make_grad_cases import floats, index, ints, make_file

lib = torch.library.Library("tess", "DEF")
lib.define("expert_mm(Tensor x, Tensor weight, Tensor ids, SymInt first=0, SymInt experts=-1) -> Tensor")
lib.define("expert_mm_weight(Tensor x, Tensor grad, Tensor ids, Tensor weight, SymInt first=0, SymInt experts=-1) -> Tensor")
lib.define("expert_order(Tensor ids, SymInt experts) -> (Tensor order, Tensor place, Tensor ends)")


def wide(t):
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def expert_mm(x, weight, ids, first=0, experts=-1):
    n, w = weight.shape[0], wide(weight)
    rows = [wide(x[t]) @ w[i - first] if 0 <= i - first < n else 0 * wide(x[t]).sum() * w.sum((0, 1))
            for t, i in enumerate(ids.tolist())]
    return (torch.stack(rows) if rows else wide(x) @ w.sum(0)).to(x.dtype)


def expert_mm_weight(x, grad, ids, weight, first=0, experts=-1):
    parts = [wide(x[ids == first + e]).t() @ wide(grad[ids == first + e]) for e in range(weight.shape[0])]
    return torch.stack(parts).to(x.dtype) + 0 * weight


def expert_order(ids, experts):
    order = torch.sort(ids, stable=True).indices
    return order, torch.argsort(order), torch.bincount(ids, minlength=experts).cumsum(0)


lib.impl("expert_order", expert_order, "CompositeImplicitAutograd")
lib.impl("expert_mm", expert_mm, "CompositeImplicitAutograd")
lib.impl("expert_mm_weight", expert_mm_weight, "CompositeImplicitAutograd")


def both(case, x, weight, ids, *part):
    case("tess.expert_mm.default", x, weight, ids, *part)
    case("tess.expert_mm_weight.default", x, floats(x.shape[0], weight.shape[2], dtype=x.dtype), ids, weight, *part)


def experts(case):
    for dtype in None, torch.float64, torch.float16, torch.bfloat16:
        both(case, floats(7, 3, dtype=dtype), floats(4, 3, 5, dtype=dtype), ints(4, 7))
    f32 = floats(4, 6, 5).transpose(1, 2)  # as models keep weights
    both(case, floats(5, 12).t(), f32, ints(4, 12))
    both(case, floats(1, 5).expand(6, 5), f32, ints(4, 6))
    both(case, floats(6, 10)[:, ::2], f32, ints(4, 12)[::2])
    both(case, floats(6, 5), f32, index(2, 2, 2, 2, 2, 2))  # experts without rows
    both(case, floats(6, 5), f32, index(3, 0, 3, 0, 0, 3).int())
    both(case, floats(6, 5), floats(1, 5, 2), index(0, 0, 0, 0, 0, 0))
    both(case, floats(1, 5), f32, index(1))
    both(case, floats(0, 5), f32, index())
    both(case, floats(4, 5), floats(3, 5, 0), ints(3, 4))
    both(case, floats(4, 0), floats(3, 0, 5), ints(3, 4))
    both(case, floats(9, 5), f32, ints(9, 9), 3, 9)  # experts 3 to 6 of 9
    both(case, floats(4, 5), f32, index(0, 1, 0, 1), 2, 6)
    for ids in ints(5, 12), ints(4, 12)[::2].int(), index(2, 2, 2), index():
        case("tess.expert_order.default", ids, 5)
    both(case, floats(40, 33), floats(3, 33, 18), ints(3, 40))


if __name__ == "__main__":
    make_file(__doc__, "experts", experts)
