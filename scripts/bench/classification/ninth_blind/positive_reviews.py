"""A GPT-2 learns to write friendly reviews by PPO, as the first examples of TRL did: a value for every word, a judge and a reference that stay as they are."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step, tell
from torch import nn
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
)


@dataclass
class PPOConfig:
    learning_rate: float = 1.41e-5
    batch_size: int = 8
    mini_batch_size: int = 4
    ppo_epochs: int = 2
    query: int = 6
    response: int = 14
    kl_coef: float = 0.2
    gamma: float = 1.0
    lam: float = 0.95
    cliprange: float = 0.2
    cliprange_value: float = 0.2
    vf_coef: float = 0.1
    max_grad_norm: float = 1.0
    steps: int = 4


class GPT2WithValueHead(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.pretrained_model = GPT2LMHeadModel(config)
        self.v_head = nn.Sequential(nn.Dropout(0.1), nn.Linear(config.n_embd, 1))

    def forward(self, input_ids):
        output = self.pretrained_model(input_ids, output_hidden_states=True, use_cache=False)
        return output.logits, self.v_head(output.hidden_states[-1]).squeeze(-1)

    def generate(self, input_ids, n_words):
        """By hand, so that every word is sampled from all (top_k=0, top_p=1)."""
        cache = DynamicCache(config=self.pretrained_model.config)
        sequence = input_ids
        for _ in range(n_words):
            logits = self.pretrained_model(input_ids, past_key_values=cache, use_cache=True).logits[:, -1]
            tell(caches=[(layer.keys, layer.values) for layer in cache.layers])
            input_ids = torch.multinomial(logits.softmax(-1), 1)
            sequence = torch.cat((sequence, input_ids), dim=1)
        return sequence


def logprobs_from_logits(logits, labels):
    return F.log_softmax(logits, dim=2).gather(2, labels.unsqueeze(2)).squeeze(-1)


def masked_whiten(values):
    return (values - values.mean()) * torch.rsqrt(values.var() + 1e-8)


class PPOTrainer:
    def __init__(self, config, model, ref_model, accelerator):
        self.config, self.accelerator = config, accelerator
        optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.ref_model = ref_model.to(accelerator.device)

    @torch.no_grad()
    def forward_pass(self, model, texts):
        logits, values = model(texts)
        start = self.config.query - 1
        logprobs = logprobs_from_logits(logits[:, :-1], texts[:, 1:])
        return logprobs[:, start:], values[:, start:-1]

    def compute_advantages(self, values, rewards):
        lastgaelam, reversed_advantages = 0, []
        for t in reversed(range(self.config.response)):
            nextvalues = values[:, t + 1] if t < self.config.response - 1 else 0.0
            delta = rewards[:, t] + self.config.gamma * nextvalues - values[:, t]
            lastgaelam = delta + self.config.gamma * self.config.lam * lastgaelam
            reversed_advantages.append(lastgaelam)
        advantages = torch.stack(reversed_advantages[::-1]).transpose(0, 1)
        return masked_whiten(advantages), advantages + values

    def loss(self, old_logprobs, old_values, advantages, returns, texts):
        c, start = self.config, self.config.query - 1
        logits, vpreds = self.model(texts)
        logprobs = logprobs_from_logits(logits[:, :-1], texts[:, 1:])[:, start:]
        vpreds = vpreds[:, start:-1]
        clipped = torch.clamp(vpreds, old_values - c.cliprange_value, old_values + c.cliprange_value)
        vf_loss = 0.5 * torch.max((vpreds - returns) ** 2, (clipped - returns) ** 2).mean()
        ratio = torch.exp(logprobs - old_logprobs)
        pg_losses = -advantages * ratio
        pg_losses2 = -advantages * torch.clamp(ratio, 1.0 - c.cliprange, 1.0 + c.cliprange)
        pg_loss = torch.max(pg_losses, pg_losses2).mean()
        return pg_loss + c.vf_coef * vf_loss

    def step(self, texts, scores):
        self.model.train()
        logprobs, values = self.forward_pass(self.model, texts)
        ref_logprobs, _ = self.forward_pass(self.ref_model, texts)
        kl = logprobs - ref_logprobs
        rewards = -self.config.kl_coef * kl
        rewards[:, -1] += scores
        advantages, returns = self.compute_advantages(values, rewards)
        for _ in range(self.config.ppo_epochs):
            order = torch.randperm(len(texts), device=texts.device)
            for part in order.split(self.config.mini_batch_size):
                minibatch = [held[part] for held in (logprobs, values, advantages, returns, texts)]
                loss = self.loss(*minibatch)
                self.accelerator.backward(loss)
                self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
                tell(inputs=[part, minibatch], activations=loss)
        end_of_step(
            inputs=[texts, scores, logprobs, ref_logprobs, values, kl, rewards, advantages, returns]
            + [order, part, minibatch],
            activations=loss,
            weights=[list(self.ref_model.parameters()), list(self.ref_model.buffers())],
        )
        return {"objective/kl": kl.sum(-1).mean().item(), "ppo/loss": loss.item()}


def main():
    config = PPOConfig()
    set_seed(507)
    accelerator = Accelerator(gradient_accumulation_steps=1)
    gpt2 = GPT2Config(
        vocab_size=12000, n_positions=128, n_embd=256, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2WithValueHead(gpt2)
    ref_model = copy.deepcopy(model).eval().requires_grad_(False)
    judge = DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=12000, dim=192, n_layers=3, n_heads=4, hidden_dim=768, max_position_embeddings=64
        )
    )
    judge = judge.to(accelerator.device).eval()
    ppo_trainer = PPOTrainer(config, model, ref_model, accelerator)
    for _ in range(config.steps):
        queries = torch.randint(5, 12000, (config.batch_size, config.query), device=accelerator.device)
        with torch.no_grad():
            ppo_trainer.model.eval()
            texts = accelerator.unwrap_model(ppo_trainer.model).generate(queries, config.response)
            scores = judge(texts).logits[:, 1]
        tell(inputs=queries)
        stats = ppo_trainer.step(texts, scores)
        accelerator.print({"reward": scores.mean().item(), **stats})


if __name__ == "__main__":
    main()
