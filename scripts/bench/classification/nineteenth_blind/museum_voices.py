"""A museum guide on visitors' phones, served in small batches in bfloat16: SigLIP finds the photographed exhibit, wav2vec 2.0 writes down the question, T5 answers it from the exhibit's texts and SpeechT5 with HiFi-GAN speaks the answer."""

import torch
from programs import end_of_step, tell
from torch import nn
from transformers import (
    SiglipVisionConfig,
    SiglipVisionModel,
    SpeechT5Config,
    SpeechT5ForTextToSpeech,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
    T5Config,
    T5ForConditionalGeneration,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
)

device, dtype = "cuda", torch.bfloat16
LETTERS = "_|abcdefghijklmnopqrstuvwxyz'?.,"
WORDS = 12000
EXHIBITS, PASSAGES = 4000, 3


def keys_and_values(cache):
    """The tensors of a decoder's cache, for its own and for the encoder's states."""
    if cache is None:
        return []
    parts = (
        [cache.self_attention_cache, cache.cross_attention_cache]
        if hasattr(cache, "self_attention_cache")
        else [cache]
    )
    return [[layer.keys, layer.values] for part in parts for layer in part.layers if layer.keys is not None]


def told(module, arguments, output):
    tell(caches=keys_and_values(output.cache))


class Guide:
    def __init__(self):
        self.eyes = SiglipVisionModel(
            SiglipVisionConfig(
                hidden_size=384,
                intermediate_size=1536,
                num_hidden_layers=4,
                num_attention_heads=6,
                image_size=224,
                patch_size=16,
            )
        )
        self.ears = Wav2Vec2ForCTC(
            Wav2Vec2Config(
                vocab_size=len(LETTERS),
                hidden_size=256,
                intermediate_size=1024,
                num_hidden_layers=6,
                num_attention_heads=4,
                conv_dim=(128,) * 7,
                num_conv_pos_embeddings=64,
            )
        )
        self.scholar = T5ForConditionalGeneration(
            T5Config(
                vocab_size=WORDS,
                d_model=384,
                d_kv=64,
                d_ff=1024,
                num_layers=4,
                num_decoder_layers=4,
                num_heads=6,
                feed_forward_proj="gated-gelu",
                tie_word_embeddings=False,
                initializer_factor=0.1,
                decoder_start_token_id=0,
            )
        )
        self.mouth = SpeechT5ForTextToSpeech(
            SpeechT5Config(
                vocab_size=len(LETTERS),
                hidden_size=256,
                encoder_layers=4,
                decoder_layers=4,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=1024,
                decoder_ffn_dim=1024,
                speech_decoder_prenet_units=128,
            )
        )
        self.vocoder = SpeechT5HifiGan(SpeechT5HifiGanConfig(upsample_initial_channel=128))
        for model in (self.eyes, self.ears, self.scholar, self.mouth, self.vocoder):
            model.to(device=device, dtype=dtype).eval()
        self.scholar.register_forward_hook(told)
        self.mouth.speecht5.decoder.wrapped_decoder.register_forward_hook(told)

        self.gallery = nn.functional.normalize(torch.randn(EXHIBITS, 384), dim=-1).to(device, dtype)
        self.passages = torch.randint(2, WORDS, (EXHIBITS, PASSAGES, 48))
        self.voice = nn.functional.normalize(torch.randn(1, 512), dim=-1).to(device, dtype)

    def exhibits(self, photos):
        seen = nn.functional.normalize(self.eyes(pixel_values=photos).pooler_output, dim=-1)
        scores, best = (seen @ self.gallery.T).topk(3, dim=-1)
        return best.tolist(), scores.float().tolist()

    def written(self, waves):
        waves = (waves - waves.mean(-1, keepdim=True)) / (waves.std(-1, keepdim=True) + 1e-6)
        letters = self.ears(waves).logits.argmax(-1).tolist()
        texts = []
        for line in letters:
            kept = [a for a, b in zip(line, [None] + line) if a != b and a != 0]
            texts.append("".join(LETTERS[n] for n in kept).replace("|", " "))
        return texts

    def answers(self, questions, found):
        rows = []
        for question, best in zip(questions, found):
            words = [2 + sum(map(ord, w)) * 31 % (WORDS - 2) for w in question.split()][:24]
            rows.append(
                torch.cat(
                    [
                        torch.tensor(words, dtype=torch.long),
                        self.passages[best[0]].flatten(),
                        torch.tensor([1]),
                    ]
                )
            )
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
        mask = (ids != 0).long()
        tell(inputs=[ids, mask])
        answer = self.scholar.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=12,
            do_sample=True,
            top_p=0.9,
            suppress_tokens=[0],
        )
        return [[n for n in line if n > 1] for line in answer.tolist()]

    def spoken(self, answers):
        lines = [
            torch.tensor([2 + n % (len(LETTERS) - 2) for n in words for _ in range(3)]) for words in answers
        ]
        ids = nn.utils.rnn.pad_sequence(lines, batch_first=True, padding_value=1).to(device)
        mask = (ids != 1).long()
        tell(inputs=[ids, mask])
        waves, lengths = self.mouth.generate_speech(
            ids,
            self.voice.expand(len(ids), -1),
            attention_mask=mask,
            vocoder=self.vocoder,
            threshold=0.5,
            minlenratio=0.6,
            maxlenratio=1.2,
            return_output_lengths=True,
        )
        waves = waves.float().cpu()
        return [wave[:length].numpy() for wave, length in zip(waves, lengths)]


def waiting_visitors(n, rng):
    photos = torch.randint(0, 256, (n, 3, 224, 224), generator=rng, dtype=torch.uint8)
    seconds = 3 + int(torch.randint(0, 3, (1,), generator=rng))
    return photos, 0.1 * torch.randn(n, 16000 * seconds, generator=rng)


@torch.inference_mode()
def main():
    torch.manual_seed(2)
    rng = torch.Generator().manual_seed(4)
    guide = Guide()
    for size in [4, 6, 3, 5]:
        photos, waves = waiting_visitors(size, rng)
        photos = photos.to(device).to(dtype).div_(127.5).sub_(1)
        waves = waves.to(device, dtype)
        found, scores = guide.exhibits(photos)
        questions = guide.written(waves)
        answers = guide.answers(questions, found)
        sounds = guide.spoken(answers)
        print(f"{size} visitors, {sum(map(len, sounds)) / 16000:.1f} s of speech")
        end_of_step(inputs=[photos, waves, guide.gallery, guide.voice])


if __name__ == "__main__":
    main()
