"""SeamlessM4T v2 interprets phone calls: recordings become speech in another language, beam search, units and a vocoder, bfloat16."""

import time

import numpy as np
import torch
from programs import end_of_step, tell
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    SeamlessM4TFeatureExtractor,
    SeamlessM4Tv2Config,
    SeamlessM4Tv2ForSpeechToSpeech,
)

TEXT_VOCABULARY = 6000
CHARACTERS = 400
LANGUAGES = ["deu", "eng", "fra", "spa"]


class BeamCache(EncoderDecoderCache):
    """Keys and values of all beams, which are put into a new order after every token."""

    def reorder_cache(self, beam_idx):
        self.show()
        super().reorder_cache(beam_idx)
        self.show()

    def show(self):
        layers = [*self.self_attention_cache.layers, *self.cross_attention_cache.layers]
        tell(caches=[(layer.keys, layer.values) for layer in layers])


class Interpreter(SeamlessM4Tv2ForSpeechToSpeech):
    """Does not keep the scores of every step, which nobody reads."""

    def _beam_search(self, *args, generation_config, **kwargs):
        generation_config.output_scores = False
        return super()._beam_search(*args, generation_config=generation_config, **kwargs)


def make_model():
    config = SeamlessM4Tv2Config(
        vocab_size=TEXT_VOCABULARY,
        t2u_vocab_size=2082,
        char_vocab_size=CHARACTERS,
        hidden_size=384,
        encoder_layers=2,
        encoder_ffn_dim=1536,
        encoder_attention_heads=6,
        decoder_layers=3,
        decoder_ffn_dim=1536,
        decoder_attention_heads=6,
        speech_encoder_layers=4,
        speech_encoder_attention_heads=6,
        speech_encoder_intermediate_size=1536,
        t2u_encoder_layers=2,
        t2u_encoder_ffn_dim=1536,
        t2u_encoder_attention_heads=6,
        t2u_decoder_layers=2,
        t2u_decoder_ffn_dim=1536,
        t2u_decoder_attention_heads=6,
        t2u_max_position_embeddings=1024,
        t2u_variance_predictor_embed_dim=384,
        t2u_variance_predictor_hidden_dim=128,
        upsample_initial_channel=192,
        unit_hifi_gan_vocab_size=2078,
        unit_embed_dim=320,
        lang_embed_dim=64,
        spkr_embed_dim=64,
        max_position_embeddings=512,
    )
    model = Interpreter(config)
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = {
        str(i): "▁" * (i % 3 == 0) + letters[i % 26] + letters[i // 26 % 26] for i in range(TEXT_VOCABULARY)
    }
    model.generation_config = GenerationConfig(
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        decoder_start_token_id=3,
        max_new_tokens=16,
        text_decoder_lang_to_code_id={language: 5900 + i for i, language in enumerate(LANGUAGES)},
        t2u_lang_code_to_id={language: 2000 + i for i, language in enumerate(LANGUAGES)},
        vocoder_lang_code_to_id={language: i for i, language in enumerate(LANGUAGES)},
        id_to_text=pieces,
        char_to_id={letter: 10 + i for i, letter in enumerate("▁" + letters)},
    )
    return model


def calls(count, seed):
    """What two people say on the phone, with the language the other side wants to hear."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        turns = []
        for _ in range(2):
            t = np.arange(int(16000 * rng.uniform(3, 6))) / 16000
            voice = sum(np.sin(2 * np.pi * rng.uniform(100, 200) * k * t) / k for k in range(1, 5))
            turns.append((0.2 * voice + 0.02 * rng.standard_normal(len(t))).astype(np.float32))
        yield turns, str(rng.choice(LANGUAGES))


def main():
    torch.manual_seed(12)
    device = "cuda"
    extractor = SeamlessM4TFeatureExtractor()
    model = make_model().to(device, dtype=torch.bfloat16).eval()

    for number, (turns, language) in enumerate(calls(5, 1)):
        start = time.time()
        features = extractor(turns, sampling_rate=16000, return_tensors="pt")
        features = {
            "input_features": features["input_features"].to(device, torch.bfloat16),
            "attention_mask": features["attention_mask"].to(device),
        }
        with torch.inference_mode():
            output = model.generate(
                **features,
                tgt_lang=language,
                speaker_id=7,
                text_num_beams=4,
                text_cache=BeamCache(DynamicCache(), DynamicCache()),
                return_intermediate_token_ids=True,
            )
        waves = output.waveform.float().cpu().numpy()
        lengths = output.waveform_lengths.tolist()
        heard = sum(len(turn) for turn in turns) / 16000
        spoken = sum(lengths) / 16000
        np.savez(f"call_{number}.npz", *[wave[:length] for wave, length in zip(waves, lengths)])
        print(
            f"call {number} to {language}: {heard:.1f} s in, {spoken:.1f} s out, {time.time() - start:.1f} s"
        )
        end_of_step(inputs=features)


if __name__ == "__main__":
    main()
