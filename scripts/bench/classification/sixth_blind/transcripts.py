"""A Whisper writes down what is said, recording after recording: half precision, beams, spectra made on the device."""

import torch
from programs import end_of_step, tell
from transformers import WhisperConfig, WhisperForConditionalGeneration

N_MELS, RATE, SECONDS, VOCABULARY = 80, 16000, 10, 12000
START, END, NO_TIMESTAMPS, ENGLISH, TRANSCRIBE = 11001, 11000, 11005, 11002, 11003


def build_model():
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=N_MELS,
        d_model=256,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        max_source_positions=SECONDS * 50,
        max_target_positions=128,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=START,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    generation = model.generation_config
    generation.no_timestamps_token_id = NO_TIMESTAMPS
    generation.is_multilingual = True
    generation.lang_to_id = {"<|en|>": ENGLISH}
    generation.task_to_id = {"transcribe": TRANSCRIBE}
    generation.max_length = 128
    return model


class LogMel:
    """Spectra of a batch of sound on the device, as the feature extractor of Whisper makes them."""

    def __init__(self, device, n_fft=400, hop=160):
        self.n_fft, self.hop = n_fft, hop
        self.window = torch.hann_window(n_fft, device=device)
        self.filters = torch.rand(N_MELS, n_fft // 2 + 1, device=device) / 100

    def __call__(self, sound):
        spectrum = torch.stft(sound, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spectrum[..., :-1].abs() ** 2
        log_spec = (self.filters @ power).clamp(min=1e-10).log10()
        log_spec = torch.maximum(log_spec, log_spec.amax(dim=(1, 2), keepdim=True) - 8.0)
        return (log_spec + 4.0) / 4.0


def tell_of_cache(cache):
    """Keys and values that generate holds, which are gone when it returns."""
    if cache is not None:
        parts = (cache.self_attention_cache, cache.cross_attention_cache)
        tell(
            caches=[
                (layer.keys, layer.values)
                for part in parts
                for layer in part.layers
                if layer.keys is not None
            ]
        )


def main(n_recordings=20, batch_size=4):
    torch.manual_seed(216)
    device, dtype = "cuda:0", torch.float16
    model = build_model().to(device, dtype).eval()
    model.register_forward_pre_hook(
        lambda _, args, kwargs: tell_of_cache(kwargs.get("past_key_values")), with_kwargs=True
    )
    model.register_forward_hook(lambda _, args, output: tell_of_cache(output.past_key_values))
    features = LogMel(device)
    texts = []
    for start in range(0, n_recordings, batch_size):
        sound = torch.randn(batch_size, SECONDS * RATE).to(device) * 0.1
        input_features = features(sound).to(dtype)
        predicted_ids = model.generate(
            input_features, language="en", task="transcribe", num_beams=4, max_new_tokens=16
        )
        texts += predicted_ids.cpu().tolist()
        print(f"recording {start}: {len(texts)} texts of {predicted_ids.shape[1]} tokens")
        end_of_step(inputs=[sound, input_features, predicted_ids, features.window, features.filters])


if __name__ == "__main__":
    main()
