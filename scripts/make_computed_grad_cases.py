#!/usr/bin/env python3
"""Makes golden cases with gradients of operators that compute: functions of elements, folds, norms, losses.

    scripts/make_computed_grad_cases.py [--out FOLDER] [--file NAME] [--seed N]
    build/tests/golden_ops --grad FOLDER

Of ops that have gradients in the larger set of cases there are none here.  Second derivatives that PyTorch does
not have are compared with those of the same function written out.  The format is told in
tests/golden/ops/README.md.  Needs PyTorch; the same seed gives the same cases.
"""
import math

import torch
import torch.nn.functional as F

from make_grad_cases import c64, f64, floats, index, make_file

INF, NAN = math.inf, math.nan


def between(low, high, *shape):
    return torch.rand(shape) * (high - low) + low


# ---- functions of elements ------------------------------------------------------------------------


def unary(case):
    anywhere = """exp2 expm1 tan sinh cosh asinh arctan arcsinh erfc frac square absolute sgn negative deg2rad rad2deg
        sigmoid special_expit special_exp2 special_expm1 special_erf special_erfc floor ceil trunc fix sign angle
        nan_to_num i0 special_i0 special_i0e special_i1 special_i1e special_erfcx special_ndtr special_log_ndtr sinc
        special_sinc mish relu6 hardsigmoid hardswish log_sigmoid selu""".split()
    inside = "arcsin arccos arctanh erfinv special_erfinv logit special_logit special_ndtri".split()
    positive = """log2 log10 log1p special_log1p reciprocal arccosh lgamma digamma special_gammaln special_digamma
        special_psi special_entr""".split()
    for name in anywhere:
        case(name + ".default", floats(3, 4))
        case(name + ".default", torch.tensor([0., -0., .5, -2.5, 12., INF, -INF, NAN][:6 if "i1" in name or "ndtr" in name else 8]))
    for name in inside:
        case(name + ".default", between(.05, .95, 3, 4))
    for name in positive:
        case(name + ".default", between(1.1, 4, 3, 4))
    for n in 0, 1, 3:
        case("polygamma.default", n, between(.5, 4, 5))
    case("logit.default", between(0, 1, 7), .2)
    case("round.decimals", floats(4), decimals=1)
    case("mvlgamma.default", between(2, 5, 4), 3)
    case("nan_to_num.default", torch.tensor([NAN, INF, -INF, 1.]), 2., 3., 4.)
    for name in "sigmoid_ tanh_ exp_ relu_ rsqrt_ reciprocal_ square_".split():
        case(name + ".default", between(.5, 2, 3, 4))


def complex_unary(case, z):
    for name in "exp log sin cos tan sinh cosh tanh sqrt rsqrt reciprocal abs sgn angle square neg sigmoid".split():
        case(name + ".default", z)
    case("pow.Tensor_Scalar", z, 3)
    case("pow.Tensor_Tensor", z, z.flip(0))
    case("div.Tensor", z, z.flip(0))
    case("polar.default", between(.5, 2, 5), floats(5))
    case("polar.default", between(.5, 2, 3, 1), floats(4))


def binary(case):
    x, y = floats(3, 4), floats(4)
    ties = torch.tensor([1., 2., 2., NAN, 1., INF, -INF, 0.]), torch.tensor([2., 2., 1., 1., NAN, INF, -INF, 0.])
    for name in "fmax fmin maximum minimum logaddexp logaddexp2 nextafter".split():
        case(name + ".default", x, y)
        case(name + ".default", *ties)
    for name in "atan2 arctan2 hypot".split():
        case(name + ".default", x, y)
    for name in "remainder fmod copysign".split():
        case(name + ".Tensor", x, y)
        case(name + ".Scalar", x, 1.5)
    for name in "xlogy special_xlogy special_xlog1py".split():
        case(f"{name}.{'Tensor' if name == 'xlogy' else 'default'}", torch.tensor([0., 0., 1., 2.]), torch.tensor([2., 0.5, 3., 0.2]))
    case("special_xlog1py.other_scalar", x, .5)
    case("special_xlog1py.self_scalar", .5, x.abs())
    case("igamma.default", between(.5, 2, 4), between(.5, 2, 3, 4), constant=[0])
    case("igammac.default", between(.5, 2, 4), between(.5, 2, 3, 4), constant=[0])
    case("special_zeta.default", between(1.5, 3, 4), between(.5, 2, 3, 4), constant=[0])
    case("ldexp.Tensor", x, y)
    case("float_power.Tensor_Tensor", x.abs(), y)
    case("float_power.Tensor_Scalar", x, 3)
    case("float_power.Scalar", 2, x)
    for e in 0, 1, 2, 3, .5, -1, -.5, 2.5:
        case("pow.Tensor_Scalar", x.abs(), e)
    case("pow.Scalar", 0., torch.tensor([0., 1., 2.5]))
    case("pow.Scalar", 3, y)
    case("pow.Tensor_Tensor", torch.tensor([0., 0., 0., -1.]), torch.tensor([0., 1., 2., 2.]))
    low, high = floats(4) - 1, floats(3, 1) + 1
    case("clamp.Tensor", torch.tensor([0., 1., 2., 3., 1., 2.]), torch.tensor([1., 1., 1., 1., 3., 2.]), torch.full((6,), 2.))
    case("clip.default", x, -.5, .5)
    case("clip.Tensor", x, low, high)
    case("clip.Tensor", x, None, high)
    case("clamp_min.Tensor", x, low)
    case("clamp_max.Tensor", x, high)
    case("addcdiv.default", floats(4), x, between(.5, 2, 3, 1), value=.5)
    case("lerp.Scalar", x, y, .3)
    case("lerp.Tensor", x, y, floats(3, 1))


def activations(case):
    x = torch.cat([floats(9) * 3, torch.tensor([0., 3., -3., 6., .5, -.5])])
    case("celu.default", x, .7)
    case("hardshrink.default", x, .5)
    case("softshrink.default", x, .5)
    case("threshold.default", x, .5, 2.)
    case("rrelu.default", x, .1, .3, False)
    case("elu.default", x, 1.3, .8, .6)
    case("prelu.default", floats(2, 3, 4), floats(3))
    case("prelu.default", floats(5), floats(1))
    case("softplus.default", x, 2., 3.)


def spellings(case):
    x, positive = floats(3, 4), between(.5, 2, 3, 4)
    for name in "divide multiply subtract true_divide floor_divide".split():
        case(name + ".Scalar", x, 1.5, **({"instead": lambda x, y: x * 0} if name == "floor_divide" else {}))
    case("divide.Scalar_mode", x, 1.5, rounding_mode=None)
    case("remainder.Scalar_Tensor", 3.5, positive, instead=lambda x, y: x - y * (x / y).floor())
    case("heaviside.default", x, floats(4), instead=lambda x, y: x * 0 + y * 0)
    case("special_polygamma.default", 2, positive)
    case("special_multigammaln.default", positive + 1, 2)
    case("special_round.default", x, decimals=1)
    case("special_xlogy.other_scalar", x, 2.)
    case("special_xlogy.self_scalar", 1.5, positive)
    case("special_zeta.self_scalar", 2.5, positive)
    case("special_gammainc.default", positive, positive.flip(0), constant=[0])
    case("special_gammaincc.default", positive, positive.flip(0), constant=[0])
    for name in "clamp_ clip_".split():
        case(name + ".Tensor", x, floats(4) - 1, floats(4) + 1)
    for name in "abs_ absolute_ negative_ fix_ arctan_".split():
        case(name + ".default", x)
    case("polygamma_.default", positive, 1)
    case("div_.Scalar_mode", x, 2., rounding_mode=None)
    case("norm.ScalarOpt_dtype", x, 3, dtype=f64)
    case("norm.ScalarOpt_dim_dtype", x, 2, [1], True, dtype=f64)
    case("linalg_norm.ord_str", x, "fro")


def foreach(case):
    lists = [[between(.2, .8, 3), between(.2, .8, 2, 2)] for _ in range(3)]
    for name in """abs acos asin atan cos cosh erf erfc exp expm1 frac lgamma log log10 log1p log2 neg reciprocal rsqrt
            sigmoid sin sinh sqrt tan tanh ceil floor round trunc sign""".split():
        case(f"_foreach_{name}.default", lists[0])
    for name in "add sub mul div maximum minimum pow clamp_min clamp_max".split():
        case(f"_foreach_{name}.List", lists[0], lists[1])
        case(f"_foreach_{name}.Scalar", lists[0], .7)
        case(f"_foreach_{name}.ScalarList", lists[0], [.7, 2.])
    for name in "add mul div".split():
        case(f"_foreach_{name}.Tensor", lists[0], floats(), constant=[2])
    for name in "addcmul addcdiv".split():
        case(f"_foreach_{name}.Scalar", *lists, .5)
        case(f"_foreach_{name}.ScalarList", *lists, [.5, 2.])
    case("_foreach_lerp.List", *lists)
    case("_foreach_lerp.Scalar", lists[0], lists[1], .3)
    case("_foreach_norm.Scalar", lists[0], 3)


# ---- folds -----------------------------------------------------------------------------------------


def folds(case, x):
    for dim in None, [1], [0, -1], []:
        for keepdim in False, True:
            case("nansum.default", x, dim, keepdim)
            case("nanmean.default", x, dim, keepdim)
            if dim != []:
                case("linalg_norm.default", x, None, dim, keepdim)
    ties = x.round()
    case("max.default", ties)
    case("min.default", ties)
    case("median.default", ties)
    case("nanmedian.default", ties)
    case("max.default", torch.tensor([1., NAN, 2., NAN]))
    case("aminmax.default", ties, dim=1)
    case("aminmax.default", ties)
    case("amax.default", ties, [0, 2])
    case("max.other", x, ties)
    case("special_logsumexp.default", x, [1, 2])
    for p in 0., 1., 1.5, 2., 3., .5, INF, -INF:
        case("linalg_vector_norm.default", ties, p, [1])
        case("norm.ScalarOpt_dim", ties, p, [0, 2], True)
        case("norm.Scalar", ties, p)
    case("frobenius_norm.dim", x, [1, 2])
    case("linalg_matrix_norm.str_ord", x)
    case("std_mean.correction", x, [1], correction=0)
    case("var_mean.dim", x, [0, 2], False, True)
    case("var.default", x, False)
    case("std.default", x)
    case("std.dim", torch.full((2, 3), 1.7), [1])
    case("var.correction", x, None, correction=x.numel())
    case("dist.default", x, x.flip(0), 3)
    case("prod.default", x)
    case("prod.dim_int", x * (x > -1), 1, True)
    case("prod.dim_int", x * (x > -.3), 2)
    case("cumprod.default", x * (x > -.3), 1)
    case("cumprod.default", x, -1)
    case("logcumsumexp.default", x, 1)
    case("cummin.default", ties, 1)
    case("cummax.default", ties, -1)
    case("msort.default", x)
    case("sort.stable", ties, stable=True, dim=1, descending=True)
    case("kthvalue.default", x, 2, 1)
    case("median.dim", x, 1, True)
    case("nanmedian.dim", x, 0)
    case("mode.default", ties, 1)


def distances(case):
    for p in 0., 1., 1.5, 2., 3., INF:
        case("cdist.default", floats(2, 3, 4), floats(5, 4), p)
        case("_pdist_forward.default", floats(4, 3), p)
        case("pairwise_distance.default", floats(3, 4), floats(4), p)
    same = (floats(3, 4) * 2).round()
    case("cdist.default", same, same, 2.)
    case("cdist.default", floats(30, 3), floats(2, 1, 3), 2.)
    case("cosine_similarity.default", floats(3, 4), floats(3, 4), 1)
    case("cosine_similarity.default", torch.zeros(2, 4), floats(2, 4), 1)


def quantiles(case):
    x, q, holes = floats(3, 5, 4), torch.tensor([.1, .5, .95]), floats(3, 5)
    holes[0, 1] = NAN
    holes[2] = NAN
    for how in "linear lower higher midpoint nearest".split():
        case("quantile.default", x, q, 1, interpolation=how)
        case("nanquantile.default", holes, q, -1, True, interpolation=how)
    case("quantile.default", holes, torch.tensor(.3), 1)
    case("quantile.scalar", x, .3)
    case("nanquantile.scalar", holes, .6, None, True)


# ---- norms and losses --------------------------------------------------------------------------------


def norms(case):
    x, w, b, mean, var = floats(4, 6, 5), floats(6), floats(6), floats(6), between(.5, 2, 6)
    for weight, bias, count in (w, b, 3), (w, None, 2), (None, None, 1):
        case("batch_norm.default", x, weight, bias, mean, var, False, .1, 1e-5, False, constant=[count, count + 1])
        case("instance_norm.default", x, weight, bias, None, None, True, .1, 1e-5, False)
        case("native_layer_norm.default", floats(3, 6), [6], weight, bias, 1e-5)
        case("group_norm.default", x, 3, weight, bias)
    case("_native_batch_norm_legit.no_stats", x, w, b, True, .1, 1e-5)
    case("_batch_norm_no_update.default", x, w, b, mean, var, .1, 1e-5, constant=[3, 4])
    case("_batch_norm_with_update_functional.default", x, w, b, mean, var, .1, 1e-5, constant=[3, 4], instead=lambda x, w, b, m, v, *a: [F.batch_norm(x, None, None, w, b, True)])
    case("rms_norm.default", floats(3, 4, 5), [4, 5], floats(4, 5), 1e-6)
    case("rms_norm.default", floats(3, 5), [5])
    case("_weight_norm.default", floats(3, 4), floats(3, 1), 0)
    case("_weight_norm.default", floats(3, 4), floats(1, 4), 1)
    case("_safe_softmax.default", torch.tensor([[1., 2., -INF], [-INF] * 3]), 1)
    case("special_softmax.default", floats(3, 4), 0)
    case("special_log_softmax.default", floats(3, 4), -1)


def losses(case):
    x, y = floats(3, 4), floats(3, 4)
    for reduction in 0, 1, 2:
        case("l1_loss.default", x, y, reduction)
        case("soft_margin_loss.default", x, y.sign(), reduction, constant=[1])
        case("kl_div.default", x, between(.1, 1, 3, 4), reduction)
        case("kl_div.default", x, y, reduction, log_target=True)
        case("poisson_nll_loss.default", x, between(1.5, 4, 3, 4), True, True, 1e-8, reduction)
        case("poisson_nll_loss.default", x.abs(), between(0, 4, 3, 4), False, False, 1e-8, reduction)
        case("hinge_embedding_loss.default", x, y.sign(), 1., reduction, constant=[1])
        case("margin_ranking_loss.default", x, y, floats(3, 4).sign(), .3, reduction, constant=[2])
        case("cosine_embedding_loss.default", x, y, torch.tensor([1, -1, 1]), .1, reduction)
        case("triplet_margin_loss.default", x, y, floats(3, 4), 1., 2, 1e-6, True, reduction)
        case("multi_margin_loss.default", x, index(1, 0, 3), 2, .7, between(.5, 2, 4), reduction, constant=[2])
        case("multilabel_margin_loss.default", x, torch.tensor([[1, 3, -1, 0], [0, -1, 2, 1], [-1, 0, 0, 0]]), reduction)
        case("binary_cross_entropy_with_logits.default", x, between(0, 1, 3, 4), between(.5, 2, 4), between(.5, 2, 4), reduction, constant=[2, 3])
        case("huber_loss.default", x, y, reduction, .7)
        for smoothing in 0., .2:
            case("cross_entropy_loss.default", floats(3, 5), index(1, -100, 4), between(.5, 2, 5), reduction, -100, smoothing, constant=[2])
            case("nll_loss2d.default", floats(2, 5, 3, 2), torch.randint(0, 5, (2, 3, 2)), between(.5, 2, 5), reduction, 2, constant=[2])
            case("cross_entropy_loss.default", floats(2, 5, 3), torch.randint(0, 5, (2, 3)), None, reduction, 2, smoothing)
            case("cross_entropy_loss.default", floats(3, 5), floats(3, 5).softmax(1), between(.5, 2, 5), reduction, -100, smoothing, constant=[2])


# ---- second derivatives ---------------------------------------------------------------------------------


def gradient_of(f):
    """(g, *x, ...) -> the gradients of f by all x that have one, to be differentiated once more."""
    def gradient(g, *x):
        wanted = [t for t in x if isinstance(t, torch.Tensor) and t.requires_grad]
        return list(torch.autograd.grad(f(*x), wanted, g, create_graph=True))
    return gradient


def second(case):
    x, g, inside = floats(3, 7) * 2, floats(3, 7), between(.1, .9, 3, 7)
    case("silu_backward.default", g, x, instead=gradient_of(lambda x: x * torch.sigmoid(x)))
    case("mish_backward.default", g, x, instead=gradient_of(lambda x: x * torch.tanh(F.softplus(x))))
    case("hardsigmoid_backward.default", g, x, instead=gradient_of(lambda x: (x / 6 + .5).clamp(0, 1)))
    case("logit_backward.default", g, inside, instead=gradient_of(lambda x: torch.log(x / (1 - x))))
    case("hardshrink_backward.default", g, x, .5)
    case("softshrink_backward.default", g, x, .5)
    for form in "none", "tanh":
        case("gelu_backward.default", g, x, approximate=form)

    def planes(f):
        """Of input and weight, and the bias: the sum of g."""
        return lambda g, x, w: [*torch.autograd.grad(f(x) * w[:, None], [x, w], g, create_graph=True), g.sum((0, 2))]

    y, gy, w = floats(2, 6, 5), floats(2, 6, 5), floats(6)
    groups = y.reshape(2, 3, -1)
    of_groups = planes(lambda x: F.group_norm(x, 3))
    case("native_group_norm_backward.default", gy, y, groups.mean(-1), (groups.var(-1, correction=0) + 1e-5).rsqrt(), w, 2, 6, 5, 3,
         [True] * 3, constant=[2, 3], instead=lambda g, x, mean, rstd, w, *rest: of_groups(g, x, w))
    of_batch = planes(lambda x: F.batch_norm(x, None, None, training=True))
    case("native_batch_norm_backward.default", gy, y, w, None, None, y.mean((0, 2)), (y.var((0, 2), correction=0) + 1e-5).rsqrt(), True,
         1e-5, [True] * 3, constant=[3, 4], instead=lambda g, x, w, *rest: of_batch(g, x, w))
    given = floats(6), between(.5, 2, 6)
    with_given = planes(lambda x: F.batch_norm(x, *given))
    case("native_batch_norm_backward.default", gy, y, w, *given, None, None, False, 1e-5, [True] * 3, constant=[3, 4],
         instead=lambda g, x, w, *rest: with_given(g, x, w))


def computed(case):
    complex_unary(case, floats(4, dtype=c64))
    folds(case, floats(3, 4, 5) * 2)
    for some in unary, binary, activations, spellings, foreach, distances, quantiles, norms, losses, second:
        some(case)


if __name__ == "__main__":
    make_file(__doc__, "computed", computed)
