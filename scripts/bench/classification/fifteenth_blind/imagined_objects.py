"""A Qwen2.5-VL learns not to mention what is not in the picture: direct preference optimization on RLAIF-V-like pairs in a loop of accelerate, LoRA on the language model in pure bfloat16, checkpointed layers, the reference is the model without adapters, RMSprop, two batches to a step, held-out preferences between."""

import random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from datasets import Dataset, Features, Image, List, Value
from peft import LoraConfig, get_peft_model
from PIL import Image as PILImage
from PIL import ImageDraw
from programs import end_of_step, tell
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    get_constant_schedule_with_warmup,
    set_seed,
)

SHAPES = ("circle", "square", "triangle", "star", "line", "ring")
COLORS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 200, 40),
    "black": (10, 10, 10),
}
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def draw(rng, things):
    image = PILImage.new("RGB", (rng.choice((196, 224, 252)), rng.choice((168, 196, 224))), (245, 245, 240))
    pen = ImageDraw.Draw(image)
    for color, shape in things:
        x, y, r = rng.randint(30, image.width - 30), rng.randint(30, image.height - 30), rng.randint(12, 26)
        box, fill = (x - r, y - r, x + r, y + r), COLORS[color]
        if shape == "circle":
            pen.ellipse(box, fill=fill)
        elif shape == "ring":
            pen.ellipse(box, outline=fill, width=4)
        elif shape == "square":
            pen.rectangle(box, fill=fill)
        elif shape == "line":
            pen.line(box, fill=fill, width=4)
        else:
            pen.regular_polygon((x, y, r), 3 if shape == "triangle" else 5, fill=fill)
    return image


def sentence(rng, things):
    openings = ("The picture shows", "I can see", "There are several things here:", "In this image we find")
    places = (
        "on the left",
        "near the top",
        "in the middle",
        "close to the edge",
        "below it",
        "in the background",
    )
    return f"{rng.choice(openings)} " + ", ".join(f"a {c} {s} {rng.choice(places)}" for c, s in things) + "."


def preferences(n, seed):
    rng = random.Random(seed)
    rows = {"images": [], "prompt": [], "chosen": [], "rejected": []}
    kinds = [(c, s) for c in COLORS for s in SHAPES]
    for _ in range(n):
        seen = rng.sample(kinds, rng.randint(3, 6))
        imagined = [thing for thing in rng.sample(kinds, 4) if thing not in seen]
        question = rng.choice(
            ("Describe the picture in detail.", "What objects are there?", "What do you see, and where?")
        )
        rows["images"].append([draw(rng, seen)])
        rows["prompt"].append([{"role": "user", "content": question}])
        rows["chosen"].append([{"role": "assistant", "content": sentence(rng, seen)}])
        rows["rejected"].append([{"role": "assistant", "content": sentence(rng, seen[:2] + imagined)}])
    message = [{"role": Value("string"), "content": Value("string")}]
    return Dataset.from_dict(
        rows,
        features=Features(
            {"images": List(Image()), "prompt": message, "chosen": message, "rejected": message}
        ),
    )


def build_processor(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=4000,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        extra_special_tokens={"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
        chat_template=CHAT_TEMPLATE,
    )
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=168 * 168),
        tokenizer=fast,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )


def build_model(tokenizer):
    ids = {
        name: tokenizer.convert_tokens_to_ids(f"<|{name}|>")
        for name in ("image_pad", "video_pad", "vision_start", "vision_end")
    }
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 8192,
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 320,
            "intermediate_size": 864,
            "num_heads": 5,
            "out_hidden_size": 512,
            "fullatt_block_indexes": [2],
            "window_size": 112,
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=True,
    )
    return Qwen2_5_VLForConditionalGeneration(config).to(torch.bfloat16)


class PairCollator:
    """Chosen answers in the first half of a batch, rejected ones in the second; only answers are learned."""

    def __init__(self, processor):
        self.processor = processor

    def __call__(self, rows):
        texts, images = [], []
        for key in ("chosen", "rejected"):
            for row in rows:
                content = [{"type": "image"}, {"type": "text", "text": row["prompt"][0]["content"]}]
                messages = [{"role": "user", "content": content}, *row[key]]
                texts.append(self.processor.apply_chat_template(messages, tokenize=False))
                images.append(row["images"])
        batch = self.processor(
            text=texts, images=images, padding=True, padding_side="right", return_tensors="pt"
        )
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        answer = self.processor.tokenizer.convert_tokens_to_ids("<|im_start|>")
        for i, ids in enumerate(batch["input_ids"]):
            labels[i, : (ids == answer).nonzero()[-1].item() + 3] = -100
        batch["labels"] = labels
        return batch


def answer_log_probs(model, batch):
    labels = batch["labels"][:, 1:]
    features = {key: value for key, value in batch.items() if key != "labels"}
    logits = model(**features, use_cache=False).logits[:, :-1].float()
    token_log_probs = logits.log_softmax(-1).gather(2, labels.clamp(min=0)[..., None]).squeeze(-1)
    return (token_log_probs * (labels != -100)).sum(-1)


def dpo_loss(policy, reference, beta):
    chosen, rejected = (beta * (policy - reference)).chunk(2)
    return -F.logsigmoid(chosen - rejected).mean(), (chosen > rejected).float().mean()


def main(beta=0.1, max_steps=4):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(17)
    train, held_out = preferences(32, seed=1), preferences(2, seed=2)
    processor = build_processor(
        [m["content"] for k in ("prompt", "chosen", "rejected") for row in train[k] for m in row]
    )
    model = build_model(processor.tokenizer)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    lora = LoraConfig(
        r=32,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=r".*language_model.*\.(q|k|v|o|gate|up|down)_proj",
    )
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)

    collator = PairCollator(processor)
    loader = DataLoader(train, batch_size=2, shuffle=True, collate_fn=collator)
    held_out_loader = DataLoader(held_out, batch_size=2, collate_fn=collator)
    optimizer = torch.optim.RMSprop([p for p in model.parameters() if p.requires_grad], lr=5e-6)
    scheduler = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=2)
    model, optimizer, loader, held_out_loader, scheduler = accelerator.prepare(
        model, optimizer, loader, held_out_loader, scheduler
    )

    step = 0
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            with torch.no_grad(), accelerator.unwrap_model(model).disable_adapter():
                reference = answer_log_probs(model, batch)
            policy = answer_log_probs(model, batch)
            loss, accuracy = dpo_loss(policy, reference, beta)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        step += 1
        accelerator.print(f"step {step} loss {loss.item():.4f} accuracy {accuracy.item():.2f}")
        if step % 2 == 0:
            model.eval()
            wins = []
            for held in held_out_loader:
                tell(inputs=held)
                with torch.no_grad():
                    held_policy = answer_log_probs(model, held)
                    with accelerator.unwrap_model(model).disable_adapter():
                        held_reference = answer_log_probs(model, held)
                wins.append(dpo_loss(held_policy, held_reference, beta)[1].item())
            accelerator.print(f"held out {sum(wins) / len(wins):.2f}")
            model.train()
        end_of_step(inputs=batch, activations=[policy, loss])
        if step == max_steps:
            break
    accelerator.unwrap_model(model).save_pretrained("dpo-vlm")


if __name__ == "__main__":
    main()
