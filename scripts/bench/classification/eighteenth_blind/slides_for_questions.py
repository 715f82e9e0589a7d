"""ColQwen2 learns to find lecture slides for questions: late interaction with in-batch negatives, LoRA, bfloat16 weights, a Trainer subclass."""

import random

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from programs import end_of_step, tell
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import (
    ColQwen2Config,
    ColQwen2ForRetrieval,
    Qwen2VLConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

set_seed(5)
VISION_START, VISION_END, IMAGE, PAD, QUERY_PAD = 5990, 5991, 5992, 5993, 5994
PATCH = 14


class Slides(Dataset):
    """A question and the slide that answers it, as patches the way the processor makes them."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        height, width = random.choice([(16, 12), (12, 16), (14, 14)])
        patches = torch.randn(height * width, 3 * 2 * PATCH * PATCH)
        n_tokens = height * width // 4
        page = torch.tensor([17, 201, VISION_START] + [IMAGE] * n_tokens + [VISION_END, 450, 33, 18])
        question = torch.cat(
            [torch.randint(20, 5900, (random.randint(8, 22),)), torch.full((10,), QUERY_PAD)]
        )
        return {
            "patches": patches,
            "grid": torch.tensor([1, height, width]),
            "page": page,
            "question": question,
        }


def collate(examples):
    pages = pad_sequence([e["page"] for e in examples], batch_first=True, padding_value=PAD)
    questions = pad_sequence([e["question"] for e in examples], batch_first=True, padding_value=PAD)
    return {
        "query_input_ids": questions,
        "query_attention_mask": (questions != PAD).long(),
        "doc_input_ids": pages,
        "doc_attention_mask": (pages != PAD).long(),
        "doc_pixel_values": pad_sequence([e["patches"] for e in examples], batch_first=True),
        "doc_image_grid_thw": torch.stack([e["grid"] for e in examples]),
    }


class LateInteractionTrainer(Trainer):
    temperature = 0.02

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tell(inputs=inputs)
        queries = model(
            input_ids=inputs["query_input_ids"],
            attention_mask=inputs["query_attention_mask"],
            use_cache=False,
        ).embeddings
        pages = model(
            input_ids=inputs["doc_input_ids"],
            attention_mask=inputs["doc_attention_mask"],
            pixel_values=inputs["doc_pixel_values"].to(torch.bfloat16),
            image_grid_thw=inputs["doc_image_grid_thw"],
            use_cache=False,
        ).embeddings
        similarities = torch.einsum("qnd,psd->qpns", queries, pages)
        scores = similarities.amax(dim=3).sum(dim=2)
        lengths = inputs["query_attention_mask"].sum(dim=1, keepdim=True)
        scores = scores / lengths / self.temperature
        loss = F.cross_entropy(scores.float(), torch.arange(scores.shape[0], device=scores.device))
        return (loss, {"scores": scores}) if return_outputs else loss


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    vlm = Qwen2VLConfig(
        text_config={
            "vocab_size": 6000,
            "hidden_size": 512,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "bos_token_id": 5996,
            "eos_token_id": 5997,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000000.0,
                "mrope_section": [8, 12, 12],
            },
        },
        vision_config={"depth": 4, "embed_dim": 256, "hidden_size": 512, "num_heads": 4, "patch_size": PATCH},
        image_token_id=IMAGE,
        video_token_id=5995,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
    )
    model = ColQwen2ForRetrieval(ColQwen2Config(vlm_config=vlm, embedding_dim=128)).to(torch.bfloat16)
    adapters = LoraConfig(
        r=32,
        lora_alpha=32,
        lora_dropout=0.1,
        init_lora_weights="gaussian",
        bias="none",
        task_type="FEATURE_EXTRACTION",
        target_modules=r"(.*(language_model).*(down_proj|gate_proj|up_proj|k_proj|q_proj|v_proj|o_proj).*$|.*(embedding_proj_layer).*$)",
    )
    model = get_peft_model(model, adapters)

    arguments = TrainingArguments(
        output_dir="colqwen2-slides",
        per_device_train_batch_size=6,
        bf16=True,
        learning_rate=5e-4,
        weight_decay=0.02,
        optim="adamw_torch_fused",
        lr_scheduler_type="linear",
        warmup_steps=1,
        max_steps=6,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    trainer = LateInteractionTrainer(
        model=model, args=arguments, train_dataset=Slides(), data_collator=collate, callbacks=[StepEnds()]
    )
    trainer.train()


if __name__ == "__main__":
    main()
