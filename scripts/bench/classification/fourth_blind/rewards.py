"""A Qwen3 in bfloat16 learns which of two answers people like better, by a Lion of one's own."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from transformers import Qwen3Config, Qwen3ForSequenceClassification, get_linear_schedule_with_warmup


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a mean of gradients."""

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
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = exp_avg * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.lerp_(p.grad, 1 - beta2)


def make_pairs(n=3, longest=176):
    """The better answers first, then the worse ones."""
    ids = torch.randint(10, 6000, (2 * n, longest))
    for row, length in zip(ids, torch.randint(90, longest + 1, (2 * n,)).tolist()):
        row[length:] = 0
    return ids, ids.ne(0).long()


def main():
    torch.manual_seed(91)
    device = torch.device("cuda")
    config = Qwen3Config(
        vocab_size=6000,
        hidden_size=320,
        intermediate_size=960,
        num_hidden_layers=5,
        num_attention_heads=5,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=256,
        pad_token_id=0,
        num_labels=1,
        use_cache=False,
    )
    model = Qwen3ForSequenceClassification(config).to(device, dtype=torch.bfloat16)
    model.train()
    optimizer = Lion(model.parameters(), lr=3e-6, weight_decay=0.1)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, 20)
    for step in range(6):
        input_ids, attention_mask = (part.to(device) for part in make_pairs())
        rewards = model(input_ids=input_ids, attention_mask=attention_mask).logits.squeeze(-1).float()
        chosen, rejected = rewards.chunk(2)
        loss = -F.logsigmoid(chosen - rejected).mean() + 0.01 * (chosen + rejected).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accuracy = (chosen > rejected).float().mean().item()
        print(f"{step}: loss {loss.item():.4f}, accuracy {accuracy:.2f}, norm {norm.item():.2f}")
        end_of_step(inputs=[input_ids, attention_mask], activations=[rewards, chosen, rejected, loss])


if __name__ == "__main__":
    main()
