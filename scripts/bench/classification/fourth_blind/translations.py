"""A Marian in half precision translates sentences, batch by batch, by a beam search of one's own."""

import torch
from programs import end_of_step, tell
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache, MarianConfig, MarianMTModel

PADDING, END, N_BEAMS = 5999, 0, 4

torch.manual_seed(96)
device = "cuda"
config = MarianConfig(
    vocab_size=6000,
    d_model=256,
    encoder_layers=6,
    decoder_layers=6,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=1024,
    decoder_ffn_dim=1024,
    max_position_embeddings=192,
    pad_token_id=PADDING,
    eos_token_id=END,
    decoder_start_token_id=PADDING,
)
model = MarianMTModel(config).half().to(device).eval()


def keys_and_values(cache):
    parts = (cache.self_attention_cache, cache.cross_attention_cache)
    return [(layer.keys, layer.values) for part in parts for layer in part.layers]


def best_beams(logits, scores):
    """Which beams go on with which words; those that have ended go on all the same."""
    log_probs = torch.log_softmax(logits[:, -1].float(), dim=-1)
    log_probs[:, PADDING] = float("-inf")
    totals = (scores.view(-1, 1) + log_probs).view(len(scores), -1)
    scores, places = totals.topk(N_BEAMS, dim=1)
    rows = torch.arange(len(scores), device=scores.device)[:, None] * N_BEAMS
    return scores, (rows + places // config.vocab_size).flatten(), (places % config.vocab_size).flatten()


@torch.inference_mode()
def translate(sentences, longest=16):
    input_ids = pad_sequence(sentences, batch_first=True, padding_value=PADDING).to(device)
    input_ids = input_ids.repeat_interleave(N_BEAMS, dim=0)
    mask = input_ids.ne(PADDING).long()
    encoded = model.get_encoder()(input_ids=input_ids, attention_mask=mask)
    cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
    scores = torch.full((len(sentences), N_BEAMS), float("-inf"), device=device)
    scores[:, 0] = 0
    written = torch.full((len(input_ids), 1), PADDING, device=device)
    for _ in range(longest):
        outputs = model(
            encoder_outputs=encoded,
            attention_mask=mask,
            decoder_input_ids=written[:, -1:],
            past_key_values=cache,
            use_cache=True,
        )
        tell(
            inputs=[input_ids, mask],
            activations=[encoded.last_hidden_state, outputs.logits],
            caches=keys_and_values(cache),
        )
        scores, beams, words = best_beams(outputs.logits, scores)
        written = torch.cat([written[beams], words[:, None]], dim=1)
        cache.reorder_cache(beams)
        tell(caches=keys_and_values(cache))
    return written.view(len(sentences), N_BEAMS, -1)[:, 0, 1:]


sentences = [torch.randint(1, 5999, (int(n),)) for n in torch.randint(30, 120, (40,))]
sentences.sort(key=len, reverse=True)
for start in range(0, len(sentences), 8):
    best = translate(sentences[start : start + 8])
    for words in best.tolist():
        print(" ".join(map(str, words[: words.index(END)] if END in words else words)))
    end_of_step(activations=[best])
