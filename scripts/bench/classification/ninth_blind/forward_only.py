"""An OPT learns sentiments without any backward (MeZO): all weights are moved by noise of a seed and moved back, the difference of two losses is the gradient."""

import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import OPTConfig, OPTForCausalLM

VOCABULARY, PAD, BOS = 16000, 1, 2
TEMPLATE = (42, 21)  # " It was"
VERBALIZERS = (6587, 372)  # " terrible", " great"


class SST2(Dataset):
    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.rows = [
            (self.rng.integers(5, VOCABULARY, int(self.rng.integers(6, 24))), int(self.rng.integers(2)))
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collator(rows):
    """Padded on the left, so that the word to guess comes last in every row."""
    texts = [[BOS, *words.tolist(), *TEMPLATE] for words, _ in rows]
    longest = max(map(len, texts))
    input_ids = torch.tensor([[PAD] * (longest - len(text)) + text for text in texts])
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != PAD).long(),
        "labels": torch.tensor([label for _, label in rows]),
    }


class MeZO:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.named_parameters_to_optim = [
            (name, param) for name, param in model.named_parameters() if param.requires_grad
        ]
        self.lr = args.learning_rate
        self.seeds = np.random.default_rng(508)

    def perturb_parameters(self, scaling_factor):
        """The same noise every time, since the seed is: none of it has to be kept."""
        generator = torch.Generator(device=self.model.device).manual_seed(self.zo_random_seed)
        for _, param in self.named_parameters_to_optim:
            z = torch.empty_like(param).normal_(generator=generator)
            param.data.add_(z, alpha=scaling_factor * self.args.zo_eps)

    @torch.inference_mode()
    def zo_forward(self, inputs):
        self.model.eval()
        return loss_of(self.model, inputs)[0].detach()

    @torch.no_grad()
    def step(self, inputs):
        self.zo_random_seed = int(self.seeds.integers(1000000000))
        self.perturb_parameters(scaling_factor=1)
        loss1 = self.zo_forward(inputs)
        self.perturb_parameters(scaling_factor=-2)
        loss2 = self.zo_forward(inputs)
        self.projected_grad = ((loss1 - loss2) / (2 * self.args.zo_eps)).item()
        self.perturb_parameters(scaling_factor=1)
        self.update()
        return loss1

    def update(self):
        generator = torch.Generator(device=self.model.device).manual_seed(self.zo_random_seed)
        for name, param in self.named_parameters_to_optim:
            z = torch.empty_like(param).normal_(generator=generator)
            gradient = self.projected_grad * z
            if "bias" not in name and "layer_norm" not in name:
                gradient = gradient + self.args.weight_decay * param.data
            param.data = param.data - self.lr * gradient


def loss_of(model, inputs):
    logits = model(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False
    ).logits
    of_words = logits[:, -1, list(VERBALIZERS)].float()
    return F.cross_entropy(of_words, inputs["labels"]), of_words


@torch.inference_mode()
def evaluate(model, loader, device):
    right = n = 0
    for inputs in loader:
        inputs = {key: value.to(device) for key, value in inputs.items()}
        _, of_words = loss_of(model, inputs)
        right += (of_words.argmax(-1) == inputs["labels"]).sum().item()
        n += len(of_words)
    return right / n


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", type=float, default=1e-6)
    parser.add_argument("--zo_eps", type=float, default=1e-3)
    parser.add_argument("--weight_decay", type=float, default=0.0)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_steps", type=int, default=6)
    parser.add_argument("--eval_steps", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(508)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    model = OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=384,
            word_embed_proj_dim=384,
            ffn_dim=1536,
            num_hidden_layers=6,
            num_attention_heads=6,
            max_position_embeddings=128,
            pad_token_id=PAD,
            bos_token_id=BOS,
        )
    ).to(device, torch.float16)
    train_loader = DataLoader(
        SST2(args.batch_size * args.max_steps, seed=1), args.batch_size, shuffle=True, collate_fn=collator
    )
    eval_loader = DataLoader(SST2(16, seed=2), batch_size=16, collate_fn=collator)
    trainer = MeZO(model, args)
    for step, inputs in enumerate(train_loader, 1):
        inputs = {key: value.to(device) for key, value in inputs.items()}
        loss = trainer.step(inputs)
        print(f"{step}: loss {loss.item():.4f}, projected gradient {trainer.projected_grad:.3f}")
        # The weights too: an update puts others in their place.
        end_of_step(inputs=inputs, activations=loss, weights=list(model.parameters()))
        if step % args.eval_steps == 0:
            print(f"{step}: accuracy {evaluate(model, eval_loader, device):.3f}")
        if not math.isfinite(trainer.projected_grad):
            raise ValueError("the loss is not finite any more")


if __name__ == "__main__":
    main()
