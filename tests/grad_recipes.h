/* grad_recipes.h -- what grad_differences must be told about ops: which have no derivative to compare, and by what
 * and how others are differentiated.
 *
 * Names of ops stand with spaces between; a name may end in a dot: all that begin so. */
#ifndef TESS_TESTS_GRAD_RECIPES_H
#define TESS_TESTS_GRAD_RECIPES_H

#include <stdbool.h>
#include <stdint.h>

/* Not compared. */
typedef struct {
  const char *ops, *reason;
} Unchecked;

/* Compared in a certain way. */
typedef struct {
  const char *ops, *reason;
  const char *by;  /* the arguments that are moved; NULL: all */
  uint64_t of;     /* bit i: result i counts; 0: all */
  const char *set; /* arguments, NAME=VALUE with spaces between: a number, a list [1,2], a tensor x2,3 of the
                    * tested dtype or i2,3 of places 0, 1, 2 ...; NULL: all are made */
  bool real;       /* no complex numbers */
  bool flat;       /* the derivative is zero, by its parts */
} Recipe;

static const Unchecked unchecked[] = {
    {"_c10d_functional. _c10d_functional_autograd.", "needs ranks: golden_ranks and golden_op_grads_on_ranks"},
    {"tess.dtensor_distribute.default tess.dtensor_from_local.default tess.dtensor_redistribute.default "
     "tess.dtensor_to_local.default",
     "needs a mesh: golden_op_grads_on_ranks"},
    {"aten._fused_adam_. aten._fused_adamw_. "
     "aten._fused_sgd_. "
     "aten._fused_adagrad_. "
     "aten._amp_foreach_non_finite_check_and_unscale_. aten._amp_update_scale_.",
     "a step of an optimizer: PyTorch has no derivative"},
    {"aten.detach.default aten.detach_.default aten.detach_copy.default", "ends gradients"},
    {"aten._functional_assert_async.msg", "a token of an assertion"},
    {"aten.normal.Tensor_Tensor aten.normal.Tensor_float aten.normal.float_Tensor",
     "PyTorch gives samples a derivative of zero"},
    {"aten.view.dtype aten.view_copy.dtype", "bits as another type: PyTorch has no derivative"},
    {"aten.special_zeta.other_scalar aten.scatter_.reduce aten.scatter_.value_reduce aten.embedding_renorm. "
     "aten.embedding_renorm_.",
     "PyTorch has no derivative"},
    {"aten.empty_like.default aten.new_empty.default aten.new_empty_strided.default", "elements are undefined"},
    {"aten.special_airy_ai. aten.special_bessel_j0. aten.special_bessel_j1. aten.special_bessel_y0. "
     "aten.special_bessel_y1. aten.special_modified_bessel_i0. aten.special_modified_bessel_i1. "
     "aten.special_modified_bessel_k0. aten.special_modified_bessel_k1. aten.special_scaled_modified_bessel_k0. "
     "aten.special_scaled_modified_bessel_k1. aten.special_spherical_bessel_j0.",
     "PyTorch has no derivative"},
    {"aten.special_chebyshev_polynomial_t. aten.special_chebyshev_polynomial_u. "
     "aten.special_chebyshev_polynomial_v. "
     "aten.special_chebyshev_polynomial_w. aten.special_hermite_polynomial_h. aten.special_hermite_polynomial_he. "
     "aten.special_laguerre_polynomial_l. aten.special_legendre_polynomial_p. "
     "aten.special_shifted_chebyshev_polynomial_t. aten.special_shifted_chebyshev_polynomial_u. "
     "aten.special_shifted_chebyshev_polynomial_v. aten.special_shifted_chebyshev_polynomial_w.",
     "PyTorch has no derivative"},
    {0},
};

static const Recipe recipes[] = {
    {"aten._batch_norm_no_update. aten._batch_norm_with_update. aten._batch_norm_with_update_functional. "
     "aten._native_batch_norm_legit. aten._native_batch_norm_legit_functional. "
     "aten._native_batch_norm_legit_no_training. aten.native_batch_norm. ",
     "running and saved statistics have no derivative in PyTorch", .by = "input weight bias", .of = 1,
     .set = "input=x2,3,2 weight=x3 bias=x3 running_mean=x3 running_var=x3"},
    {"tess.instance_norm_functional.", "running statistics have no derivative in PyTorch",
     .by = "input weight bias", .of = 1,
     .set = "input=x2,3,4 weight=x3 bias=x3 running_mean=x3 running_var=x3 use_input_stats=1"},
    {"aten.batch_norm. aten.instance_norm.", "running statistics have no derivative in PyTorch",
     .by = "input weight bias"},
    {"aten.native_layer_norm.", "mean and deviation have no derivative in PyTorch", .of = 1},
    {"aten._fused_rms_norm_backward. aten.batch_norm_backward. aten.native_batch_norm_backward. "
     "aten.native_group_norm_backward. aten.native_layer_norm_backward.",
     "differentiated as if it made the statistics itself", .by = "grad_out weight"},
    {"aten.native_group_norm.default", "its numbers must tell the input's size",
     .set = "input=x2,4,3 weight=x4 bias=x4 N=2 C=4 HxW=3 group=2"},
    {"aten.binary_cross_entropy. aten.binary_cross_entropy_with_logits. "
     "aten.cross_entropy_loss. aten.nll_loss. "
     "aten.nll_loss2d. aten.nll_loss2d_forward. aten.nll_loss_forward. aten.nll_loss_nd. aten.multi_margin_loss. "
     "tess.nll_log_softmax.",
     "weights of classes have no derivative in PyTorch", .by = "grad_output self target", .of = 1},
    {"aten.nll_loss_backward.", "sizes must fit, and the weight be that of the classes", .by = "grad_output",
     .set = "grad_output=x self=x3,4 target=i3 weight=None reduction=2 ignore_index=-100"},
    {"aten.nll_loss2d_backward.", "sizes must fit, and the weight be that of the classes", .by = "grad_output",
     .set = "grad_output=x self=x1,4,2,2 target=i1,2,2 weight=None reduction=2 ignore_index=-100"},
    {"aten.embedding. aten.embedding_bag. aten._embedding_bag.",
     "rows of padding and frequencies have other gradients by convention", .of = 1,
     .set = "padding_idx=-1 scale_grad_by_freq=0", .real = true},
    {"aten.binary_cross_entropy_backward.", "sizes must be equal; weights have no derivative in PyTorch",
     .by = "grad_output self target", .set = "grad_output=x2,3 self=x2,3 target=x2,3 weight=x2,3 reduction=0"},
    {"aten._fft_c2r.", "half of the last dimension is there", .set = "self=x2,3 dim=[0,1] last_dim_size=4"},
    {"aten.embedding_dense_backward.", "PyTorch leaves frequencies out of the second derivative",
     .set = "scale_grad_by_freq=0"},
    {"aten._scaled_dot_product_flash_attention_for_cpu.", "the logarithm of sums has no derivative in PyTorch",
     .of = 1},
    {"tess.attention_dropout.", "as of attention without dropout; batches are expanded", .of = 1,
     .set = "query=x2,2,3,2 key=x2,2,4,2 value=x2,2,4,2"},
    {"aten.im2col.", "tessera has no col2im of complex numbers", .real = true},
    {"aten._addmm_activation.", "activations are of real numbers", .real = true},
    {"aten.igamma. aten.igamma_. aten.igammac. aten.igammac_. aten.special_gammainc. aten.special_gammaincc. "
     "aten.special_zeta.default aten.special_zeta.self_scalar",
     "PyTorch has no derivative by the first argument", .by = "other"},
    {"aten.rrelu_with_noise_backward.", "noise has no derivative in PyTorch", .by = "grad_output self",
     .real = true},
    {"torchvision.roi_align.", "boxes have no derivative in PyTorch", .by = "input"},
    {"aten.round.decimals aten.round_.decimals aten.special_round.",
     "rounded coarsely, so that differences see steps", .set = "decimals=0", .flat = true},
    {"aten.index_copy. aten.index_copy_. ", "places must differ", .set = "self=x5,2 dim=0 index=i3 source=x3,2"},
    {"aten.index_fill.int_Tensor aten.index_fill_.int_Tensor", "places must differ",
     .set = "self=x5,2 dim=0 index=i3 value=x"},
    {"aten.scatter.src aten.scatter_.src", "places must differ", .set = "self=x5 dim=0 index=i3 src=x3"},
    {"aten.scatter_reduce_.two", "there are as many places as elements", .set = "self=x5 dim=0 index=i3 src=x3",
     .real = true},
    {"aten.max_unpool2d.", "places must differ", .set = "self=x2,2,2 indices=i2,2,2 output_size=[3,3]"},
    {"aten.max_unpool3d.", "places must differ",
     .set = "self=x1,1,2,2 indices=i1,1,2,2 output_size=[2,3,3] stride=[1,1,1] padding=[0,0,0]"},
    {"aten._reshape_alias.default", "strides must be those of a reshape",
     .set = "self=x2,6 size=[3,4] stride=[4,1]"},
    {"aten.as_strided_scatter.", "elements must differ",
     .set = "self=x5,3 src=x2,3 size=[2,3] stride=[6,1] storage_offset=1"},
    {"aten.addmv_.", "sizes must fit without broadcast", .set = "self=x3 mat=x3,4 vec=x4"},
    {"aten.addr_.", "sizes must fit without broadcast", .set = "self=x3,4 vec1=x3 vec2=x4"},
    {"aten._convolution.", "sizes must fit",
     .set = "input=x2,4,5,5 weight=x4,2,3,3 bias=x4 stride=[2,1] padding=[1,0] dilation=[1,1] transposed=0 "
            "output_padding=[0,0] groups=2",
     .real = true},
    {"aten.reflection_pad3d_backward. aten.replication_pad3d_backward.", "sizes must fit",
     .set = "grad_output=x2,3,5,4 self=x2,2,3,2 padding=[1,1,1,1,1,0]"},
    {"aten._grouped_mm. transformers.grouped_mm_fallback.", "groups must end with the rows",
     .set = "self=x4,3 input=x4,3 mat2=x3,3,2 weight=x3,3,2 offs=i3 bias=None out_dtype=None", .real = true},
    {"tess.expert_mm.", "experts must be there", .set = "x=x3,2 weight=x4,2,3 ids=i3 first=0 experts=-1",
     .real = true},
    {"tess.expert_mm_weight.", "experts must be there; the weight tells a size only", .by = "x grad",
     .set = "x=x3,2 grad=x3,3 ids=i3 weight=x4,2,3 first=0 experts=-1", .real = true},
    {"aten.huber_loss. aten.huber_loss_backward. aten.mse_loss. aten.smooth_l1_loss. aten.sign. aten.sign_. "
     "aten.abs_. aten.absolute_. "
     "aten._foreach_abs_. aten.silu. aten.silu_. aten.logit. aten.logit_. "
     "aten.special_logit. "
     "aten.native_dropout_backward. aten.upsample_nearest1d. aten.upsample_nearest2d. aten.upsample_nearest3d. "
     "aten._upsample_nearest_exact1d. "
     "aten._upsample_nearest_exact2d. aten._upsample_nearest_exact3d.",
     "PyTorch has no derivative by complex numbers", .real = true},
    {"tess.matmul_wide. tess.addmm_wide. tess.linear_wide.", "of halves only", .real = true},
    {"aten._foreach_ceil. aten._foreach_ceil_. aten._foreach_floor. aten._foreach_floor_. aten._foreach_round. "
     "aten._foreach_round_. aten._foreach_trunc. aten._foreach_trunc_. aten._foreach_zero. aten._foreach_zero_. "
     "aten.fill.Scalar aten.fill_.Scalar",
     "constant, or constant between steps", .flat = true},
    {"aten._foreach_sign. aten._foreach_sign_.",
     "constant between steps; there is none of complex numbers in PyTorch", .real = true, .flat = true},
    {0},
};

#endif
