"""A Llama learns from rewards: it answers every prompt several times, and answers are compared within their group."""

import copy

import torch
from programs import end_of_step, tell
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

PROMPT, ANSWER, GROUP = 48, 8, 6

torch.manual_seed(75)
config = LlamaConfig(
    vocab_size=3000,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
policy = LlamaForCausalLM(config).cuda()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)


class TellCache(LogitsProcessor):
    """Changes nothing: it is where the benchmark learns which tensors are keys and values."""

    def __init__(self, cache):
        self.cache = cache

    def __call__(self, input_ids, scores):
        tell(caches=[(layer.keys, layer.values) for layer in self.cache.layers])
        return scores


@torch.no_grad()
def roll_out(prompts):
    policy.eval()
    cache = DynamicCache(config=config)
    texts = policy.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        temperature=0.9,
        max_new_tokens=ANSWER,
        min_new_tokens=ANSWER,
        pad_token_id=0,
        past_key_values=cache,
        logits_processor=LogitsProcessorList([TellCache(cache)]),
    )
    policy.train()
    return texts


def log_probs_of(model, texts):
    logits = model(input_ids=texts, use_cache=False).logits[:, PROMPT - 1 : -1] / 0.9
    return torch.log_softmax(logits, -1).gather(-1, texts[:, PROMPT:, None]).squeeze(-1)


def reward(answers):
    return torch.tensor([sum(word % 2 == 0 for word in answer) / ANSWER for answer in answers.tolist()])


for step in range(4):
    prompts = torch.randint(5, 3000, (2, PROMPT)).repeat_interleave(GROUP, 0).cuda()
    texts = roll_out(prompts)
    rewards = reward(texts[:, PROMPT:]).cuda().view(-1, GROUP)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    advantages = advantages.flatten()
    with torch.no_grad():
        before = log_probs_of(policy, texts)
        expected = log_probs_of(reference, texts)
    for part in torch.arange(len(texts)).chunk(2):
        found = log_probs_of(policy, texts[part])
        ratio = torch.exp(found - before[part])
        gain = torch.min(ratio * advantages[part, None], ratio.clamp(0.8, 1.2) * advantages[part, None])
        apart = expected[part] - found
        loss = (-gain + 0.04 * (apart.exp() - apart - 1)).mean() / 2
        loss.backward()
        tell(activations=[found, ratio, gain, apart, loss])
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.2)
    optimizer.step()
    optimizer.zero_grad()
    print(step, rewards.mean().item())
    end_of_step(
        inputs=[prompts, texts, rewards, advantages],
        activations=[before, expected, found, ratio, gain, apart, loss],
        weights=list(reference.parameters()),
    )
