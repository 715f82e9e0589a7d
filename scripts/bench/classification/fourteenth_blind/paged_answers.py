"""A Qwen3 in bfloat16 serves many customers at once by the continuous batching of transformers: pages of a cache, a system prompt whose pages are shared, requests that join and leave while others go on, sampled answers."""

import random

import torch
from programs import end_of_step
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM, set_seed
from transformers.generation import ContinuousBatchingConfig

VOCAB_SIZE, PAD, EOS = 16000, 0, 1
ROLE_USER, ROLE_ASSISTANT, END_OF_TURN = 2, 3, 4
MAX_NEW_TOKENS = 10

config = Qwen3Config(
    vocab_size=VOCAB_SIZE,
    hidden_size=576,
    intermediate_size=1728,
    num_hidden_layers=8,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    attn_implementation="sdpa",
    pad_token_id=PAD,
    eos_token_id=EOS,
    bos_token_id=None,
)


def requests_of_a_minute(rng, system_prompt, n):
    requests = []
    for _ in range(n):
        question = [rng.randrange(10, VOCAB_SIZE) for _ in range(rng.randint(8, 90))]
        requests.append([*system_prompt, ROLE_USER, *question, END_OF_TURN, ROLE_ASSISTANT])
    return requests


def main():
    set_seed(77)
    rng = random.Random(77)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Qwen3ForCausalLM(config).to(device=device, dtype=torch.bfloat16).eval()
    generation_config = GenerationConfig(
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=True,
        temperature=0.7,
        top_k=50,
        pad_token_id=PAD,
        eos_token_id=EOS,
    )
    batching_config = ContinuousBatchingConfig(
        page_size=32,
        num_blocks=192,
        max_batch_tokens=384,
        max_requests_per_batch=16,
        scheduler_type="prefill_first",
        use_cuda_graph=False,
        use_async_batching=False,
    )
    # the first call of a kernel is slow: not with a customer
    with torch.inference_mode():
        model(torch.zeros(1, 32, dtype=torch.long, device=device), use_cache=False)
    system_prompt = [rng.randrange(10, VOCAB_SIZE) for _ in range(96)]

    with model.continuous_batching_context_manager(
        generation_config=generation_config, continuous_batching_config=batching_config
    ) as manager:
        for minute in range(4):
            requests = requests_of_a_minute(rng, system_prompt, n=rng.randint(8, 12))
            manager.add_requests(requests, max_new_tokens=MAX_NEW_TOKENS)
            answers = {}
            for output in manager:
                if output.is_finished():
                    answers[output.request_id] = output.generated_tokens
                if len(answers) == len(requests):
                    break
            print(f"minute {minute}: {len(answers)} answers, {sum(map(len, answers.values()))} tokens")
            processor = manager.batch_processor
            batch = vars(processor.inputs_and_outputs)
            buffers = [value for value in batch.values() if isinstance(value, torch.Tensor)]
            end_of_step(inputs=[buffers, batch["attention_mask"]], caches=[processor.cache.cache_tensor])


if __name__ == "__main__":
    main()
