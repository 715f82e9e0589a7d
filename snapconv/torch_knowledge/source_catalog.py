"""What a line of source calls that allocates by itself: torch's functions that are written in C++.

Those written in Python leave frames of their own below the line's, so no memory is requested directly in it.
Read from torch 2.13's own modules; the few that are C++ in some releases of 2.x only may or may not allocate.
"""

import ast

# How many allocations an operation makes, as (least, most); most is None where nothing bounds it.
Bounds = tuple[int, int | None]
ONE: Bounds = (1, 1)
PERHAPS: Bounds = (0, 1)
SOME: Bounds = (1, None)
ANY: Bounds = (0, None)
# Of what only looks at memory, or writes into it: it counts where nothing else is there.
NONE: Bounds = (0, 0)

VIEWS = frozenset(
    "adjoint as_strided broadcast_to chunk conj detach diagonal dsplit expand expand_as hsplit moveaxis "
    "movedim narrow permute real imag select squeeze swapaxes swapdims t tensor_split transpose unbind "
    "unfold unsafe_chunk unsafe_split unsqueeze view view_as view_as_complex view_as_real vsplit".split()
)
# They copy where the memory or its type is not already as requested.
_PERHAPS = frozenset(
    "as_tensor asarray bfloat16 bool byte cdouble cfloat chalf char contiguous cuda double flatten float "
    "half int long ravel reshape reshape_as resolve_conj resolve_neg short to type type_as xpu".split()
)
# Several results, or memory to work in.
_SOME = frozenset(
    "batch_norm bilinear binary_cross_entropy_with_logits conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d conv_transpose3d cosine_similarity ctc_loss cummax cummin dropout embedding_bag "
    "frexp geqrf group_norm gru histogram instance_norm kl_div kthvalue layer_norm lstm matmul "
    "max_pool1d max_pool2d max_pool3d median mode multinomial native_batch_norm native_dropout "
    "native_group_norm native_layer_norm nonzero pairwise_distance qr rms_norm rnn_relu rnn_tanh "
    "scaled_dot_product_attention slogdet sort std_mean svd topk var_mean".split()
)
_METHODS = frozenset(
    "cummax cummin frexp geqrf histogram kthvalue median mode multinomial nonzero qr slogdet sort svd topk "
    "abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr all allclose amax amin aminmax "
    "angle any arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort argwhere asin "
    "asinh atan atan2 atanh baddbmm bernoulli bincount bitwise_and bitwise_left_shift bitwise_not "
    "bitwise_or bitwise_right_shift bitwise_xor bmm ceil cholesky cholesky_inverse cholesky_solve clamp "
    "clamp_max clamp_min clip clone conj_physical copysign corrcoef cos cosh count_nonzero cov cross "
    "cumprod cumsum deg2rad det diag diag_embed diagflat diff digamma dist div divide dot eq equal erf "
    "erfc erfinv exp exp2 expm1 fix flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac "
    "gather gcd ge ger greater greater_equal gt hardshrink heaviside histc hypot i0 igamma igammac "
    "index_add index_copy index_fill index_put index_select inner inverse isclose isfinite isinf isnan "
    "isneginf isposinf kron lcm ldexp le lerp less less_equal lgamma log log10 log1p log2 log_softmax "
    "logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor logit "
    "logsumexp lt masked_fill masked_scatter masked_select matmul matrix_exp matrix_power max maximum "
    "mean min minimum mm msort mul multiply mv mvlgamma nan_to_num nanmean nanmedian nanquantile nansum "
    "ne neg negative new_empty new_empty_strided new_full new_ones new_tensor new_zeros nextafter "
    "not_equal outer pinverse polygamma pow prelu prod quantile rad2deg reciprocal relu remainder renorm "
    "repeat repeat_interleave roll rot90 round rsqrt scatter scatter_add scatter_reduce sgn sigmoid sign "
    "signbit sin sinc sinh softmax sqrt square std sub subtract sum take take_along_dim tan tanh tile "
    "to_dense trace tril triu true_divide trunc var vdot where xlogy".split()
)
_FUNCTIONS = frozenset(
    "adaptive_avg_pool1d addmm arange avg_pool1d bartlett_window blackman_window bucketize cat celu "
    "channel_shuffle column_stack combinations complex concat concatenate constant_pad_nd convolution "
    "cumulative_trapezoid dstack embedding empty empty_like empty_strided eye full full_like gru_cell "
    "hamming_window hann_window hstack isin kaiser_window linspace logspace lstm_cell normal ones "
    "ones_like pixel_shuffle pixel_unshuffle poisson polar rand rand_like randint randint_like randn "
    "randn_like randperm range rnn_relu_cell rnn_tanh_cell row_stack rrelu rsub scalar_tensor "
    "searchsorted selu stack tensor threshold trapezoid tril_indices triu_indices vander vstack zeros "
    "zeros_like".split()
)
_FUNCTIONAL = frozenset(
    "adaptive_avg_pool1d avg_pool1d avg_pool2d avg_pool3d bilinear channel_shuffle conv1d conv2d conv3d "
    "conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d cosine_similarity gelu hardshrink linear "
    "logsigmoid one_hot pairwise_distance pdist pixel_shuffle pixel_unshuffle prelu "
    "scaled_dot_product_attention softplus softshrink".split()
)
METHODS = VIEWS | _PERHAPS | _METHODS
# Without a device they make what they make on the processor, as a rule.
_MADE_ANYWHERE = frozenset(
    "arange empty empty_strided eye full linspace logspace normal ones rand randint randn randperm tensor "
    "zeros".split()
)
# Modules of torch whose functions are called by another name: `torch.fft.rfft` is fft_rfft.
_PREFIXED = ("linalg", "fft", "special")
_IN_CPP = ("torch._VF", "torch._C._nn", "torch._C._VariableFunctions")
OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul",
    ast.Mod: "remainder", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "lshift", ast.RShift: "rshift", ast.USub: "neg", ast.Invert: "invert",
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
# With a number at their left they are functions of torch/_tensor.py (`__rsub__`), and so have a frame.
_IN_PYTHON_AFTER_A_NUMBER = (ast.Sub, ast.Div, ast.Mod, ast.LShift, ast.RShift, ast.MatMult)
# Their arguments are sizes: arithmetic among them is that of plain numbers.
TAKES_SIZES = frozenset(
    "arange empty empty_strided expand eye full linspace narrow new_empty new_full new_ones new_zeros "
    "ones permute rand randint randn repeat reshape split squeeze tile transpose unflatten unfold "
    "unsqueeze view zeros".split()
)


def operator_bounds(op: ast.AST, *, number_at_left: bool = False) -> tuple[str, Bounds] | None:
    """The operation of an operator; None where torch has a Python function for it, or there is none."""
    name = OPERATORS.get(type(op))
    if name is None or (number_at_left and isinstance(op, _IN_PYTHON_AFTER_A_NUMBER)):
        return None
    return name, SOME if name in _SOME else ONE


def method_bounds(name: str, *, has_arguments: bool) -> Bounds | None:
    """How many allocations a tensor's method makes; None if tensors have no such method in C++."""
    if name not in METHODS:
        in_place = name.removesuffix("_") if name.endswith("_") else ""
        return NONE if in_place in METHODS or name in ("copy_", "fill_", "normal_", "zero_") else None
    if name in VIEWS:
        return NONE
    if name in _PERHAPS:
        return PERHAPS
    # `max(1)` has two results, and some memory to find them in; `where()` of one tensor is nonzero().
    return SOME if name in _SOME or (name in ("max", "min") and has_arguments) else ONE


def function_bounds(dotted: str, n_arguments: int, *, has_device: bool) -> tuple[str, Bounds] | None:
    """The operation that a function of torch does, by its full name, and how many allocations it makes."""
    home, _, name = dotted.rpartition(".")
    if dotted.startswith("torch.ops."):
        parts = dotted.split(".")
        return (parts[3], ANY) if len(parts) > 3 else None
    if home == "torch.nn.functional":
        if name == "pad":
            return name, PERHAPS
        return (name, SOME if name in _SOME else ONE) if name in _FUNCTIONAL else None
    if home == "torch.Tensor":
        bounds = method_bounds(name, has_arguments=n_arguments > 1)
        return (name, bounds) if bounds else None
    if home in _IN_CPP:
        return name, SOME if name in _SOME else ONE
    part = home.removeprefix("torch.")
    if part in _PREFIXED:
        return f"{part}_{name}", ANY
    if home != "torch":
        return None
    if name == "where" and n_arguments == 1:
        return name, SOME
    if name in _MADE_ANYWHERE and not has_device:
        return name, PERHAPS
    if name in _SOME or name in _FUNCTIONS:
        return name, SOME if name in _SOME else ONE
    bounds = method_bounds(name, has_arguments=n_arguments > 1)
    return (name, bounds) if bounds else None
