"""Triple preference optimization of a SmolLM3 with TRL: a reference answer, a better and a worse one, APOLLO, bf16, checkpointed layers."""

import random

import torch
import trl.trainer.utils
from datasets import Dataset
from programs import end_of_step, tell
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, SmolLM3Config, SmolLM3ForCausalLM, TrainerCallback
from trl.experimental.tpo import TPOConfig, TPOTrainer

random.seed(4)
torch.manual_seed(4)
trl.trainer.utils.is_triton_available = lambda: False  # plain log-softmax, no fused kernel

WORDS = [f"w{index}" for index in range(5997)]
vocabulary = {word: index for index, word in enumerate(["<unk>", "<eos>", "<pad>", *WORDS])}
backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, unk_token="<unk>", eos_token="<eos>", pad_token="<pad>"
)


def words(low, high):
    return " ".join(random.choices(WORDS, k=random.randint(low, high)))


triples = Dataset.from_dict(
    {
        "prompt": [words(20, 50) for _ in range(32)],
        "reference": [" " + words(60, 110) for _ in range(32)],
        "chosen": [" " + words(60, 110) for _ in range(32)],
        "rejected": [" " + words(60, 110) for _ in range(32)],
    }
)


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        projectors = [entry["projector"] for entry in optimizer.state.values() if "projector" in entry]
        end_of_step(states=[projector.ortho_matrix for projector in projectors])


class TripleTrainer(TPOTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


model = SmolLM3ForCausalLM(
    SmolLM3Config(
        vocab_size=6000,
        hidden_size=384,
        intermediate_size=1152,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=2,
        bos_token_id=None,
        eos_token_id=1,
        use_cache=False,
    )
)
arguments = TPOConfig(
    output_dir="tpo",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    gradient_checkpointing=True,
    learning_rate=1e-4,
    lr_scheduler_type="linear",
    optim="apollo_adamw",
    optim_target_modules=[r".*attn.*", r".*mlp.*"],
    optim_args="rank=64,update_proj_gap=200,scale=1.0,proj=random,scale_type=channel",
    max_length=192,
    bf16=True,
    max_steps=6,
    logging_steps=2,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
TripleTrainer(
    model=model, args=arguments, train_dataset=triples, processing_class=tokenizer, callbacks=[StepEnds()]
).train()
