"""A Command R learns to sum up posts by REINFORCE with others of its own answers as the baseline (RLOO): LoRA on bfloat16, the reference is the model without it, a judge of the same kind is frozen, answers are drawn with a cache and learned from in two parts."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from programs import end_of_step, tell
from torch import nn
from torch.utils.data import DataLoader
from transformers import CohereConfig, CohereForCausalLM, CohereModel, GenerationConfig

VOCAB, PAD, BOS, EOS = 12000, 0, 5, 6


@dataclass
class RLOOConfig:
    rloo_k: int = 4
    n_prompts: int = 2
    num_mini_batches: int = 2
    num_ppo_epochs: int = 1
    response_length: int = 10
    temperature: float = 0.7
    kl_coef: float = 0.05
    cliprange: float = 0.2
    missing_eos_penalty: float = 1.0
    learning_rate: float = 3e-5
    total_steps: int = 6


def cohere_config(hidden, layers):
    return CohereConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64 // 2,
        max_position_embeddings=256,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )


class RewardModel(nn.Module):
    """A body and a score, of which the last word's is taken."""

    def __init__(self, config):
        super().__init__()
        self.model = CohereModel(config)
        self.score = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, ids):
        mask = ids != PAD
        hidden = self.model(ids, attention_mask=mask.long(), use_cache=False).last_hidden_state
        last = (mask * torch.arange(ids.shape[1], device=ids.device)).argmax(1)
        return self.score(hidden[torch.arange(len(ids), device=ids.device), last]).squeeze(-1)


def tell_of_cache(module, args, output):
    cache = output.past_key_values
    if cache is not None:
        tell(caches=[(layer.keys, layer.values) for layer in cache.layers])


def first_true_indices(bools):
    """Where each row is true first; its length, if nowhere."""
    length = bools.size(-1)
    zero_or_index = length * (~bools).long() + bools.long() * torch.arange(length, device=bools.device)
    return zero_or_index.min(dim=-1).values


def logprobs_of(model, query_responses, context_length, temperature):
    logits = model(query_responses, attention_mask=(query_responses != PAD).long(), use_cache=False).logits[
        :, context_length - 1 : -1
    ]
    logits = logits.float() / (temperature + 1e-7)
    responses = query_responses[:, context_length:]
    return torch.gather(logits.log_softmax(-1), 2, responses.unsqueeze(-1)).squeeze(-1)


class RLOOTrainer:
    def __init__(self, args, policy, reward_model, dataset):
        self.args, self.policy, self.reward_model = args, policy, reward_model
        self.device = next(policy.parameters()).device
        self.dataloader = DataLoader(
            dataset, batch_size=args.n_prompts, shuffle=True, collate_fn=self.collate, drop_last=True
        )
        params = [p for p in policy.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(params, lr=args.learning_rate, eps=1e-5)
        self.generation_config = GenerationConfig(
            max_new_tokens=args.response_length,
            min_new_tokens=args.response_length,
            temperature=args.temperature + 1e-7,
            top_k=0.0,
            top_p=1.0,
            do_sample=True,
            pad_token_id=PAD,
            eos_token_id=None,
        )

    @staticmethod
    def collate(rows):
        longest = max(map(len, rows))
        return torch.stack([F.pad(row, (longest - len(row), 0), value=PAD) for row in rows])

    @torch.no_grad()
    def rollout(self, queries):
        args = self.args
        queries = queries.repeat(args.rloo_k, 1)
        context_length = queries.shape[1]
        self.policy.eval()
        hook = self.policy.get_base_model().register_forward_hook(tell_of_cache)
        query_responses = self.policy.generate(
            input_ids=queries,
            attention_mask=(queries != PAD).long(),
            generation_config=self.generation_config,
        )
        hook.remove()
        self.policy.train()
        logprobs = logprobs_of(self.policy, query_responses, context_length, args.temperature)
        with self.policy.disable_adapter():
            ref_logprobs = logprobs_of(self.policy, query_responses, context_length, args.temperature)
        responses = query_responses[:, context_length:]
        lengths = first_true_indices(responses == EOS)
        after = torch.arange(responses.shape[1], device=self.device) > lengths[:, None]
        judged = torch.cat([queries, responses.masked_fill(after, PAD)], dim=1)
        tell(inputs=[queries, judged])
        scores = self.reward_model(judged).float()
        scores[~(responses == EOS).any(-1)] -= args.missing_eos_penalty
        kl = (logprobs - ref_logprobs).masked_fill(after, 0).sum(1)
        rlhf_reward = (scores - args.kl_coef * kl).reshape(args.rloo_k, -1)
        baseline = (rlhf_reward.sum(0) - rlhf_reward) / (args.rloo_k - 1)
        advantages = (rlhf_reward - baseline).flatten()
        return query_responses, after, logprobs, advantages, scores, kl

    def train(self):
        args = self.args
        iterator = iter(self.dataloader)
        for update in range(1, args.total_steps + 1):
            queries = next(iterator).to(self.device)
            context_length = queries.shape[1]
            rolled = self.rollout(queries)
            query_responses, after, logprobs, advantages, scores, kl = rolled
            for _ in range(args.num_ppo_epochs):
                order = torch.randperm(len(query_responses), device=self.device)
                for inds in order.chunk(args.num_mini_batches):
                    ids = query_responses[inds]
                    with torch.autocast(self.device.type, dtype=torch.bfloat16):
                        new = logprobs_of(self.policy, ids, context_length, args.temperature)
                    new = new.masked_fill(after[inds], 0).sum(1)
                    old = logprobs[inds].masked_fill(after[inds], 0).sum(1)
                    ratio, mb_advantage = (new - old).exp(), advantages[inds]
                    clipped = ratio.clamp(1.0 - args.cliprange, 1.0 + args.cliprange)
                    loss = torch.max(-mb_advantage * ratio, -mb_advantage * clipped).mean()
                    loss.backward()
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    tell(inputs=[ids, old, mb_advantage, inds], activations=[new, ratio, loss])
            print(f"update {update}: score {scores.mean().item():.3f} kl {kl.mean().item():.4f}")
            end_of_step(
                inputs=[queries, rolled, order, ids, inds, old, mb_advantage],
                activations=[new, ratio, clipped, loss],
            )


if __name__ == "__main__":
    torch.manual_seed(1206)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = CohereForCausalLM(cohere_config(hidden=384, layers=4)).to(torch.bfloat16)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = get_peft_model(policy, lora).to(device)
    reward_model = RewardModel(cohere_config(hidden=256, layers=3))
    reward_model = reward_model.to(device, torch.bfloat16).eval().requires_grad_(False)
    posts = [torch.randint(10, VOCAB, (int(n),)) for n in torch.randint(16, 40, (16,))]
    RLOOTrainer(RLOOConfig(), policy, reward_model, posts).train()
