"""A language model answers a file of questions: bfloat16, a static cache that is used again, sampling, batch after batch."""

import torch
from programs import end_of_step
from transformers import MistralConfig, MistralForCausalLM, StaticCache

VOCABULARY, PADDING, END = 16000, 0, 2
PROMPT, NEW = 96, 20


def build_model():
    config = MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=512,
        sliding_window=None,
        pad_token_id=PADDING,
        eos_token_id=END,
    )
    return MistralForCausalLM(config).to(dtype=torch.bfloat16)


def left_padded(prompts):
    """As a tokenizer with ``padding_side="left"`` makes them."""
    ids = torch.full((len(prompts), PROMPT), PADDING)
    for row, prompt in enumerate(prompts):
        ids[row, -len(prompt) :] = prompt
    return {"input_ids": ids, "attention_mask": (ids != PADDING).long()}


def batches(questions, batch_size):
    for start in range(0, len(questions), batch_size):
        yield left_padded(questions[start : start + batch_size])


@torch.inference_mode()
def main(n_questions=48, batch_size=12, device="cuda"):
    torch.manual_seed(115)
    model = build_model().to(device).eval()
    questions = [torch.randint(4, VOCABULARY, (int(n),)) for n in torch.randint(20, PROMPT, (n_questions,))]
    cache = StaticCache(config=model.config, max_cache_len=PROMPT + NEW)
    answers = []
    for number, batch in enumerate(batches(questions, batch_size)):
        batch = {key: value.to(device) for key, value in batch.items()}
        cache.reset()
        generated = model.generate(
            **batch,
            past_key_values=cache,
            max_new_tokens=NEW,
            do_sample=True,
            temperature=0.7,
            top_p=0.9,
            top_k=50,
            disable_compile=True,
        )
        answers += generated[:, PROMPT:].tolist()
        print(f"batch {number}: {len(answers)} answers")
        kept = [(layer.keys, layer.values) for layer in cache.layers]
        end_of_step(inputs=[batch, generated], caches=kept)


if __name__ == "__main__":
    main()
