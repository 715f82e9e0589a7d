"""A small Qwen3 in half precision is graded by EleutherAI's evaluation harness on three tasks of one's own: four endings of each story are scored by their likelihood, the perplexity of long articles is measured in windows, and answers to word problems are written after two worked examples, twenty requests to a batch."""

import json
import random
from pathlib import Path

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from programs import end_of_step, tell
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TASKS = Path("tasks")
WORD_PROBLEMS = """\
task: own_word_problems
dataset_path: json
dataset_kwargs:
  data_files:
    train: {folder}/word_problems_train.jsonl
    test: {folder}/word_problems_test.jsonl
output_type: generate_until
training_split: train
fewshot_split: train
test_split: test
num_fewshot: 2
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: " {{{{answer}}}}"
generation_kwargs:
  until: ["Question:"]
  do_sample: false
  max_gen_toks: 12
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
STORIES = """\
task: own_story_endings
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/stories_test.jsonl
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{story}}}}"
doc_to_target: label
doc_to_choice: endings
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
ARTICLES = """\
task: own_articles
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/articles_test.jsonl
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{page}}}}"
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
metadata:
  version: 1.0
"""


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tasks(seed=0):
    rng = random.Random(seed)
    TASKS.mkdir(exist_ok=True)
    names, things = (
        "Ana Ben Cleo Dan Eva Finn Gita Hugo".split(),
        "apples books coins stamps marbles pencils".split(),
    )
    verbs = "finds loses buys sells paints hides counts carries breaks mends".split()
    places = "garden market school station river attic library kitchen".split()

    def problem():
        a, b, c = (rng.randint(2, 60) for _ in range(3))
        who, what, where = rng.choice(names), rng.choice(things), rng.choice(places)
        text = (
            f"{who} has {a} {what} and {rng.choice(verbs)} {b} more in the {where}. Later {rng.choice(names)} brings {c} "
            f"{what} from the {rng.choice(places)}, and nobody takes any. How many {what} does {who} have now?"
        )
        return {"question": text, "answer": str(a + b + c)}

    def event():
        return f"{rng.choice(names)} {rng.choice(verbs)} {rng.randint(2, 9)} {rng.choice(things)} in the {rng.choice(places)}."

    def story():
        events = [event() for _ in range(rng.randint(4, 8))]
        endings = [" " + " ".join(event() for _ in range(rng.randint(1, 3))) for _ in range(4)]
        return {"story": " ".join(events), "endings": endings, "label": rng.randrange(4)}

    train, test, stories = (
        [problem() for _ in range(20)],
        [problem() for _ in range(30)],
        [story() for _ in range(5)],
    )
    write_jsonl(TASKS / "word_problems_train.jsonl", train)
    write_jsonl(TASKS / "word_problems_test.jsonl", test)
    write_jsonl(TASKS / "stories_test.jsonl", stories)
    articles = [{"page": " ".join(event() for _ in range(rng.randint(40, 90)))} for _ in range(3)]
    write_jsonl(TASKS / "articles_test.jsonl", articles)
    folder = TASKS.resolve()
    (TASKS / "own_word_problems.yaml").write_text(WORD_PROBLEMS.format(folder=folder))
    (TASKS / "own_articles.yaml").write_text(ARTICLES.format(folder=folder))
    (TASKS / "own_story_endings.yaml").write_text(STORIES.format(folder=folder))
    return [row["question"] for row in train] + [row["story"] for row in stories]


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=2000,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )


class GradedLM(HFLM):
    """One batch of requests after the other; its keys and values are gone when the next one begins."""

    batch = None

    def next_batch(self, inps):
        if self.batch is not None:
            end_of_step(inputs=self.batch)
        self.batch = inps
        tell(inputs=inps)

    def _model_call(self, inps, *args, **kwargs):
        self.next_batch(inps)
        return super()._model_call(inps, *args, **kwargs)

    def _model_generate(self, context, *args, **kwargs):
        self.next_batch(context)
        return super()._model_generate(context, *args, **kwargs)


def tell_of_cache(module, args, output):
    if output.past_key_values is not None:
        tell(caches=[(layer.keys, layer.values) for layer in output.past_key_values.layers])


def main():
    torch.manual_seed(0)
    tokenizer = train_tokenizer(write_tasks())
    config = Qwen3Config(
        vocab_size=10000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config).to(torch.float16).to("cuda").eval()
    model.register_forward_hook(tell_of_cache)

    lm = GradedLM(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=20, max_length=256)
    results = lm_eval.simple_evaluate(
        model=lm,
        tasks=["own_story_endings", "own_articles", "own_word_problems"],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        bootstrap_iters=0,
        log_samples=False,
    )
    print({task: scores for task, scores in results["results"].items()})


if __name__ == "__main__":
    main()
