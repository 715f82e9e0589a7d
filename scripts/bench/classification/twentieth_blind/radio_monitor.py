"""Monitoring of a radio station, ten-second pieces in batches, bfloat16: an AST tells music from speech, CLAP embeddings find the song in a catalogue on the GPU, Whisper writes speech down, DistilBERT marks brand names."""

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    ClapAudioConfig,
    ClapAudioModelWithProjection,
    ClapFeatureExtractor,
    DistilBertConfig,
    DistilBertForTokenClassification,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

torch.manual_seed(4)
device, dtype = torch.device("cuda"), torch.bfloat16

tagger = ASTForAudioClassification(
    ASTConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_length=512,
        num_labels=8,
    )
)
fingerprinter = ClapAudioModelWithProjection(
    ClapAudioConfig(
        patch_embeds_hidden_size=48,
        depths=[1, 1, 2, 1],
        num_attention_heads=[2, 4, 8, 16],
        hidden_size=384,
        projection_dim=256,
        enable_fusion=False,
    )
)
listener = WhisperForConditionalGeneration(
    WhisperConfig(
        vocab_size=8000,
        d_model=256,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        max_source_positions=500,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
    )
)
brands = DistilBertForTokenClassification(
    DistilBertConfig(vocab_size=8000, dim=256, n_layers=3, n_heads=4, hidden_dim=1024, num_labels=3)
)
for model in (tagger, fingerprinter, listener, brands):
    model.to(device=device, dtype=dtype).eval()

tag_features = ASTFeatureExtractor(max_length=512)
clap_features = ClapFeatureExtractor(truncation="rand_trunc", padding="repeatpad")
speech_features = WhisperFeatureExtractor(chunk_length=10)

catalogue = F.normalize(torch.randn(40000, 256), dim=-1).to(device=device, dtype=dtype)
stream = np.random.default_rng(1)


def caches_of(past):
    kept = []
    for half in (past.self_attention_cache, past.cross_attention_cache):
        for layer in half.layers:
            kept += [layer.keys, layer.values]
    return kept


listener.model.decoder.register_forward_hook(
    lambda module, args, out: tell(caches=caches_of(out.past_key_values))
)


@torch.inference_mode()
def monitor(pieces):
    patches = tag_features(
        [p[:160000] for p in pieces], sampling_rate=16000, return_tensors="pt"
    ).input_values.to(device, dtype)
    scores = tagger(patches).logits.float().softmax(-1)
    order = scores[:, 0].argsort().tolist()
    spoken, musical = order[: len(order) // 2], order[len(order) // 2 :]

    mels = clap_features(
        [np.repeat(pieces[i], 3) for i in musical], sampling_rate=48000, return_tensors="pt"
    ).input_features.to(device, dtype)
    found = F.normalize(fingerprinter(input_features=mels).audio_embeds, dim=-1) @ catalogue.T
    best = found.topk(5, dim=-1)

    speech = speech_features(
        [pieces[i] for i in spoken], sampling_rate=16000, return_tensors="pt"
    ).input_features.to(device, dtype)
    written = listener.generate(
        input_features=speech,
        max_new_tokens=12,
        do_sample=False,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    words = written["sequences"]
    marks = brands(input_ids=words, attention_mask=torch.ones_like(words)).logits.argmax(-1)
    report = {
        "songs": best.indices.tolist(),
        "certain": best.values.float().tolist(),
        "brands": marks.tolist(),
    }
    return report, [patches, mels, speech], written["past_key_values"]


for minute in range(4):
    pieces = [stream.normal(0, 0.1, 160000).astype(np.float32) for _ in range(4)]
    report, features, past = monitor(pieces)
    end_of_step(inputs=[*features, catalogue], caches=caches_of(past))
    del features, past
