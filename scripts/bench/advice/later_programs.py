"""More pairs, of other models and sizes than those of programs.py, which the rules were adjusted on.

    python later_programs.py NAME before|after

All were written, and recorded, before any prediction for them was seen.
"""

import sys
import types
from collections.abc import Callable

import torch
import torch.nn.functional as F
from programs import DEVICE, PAIRS, chunked_loss, ids_of, images_of, pair, step, train_with
from torch import nn


def bert(*, attention: str = "sdpa", layers: int = 3, vocab: int = 5000) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=vocab,
        hidden_size=192,
        num_hidden_layers=layers,
        num_attention_heads=6,
        intermediate_size=768,
        attn_implementation=attention,
    )
    return BertForMaskedLM(config).to(DEVICE)


def qwen(*, vocab: int = 4000, layers: int = 3) -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=320,
        intermediate_size=1000,
        num_hidden_layers=layers,
        num_attention_heads=5,
        num_key_value_heads=1,
    )
    return Qwen2ForCausalLM(config).to(DEVICE)


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=6000, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_heads=4)
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config).to(DEVICE)


def timm_model(name: str, **options: object) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=50, **options).to(DEVICE)


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
        num_attention_heads=4, attention_head_dim=48, in_channels=4, num_layers=layers, sample_size=32
    ).to(DEVICE)


def dit_loss(model: nn.Module, batch: int) -> torch.Tensor:
    noisy = torch.randn(batch, 4, 32, 32, device=DEVICE)
    labels, times = torch.zeros(batch, dtype=torch.long, device=DEVICE), torch.ones(batch, device=DEVICE)
    return model(noisy, timestep=times, class_labels=labels).sample.square().mean()


class Tagger(nn.Module):
    """A recurrent tagger without a library."""

    def __init__(self, tags: int = 40) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(3000, 128), nn.GRU(128, 256, 2, batch_first=True)
        self.hidden, self.tag = nn.Linear(256, 512), nn.Linear(512, tags)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tag(F.gelu(self.hidden(self.read(self.embed(ids))[0])))


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


def fit(module: nn.Module, examples: list[torch.Tensor]) -> None:
    """Train by Lightning."""
    import lightning

    trainer = lightning.Trainer(
        max_steps=3,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(examples, batch_size=None))


def lightning_module(
    model: nn.Module, loss_of: Callable[..., torch.Tensor], hooks: dict[str, object]
) -> nn.Module:
    import lightning

    module = lightning.LightningModule()
    module.model = model
    module.training_step = types.MethodType(lambda self, batch, number: loss_of(self.model, batch), module)
    module.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=0.1)
    for name, hook in hooks.items():
        setattr(module, name, types.MethodType(hook, module))
    return module


# --- previous-kept


@pair("previous-kept")
def previous_vit(after: bool) -> None:
    model = timm_model("vit_tiny_patch16_224", img_size=96).eval()
    with torch.no_grad():
        for _ in range(4):
            features = model.forward_intermediates(images_of(24))
            print(len(features))
            if after:
                del features


@pair("previous-kept")
def previous_bert(after: bool) -> None:
    model = bert(vocab=9000)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        ids = ids_of(6, 128, 9000)
        out = model(ids, output_hidden_states=True)
        loss = F.cross_entropy(out.logits.flatten(0, 1), ids.flatten())
        step(optimizer, loss)
        if after:
            del out, loss


@pair("previous-kept")
def previous_autoencoder(after: bool) -> None:
    model = autoencoder()
    for _ in range(3):
        decoded = model(torch.randn(6, 3, 64, 64, device=DEVICE)).sample
        print(decoded.shape)
        if after:
            del decoded


# --- gradients-kept


@pair("gradients-kept")
def gradients_lightning(after: bool) -> None:
    hooks = {"on_train_batch_end": lambda self, *_: self.optimizers().zero_grad()} if after else {}
    model = bert(layers=4)
    fit(
        lightning_module(model, lambda model, ids: model(ids, labels=ids).loss, hooks),
        [torch.randint(0, 5000, (2, 96)) for _ in range(3)],
    )


@pair("gradients-kept")
def gradients_dit(after: bool) -> None:
    model = dit()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss = dit_loss(model, 2)
        if not after:
            model.zero_grad()
        loss.backward()
        optimizer.step()
        if after:
            model.zero_grad()


@pair("gradients-kept")
def gradients_timm(after: bool) -> None:
    model = timm_model("convnext_atto")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        model(images_of(2, 128)).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=after)


# --- unused-graph


@pair("unused-graph")
def evaluation_convnext(after: bool) -> None:
    model = timm_model("convnext_atto").eval()
    with torch.set_grad_enabled(not after):
        for _ in range(3):
            print((model(images_of(12, 128)).argmax(-1) == 1).sum().shape)


@pair("unused-graph")
def evaluation_t5(after: bool) -> None:
    model = t5().eval()
    with torch.set_grad_enabled(not after):
        for _ in range(3):
            ids = ids_of(6, 128, 6000)
            loss = model(input_ids=ids, labels=ids).loss
            print(loss.shape)


@pair("unused-graph")
def evaluation_autoencoder(after: bool) -> None:
    model = autoencoder().eval()
    with torch.set_grad_enabled(not after):
        for _ in range(3):
            print(model(torch.randn(4, 3, 64, 64, device=DEVICE)).sample.mean().shape)


@pair("unused-graph")
def evaluation_tagger(after: bool) -> None:
    model = Convolutions().eval()
    with torch.set_grad_enabled(not after):
        for _ in range(3):
            print((model(images_of(12, 80)).argmax(-1) == 1).sum().shape)


# --- graphs-kept


@pair("graphs-kept")
def losses_bert(after: bool) -> None:
    model, losses = bert(), []
    for _ in range(6):
        ids = ids_of(4, 128, 5000)
        loss = model(ids, labels=ids).loss
        losses.append(loss.item() if after else loss)
        del loss


@pair("graphs-kept")
def losses_vit(after: bool) -> None:
    model, total = timm_model("vit_tiny_patch16_224", img_size=64), 0
    for _ in range(6):
        loss = F.cross_entropy(model(images_of(12, 64)), torch.zeros(12, dtype=torch.long, device=DEVICE))
        total = total + (loss.detach() if after else loss)
        del loss


@pair("graphs-kept")
def losses_autoencoder(after: bool) -> None:
    model, losses = autoencoder(), []
    for _ in range(5):
        loss = model(torch.randn(2, 3, 64, 64, device=DEVICE)).sample.square().mean()
        losses.append(loss.item() if after else loss)
        del loss


# --- growing


@pair("growing")
def growing_vit(after: bool) -> None:
    model, kept = timm_model("vit_tiny_patch16_224", img_size=96).eval(), []
    with torch.no_grad():
        for _ in range(8):
            features = model.forward_features(images_of(16))
            kept.append(features.cpu() if after else features)
            del features


@pair("growing")
def growing_qwen(after: bool) -> None:
    model, kept = qwen(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        ids = ids_of(2, 128, 4000)
        out = model(ids, labels=ids)
        kept.append(out.logits.detach().cpu() if after else out.logits.detach())
        step(optimizer, out.loss)
        del out


@pair("growing")
def growing_tagger(after: bool) -> None:
    model, kept = Tagger(600), []
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(6):
        ids = ids_of(8, 128, 3000)
        scores = model(ids)
        kept.append(scores.detach().cpu() if after else scores.detach())
        step(optimizer, F.cross_entropy(scores.flatten(0, 1), ids.flatten() % 600))
        del scores


# --- logits


@pair("logits")
def logits_qwen(after: bool) -> None:
    model = qwen(vocab=40000, layers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of() -> torch.Tensor:
        ids = ids_of(4, 192, 40000)
        if after:
            return chunked_loss(model.lm_head, model.model(ids).last_hidden_state, ids)
        return model(ids, labels=ids).loss

    train_with(optimizer, loss_of)


@pair("logits")
def logits_bert(after: bool) -> None:
    model = bert(vocab=30000)
    optimizer = torch.optim.AdamW(model.parameters())

    def loss_of() -> torch.Tensor:
        ids = ids_of(6, 160, 30000)
        if after:
            return chunked_loss(model.cls, model.bert(ids).last_hidden_state, ids)
        return model(ids, labels=ids).loss

    train_with(optimizer, loss_of)


@pair("logits")
def logits_tagger(after: bool) -> None:
    model = Tagger(20000)
    optimizer = torch.optim.Adam(model.parameters())

    def loss_of() -> torch.Tensor:
        ids = ids_of(8, 128, 3000)
        hidden = F.gelu(model.hidden(model.read(model.embed(ids))[0]))
        if after:
            return chunked_loss(model.tag, hidden, ids)
        return F.cross_entropy(model.tag(hidden).flatten(0, 1), ids.flatten())

    train_with(optimizer, loss_of)


# --- attention


@pair("attention")
def attention_bert(after: bool) -> None:
    model = bert(attention="sdpa" if after else "eager", vocab=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = ids_of(6, 320, 1000)
    train_with(optimizer, lambda: model(ids, labels=ids).loss)


@pair("attention")
def attention_vit(after: bool) -> None:
    model = timm_model("vit_tiny_patch16_224")
    for block in model.blocks:
        block.attn.fused_attn = after
    optimizer = torch.optim.AdamW(model.parameters())
    images = images_of(6, 224)
    train_with(optimizer, lambda: model(images).logsumexp(-1).mean())


@pair("attention")
def attention_dit(after: bool) -> None:
    from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0

    model = dit(4)
    for module in model.modules():
        if isinstance(module, Attention):
            module.set_processor(AttnProcessor2_0() if after else AttnProcessor())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_with(optimizer, lambda: dit_loss(model, 4))


# --- foreach


@pair("foreach")
def foreach_bert(after: bool) -> None:
    model = bert(vocab=20000)
    ids = ids_of(1, 48, 20000)
    optimizer = torch.optim.Adam(model.parameters(), fused=after or None)
    train_with(optimizer, lambda: model(ids, labels=ids).loss)


@pair("foreach")
def foreach_convnext(after: bool) -> None:
    model = timm_model("convnext_pico")
    images = images_of(1, 96)
    optimizer = torch.optim.AdamW(model.parameters(), fused=after or None)
    train_with(optimizer, lambda: model(images).logsumexp(-1).mean())


@pair("foreach")
def foreach_tagger(after: bool) -> None:
    model = Tagger(9000)
    ids = ids_of(1, 32, 3000)
    optimizer = torch.optim.Adagrad(model.parameters(), fused=after or None)
    train_with(optimizer, lambda: F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))


# --- checkpointing


@pair("checkpointing")
def checkpointing_vit(after: bool) -> None:
    model = timm_model("vit_tiny_patch16_224", img_size=128)
    model.set_grad_checkpointing(after)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_with(optimizer, lambda: model(images_of(16, 128)).logsumexp(-1).mean())


@pair("checkpointing")
def checkpointing_bert(after: bool) -> None:
    model = bert(layers=8, vocab=1000)
    if after:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = ids_of(6, 256, 1000)
    train_with(optimizer, lambda: model(ids, labels=ids).loss)


@pair("checkpointing")
def checkpointing_dit(after: bool) -> None:
    model = dit(8)
    if after:
        model.enable_gradient_checkpointing()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())
    train_with(optimizer, lambda: dit_loss(model, 6))


# --- batch


@pair("batch")
def batch_bert(after: bool) -> None:
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = ids_of(5 if after else 10, 200, 5000)
    train_with(optimizer, lambda: model(ids, labels=ids).loss)


@pair("batch")
def batch_convnext(after: bool) -> None:
    model = timm_model("convnext_atto")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_with(optimizer, lambda: model(images_of(6 if after else 12, 160)).logsumexp(-1).mean())


@pair("batch")
def batch_lightning(after: bool) -> None:
    size = 8 if after else 16
    fit(
        lightning_module(Convolutions(), lambda model, images: model(images).logsumexp(-1).mean(), {}),
        [torch.randn(size, 3, 96, 96) for _ in range(3)],
    )


# --- of the size of real programs, written after the rules were adjusted on all above


def neox(attention: str = "sdpa", layers: int = 6) -> nn.Module:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=12000,
        hidden_size=512,
        num_hidden_layers=layers,
        num_attention_heads=8,
        intermediate_size=2048,
        attn_implementation=attention,
    )
    return GPTNeoXForCausalLM(config).to(DEVICE)


def clip_vision(attention: str = "sdpa", layers: int = 8) -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=6,
        image_size=192,
        patch_size=16,
        attn_implementation=attention,
    )
    return CLIPVisionModel(config).to(DEVICE)


@pair("attention")
def attention_neox(after: bool) -> None:
    model = neox("sdpa" if after else "eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = ids_of(16, 512, 12000)
    train_with(optimizer, lambda: model(ids, labels=ids).loss)


@pair("attention")
def attention_clip(after: bool) -> None:
    model = clip_vision("sdpa" if after else "eager")
    optimizer = torch.optim.AdamW(model.parameters())
    images = images_of(64, 192)
    train_with(optimizer, lambda: model(images).pooler_output.square().mean())


@pair("checkpointing")
def checkpointing_neox(after: bool) -> None:
    model = neox(layers=10)
    if after:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.train().parameters())
    ids = ids_of(12, 512, 12000)
    train_with(optimizer, lambda: model(ids, labels=ids).loss)


@pair("checkpointing")
def checkpointing_clip(after: bool) -> None:
    model = clip_vision(layers=12)
    if after:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    images = images_of(96, 192)
    train_with(optimizer, lambda: model(images).pooler_output.square().mean())


@pair("batch")
def batch_clip(after: bool) -> None:
    model = clip_vision()
    optimizer = torch.optim.AdamW(model.parameters())
    images = images_of(48 if after else 96, 192)
    train_with(optimizer, lambda: model(images).pooler_output.square().mean())


@pair("graphs-kept")
def losses_neox(after: bool) -> None:
    model, losses = neox(), []
    for _ in range(5):
        ids = ids_of(8, 512, 12000)
        out = model(ids)
        loss = F.cross_entropy(out.logits.flatten(0, 1), ids.flatten())
        losses.append(loss.item() if after else loss)
        del out, loss


@pair("previous-kept")
def previous_mobilenet(after: bool) -> None:
    model = timm_model("mobilenetv3_small_100", features_only=True).eval()
    with torch.inference_mode():
        for _ in range(4):
            maps = model(images_of(128, 224))
            print(len(maps))
            if after:
                del maps


@pair("unused-graph")
def evaluation_neox(after: bool) -> None:
    model = neox().eval()
    with torch.set_grad_enabled(not after):
        for _ in range(3):
            print((model(ids_of(16, 512, 12000)).logits.argmax(-1) == 1).sum().shape)


@pair("unused-graph")
def evaluation_clip(after: bool) -> None:
    model = clip_vision().eval()
    with torch.set_grad_enabled(not after):
        for _ in range(3):
            print(model(images_of(96, 192)).pooler_output.square().mean().shape)


if __name__ == "__main__":
    torch.manual_seed(0)
    PAIRS[sys.argv[1]][1](sys.argv[2] == "after")
