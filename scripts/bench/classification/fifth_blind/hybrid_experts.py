"""A Qwen3-Next is trained from nothing: linear and full attention, experts, Lion, bfloat16 by autocast, two micro-batches."""

import math

import torch
from programs import end_of_step
from torch.optim import Optimizer
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

VOCABULARY, BLOCK = 8192, 128


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = exp_avg.clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def build_model():
    config = Qwen3NextConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_num_key_heads=3,
        linear_num_value_heads=6,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        num_experts=8,
        num_experts_per_tok=2,
        output_router_logits=True,
        max_position_embeddings=256,
        use_cache=False,
    )
    return Qwen3NextForCausalLM(config)


def get_batch(data, batch_size, device):
    places = torch.randint(len(data) - BLOCK, (batch_size,))
    x = torch.stack([data[i : i + BLOCK] for i in places])
    return x.pin_memory().to(device, non_blocking=True) if device == "cuda" else x.to(device)


def learning_rate(step, warm_up=2, total=100, highest=3e-4):
    if step < warm_up:
        return highest * (step + 1) / warm_up
    return highest * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (total - warm_up)))


def main(n_steps=5, micro_batches=2, batch_size=4, device="cuda"):
    torch.manual_seed(112)
    data = torch.randint(VOCABULARY, (40_000,))
    model = build_model().to(device)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = Lion(
        [{"params": decayed, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}], lr=3e-4
    )
    model.train()
    for step in range(n_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(micro_batches):
            ids = get_batch(data, batch_size, device)
            with torch.autocast(device, dtype=torch.bfloat16):
                outputs = model(input_ids=ids, labels=ids)
                loss = outputs.loss / micro_batches
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(
            f"step {step}: loss {total.item():.4f}, norm {norm.item():.2f}, router {outputs.aux_loss.item():.3f}"
        )
        end_of_step(inputs=[ids])


if __name__ == "__main__":
    main()
