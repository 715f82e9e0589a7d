"""Models of the pairs, by transformers, diffusers, timm, Lightning and by hand, small enough to record in seconds."""

import types
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"


def transformer(name: str, *sizes: int, **config: object) -> nn.Module:
    """Make a model of transformers, without weights of others."""
    import transformers

    names = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
    )
    model = getattr(transformers, name)
    return model(model.config_class(**dict(zip(names, sizes, strict=False)), **config)).to(DEVICE)


def gpt2(vocab: int = 8000, attention: str = "sdpa", layers: int = 4) -> nn.Module:
    sizes = {"vocab_size": vocab, "n_positions": 256, "n_embd": 256, "n_layer": layers, "n_head": 4}
    return transformer("GPT2LMHeadModel", **sizes, attn_implementation=attention)


def llama(vocab: int = 8000, attention: str = "sdpa", layers: int = 4) -> nn.Module:
    limits = {"num_key_value_heads": 4, "max_position_embeddings": 256}
    return transformer(
        "LlamaForCausalLM", layers, 256, 4, 688, vocab, **limits, attn_implementation=attention
    )


def half_llama() -> nn.Module:
    return llama(32000, layers=2).bfloat16()


def bert(vocab: int = 5000, attention: str = "sdpa", layers: int = 3) -> nn.Module:
    return transformer("BertForMaskedLM", layers, 192, 6, 768, vocab, attn_implementation=attention)


def qwen(vocab: int = 4000, layers: int = 3) -> nn.Module:
    return transformer("Qwen2ForCausalLM", layers, 320, 5, 1000, vocab, num_key_value_heads=1)


def t5() -> nn.Module:
    sizes = {
        "vocab_size": 6000,
        "d_model": 256,
        "d_kv": 64,
        "d_ff": 1024,
        "num_layers": 3,
        "num_heads": 4,
    }
    return transformer("T5ForConditionalGeneration", **sizes, decoder_start_token_id=0)


def neox(attention: str = "sdpa", layers: int = 6) -> nn.Module:
    return transformer(
        "GPTNeoXForCausalLM", layers, 512, 8, 2048, 12000, attn_implementation=attention
    )


def clip(attention: str = "sdpa", layers: int = 8) -> nn.Module:
    sizes = {"image_size": 192, "patch_size": 16}
    return transformer(
        "CLIPVisionModel", layers, 384, 6, 1536, **sizes, attn_implementation=attention
    )


class Logits(nn.Module):
    """A classifier that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images).logits


def resnet() -> nn.Module:
    sizes = {"hidden_sizes": [64, 128, 256], "depths": [2, 2, 2], "num_labels": 100}
    return Logits(transformer("ResNetForImageClassification", **sizes, layer_type="basic"))


def timm_model(name: str = "vit_tiny_patch16_224", **options: object) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=50, **options).to(DEVICE)


def small_vit() -> nn.Module:
    return timm_model(img_size=64)


def convnext() -> nn.Module:
    return timm_model("convnext_atto")


def mobilenet() -> nn.Module:
    return timm_model("mobilenetv3_small_100", features_only=True)


def vit(attention: str) -> nn.Module:
    model = timm_model()
    for block in model.blocks:
        block.attn.fused_attn = attention == "sdpa"
    return model


def unet() -> nn.Module:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(64, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).to(DEVICE)


def autoencoder() -> nn.Module:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
    ).to(DEVICE)


def dit(layers: int = 6) -> nn.Module:
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=48,
        in_channels=4,
        num_layers=layers,
        sample_size=32,
    ).to(DEVICE)


def small_dit(attention: str) -> nn.Module:
    from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0

    model = dit(4)
    for module in model.modules():
        if isinstance(module, Attention):
            module.set_processor(AttnProcessor() if attention == "eager" else AttnProcessor2_0())
    return model


class Block(nn.Module):
    """A layer of a transformer; with ``eager`` attention its scores are made."""

    def __init__(self, width: int, attention: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.attention = attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        )
        if self.attention == "eager":
            scores = q @ k.transpose(-2, -1) / (width // 4) ** 0.5
            mixed = scores.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class TorchsAttention(nn.Module):
    """Layers with torch's module for attention, which return weights if it is ``eager``."""

    def __init__(self, attention: str, layers: int, n_words: int) -> None:
        super().__init__()
        self.has_weights = attention == "eager"
        self.n_words = n_words
        self.norms = nn.ModuleList(nn.LayerNorm(192) for _ in range(layers))
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(192, 6, dropout=0.1, batch_first=True) for _ in range(layers)
        )
        self.out = nn.Linear(192, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = x[:, : self.n_words] * 2
        for norm, layer in zip(self.norms, self.layers, strict=True):
            read = norm(x)
            source = words if self.n_words else read
            mixed, _ = layer(read, source, source, need_weights=self.has_weights)
            x = x + self.out(mixed)
        return x


class PlainLM(nn.Module):
    """A language model without a library."""

    def __init__(self, vocab: int, attention: str, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, 256)
        self.blocks = nn.ModuleList(Block(256, attention) for _ in range(layers))
        self.head = nn.Linear(256, vocab, bias=False)
        self.is_checkpointed = False

    def features(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return x

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(ids))


class Tagger(nn.Module):
    """A recurrent tagger without a library."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(3000, 128), nn.GRU(128, 256, 2, batch_first=True)
        self.hidden, self.tag = nn.Linear(256, 512), nn.Linear(512, tags)

    def features(self, ids: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.hidden(self.read(self.embed(ids))[0]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tag(self.features(ids))


class Convolutions(nn.Module):
    """A plain network of images, deep enough for its activations to weigh."""

    def __init__(self, width: int = 48, depth: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 20)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean((2, 3)))


def plain(vocab: int = 8000, attention: str = "sdpa", layers: int = 4) -> nn.Module:
    return PlainLM(vocab, attention, layers).to(DEVICE)


def torchs_attention(attention: str = "eager", layers: int = 5, n_words: int = 0) -> nn.Module:
    return TorchsAttention(attention, layers, n_words).to(DEVICE)


def tagger(tags: int) -> nn.Module:
    return Tagger(tags).to(DEVICE)


def convolutions(*sizes: int) -> nn.Module:
    return Convolutions(*sizes).to(DEVICE)


def lightning_fit(
    model: nn.Module,
    loss_of: Callable[..., torch.Tensor],
    batch: torch.Tensor,
    optimizer: Callable,
    **hooks: object,
) -> None:
    """Train three steps by Lightning."""
    import lightning

    module = lightning.LightningModule()
    module.model = model
    module.training_step = types.MethodType(
        lambda self, batch, _: loss_of(self.model, batch), module
    )
    module.configure_optimizers = lambda: optimizer(model.parameters())
    for name, hook in hooks.items():
        setattr(module, name, types.MethodType(hook, module))
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = lightning.Trainer(max_steps=3, accelerator="gpu", devices=1, **quiet)
    trainer.fit(
        module, torch.utils.data.DataLoader([batch.clone() for _ in range(3)], batch_size=None)
    )
