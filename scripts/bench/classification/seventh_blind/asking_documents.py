"""Questions are answered from documents: a BGE-like BERT finds passages in an index on the device, a Gemma 2 in bfloat16 reads and writes."""

import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from transformers import BertConfig, BertModel, DynamicCache, Gemma2Config, Gemma2ForCausalLM

WORDS, VOCABULARY, PADDING, END = 12000, 18000, 0, 1
N_PASSAGES, PASSAGE, TOP_K, NEW = 240, 80, 3, 8
device = "cuda" if torch.cuda.is_available() else "cpu"


def build_retriever():
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=128,
    )
    return BertModel(config, add_pooling_layer=False).eval().to(device)


def build_reader():
    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=320,
        intermediate_size=1024,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        sliding_window=128,
        query_pre_attn_scalar=64,
        pad_token_id=PADDING,
        eos_token_id=END,
        bos_token_id=2,
    )
    return Gemma2ForCausalLM(config).to(device, torch.bfloat16).eval()


@torch.no_grad()
def embed(retriever, texts, batch_size=100):
    """The normalized first token of every text, as sentence-transformers does it."""
    found = []
    for start in range(0, len(texts), batch_size):
        some = texts[start : start + batch_size]
        ids = torch.nn.utils.rnn.pad_sequence(some, batch_first=True).to(device)
        hidden = retriever(input_ids=ids, attention_mask=(ids != PADDING).long()).last_hidden_state
        found.append(F.normalize(hidden[:, 0], dim=-1))
    return torch.cat(found)


def prompt_of(question, passages):
    """All that was found, then the question, in the words of the reader."""
    parts = [torch.tensor([2, 106])]
    for passage in passages:
        parts += [passage + 100, torch.tensor([108])]
    return torch.cat([*parts, question + 100, torch.tensor([107, 106])])


def left_padded(prompts):
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), longest), PADDING)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
    return {"input_ids": ids, "attention_mask": (ids != PADDING).long()}


def tell_of_cache(cache):
    if cache is not None:
        tell(caches=[(layer.keys, layer.values) for layer in cache.layers if layer.is_initialized])


def main(n_questions=16, batch_size=4):
    torch.manual_seed(314)
    passages = [torch.randint(5, WORDS, (int(n),)) for n in torch.randint(40, PASSAGE, (N_PASSAGES,))]
    questions = [torch.randint(5, WORDS, (int(n),)) for n in torch.randint(6, 20, (n_questions,))]
    retriever, reader = build_retriever(), build_reader()
    index = embed(retriever, passages)
    reader.register_forward_pre_hook(
        lambda _, args, kwargs: tell_of_cache(kwargs.get("past_key_values")), with_kwargs=True
    )
    reader.register_forward_hook(lambda _, args, output: tell_of_cache(output.past_key_values))
    answers = []
    for start in range(0, n_questions, batch_size):
        some = questions[start : start + batch_size]
        query = embed(retriever, some)
        scores = query @ index.T
        nearest = scores.topk(TOP_K, dim=1).indices
        prompts = [
            prompt_of(question, [passages[i] for i in row]) for question, row in zip(some, nearest.tolist())
        ]
        inputs = {key: value.to(device) for key, value in left_padded(prompts).items()}
        cache = DynamicCache(config=reader.config)
        with torch.inference_mode():
            generated = reader.generate(
                **inputs,
                past_key_values=cache,
                max_new_tokens=NEW,
                do_sample=True,
                temperature=0.7,
                top_p=0.9,
                repetition_penalty=1.1,
            )
        answers += generated[:, inputs["input_ids"].shape[1] :].tolist()
        print(f"{len(answers)} answers, prompts of {inputs['input_ids'].shape[1]} tokens")
        end_of_step(
            inputs=[inputs, generated, nearest],
            activations=[index, query, scores],
            caches=[(layer.keys, layer.values) for layer in cache.layers],
        )


if __name__ == "__main__":
    main()
