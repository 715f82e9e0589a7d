"""Entries that no rule was or will be changed for: words tagged by a trainer, an image that is painted.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional

DEVICE = "cuda:0"
Batch = dict[str, torch.Tensor]


# --- words tagged


@dataclass
class TaggerConfig:
    """Sizes of a model."""

    vocab_size: int = 6000
    hidden_size: int = 256
    num_layers: int = 5
    num_heads: int = 8
    num_labels: int = 19
    num_buckets: int = 32
    dropout: float = 0.1


class RelativeAttention(nn.Module):
    """Attention both ways, with a number added for how far words are apart."""

    def __init__(self, config: TaggerConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.hidden_size // config.num_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_states: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Mix the words of a batch."""
        n, length, width = hidden_states.shape
        query, key, value = (
            part(hidden_states).view(n, length, self.num_heads, self.head_dim).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.head_dim) + bias
        probs = self.dropout(nn.functional.softmax(scores, dim=-1))
        context = torch.matmul(probs, value).transpose(1, 2).reshape(n, length, width)
        return self.output(context)


class TaggerLayer(nn.Module):
    """Attention and a gated network, each with a norm before and a dropout after it."""

    def __init__(self, config: TaggerConfig) -> None:
        super().__init__()
        self.attention = RelativeAttention(config)
        self.norm1, self.norm2 = nn.LayerNorm(config.hidden_size), nn.LayerNorm(config.hidden_size)
        self.wi_0 = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.wi_1 = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.wo = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.act, self.dropout = nn.GELU(approximate="tanh"), nn.Dropout(config.dropout)

    def forward(self, hidden_states: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Transform the words of a batch."""
        attended = self.attention(self.norm1(hidden_states), bias)
        hidden_states = hidden_states + self.dropout(attended)
        normed = self.norm2(hidden_states)
        gated = self.dropout(self.act(self.wi_0(normed)) * self.wi_1(normed))
        return hidden_states + self.dropout(self.wo(gated))


class TokenClassifier(nn.Module):
    """A label for every word of a text."""

    def __init__(self, config: TaggerConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.relative_bias = nn.Embedding(config.num_buckets, config.num_heads)
        self.layers = nn.ModuleList([TaggerLayer(config) for _ in range(config.num_layers)])
        self.final_norm, self.dropout = nn.LayerNorm(config.hidden_size), nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.02)

    def _bias(self, attention_mask: torch.Tensor) -> torch.Tensor:
        place = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        half = self.config.num_buckets // 2
        bucket = (place[None, :] - place[:, None]).clamp(-half, half - 1) + half
        bias = self.relative_bias(bucket).permute(2, 0, 1).unsqueeze(0)
        hidden = (1.0 - attention_mask[:, None, None, :].to(bias.dtype)) * torch.finfo(bias.dtype).min
        return bias + hidden

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return logits, and the loss if there are labels."""
        bias = self._bias(attention_mask)
        hidden_states = self.dropout(self.embeddings(input_ids))
        for layer in self.layers:
            hidden_states = layer(hidden_states, bias)
        logits = self.classifier(self.dropout(self.final_norm(hidden_states)))
        outputs = {"logits": logits}
        if labels is not None:
            outputs["loss"] = functional.cross_entropy(
                logits.view(-1, self.config.num_labels), labels.view(-1), ignore_index=-100
            )
        return outputs


def _sentences(n_batches: int | None, n: int, longest: int) -> Iterator[Batch]:
    """Padded batches as a collator makes them, each as long as its longest text."""
    while n_batches is None or n_batches > 0:
        lengths = torch.randint(longest // 2, longest + 1, (n,))
        there = torch.arange(int(lengths.max()))[None] < lengths[:, None]
        ids = torch.randint(1, 6000, there.shape).masked_fill(~there, 0)
        labels = torch.randint(0, 19, there.shape).masked_fill(~there, -100)
        yield {"input_ids": ids, "attention_mask": there.long(), "labels": labels}
        n_batches = None if n_batches is None else n_batches - 1


@dataclass
class TrainerState:
    """How far training is, and what was logged."""

    global_step: int = 0
    best_metric: float | None = None
    log_history: list[dict[str, float]] = field(default_factory=list)


class TrainerCallback:
    """Is told what happens; does nothing of it."""

    def on_step_end(self, trainer: "Trainer") -> None:
        """A step is over."""

    def on_evaluate(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """An evaluation is over."""


class LogCallback(TrainerCallback):
    """Writes down the mean loss every other step."""

    def on_step_end(self, trainer: "Trainer") -> None:
        """Read the sum of the losses from the device."""
        if trainer.state.global_step % 2 == 0:
            trainer.state.log_history.append({"loss": (trainer.tr_loss / 2).item()})
            trainer.tr_loss -= trainer.tr_loss


class BestCallback(TrainerCallback):
    """Keeps the best weights in main memory."""

    def __init__(self) -> None:
        self.weights: Batch = {}

    def on_evaluate(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """Copy the weights where they are better than ever."""
        best = trainer.state.best_metric
        if best is None or metrics["eval_accuracy"] > best:
            trainer.state.best_metric = metrics["eval_accuracy"]
            self.weights = {name: value.cpu() for name, value in trainer.model.state_dict().items()}


class Trainer:
    """Trains a model, evaluates it, and tells others of it."""

    def __init__(
        self, model: nn.Module, batches: Iterator[Batch], callbacks: Sequence[TrainerCallback]
    ) -> None:
        self.device = torch.device(DEVICE)
        self.model, self.batches, self.callbacks = model.to(self.device), batches, callbacks
        self.state = TrainerState()
        self.inputs: Batch = {}
        self.tr_loss = torch.tensor(0.0, device=self.device)
        plain = [p for name, p in model.named_parameters() if "norm" in name or name.endswith("bias")]
        names = {id(p) for p in plain}
        decayed = [p for p in model.parameters() if id(p) not in names]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=5e-5
        )
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / 50)
        )

    def _prepare_inputs(self, inputs: Batch) -> Batch:
        return {name: tensor.to(self.device) for name, tensor in inputs.items()}

    def training_step(self, inputs: Batch) -> torch.Tensor:
        """Forward and backward of one batch."""
        self.model.train()
        outputs = self.model(**inputs)
        loss = outputs["loss"]
        loss.backward()
        return loss.detach()

    def step(self) -> None:
        """Train with the next batch."""
        self.inputs = self._prepare_inputs(next(self.batches))
        self.tr_loss += self.training_step(self.inputs)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.lr_scheduler.step()
        self.model.zero_grad()
        self.state.global_step += 1
        for callback in self.callbacks:
            callback.on_step_end(self)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Predict other batches; logits are gathered on the device until all are there."""
        self.model.eval()
        losses, all_logits, all_labels = [], [], []
        for inputs in batches:
            inputs = self._prepare_inputs(inputs)
            outputs = self.model(**inputs)
            losses.append(outputs["loss"].detach())
            all_logits.append(outputs["logits"].detach().flatten(0, 1))
            all_labels.append(inputs["labels"].flatten())
        logits, labels = torch.cat(all_logits), torch.cat(all_labels)
        right = (logits.argmax(dim=-1) == labels)[labels != -100].float().mean()
        metrics = {"eval_loss": torch.stack(losses).mean().item(), "eval_accuracy": right.item()}
        for callback in self.callbacks:
            callback.on_evaluate(self, metrics)
        return metrics


def trainer(_setup: Setup) -> Iterations:
    """A plain encoder tags words: a trainer with callbacks, and an evaluation every other step."""
    worker = Trainer(
        TokenClassifier(TaggerConfig()), _sentences(None, 8, 96), [LogCallback(), BestCallback()]
    )
    while True:
        worker.step()
        if worker.state.global_step % 2 == 0:
            worker.evaluate(_sentences(2, 8, 96))
        yield Known(inputs=tuple(worker.inputs.values()), activations=(worker.tr_loss,))


# --- painted


class Normalization(nn.Module):
    """Brings colours to where the network was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(-1, 1, 1))

    def forward(self, img: torch.Tensor) -> torch.Tensor:
        """Shift and scale an image."""
        return (img - self.mean) / self.std


class VggFeatures(nn.Module):
    """A frozen network that hands out what is between its layers, by their names."""

    STYLE = ("relu1_1", "relu2_1", "relu3_1", "relu4_1")
    CONTENT = ("relu3_2",)

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256)) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict(normalize=Normalization())
        n_in = 3
        for block, n_out in enumerate(widths, start=1):
            for number in range(1, 2 if block == len(widths) else 3):
                layers[f"conv{block}_{number}"] = nn.Conv2d(n_in, n_out, 3, padding=1)
                layers[f"relu{block}_{number}"] = nn.ReLU(inplace=False)
                n_in = n_out
            if block < len(widths):
                layers[f"pool{block}"] = nn.AvgPool2d(2)
        self.layers = nn.ModuleDict(layers)
        self.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the feature maps that losses look at."""
        found = {}
        for name, layer in self.layers.items():
            x = layer(x)
            if name in self.STYLE or name in self.CONTENT:
                found[name] = x
        return found


class Painting(nn.Module):
    """The image that is painted, as the one parameter there is."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.image = nn.Parameter(start.clone())

    def forward(self) -> torch.Tensor:
        """Return it."""
        return self.image


def gram_matrix(y: torch.Tensor) -> torch.Tensor:
    """How the channels of a feature map go together."""
    b, ch, h, w = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


def total_variation(y: torch.Tensor) -> torch.Tensor:
    """How much neighbours differ."""
    down = (y[:, :, :-1, :] - y[:, :, 1:, :]).abs().mean()
    return down + (y[:, :, :, :-1] - y[:, :, :, 1:]).abs().mean()


def style(_setup: Setup) -> Iterations:
    """An image is changed by LBFGS until a frozen network sees one image's content in another's style."""
    content = torch.rand(1, 3, 160, 160).to(DEVICE)
    style_image = torch.rand(1, 3, 176, 144).to(DEVICE)
    cnn = copy.deepcopy(VggFeatures()).to(DEVICE).eval()
    with torch.no_grad():
        wanted = {name: y.clone() for name, y in cnn(content).items() if name in cnn.CONTENT}
        grams = {name: gram_matrix(y) for name, y in cnn(style_image).items() if name in cnn.STYLE}
    painting = Painting(content).to(DEVICE)
    optimizer = torch.optim.LBFGS(painting.parameters(), lr=1.0, max_iter=4, history_size=20)
    run = [0]

    def closure() -> torch.Tensor:
        with torch.no_grad():
            painting.image.clamp_(0, 1)
        optimizer.zero_grad()
        image = painting()
        features = cnn(image)
        style_score = sum(functional.mse_loss(gram_matrix(features[name]), grams[name]) for name in grams)
        content_score = sum(functional.mse_loss(features[name], wanted[name]) for name in wanted)
        loss = 1e6 * style_score + content_score + 10 * total_variation(image)
        loss.backward()
        run[0] += 1
        return loss

    while True:
        loss = optimizer.step(closure)
        yield Known(
            inputs=(content, style_image),
            activations=(*wanted.values(), *grams.values(), loss),
        )
