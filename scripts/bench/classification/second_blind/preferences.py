"""Direct preference optimization: a policy, and a frozen copy of it as the reference."""

import copy

import torch
from programs import end_of_step
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(18)
policy = GPT2LMHeadModel(GPT2Config(vocab_size=2500, n_positions=160, n_embd=256, n_layer=4, n_head=4)).cuda()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-6)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))


def log_probabilities(model, ids, mask):
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    of_words = logits.log_softmax(-1).gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)
    return (of_words * mask[:, 1:]).sum(-1)


for _ in range(5):
    chosen = torch.randint(0, 2500, (3, 112)).to("cuda")
    rejected = torch.randint(0, 2500, (3, 112)).to("cuda")
    ids = torch.cat([chosen, rejected])
    mask = torch.ones_like(ids)
    with torch.no_grad():
        expected = log_probabilities(reference, ids, mask)
    found = log_probabilities(policy, ids, mask)
    better, worse = (found - expected).chunk(2)
    loss = -functional.logsigmoid(0.1 * (better - worse)).mean()
    loss.backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(loss.item(), grad_norm.item())
    end_of_step(
        inputs=[chosen, rejected, ids, mask],
        activations=[found, better, worse, loss, expected],
        weights=list(reference.parameters()),
    )
