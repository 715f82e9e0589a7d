"""Live subtitles of a broadcast: an Emformer RNN-T of torchaudio reads segments of 160 ms as they arrive, beam search, the left context carried on."""

import torch
import torchaudio
from programs import end_of_step, tell
from torchaudio.models import RNNTBeamSearch, emformer_rnnt_model

torch.manual_seed(3)
device = torch.device("cuda")

SAMPLE_RATE, HOP, SEGMENT, RIGHT = 16000, 160, 16, 4
BLANK, BEAM, SEGMENTS_PER_LINE = 1024, 5, 6

model = emformer_rnnt_model(
    input_dim=80,
    encoding_dim=512,
    num_symbols=BLANK + 1,
    segment_length=SEGMENT,
    right_context_length=RIGHT,
    time_reduction_input_dim=128,
    time_reduction_stride=4,
    transformer_num_heads=8,
    transformer_ffn_dim=1536,
    transformer_num_layers=8,
    transformer_dropout=0.1,
    transformer_activation="gelu",
    transformer_left_context_length=30,
    transformer_max_memory_size=0,
    transformer_weight_init_scale_strategy="depthwise",
    transformer_tanh_on_mem=True,
    symbol_embedding_dim=384,
    num_lstm_layers=2,
    lstm_layer_norm=True,
    lstm_layer_norm_epsilon=1e-3,
    lstm_dropout=0.3,
)
decoder = RNNTBeamSearch(model, BLANK).to(device).eval()
mel = torchaudio.transforms.MelSpectrogram(SAMPLE_RATE, n_fft=400, n_mels=80, hop_length=HOP).to(device)


@torch.no_grad()
def features_of(samples):
    spectrogram = mel(samples).transpose(0, 1)
    return (torch.log(spectrogram * 32767 + 1e-6) - 12.0) / 4.0


def broadcast():
    """Chunks of samples as a sound card delivers them."""
    while True:
        yield torch.randn((SEGMENT + RIGHT) * HOP - HOP) * 0.1


state, hypotheses = None, None
sound = broadcast()
with torch.inference_mode():
    for line in range(4):
        for _ in range(SEGMENTS_PER_LINE):
            samples = next(sound).to(device, non_blocking=True)
            features = features_of(samples)
            length = torch.tensor([features.shape[0]], device=device)
            hypotheses, state = decoder.infer(features, length, BEAM, state=state, hypothesis=hypotheses)
            tell(inputs=[samples, length], caches=[layer[:3] for layer in state])
        tokens, _, _, score = hypotheses[0]
        print(f"line {line}: {len(tokens)} pieces, {score:.1f}")
        hypotheses = hypotheses[:1]
        end_of_step(inputs=[samples, length], caches=[layer[:3] for layer in state])
