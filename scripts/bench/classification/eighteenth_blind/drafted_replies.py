"""A service that answers customer mails by speculative sampling: a small Qwen3 drafts, a large one checks, a shared prefix is cached, float16."""

import copy
import random
import time
from collections import deque

import torch
from programs import end_of_step, tell
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

torch.manual_seed(14)
random.seed(14)

VOCABULARY = 8000
EOS = 2
N_DRAFTED = 4


def make_model(hidden, layers, heads, kv_heads, intermediate):
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    return Qwen3ForCausalLM(config)


def tensors_of(*caches):
    return [[layer.keys, layer.values] for cache in caches for layer in cache.layers]


def probabilities(logits, temperature=0.7):
    return torch.softmax(logits.float() / temperature, dim=-1)


class SpeculativeServer:
    def __init__(self, target, draft, system_prompt, device):
        self.target, self.draft, self.device = target, draft, device
        prefix = torch.tensor([system_prompt], device=device)
        self.prefix_length = prefix.shape[1]
        self.prefix_caches = []
        for model in (target, draft):
            cache = DynamicCache(config=model.config)
            model(prefix, cache=cache, use_cache=True, logits_to_keep=1)
            self.prefix_caches.append(cache)

    def reply(self, mail, max_new_tokens):
        cache, draft_cache = (copy.deepcopy(cache) for cache in self.prefix_caches)
        ids = torch.tensor([mail], device=self.device)
        tell(inputs=ids)
        logits = self.target(ids, cache=cache, use_cache=True, logits_to_keep=1).logits
        self.draft(ids[:, :-1], cache=draft_cache, use_cache=True, logits_to_keep=1)
        token = torch.multinomial(probabilities(logits[:, -1]), 1)
        pending = torch.cat([ids[:, -1:], token], dim=1)  # what the draft has not seen yet
        reply = [token.item()]
        accepted = rounds = 0

        while len(reply) < max_new_tokens and reply[-1] != EOS:
            drafted, distributions = [], []
            step = pending
            for _ in range(N_DRAFTED):
                logits = self.draft(step, cache=draft_cache, use_cache=True, logits_to_keep=1).logits
                q = probabilities(logits[:, -1])
                step = torch.multinomial(q, 1)
                drafted.append(step)
                distributions.append(q)
            guess = torch.cat(drafted, dim=1)
            q = torch.stack(distributions, dim=1)

            checked = torch.cat([pending[:, -1:], guess], dim=1)
            p = probabilities(self.target(checked, cache=cache, use_cache=True).logits)
            tell(caches=tensors_of(cache, draft_cache))

            index = guess.unsqueeze(-1)
            ratio = (p[:, :-1].gather(-1, index) / q.gather(-1, index)).squeeze(-1)
            ok = torch.rand_like(ratio) < ratio
            n = int(ok.int().cumprod(dim=1).sum())
            if n < N_DRAFTED:
                rest = (p[:, n] - q[:, n]).clamp(min=0)
                token = torch.multinomial(rest / rest.sum(dim=-1, keepdim=True), 1)
            else:
                token = torch.multinomial(p[:, n], 1)
            reply += guess[0, :n].tolist() + [token.item()]
            accepted += n
            rounds += 1

            cache.crop(n - N_DRAFTED)
            if n < N_DRAFTED:
                draft_cache.crop(n + 1 - N_DRAFTED)
                pending = token
            else:
                pending = torch.cat([guess[:, -1:], token], dim=1)
        return reply, accepted / max(rounds * N_DRAFTED, 1), cache, draft_cache


@torch.inference_mode()
def main():
    device = torch.device("cuda")
    target = make_model(512, 6, 8, 4, 1536).to(device, torch.float16).eval()
    draft = make_model(256, 2, 4, 2, 768).to(device, torch.float16).eval()
    system_prompt = [random.randrange(3, VOCABULARY) for _ in range(320)]
    server = SpeculativeServer(target, draft, system_prompt, device)

    mails = deque(
        [random.randrange(3, VOCABULARY) for _ in range(random.randint(200, 500))] for _ in range(6)
    )
    while mails:
        mail = mails.popleft()
        start = time.perf_counter()
        reply, rate, cache, draft_cache = server.reply(mail, max_new_tokens=24)
        print(
            f"{len(mail)} tokens in, {len(reply)} out, {rate:.0%} accepted, {time.perf_counter() - start:.1f} s"
        )
        end_of_step(caches=tensors_of(cache, draft_cache, *server.prefix_caches))


if __name__ == "__main__":
    main()
