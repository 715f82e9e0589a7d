"""A telephone hotline of a city council answers callers in small batches: Whisper writes down the question, BERT finds passages, a cross-encoder ranks them, Qwen3 words the answer and VITS speaks it."""

import asyncio
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from programs import end_of_step, tell
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    VitsConfig,
    VitsModel,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    logging,
)

logging.set_verbosity_error()

DEVICE = torch.device("cuda")
RATE = 16_000
SUBJECTS = (
    "waste collection street parking resident permit passport appointment school enrolment library swimming pool "
    "building permission dog tax noise complaint street lamp pothole recycling yard wedding registry election card"
).split()
torch.manual_seed(29)


def passages(count):
    draw = np.random.default_rng(1)
    for number in range(count):
        a, b, c = draw.choice(SUBJECTS, 3)
        yield (
            f"Section {number}: for the {a} of the {b} please come to the office on the second floor with your {c} "
            f"and a proof of address; the fee is {number % 90} euros and it takes {number % 14} days."
        )


def vectors_of_last_night(count):
    vectors = np.random.default_rng(2).normal(size=(count, 384)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(
        vocab_size=4000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def told_cache(module, arguments, output):
    """The keys and values that a decoder has just grown."""
    cache = output.cache
    parts = (
        [cache.self_attention_cache, cache.cross_attention_cache]
        if hasattr(cache, "self_attention_cache")
        else [cache]
    )
    tell(caches=[[layer.keys, layer.values] for part in parts for layer in part.layers])


@dataclass
class Call:
    caller: str
    audio: np.ndarray
    answer: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    started: float = field(default_factory=time.perf_counter)


class Hotline:
    def __init__(self, texts, vectors):
        self.texts = texts
        self.tokenizer = make_tokenizer(texts)
        words = len(self.tokenizer)

        self.features = WhisperFeatureExtractor(feature_size=80, chunk_length=10)
        self.listener = WhisperForConditionalGeneration(
            WhisperConfig(
                vocab_size=words,
                d_model=256,
                encoder_layers=3,
                decoder_layers=3,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=1024,
                decoder_ffn_dim=1024,
                max_source_positions=500,
                max_target_positions=64,
                pad_token_id=0,
                bos_token_id=2,
                eos_token_id=3,
                decoder_start_token_id=2,
                suppress_tokens=[],
                begin_suppress_tokens=[],
            )
        )
        self.listener.generation_config = GenerationConfig(
            decoder_start_token_id=2, pad_token_id=0, eos_token_id=3, max_new_tokens=14, min_new_tokens=8
        )
        self.embedder = BertModel(
            BertConfig(
                vocab_size=words,
                hidden_size=384,
                num_hidden_layers=3,
                num_attention_heads=6,
                intermediate_size=1536,
            ),
            add_pooling_layer=False,
        )
        self.ranker = BertForSequenceClassification(
            BertConfig(
                vocab_size=words,
                hidden_size=256,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=1024,
                num_labels=1,
            )
        )
        self.writer = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=words,
                hidden_size=512,
                intermediate_size=1408,
                num_hidden_layers=4,
                num_attention_heads=8,
                num_key_value_heads=4,
                head_dim=64,
                pad_token_id=0,
                eos_token_id=3,
                tie_word_embeddings=True,
            )
        )
        self.speaker = VitsModel(
            VitsConfig(
                vocab_size=64,
                num_hidden_layers=3,
                use_stochastic_duration_prediction=False,
                upsample_initial_channel=128,
                prior_encoder_num_flows=2,
                posterior_encoder_num_wavenet_layers=8,
            )
        )
        for model in (self.listener, self.embedder, self.ranker, self.writer):
            model.to(DEVICE, dtype=torch.bfloat16).eval()
        self.speaker.to(DEVICE).eval()
        self.listener.model.decoder.register_forward_hook(told_cache)
        self.writer.model.register_forward_hook(told_cache)
        self.index = torch.from_numpy(vectors).to(DEVICE, torch.bfloat16)

    @torch.inference_mode()
    def embed(self, texts):
        batch = self.tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt").to(
            DEVICE
        )
        tell(inputs=dict(batch))
        hidden = self.embedder(**batch).last_hidden_state[:, 0]
        return torch.nn.functional.normalize(hidden.float(), dim=-1).to(torch.bfloat16)

    @torch.inference_mode()
    def transcribe(self, recordings):
        batch = self.features(recordings, sampling_rate=RATE, return_tensors="pt")
        mel = batch.input_features.to(DEVICE, dtype=torch.bfloat16)
        tell(inputs=mel)
        ids = self.listener.generate(mel, do_sample=False)
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True)

    @torch.inference_mode()
    def search(self, questions, found=12, kept=5):
        scores = self.embed(questions) @ self.index.T
        candidates = scores.topk(found, dim=-1).indices.tolist()
        pairs = [(question, self.texts[i]) for question, row in zip(questions, candidates) for i in row]
        batch = self.tokenizer(
            [a for a, _ in pairs],
            [b for _, b in pairs],
            padding=True,
            truncation="only_second",
            max_length=96,
            return_token_type_ids=True,
            return_tensors="pt",
        ).to(DEVICE)
        tell(inputs=dict(batch))
        relevance = self.ranker(**batch).logits.view(len(questions), found)
        best = relevance.topk(kept, dim=-1).indices.tolist()
        return [[self.texts[row[j]] for j in order] for row, order in zip(candidates, best)]

    @torch.inference_mode()
    def write(self, questions, contexts):
        prompts = [
            " ".join(context) + " Question: " + question for question, context in zip(questions, contexts)
        ]
        batch = self.tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt").to(DEVICE)
        tell(inputs=dict(batch))
        ids = self.writer.generate(
            **batch, max_new_tokens=16, min_new_tokens=10, do_sample=True, temperature=0.7, top_p=0.9
        )
        return self.tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)

    @torch.inference_mode()
    def speak(self, text):
        letters = torch.tensor([[ord(letter) % 64 for letter in text[:90]]], device=DEVICE)
        tell(inputs=letters)
        wave = self.speaker(letters).waveform[0]
        return wave.clamp(-1, 1).mul(32767).to(torch.int16).cpu().numpy()

    def answer(self, recordings):
        questions = self.transcribe(recordings)
        contexts = self.search(questions)
        answers = self.write(questions, contexts)
        return [(question, text, self.speak(text)) for question, text in zip(questions, answers)]


async def worker(hotline, queue, most=3, patience=0.05):
    """Takes calls from the queue, as many as come within the patience, and answers them together."""
    while (first := await queue.get()) is not None:
        calls = [first]
        try:
            while len(calls) < most:
                calls.append(await asyncio.wait_for(queue.get(), patience))
        except asyncio.TimeoutError:
            pass
        for call, answer in zip(calls, hotline.answer([call.audio for call in calls])):
            call.answer.set_result(answer)
        end_of_step(inputs=hotline.index)


async def caller(name, queue, delay, draw):
    await asyncio.sleep(delay)
    call = Call(name, draw.normal(0, 0.1, int(draw.uniform(3, 9) * RATE)).astype(np.float32))
    await queue.put(call)
    question, text, wave = await call.answer
    print(f"{name}: {len(question)} letters asked, {len(wave) / RATE:.1f} s answered", flush=True)


async def main():
    hotline = Hotline(list(passages(6000)), vectors_of_last_night(6000))
    queue = asyncio.Queue()
    draw = np.random.default_rng(8)

    async def day():
        await asyncio.gather(*(caller(f"line {i}", queue, 0.02 * (i // 3), draw) for i in range(12)))
        await queue.put(None)

    await asyncio.gather(worker(hotline, queue), day())


asyncio.run(main())
