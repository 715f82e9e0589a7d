"""A Gemma 3 in bfloat16 answers questions about long contracts: a contract is read in chunks into a cache of which most layers keep a sliding window only, the first answer is written by it, then a second question goes on with the same cache."""

import random

import torch
from programs import end_of_step, tell
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig, GenerationConfig, set_seed

VOCAB_SIZE, PAD, EOS, BOS = 24000, 0, 1, 2
START_OF_TURN, END_OF_TURN, USER, MODEL = 105, 106, 107, 108
CHUNK, MAX_NEW_TOKENS = 320, 5

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build_model():
    config = Gemma3TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=128,
        sliding_window=192,
        query_pre_attn_scalar=128,
        max_position_embeddings=8192,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )
    return Gemma3ForCausalLM(config).to(device, torch.bfloat16).eval()


class Contracts:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def tokens(self, low, high):
        return [self.rng.randrange(1000, VOCAB_SIZE) for _ in range(self.rng.randint(low, high))]

    def contract(self):
        return self.tokens(800, 1150)

    def question(self):
        return self.tokens(8, 30)


def user_turn(text, first=False):
    turn = [START_OF_TURN, USER, *text, END_OF_TURN, START_OF_TURN, MODEL]
    return [BOS, *turn] if first else turn


def tell_of_cache(module, args, kwargs, output):
    cache = output.past_key_values
    if cache is not None:
        tell(caches=[(layer.keys, layer.values) for layer in cache.layers if layer.is_initialized])


@torch.inference_mode()
def main():
    set_seed(99)
    model = build_model()
    model.register_forward_hook(tell_of_cache, with_kwargs=True)
    contracts = Contracts(seed=5)
    generation_config = GenerationConfig(
        max_new_tokens=MAX_NEW_TOKENS,
        prefill_chunk_size=CHUNK,
        do_sample=True,
        temperature=0.6,
        top_p=0.95,
        repetition_penalty=1.05,
        pad_token_id=PAD,
        eos_token_id=EOS,
    )
    for number in range(4):
        cache = DynamicCache(config=model.config)
        conversation = torch.tensor(
            [user_turn(contracts.contract() + contracts.question(), first=True)], device=device
        )
        length = conversation.shape[1]
        conversation = model.generate(
            conversation,
            attention_mask=torch.ones_like(conversation),
            past_key_values=cache,
            generation_config=generation_config,
        )
        first = conversation[0, length:].tolist()

        # the next question is read with all that is remembered
        follow_up = torch.tensor([[END_OF_TURN, *user_turn(contracts.question())]], device=device)
        conversation = torch.cat([conversation, follow_up], dim=1)
        length = conversation.shape[1]
        conversation = model.generate(
            conversation,
            attention_mask=torch.ones_like(conversation),
            past_key_values=cache,
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            pad_token_id=PAD,
        )
        second = conversation[0, length:].tolist()
        print(f"contract {number}: {length} tokens, {first[:3]}, {second[:3]}")
        end_of_step(
            inputs=[conversation, follow_up],
            caches=[(layer.keys, layer.values) for layer in cache.layers],
        )


if __name__ == "__main__":
    main()
