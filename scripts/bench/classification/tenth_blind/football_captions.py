"""A BLIP-2 learns to describe pictures of football players: all frozen in bfloat16 but for LoRA on its OPT, a Q-Former between, a plain loop, a caption written now and then."""

import torch
from peft import LoraConfig, get_peft_model
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2QFormerConfig,
    Blip2VisionConfig,
    OPTConfig,
)

IMAGE_SIZE, PATCH, N_QUERIES = 112, 14, 16
VOCABULARY, PAD, EOS, IMAGE_TOKEN = 16000, 1, 2, 15999

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1004)

config = Blip2Config(
    vision_config=Blip2VisionConfig(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=5,
        num_attention_heads=4,
        image_size=IMAGE_SIZE,
        patch_size=PATCH,
        initializer_range=0.02,
    ).to_dict(),
    qformer_config=Blip2QFormerConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        encoder_hidden_size=256,
    ).to_dict(),
    text_config=OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        word_embed_proj_dim=384,
        ffn_dim=1536,
        num_hidden_layers=5,
        num_attention_heads=6,
        max_position_embeddings=256,
        pad_token_id=PAD,
        bos_token_id=EOS,
        eos_token_id=EOS,
    ).to_dict(),
    num_query_tokens=N_QUERIES,
    image_token_index=IMAGE_TOKEN,
)
model = Blip2ForConditionalGeneration(config).to(device, torch.bfloat16)

lora = LoraConfig(
    r=16,
    lora_alpha=32,
    lora_dropout=0.05,
    bias="none",
    target_modules=r".*language_model.*\.(q_proj|k_proj|v_proj|out_proj)",
)
model = get_peft_model(model, lora)
model.print_trainable_parameters()


class ImageCaptioningDataset(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(4)
        self.images = torch.randint(256, (n, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=torch.uint8, generator=g)
        lengths = torch.randint(6, 24, (n,), generator=g).tolist()
        self.texts = [torch.randint(5, IMAGE_TOKEN, (k,), generator=g) for k in lengths]
        self.mean = torch.tensor([0.481, 0.458, 0.408]).view(3, 1, 1)
        self.std = torch.tensor([0.269, 0.261, 0.276]).view(3, 1, 1)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, idx):
        pixel_values = (self.images[idx].float() / 255 - self.mean) / self.std
        return {"pixel_values": pixel_values, "text": self.texts[idx]}


def collator(batch):
    """Places for what the queries saw come before the caption."""
    texts = []
    for example in batch:
        queries = torch.full((N_QUERIES,), IMAGE_TOKEN)
        texts.append(torch.cat([queries, torch.tensor([EOS]), example["text"], torch.tensor([EOS])]))
    input_ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)
    return {
        "pixel_values": torch.stack([example["pixel_values"] for example in batch]),
        "input_ids": input_ids,
        "attention_mask": (input_ids != PAD).long(),
    }


def tell_of_cache(cache):
    if cache is not None:
        tell(caches=[(layer.keys, layer.values) for layer in cache.layers if layer.keys is not None])


def write_caption(example):
    """What the model says of one picture, token by token."""
    model.eval()
    language_model = model.base_model.model.language_model
    hook = language_model.register_forward_hook(lambda _, args, out: tell_of_cache(out.past_key_values))
    pixel_values = example["pixel_values"].unsqueeze(0).to(device, torch.bfloat16)
    generated_ids = model.generate(
        pixel_values=pixel_values,
        input_ids=torch.tensor([[IMAGE_TOKEN] * N_QUERIES + [EOS]], device=device),
        max_new_tokens=8,
        do_sample=False,
    )
    hook.remove()
    model.train()
    return generated_ids[0].tolist()


train_dataset = ImageCaptioningDataset(12)
train_dataloader = DataLoader(train_dataset, shuffle=True, batch_size=3, collate_fn=collator)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)

model.train()
for epoch in range(3):
    print("Epoch:", epoch)
    for idx, batch in enumerate(train_dataloader):
        input_ids = batch.pop("input_ids").to(device)
        attention_mask = batch.pop("attention_mask").to(device)
        pixel_values = batch.pop("pixel_values").to(device, torch.bfloat16)

        labels = input_ids.masked_fill((input_ids == PAD) | (input_ids == IMAGE_TOKEN), -100)
        outputs = model(
            input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values, labels=labels
        )
        loss = outputs.loss
        print("Loss:", loss.item())

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        end_of_step(
            inputs=[input_ids, attention_mask, pixel_values, labels],
            activations=[loss, list(outputs.values())],
        )
        if idx == 1:
            print("Caption:", write_caption(train_dataset[0]))
