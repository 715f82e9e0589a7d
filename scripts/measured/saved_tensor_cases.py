"""Operations that are measured for the memory that autograd keeps for backward, as rows."""

from dataclasses import dataclass

# The side that grows with the batch; it is measured with two lengths of it.
BATCH = -1


@dataclass(frozen=True, slots=True)
class Sample:
    """A tensor that calls read: its shape, and what it is.

    ``kind``: "input", which comes from an operation before; "weight"; or what has no gradient: a
    "mask" of truth values, or indices below ``high``.
    """

    shape: tuple[int, ...]
    kind: str = "input"
    high: int = 0


SAMPLES = {
    "x": Sample((BATCH, 48, 96)),
    "y": Sample((BATCH, 48, 96)),
    "column": Sample((BATCH, 48, 1)),
    "image": Sample((BATCH, 12, 16, 16)),
    "signal": Sample((BATCH, 12, 64)),
    "volume": Sample((BATCH, 6, 8, 8, 8)),
    "grid": Sample((BATCH, 16, 16, 2)),
    "query": Sample((BATCH, 4, 48, 24)),
    "key": Sample((BATCH, 4, 48, 24)),
    "value": Sample((BATCH, 4, 48, 24)),
    "logits": Sample((BATCH, 200)),
    "probabilities": Sample((BATCH, 200)),
    "hidden": Sample((BATCH, 96)),
    "weight": Sample((112, 96), "weight"),
    "bias": Sample((112,), "weight"),
    "head": Sample((200, 96), "weight"),
    "scale": Sample((96,), "weight"),
    "shift": Sample((96,), "weight"),
    "slopes": Sample((48,), "weight"),
    "kernel": Sample((20, 12, 3, 3), "weight"),
    "kernel1d": Sample((20, 12, 3), "weight"),
    "kernel3d": Sample((8, 6, 3, 3, 3), "weight"),
    "transposed": Sample((12, 20, 3, 3), "weight"),
    "channels": Sample((12,), "weight"),
    "offsets": Sample((12,), "weight"),
    "table": Sample((200, 96), "weight"),
    "positions": Sample((4, 48, 48), "weight"),
    "ids": Sample((BATCH, 48), "indices", 200),
    "labels": Sample((BATCH,), "indices", 200),
    "places": Sample((BATCH, 48, 96), "indices", 48),
    "causal": Sample((48, 48), "mask"),
    "padding": Sample((BATCH, 48), "mask"),
    "dropped": Sample((BATCH, 48, 96), "mask"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A call of one operation on samples, or of a ``module`` that is ``m`` in the call.

    ``operation`` is the word that the product has for it. ``cuda`` says why what a CUDA build keeps
    is not known from the simulated device: its kernel, or its choice of kernels, is another one.
    """

    operation: str
    call: str
    module: str = ""
    cuda: str = ""


_CUDNN = "cuDNN keeps a reserve of its own size"
_CARD = "the card decides between three fused kernels"
_EMPTY = "the kernel of CUDA keeps no buffer"
_OWN = "CUDA has a kernel of its own"
_ATTENTION = "nn.MultiheadAttention(96, 4, batch_first=True)"
_WITH_DROPOUT = "nn.MultiheadAttention(96, 4, 0.1, batch_first=True)"
_TWO_LAYERS = "nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 96))"
_FOUR_LAYERS = "nn.Sequential(*[nn.Sequential(nn.Linear(96, 96), nn.GELU()) for _ in range(4)])"

ELEMENTWISE = (
    *(
        "relu leaky_relu gelu silu mish sigmoid tanh softplus elu selu celu hardswish hardsigmoid".split()
    ),
    *("hardtanh relu6 softsign tanhshrink hardshrink softshrink".split()),
)
POINTWISE = (
    *("exp expm1 log log1p sqrt rsqrt abs reciprocal sin cos erf square neg sign round".split()),
    *("isnan softmax(-1) log_softmax(-1) cumsum(-1) cumprod(-1) logsumexp(-1)".split()),
    *(
        "sum() mean() mean(-1) var(-1) std(-1) norm() norm(dim=-1) max() max(-1) amax(-1) prod(-1)".split()
    ),
    *(
        "sort(-1) topk(8) median(-1) clamp(0) clamp(0,1) pow(2) pow(3) pow(0.5) nan_to_num() clone()".split()
    ),
    *(
        "flip(1) roll(1,1) tril() repeat(1,2,1) unfold(1,4,4) diff() mul(2) add(1) div(2) float()".split()
    ),
    *("contiguous() transpose(1,2).contiguous() detach()".split()),
)
IN_PLACE = (
    *(
        "relu_ sigmoid_ tanh_ exp_ sqrt_ square_ abs_ sin_ reciprocal_ clamp_(0,1) mul_(2) add_(1)".split()
    ),
    *("pow_(2) div_(2) masked_fill_(dropped,0) copy_(y) mul_(y) add_(y) cumsum_(-1)".split()),
)
ACTIVATIONS_IN_PLACE = (
    "leaky_relu elu selu celu silu mish hardswish hardtanh relu6 hardsigmoid threshold".split()
)


def _elementwise() -> tuple[Case, ...]:
    cases = [Case(name, f"F.{name}(x)") for name in ELEMENTWISE]
    cases += [Case("logsigmoid", "F.logsigmoid(x)", cuda=_EMPTY)]
    for call in POINTWISE:
        method = call if "(" in call else f"{call}()"
        cases.append(Case(method.partition("(")[0], f"x.{method}"))
    for call in IN_PLACE:
        method = call if "(" in call else f"{call}()"
        cases.append(Case(method.partition("(")[0], f"x.clone().{method}"))
    for name in ACTIVATIONS_IN_PLACE:
        arguments = "x.clone(), 0.1, 0" if name == "threshold" else "x.clone()"
        cases.append(Case(f"{name}_", f"F.{name}({arguments}, inplace=True)"))
    return tuple(cases)


CASES: tuple[Case, ...] = (
    *_elementwise(),
    Case("gelu", "F.gelu(x, approximate='tanh')"),
    Case("glu", "F.glu(x)"),
    Case("threshold", "F.threshold(x, 0.1, 0)"),
    Case("rrelu", "F.rrelu(x, training=True)"),
    Case("prelu", "F.prelu(x, slopes)"),
    Case("gumbel_softmax", "F.gumbel_softmax(x)"),
    Case("normalize", "F.normalize(x, dim=-1)"),
    Case("mul", "x * y"),
    Case("mul", "x * x"),
    Case("mul", "x * scale"),
    Case("mul", "x * dropped"),
    Case("add", "x + y"),
    Case("add", "x + shift"),
    Case("div", "x / y"),
    Case("div", "x / column"),
    Case("where", "torch.where(dropped, x, y)"),
    Case("masked_fill", "x.masked_fill(dropped, 0.0)"),
    Case("maximum", "torch.maximum(x, y)"),
    Case("lerp", "torch.lerp(x, y, 0.5)"),
    Case("addcmul", "torch.addcmul(x, x, y)"),
    Case("cat", "torch.cat([x, y], 1)"),
    Case("stack", "torch.stack([x, y])"),
    Case("gather", "x.gather(1, places)"),
    Case("scatter_add", "x.scatter_add(1, places, y)"),
    Case("index", "x[:, ids[0] % 48]"),
    Case("index", "x[dropped]"),
    Case("index_select", "x.index_select(1, ids[0] % 48)"),
    Case("pad", "F.pad(x, (1, 1))"),
    Case("pad", "F.pad(image, (1, 1, 1, 1), mode='reflect')"),
    Case("linear", "F.linear(x, weight, bias)"),
    Case("linear", "F.linear(x, weight)"),
    Case("linear", "F.linear(hidden, weight)"),
    Case("linear", "F.linear(x.transpose(1, 2).contiguous().transpose(1, 2), weight)"),
    Case("linear", "F.linear(x[:, -1], weight)"),
    Case("matmul", "x @ y.transpose(1, 2)"),
    Case("matmul", "x @ weight.t()"),
    Case("bmm", "torch.bmm(x, y.transpose(1, 2))"),
    Case("einsum", "torch.einsum('nla,nma->nlm', x, y)"),
    Case("einsum", "torch.einsum('nla,ba->nlb', x, weight)"),
    Case("bilinear", "m(x, y)", "nn.Bilinear(96, 96, 8)"),
    Case("conv2d", "F.conv2d(image, kernel)"),
    Case("conv2d", "F.conv2d(image, kernel, padding=1)"),
    Case("conv2d", "m(image)", "nn.Conv2d(12, 20, 3, padding=1, padding_mode='circular')"),
    Case("conv1d", "F.conv1d(signal, kernel1d)"),
    Case("conv3d", "F.conv3d(volume, kernel3d)"),
    Case("conv_transpose2d", "F.conv_transpose2d(image, transposed)"),
    Case("embedding", "F.embedding(ids, table)"),
    Case("embedding_bag", "F.embedding_bag(ids, table)", cuda=_OWN),
    Case("layer_norm", "F.layer_norm(x, (96,), scale, shift)"),
    Case("layer_norm", "F.layer_norm(x, (96,))"),
    Case("rms_norm", "F.rms_norm(x, (96,), scale)", cuda=_OWN),
    Case("group_norm", "F.group_norm(image, 3, channels, offsets)"),
    Case("instance_norm", "F.instance_norm(image, weight=channels, bias=offsets)", cuda=_CUDNN),
    Case(
        "batch_norm",
        "F.batch_norm(image, torch.zeros(12, device='cuda'), torch.ones(12, device='cuda'), "
        "channels, offsets, training=True)",
        cuda=_CUDNN,
    ),
    Case("batch_norm", "m.eval()(image)", "nn.BatchNorm2d(12)"),
    Case("local_response_norm", "F.local_response_norm(image, 3)"),
    Case("dropout", "F.dropout(x, 0.5)"),
    Case("dropout", "F.dropout(x, 0.0)"),
    Case("dropout", "F.dropout(x, 1.0)"),
    Case("dropout", "F.dropout(x, 0.5, training=False)"),
    Case("dropout_", "F.dropout(x.clone(), 0.5, inplace=True)"),
    Case("alpha_dropout", "F.alpha_dropout(x, 0.5, training=True)"),
    Case("dropout2d", "F.dropout2d(image, 0.5)"),
    Case("max_pool2d", "F.max_pool2d(image, 2)"),
    Case("max_pool1d", "F.max_pool1d(signal, 2)"),
    Case("avg_pool2d", "F.avg_pool2d(image, 2)"),
    Case("adaptive_avg_pool2d", "F.adaptive_avg_pool2d(image, 1)"),
    Case("adaptive_avg_pool2d", "F.adaptive_avg_pool2d(image, 4)"),
    Case("adaptive_max_pool2d", "F.adaptive_max_pool2d(image, 4)"),
    Case("interpolate", "F.interpolate(image, scale_factor=2)"),
    Case("interpolate", "F.interpolate(image, scale_factor=2, mode='bilinear')"),
    Case("pixel_shuffle", "F.pixel_shuffle(image, 2)"),
    Case("grid_sample", "F.grid_sample(image, grid, align_corners=False)"),
    Case("mse_loss", "F.mse_loss(x, y)"),
    Case("l1_loss", "F.l1_loss(x, y)"),
    Case("smooth_l1_loss", "F.smooth_l1_loss(x, y)"),
    Case("huber_loss", "F.huber_loss(x, y)"),
    Case("binary_cross_entropy_with_logits", "F.binary_cross_entropy_with_logits(x, y)"),
    Case("cross_entropy", "F.cross_entropy(logits, labels)"),
    Case("cross_entropy", "F.cross_entropy(logits, labels, label_smoothing=0.1)"),
    Case("cross_entropy", "F.cross_entropy(logits, probabilities.softmax(-1))"),
    Case("nll_loss", "F.nll_loss(logits, labels)"),
    Case("kl_div", "F.kl_div(logits, probabilities)"),
    Case("cosine_similarity", "F.cosine_similarity(x, y, dim=-1)"),
    Case("cdist", "torch.cdist(x, y)"),
    Case("linear_cross_entropy", "F.cross_entropy(F.linear(hidden, head), labels)"),
    Case("linear_cross_entropy", "F.linear_cross_entropy(hidden, head, labels)"),
    Case(
        "linear_cross_entropy",
        "F.linear_cross_entropy(hidden, head, labels, options=nn.LinearCrossEntropyOptions())",
    ),
    Case(
        "scaled_dot_product_attention",
        "F.scaled_dot_product_attention(query, key, value)",
        cuda=_CARD,
    ),
    Case(
        "scaled_dot_product_attention",
        "F.scaled_dot_product_attention(query, key, value, is_causal=True)",
        cuda=_CARD,
    ),
    Case(
        "scaled_dot_product_attention",
        "F.scaled_dot_product_attention(query, key, value, dropout_p=0.1)",
        cuda=_CARD,
    ),
    Case(
        "scaled_dot_product_attention",
        "F.scaled_dot_product_attention(query, key, value, attn_mask=causal)",
        cuda=_CARD,
    ),
    Case(
        "scaled_dot_product_attention",
        "F.scaled_dot_product_attention(query, key, value, attn_mask=padding[:, None, None])",
        cuda=_CARD,
    ),
    Case(
        "scaled_dot_product_attention",
        "F.scaled_dot_product_attention(query, key, value, attn_mask=positions)",
        cuda=_CARD,
    ),
    Case("attention", "(query @ key.transpose(-2, -1) / 5).softmax(-1) @ value"),
    Case("attention", "F.dropout((query @ key.transpose(-2, -1) / 5).softmax(-1), 0.1) @ value"),
    Case(
        "attention", "(query @ key.transpose(-2, -1)).masked_fill(causal, -1e4).softmax(-1) @ value"
    ),
    Case("multi_head_attention_forward", "m(x, x, x)", _ATTENTION),
    Case("multi_head_attention_forward", "m(x, x, x, need_weights=False)", _ATTENTION, _CARD),
    Case("multi_head_attention_forward", "m(x, x, x, average_attn_weights=False)", _ATTENTION),
    Case("multi_head_attention_forward", "m(x, x, x)", _WITH_DROPOUT),
    Case("multi_head_attention_forward", "m(x, x, x, need_weights=False)", _WITH_DROPOUT, _CARD),
    Case(
        "transformer_encoder_layer",
        "m(x)",
        "nn.TransformerEncoderLayer(96, 4, 192, 0.0, batch_first=True)",
        _CARD,
    ),
    Case("lstm", "m(x)", "nn.LSTM(96, 64, batch_first=True)", _CUDNN),
    Case("gru", "m(x)", "nn.GRU(96, 64, batch_first=True)", _CUDNN),
    Case("weight_norm", "m(x)", "nn.utils.parametrizations.weight_norm(nn.Linear(96, 112))"),
    Case("spectral_norm", "m(x)", "nn.utils.parametrizations.spectral_norm(nn.Linear(96, 112))"),
    Case("orthogonal", "m(x)", "nn.utils.parametrizations.orthogonal(nn.Linear(96, 112))"),
    Case("linear of a computed weight", "F.linear(x, weight * 0.1)"),
    Case(
        "linear of a computed weight",
        "F.linear(x, (weight - weight.mean(1, keepdim=True)) / weight.std(1, keepdim=True))",
    ),
    Case("checkpoint", "checkpoint(m, x, use_reentrant=False)", _TWO_LAYERS),
    Case("checkpoint", "checkpoint(m, x, use_reentrant=True)", _TWO_LAYERS),
    Case("checkpoint", "m(x)", _FOUR_LAYERS),
    Case("checkpoint", "checkpoint_sequential(m, 2, x, use_reentrant=False)", _FOUR_LAYERS),
    Case("checkpoint", "checkpoint_sequential(m, 4, x, use_reentrant=False)", _FOUR_LAYERS),
)

# Layers of torch.nn whose forward is one operation.
LAYERS = {
    "Linear": "linear",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "ConvTranspose2d": "conv_transpose2d",
    "Embedding": "embedding",
    "LayerNorm": "layer_norm",
    "GroupNorm": "group_norm",
    "ReLU": "relu",
    "LeakyReLU": "leaky_relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Mish": "mish",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softplus": "softplus",
    "ELU": "elu",
    "SELU": "selu",
    "CELU": "celu",
    "Hardswish": "hardswish",
    "Hardsigmoid": "hardsigmoid",
    "Hardtanh": "hardtanh",
    "ReLU6": "relu6",
    "PReLU": "prelu",
    "GLU": "glu",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Dropout": "dropout",
    "MaxPool1d": "max_pool1d",
    "MaxPool2d": "max_pool2d",
    "AvgPool2d": "avg_pool2d",
    "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
    "AdaptiveMaxPool2d": "adaptive_max_pool2d",
}
WITH_WEIGHTS = frozenset(
    "Linear Conv1d Conv2d Conv3d ConvTranspose2d Embedding LayerNorm GroupNorm PReLU".split()
)
