"""Speech to letters: a Wav2Vec2 with CTC, its convolutions frozen, batches of different lengths."""

import torch
from programs import end_of_step
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

torch.manual_seed(35)
config = Wav2Vec2Config(
    vocab_size=32,
    hidden_size=192,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=768,
    conv_dim=(64, 64, 64, 64),
    conv_stride=(5, 4, 4, 4),
    conv_kernel=(10, 8, 4, 4),
    num_conv_pos_embeddings=32,
    num_conv_pos_embedding_groups=4,
    mask_time_prob=0.0,
    layerdrop=0.0,
)
model = Wav2Vec2ForCTC(config).to("cuda")
model.freeze_feature_encoder()
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, betas=(0.9, 0.98))
for step in range(5):
    sound = torch.randn(3, 16000 + 4000 * (step % 3)).to("cuda")
    letters = torch.randint(1, 32, (3, 18)).to("cuda")
    loss = model(input_values=sound, labels=letters).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    end_of_step(inputs=[sound, letters], activations=[loss])
