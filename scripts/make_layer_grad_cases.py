#!/usr/bin/env python3
"""Makes golden cases with gradients of layers: products, attention, convolutions, poolings, resampling, padding,
recurrent networks, Fourier transforms, grids, distances, regions of images.

    scripts/make_layer_grad_cases.py [--out FOLDER] [--file NAME] [--seed N]
    build/tests/golden_ops --grad FOLDER

Of the larger set of cases there are none here.  torchvision's operators are written out below, in the formulas
that PyTorch differentiates.  The format is told in tests/golden/ops/README.md.  Needs PyTorch; the same seed gives
the same cases.
"""
import math

import torch
import torch.nn.functional as F

from make_grad_cases import c64, floats, make_file


def products(case):
    case("vdot.default", floats(7), floats(7))
    for a, b in ((4,), (3, 4, 5)), ((2, 3, 4), (4,)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 6)), ((2, 3, 4), (4, 5)):
        case("matmul.default", floats(*a), floats(*b))
    case("linear.default", floats(4), floats(5, 4), floats(5))
    case("linear.default", floats(2, 3, 4), floats(5, 4), floats(5))
    case("linear.default", floats(2, 3, 4), floats(4))
    case("tensordot.default", floats(2, 3, 4), floats(4, 3, 5), [2, 1], [0, 1])
    case("inner.default", floats(2, 3), floats(4, 3))
    case("kron.default", floats(2, 3), floats(4, 2))
    case("bilinear.default", floats(4, 3), floats(4, 5), floats(2, 3, 5), floats(2))
    case("chain_matmul.default", [floats(2, 3), floats(3, 4), floats(4, 5)])
    case("_trilinear.default", floats(2, 3, 4), floats(2, 3, 4), floats(2, 3, 4), [], [], [], [1])
    some = dict(beta=.5, alpha=2.)
    case("addbmm.default", floats(3, 5), floats(2, 3, 4), floats(2, 4, 5), **some)
    case("addmv.default", floats(3), floats(3, 4), floats(4), **some)
    case("addr.default", floats(3, 4), floats(3), floats(4), **some)
    z = floats(2, 3, dtype=c64)
    case("mm.default", z, floats(3, 4, dtype=c64))
    case("matmul.default", z, floats(3, dtype=c64))
    case("dot.default", z[0], z[1])
    case("addmm.default", floats(4, dtype=c64), z, floats(3, 4, dtype=c64), **some)


def attention(case):
    name, four = "scaled_dot_product_attention.default", ((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8))
    for q, k, v in ((5, 8), (6, 8), (6, 8)), ((2, 3, 2, 5, 4), (2, 3, 2, 6, 4), (2, 3, 2, 6, 4)), ((2, 4, 5, 8), (1, 4, 6, 8), (1, 4, 6, 8)), (four[0], four[1], (2, 4, 6, 12)):
        case(name, floats(*q), floats(*k), floats(*v))
    for mask in (1, 6), (5, 6), (2, 1, 1, 6), (1, 4, 5, 1), (2, 4, 5, 6):
        case(name, *(floats(*n) for n in four), floats(*mask))
    case(name, *(floats(2, 3, *n[1:]) for n in four), floats(2, 1, 4, 5, 6))
    seen = torch.rand(2, 1, 5, 6) > .4
    seen[0, 0, 2] = False
    case(name, *(floats(*n) for n in four), seen, scale=.3)
    case(name, floats(2, 4, 5, 8), floats(2, 2, 6, 8), floats(2, 2, 6, 8), enable_gqa=True)
    case(name, floats(2, 4, 5, 8), floats(2, 2, 5, 8), floats(2, 2, 5, 8), None, 0., True, enable_gqa=True)
    case(name, floats(1, 4, 40, 8), floats(1, 1, 70, 8), floats(1, 1, 70, 8), floats(40, 70), enable_gqa=True)


def convolutions(case):
    case("conv1d.default", floats(2, 4, 9), floats(6, 2, 3), floats(6), [2], [1], [2], 2)
    case("conv1d.default", floats(4, 9), floats(6, 4, 3), floats(6))
    case("conv2d.default", floats(4, 8, 9), floats(6, 4, 3, 2))
    case("conv2d.default", floats(2, 4, 6, 6), floats(4, 1, 3, 3), floats(4), [1, 1], [1, 1], [1, 1], 4)
    case("conv3d.default", floats(1, 2, 5, 6, 4), floats(4, 2, 3, 2, 2), floats(4), [1, 2, 1], [1, 1, 0])
    for padding in "same", "valid":
        case("conv1d.padding", floats(2, 4, 9), floats(6, 4, 4), floats(6), [1], padding)
        case("conv2d.padding", floats(2, 4, 6, 7), floats(6, 2, 4, 3), floats(6), [1, 1], padding, [1, 2], 2)
        case("conv3d.padding", floats(1, 2, 5, 4, 4), floats(4, 2, 2, 3, 2), floats(4), [1, 1, 1], padding)
    case("conv_transpose1d.default", floats(2, 4, 5), floats(4, 3, 3), floats(6), [2], [1], [1], 2)
    case("conv_transpose2d.input", floats(2, 4, 4, 5), floats(4, 3, 3, 2), floats(3), [2, 3], [1, 0], [1, 2], 1, [1, 2])
    case("conv_transpose2d.input", floats(4, 5, 6), floats(4, 3, 3, 2), floats(3))
    case("conv_transpose3d.input", floats(1, 2, 3, 4, 3), floats(2, 2, 2, 3, 2), None, [2, 1, 1])
    case("convolution_backward.default", floats(2, 6, 4, 4), floats(2, 4, 6, 6), floats(6, 2, 3, 3), [6], [1, 1], [0, 0], [1, 1], False, [0, 0], 2, [True] * 3)
    case("convolution_backward.default", floats(2, 3, 7, 9), floats(2, 4, 3, 4), floats(4, 3, 3, 3), [3], [2, 2], [0, 0], [1, 1], True, [0, 0], 1, [True] * 3)


def pools(case):
    case("max_pool1d.default", floats(2, 3, 9), [3], [2], [1])
    case("max_pool1d_with_indices.default", floats(3, 9), [3], [2], [1])
    case("max_pool2d.default", floats(2, 3, 9, 8), [3, 2], [2, 1], [1, 0], [1, 2], True)
    case("max_pool3d.default", floats(1, 2, 5, 6, 7), [2, 2, 3])
    case("avg_pool1d.default", floats(2, 3, 9), [3], [2], [1], True, False)
    case("avg_pool2d.default", floats(2, 3, 9, 8), [3, 2], [2, 1], [1, 0], True, False)
    case("avg_pool2d.default", floats(3, 9, 8), [3, 2], [], [0, 0], False, True, 5)
    case("avg_pool3d.default", floats(1, 2, 5, 6, 7), [2, 2, 3], [1, 2, 1])
    for name in "adaptive_avg_pool", "adaptive_max_pool":
        case(name + "1d.default", floats(2, 3, 9), [4])
        case(name + "2d.default", floats(3, 9, 8), [4, 3])
        case(name + "3d.default", floats(1, 2, 5, 6, 7), [2, 3, 2])
    case("fractional_max_pool2d.default", floats(2, 3, 9, 8), [2, 2], [4, 4], torch.rand(2, 3, 2), constant=[1])
    at = F.max_pool2d(floats(2, 3, 6, 6), 2, return_indices=True)[1]
    case("max_unpool2d.default", floats(2, 3, 3, 3), at, [6, 6])
    case("max_pool2d_with_indices_backward.default", floats(2, 3, 3, 3), floats(2, 3, 6, 6), [2, 2], [2, 2], [0, 0], [1, 1], False, at)
    case("adaptive_max_pool2d_backward.default", floats(2, 3, 3, 3), floats(2, 3, 6, 6), at)
    at = F.max_pool3d(floats(1, 2, 4, 4, 4), 2, return_indices=True)[1]
    case("max_unpool3d.default", floats(1, 2, 2, 2, 2), at, [4, 4, 4], [2, 2, 2], [0, 0, 0])
    case("avg_pool2d_backward.default", floats(2, 3, 3, 3), floats(2, 3, 6, 6), [2, 2], [2, 2], [0, 0], False, True, None)
    case("_adaptive_avg_pool3d_backward.default", floats(1, 2, 2, 2, 2), floats(1, 2, 4, 4, 5))


def resampling(case):
    for name, nd, aligns in [("upsample_nearest1d", 1, 0), ("upsample_nearest3d", 3, 0), ("_upsample_nearest_exact1d", 1, 0),
                             ("_upsample_nearest_exact2d", 2, 0), ("_upsample_nearest_exact3d", 3, 0), ("upsample_linear1d", 1, 1),
                             ("upsample_trilinear3d", 3, 1), ("upsample_bicubic2d", 2, 1), ("_upsample_bilinear2d_aa", 2, 1),
                             ("_upsample_bicubic2d_aa", 2, 1)]:
        x, corners, centres = floats(1, 2, *(5, 4, 3)[:nd]), [True] * aligns, [False] * aligns
        case(name + ".default", x, [7, 9, 3][:nd], *corners)
        case(name + ".vec", x, None, *centres, [1.7, 2.3, 1.4][:nd])
        case(name + ".vec", x, [3, 8, 4][:nd], *centres, None)
        case(name + "_backward.default", floats(1, 2, *(7, 6, 3)[:nd]), [7, 6, 3][:nd], [1, 2] + [5, 4, 6][:nd], *centres)


def paddings(case):
    for mode in "reflect", "replicate", "circular", "constant":
        case("pad.default", floats(2, 3, 5), [2, 1], mode)
        case("pad.default", floats(2, 1, 5, 4), [2, 1, 3, 0], mode)
        case("pad.default", floats(1, 2, 3, 4, 4), [2, 1, 3, 0, 1, 2], mode)
    case("pad.default", floats(2, 1, 5, 6), [-1, 1, 2, -2], "circular")
    case("constant_pad_nd.default", floats(3, 4), [-1, 2, 1, -1], 3.)
    case("constant_pad_nd.default", floats(3, 4, dtype=c64), [1, 2])
    case("_pad_circular.default", floats(2, 3, 5), [5, 3])
    case("im2col.default", floats(2, 3, 6, 7), [2, 3], [1, 2], [1, 0], [2, 1])
    case("im2col.default", floats(3, 5, 4), [2, 3], [1, 1], [0, 0], [1, 1])
    case("col2im.default", floats(2, 12, 20), [5, 6], [2, 2], [1, 1], [0, 0], [1, 1])


def weights(layers, directions, inner, hidden, gates, biases, projected):
    out = []
    for at in range(layers * directions):
        width = inner if at < directions else (projected or hidden) * directions
        out += [floats(gates * hidden, width) * .4, floats(gates * hidden, projected or hidden) * .4]
        out += [floats(gates * hidden) * .2 for _ in range(2 * biases)]
        out += [floats(projected, hidden) * .4] if projected else []
    return out


def recurrent(case):
    for name, gates in ("rnn_tanh", 1), ("rnn_relu", 1), ("gru", 3), ("lstm", 4):
        for layers, directions, biases, first, projected in (1, 1, True, False, 0), (2, 2, True, True, 0), (2, 1, False, False, 0), (2, 2, True, False, 3):
            if projected and name != "lstm":
                continue

            def states(batch):
                h = floats(layers * directions, batch, projected or 5)
                return [h, floats(layers * directions, batch, 5)] if name == "lstm" else h

            own = weights(layers, directions, 4, 5, gates, biases, projected)
            rest = biases, layers, 0., True, directions == 2
            case(name + ".input", floats(3, 6, 4) if first else floats(6, 3, 4), states(3), own, *rest, first)
            case(name + ".data", floats(6, 4), torch.tensor([2, 2, 1, 1]), states(2), own, *rest)
        h = [floats(3, 5), floats(3, 5)] if name == "lstm" else floats(3, 5)
        case(name + "_cell.default", floats(3, 4), h, floats(gates * 5, 4), floats(gates * 5, 5), floats(gates * 5), floats(gates * 5))
        case(name + "_cell.default", floats(3, 4), h, floats(gates * 5, 4), floats(gates * 5, 5))


def transforms(case):
    z = floats(2, 4, 5, dtype=c64)
    for name in "fft_fft", "fft_ifft":
        case(name + ".default", floats(3, 8))
        case(name + ".default", z, 3, 1, "ortho")
        case(name + ".default", z, 12, -1, "forward")
    case("fft_rfft.default", floats(3, 8))
    case("fft_rfft.default", floats(3, 7), None, -1, "ortho")
    case("fft_rfft.default", floats(3, 7), 10, 0)
    case("fft_irfft.default", z)
    case("fft_irfft.default", z, 9, -1, "ortho")
    case("fft_irfft.default", z, 7, 1)
    for name in "fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_irfft2 fft_irfftn".split():
        case(name + ".default", z)
    case("fft_fftn.default", z, [3, 6], [0, 2])
    for name in "fft_rfft2", "fft_rfftn":
        case(name + ".default", floats(2, 4, 5))
        case(name + ".default", floats(2, 4, 6), [3, 8], [1, 2])
    case("fft_fftshift.default", floats(3, 5))
    case("fft_ifftshift.default", floats(3, 5), [1])
    window = torch.hann_window(16)
    case("stft.center", floats(2, 40), 16, 4, 16, window, True, "reflect", False, True, True)
    case("stft.center", floats(40), 16, 5, 12, torch.hann_window(12), True, "constant", False, False, True)
    case("stft.default", floats(2, 40), 16, 8, None, None, True, None, True)
    case("istft.default", floats(2, 9, 6, dtype=c64), 16, 4, 16, window)
    case("istft.default", floats(9, 9, dtype=c64), 16, 4, 16, window, True, True, None, 30)


def grids(case):
    for mode in range(3):
        for padding in range(3):
            for corners in True, False:
                case("grid_sampler_2d.default", floats(1, 2, 5, 6), floats(1, 4, 3, 2) * .8, mode, padding, corners)
                if mode < 2:
                    case("grid_sampler_3d.default", floats(1, 2, 4, 3, 5), floats(1, 3, 2, 2, 3) * .8, mode, padding, corners)
    case("grid_sampler.default", floats(2, 3, 5, 6), floats(2, 4, 3, 2) * .8, 0, 0, False)
    for corners in True, False:
        case("affine_grid_generator.default", floats(2, 2, 3), [2, 3, 4, 5], corners)
        case("affine_grid_generator.default", floats(2, 3, 4), [2, 3, 4, 5, 2], corners)


def distances(case):
    for p in 0., .5, 1., 1.5, 2., 3., math.inf:
        case("cdist.default", floats(2, 4, 3), floats(5, 3), p)
        case("pdist.default", floats(4, 3), p)
    same = floats(4, 3)
    case("cdist.default", same, torch.cat([same[:2], floats(3, 3)]), 2.)


# ---- torchvision's -----------------------------------------------------------------------------


def pixels(image, v, u):
    """image [c, h, w] at whole places; 0 outside."""
    h, w = image.shape[1:]
    return image[:, v.clamp(0, h - 1), u.clamp(0, w - 1)] * ((v >= 0) & (v < h) & (u >= 0) & (u < w))


def bilinear(image, v, u):
    i, j = v.detach().floor().long(), u.detach().floor().long()
    a, b = v - i, u - j
    return (pixels(image, i, j) * (1 - a) * (1 - b) + pixels(image, i, j + 1) * (1 - a) * b +
            pixels(image, i + 1, j) * a * (1 - b) + pixels(image, i + 1, j + 1) * a * b)


def roi_align(x, rois, scale, height, width, ratio, aligned):
    out, (h, w) = [], x.shape[2:]
    for n, *box in rois.detach().tolist():
        u0, v0, u1, v1 = (z * scale - .5 * aligned for z in box)
        tall, wide = (v1 - v0, u1 - u0) if aligned else (max(v1 - v0, 1), max(u1 - u0, 1))
        dv, du = tall / height, wide / width
        ny, nx = ratio if ratio > 0 else math.ceil(dv), ratio if ratio > 0 else math.ceil(du)
        v = v0 + (torch.arange(height * ny, dtype=x.dtype) + .5) * dv / max(ny, 1)
        u = u0 + (torch.arange(width * nx, dtype=x.dtype) + .5) * du / max(nx, 1)
        v, u = (z.flatten() for z in torch.meshgrid(v, u, indexing="ij"))
        near = (v >= -1) & (v <= h) & (u >= -1) & (u <= w)
        samples = bilinear(x[int(n)], v.clamp(0, h - 1), u.clamp(0, w - 1)) * near
        out.append(samples.view(x.shape[1], height, ny, width, nx).sum((2, 4)) / max(ny * nx, 1))
    return torch.stack(out)


def deform_conv2d(x, weight, offset, mask, bias, sh, sw, ph, pw, dh, dw, groups, parts, use_mask):
    (n, c), (outer, _, kh, kw), (oh, ow) = x.shape[:2], weight.shape, offset.shape[2:]
    images = []
    for b in range(n):
        columns = []
        for row in range(c * kh * kw):
            channel, tap = row // (kh * kw), row % (kh * kw)
            at = channel // (c // parts) * kh * kw + tap
            v = (torch.arange(oh) * sh - ph + tap // kw * dh)[:, None] + offset[b, 2 * at]
            u = torch.arange(ow) * sw - pw + tap % kw * dw + offset[b, 2 * at + 1]
            column = bilinear(x[b, channel:channel + 1], v, u)[0]
            columns.append(column * mask[b, at] if use_mask else column)
        product = weight.view(groups, outer // groups, -1) @ torch.stack(columns).view(groups, -1, oh * ow)
        images.append(product.view(outer, oh, ow) + bias[:, None, None])
    return torch.stack(images)


def vision(case):
    library = torch.library.Library("torchvision", "FRAGMENT")
    numbers = ", ".join("SymInt " + n for n in "stride_h stride_w pad_h pad_w dilation_h dilation_w groups offset_groups".split())
    for text, formula in (("roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
                           "int sampling_ratio, bool aligned) -> Tensor", roi_align),
                          ("deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, " + numbers +
                           ", bool use_mask) -> Tensor", deform_conv2d)):
        library.define(text)
        library.impl(text.split("(")[0], formula, "CompositeImplicitAutograd")
    rois = torch.tensor([[0, 1., 1.5, 7., 8.], [1, 0., 0., 3.2, 2.1], [0, -3., -2., 20., 14.], [1, 2., 2., 2., 2.]])
    for ratio in 0, 2:
        for aligned in True, False:
            case("torchvision.roi_align.default", floats(2, 2, 9, 10), rois, .8, 3, 2, ratio, aligned, constant=[1])
    for masked, groups, parts, stride, dilation in (True, 1, 1, 1, 1), (False, 2, 2, 2, 1), (True, 2, 1, 1, 2), (True, 1, 2, 1, 1):
        out = (6 - dilation * 2 + 1) // stride + 1
        taps = parts * 9
        mask = floats(2, taps, out, out) if masked else floats(2, 1)
        case("torchvision.deform_conv2d.default", floats(2, 4, 6, 6), floats(4, 4 // groups, 3, 3), floats(2, 2 * taps, out, out), mask, floats(4),
             stride, stride, 1, 1, dilation, dilation, groups, parts, masked)


def layers(case):
    for some in products, attention, convolutions, pools, resampling, paddings, recurrent, transforms, grids, distances, vision:
        some(case)


if __name__ == "__main__":
    make_file(__doc__, "layers", layers)
