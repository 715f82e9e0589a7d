"""BEST-RQ pretraining of a Conformer on unlabelled speech: a SpeechBrain Brain, masked frames, a frozen random quantizer, bf16, AdamW with Noam's rate."""

from functools import partial

import numpy as np
import speechbrain as sb
import torch
from programs import end_of_step
from speechbrain.lobes.features import Fbank
from speechbrain.lobes.models.BESTRQ import brq_mask_collate_fn
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from speechbrain.lobes.models.transformer.TransformerASR import EncoderWrapper, TransformerASR
from speechbrain.nnet.linear import Linear
from speechbrain.nnet.quantisers import RandomProjectionQuantizer
from speechbrain.nnet.schedulers import NoamScheduler
from speechbrain.processing.features import InputNormalization
from torch.utils.data import DataLoader, Dataset

STACK = 4
MELS = 80
CODES = 1024


class Recordings(Dataset):
    def __init__(self, size, seed):
        rng = np.random.default_rng(seed)
        self.signals = []
        for _ in range(size):
            t = torch.arange(int(16000 * rng.uniform(4, 6))) / 16000
            wave = sum(torch.sin(2 * np.pi * rng.uniform(80, 220) * k * t) / k for k in range(1, 6))
            self.signals.append(0.1 * wave + 0.01 * torch.randn(len(t)))
        self.signals.sort(key=len)

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        return {"id": index, "sig": self.signals[index]}


def frames_of(samples):
    frames = samples // 160 + 1
    return torch.as_tensor(int(frames) // STACK * STACK)


class BestRQ(sb.Brain):
    def compute_forward(self, batch, stage):
        wavs, lengths, mask = (tensor.to(self.device) for tensor in batch)
        self.on_device = [wavs, lengths, mask]

        features = self.hparams.compute_features(wavs)
        features = self.modules.normalize(features, lengths, epoch=self.hparams.epoch_counter.current)
        rest = features.shape[1] % STACK
        if rest:
            features = torch.nn.functional.pad(features, (0, 0, 0, STACK - rest))
        size, time, mels = features.shape

        targets = self.modules.quantizer(features.view(size, time // STACK, mels * STACK).float())
        noise = torch.normal(mean=0.0, std=0.1, size=(size, mask.shape[0], mels), device=self.device)
        features[:, mask, :] = noise.to(features.dtype)

        hidden = self.modules.cnn(features)
        hidden = self.modules.encoder(hidden, lengths)
        logits = self.modules.linear(hidden)

        masked = mask[::STACK] // STACK
        logits = logits[:, masked, :]
        targets = targets[:, masked]
        return logits.flatten(0, 1), targets.flatten()

    def compute_objectives(self, predictions, batch, stage):
        logits, targets = predictions
        loss = torch.nn.functional.cross_entropy(logits, targets)
        if stage != sb.Stage.TRAIN:
            self.right.append((logits.argmax(-1) == targets).float().mean().item())
        return loss

    def on_fit_batch_end(self, batch, outputs, loss, should_step):
        if should_step:
            self.hparams.noam(self.optimizer)
            end_of_step(inputs=self.on_device, activations=[outputs[0], loss])

    def on_stage_start(self, stage, epoch):
        self.right = []

    def on_stage_end(self, stage, loss, epoch):
        if stage == sb.Stage.VALID:
            print(
                f"epoch {epoch}: loss {loss:.3f}, accuracy {np.mean(self.right):.3f}, rate {self.hparams.noam.current_lr:.2e}"
            )
            self.checkpointer.save_and_keep_only(meta={"loss": loss}, min_keys=["loss"])


def main():
    torch.manual_seed(3)
    width = 256
    cnn = ConvolutionFrontEnd(
        (None, None, MELS),
        num_blocks=2,
        num_layers_per_block=1,
        out_channels=(128, 32),
        kernel_sizes=(5, 5),
        strides=(2, 2),
        residuals=(False, False),
    )
    transformer = TransformerASR(
        tgt_vocab=1,
        input_size=640,
        d_model=width,
        nhead=4,
        num_encoder_layers=4,
        num_decoder_layers=0,
        d_ffn=1024,
        dropout=0.1,
        activation=torch.nn.GELU,
        conformer_activation=torch.nn.GELU,
        encoder_module="conformer",
        attention_type="RelPosMHAXL",
        normalize_before=True,
        causal=False,
    )
    modules = {
        "normalize": InputNormalization(norm_type="sentence"),
        "cnn": cnn,
        "encoder": EncoderWrapper(transformer),
        "quantizer": RandomProjectionQuantizer(MELS * STACK, cb_dim=16, cb_vocab=CODES),
        "linear": Linear(input_size=width, n_neurons=CODES),
    }
    epochs = sb.utils.epoch_loop.EpochCounter(limit=4)
    noam = NoamScheduler(lr_initial=8e-4, n_warmup_steps=200)
    trained = torch.nn.ModuleList([modules["cnn"], modules["encoder"], modules["linear"]])
    checkpointer = sb.utils.checkpoints.Checkpointer(
        "save", recoverables={"model": trained, "noam": noam, "counter": epochs}
    )
    brain = BestRQ(
        modules=modules,
        opt_class=partial(torch.optim.AdamW, lr=8e-4, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01),
        hparams={
            "compute_features": Fbank(sample_rate=16000, n_fft=512, n_mels=MELS, win_length=32),
            "noam": noam,
            "epoch_counter": epochs,
        },
        run_opts={
            "device": "cuda",
            "precision": "bf16",
            "eval_precision": "bf16",
            "grad_accumulation_factor": 2,
            "max_grad_norm": 5.0,
            "noprogressbar": True,
        },
        checkpointer=checkpointer,
    )
    collate = partial(
        brq_mask_collate_fn, get_out_len_fn=frames_of, mask_prob=0.15, mask_length=STACK, n_mels=MELS
    )
    train = DataLoader(Recordings(16, 1), batch_size=4, collate_fn=collate)
    valid = DataLoader(Recordings(4, 2), batch_size=4, collate_fn=collate)
    brain.fit(epochs, train, valid)


if __name__ == "__main__":
    main()
