"""An ECAPA-TDNN learns who is speaking, as SpeechBrain's recipe for VoxCeleb trains it: a Brain that fits, speeds, lost bands and pieces of other recordings on the device, filter banks, an additive angular margin, a cyclic rate, error rates of other sentences between."""

import random
from pathlib import Path

import numpy as np
import soundfile
import speechbrain as sb
import torch
from programs import end_of_step, tell
from speechbrain.augment.augmenter import Augmenter
from speechbrain.augment.time_domain import CutCat, DropFreq, SpeedPerturb
from speechbrain.dataio.dataset import DynamicItemDataset
from speechbrain.dataio.encoder import CategoricalEncoder
from speechbrain.lobes.features import Fbank
from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier
from speechbrain.nnet.losses import AdditiveAngularMargin, LogSoftmaxWrapper
from speechbrain.nnet.schedulers import CyclicLRScheduler
from speechbrain.processing.features import InputNormalization
from speechbrain.utils.checkpoints import Checkpointer
from speechbrain.utils.metric_stats import MetricStats

SAMPLE_RATE, SECONDS = 16000, 1.5
N_SPEAKERS, BATCH_SIZE = 400, 8


def write_recordings(n_speakers, per_speaker):
    """Voices are harmonics over a pitch of one's own."""
    rng = np.random.default_rng(0)
    Path("wavs").mkdir()
    data = {}
    t = np.arange(int(SAMPLE_RATE * (SECONDS + 0.5))) / SAMPLE_RATE
    for speaker in range(n_speakers):
        pitch = rng.uniform(80, 260)
        for i in range(per_speaker):
            voice = sum(np.sin(2 * np.pi * pitch * k * t) / k for k in range(1, 6))
            signal = 0.1 * voice * (1 + np.sin(2 * np.pi * rng.uniform(2, 5) * t)) + 0.01 * rng.normal(
                size=len(t)
            )
            name = f"id{speaker:05d}_{i}"
            soundfile.write(f"wavs/{name}.wav", signal.astype(np.float32), SAMPLE_RATE)
            data[name] = {
                "wav": f"wavs/{name}.wav",
                "spk_id": f"id{speaker:05d}",
                "duration": len(t) / SAMPLE_RATE,
            }
    return data


def dataio_prep(rows, label_encoder, is_training):
    @sb.utils.data_pipeline.takes("wav", "duration")
    @sb.utils.data_pipeline.provides("sig")
    def audio_pipeline(wav, duration):
        n = int(SECONDS * SAMPLE_RATE)
        start = random.randint(0, int(duration * SAMPLE_RATE) - n) if is_training else 0
        signal, _ = soundfile.read(wav, start=start, frames=n, dtype="float32")
        return torch.from_numpy(signal)

    @sb.utils.data_pipeline.takes("spk_id")
    @sb.utils.data_pipeline.provides("spk_id", "spk_id_encoded")
    def label_pipeline(spk_id):
        yield spk_id
        yield label_encoder.encode_sequence_torch([spk_id])

    dataset = DynamicItemDataset(rows)
    sb.dataio.dataset.add_dynamic_item([dataset], audio_pipeline)
    sb.dataio.dataset.add_dynamic_item([dataset], label_pipeline)
    sb.dataio.dataset.set_output_keys([dataset], ["id", "sig", "spk_id_encoded"])
    return dataset


class SpeakerBrain(sb.core.Brain):
    def compute_forward(self, batch, stage):
        batch = batch.to(self.device)
        wavs, lens = batch.sig
        tell(inputs=[wavs, lens, batch.spk_id_encoded.data])
        if stage == sb.Stage.TRAIN:
            wavs, lens = self.hparams.wav_augment(wavs, lens)
            tell(inputs=[wavs, lens])
        feats = self.modules.compute_features(wavs)
        feats = self.modules.mean_var_norm(feats, lens)
        embeddings = self.modules.embedding_model(feats, lens)
        return self.modules.classifier(embeddings), lens

    def compute_objectives(self, predictions, batch, stage):
        predictions, lens = predictions
        spkid, _ = batch.spk_id_encoded
        if stage == sb.Stage.TRAIN:
            spkid = self.hparams.wav_augment.replicate_labels(spkid)
            tell(inputs=spkid)
        loss = self.hparams.compute_cost(predictions, spkid, lens)
        if stage == sb.Stage.TRAIN:
            self.hparams.lr_annealing.on_batch_end(self.optimizer)
        else:
            self.error_metrics.append(batch.id, predictions, spkid, lens)
        return loss

    def on_stage_start(self, stage, epoch=None):
        if stage != sb.Stage.TRAIN:
            self.error_metrics = MetricStats(
                metric=lambda predictions, targets, length: (
                    (predictions.argmax(-1) != targets).float().mean(-1)
                )
            )

    def on_fit_batch_end(self, batch, outputs, loss, should_step):
        end_of_step(activations=[outputs, loss])

    def on_stage_end(self, stage, stage_loss, epoch=None):
        if stage == sb.Stage.VALID:
            error = self.error_metrics.summarize("average")
            print(f"epoch {epoch}: loss {stage_loss:.3f}, error rate {error:.3f}")
            self.checkpointer.save_and_keep_only(meta={"ErrorRate": error}, min_keys=["ErrorRate"])


def main():
    torch.manual_seed(1986)
    random.seed(1986)
    rows = write_recordings(10, per_speaker=3)
    label_encoder = CategoricalEncoder()
    label_encoder.update_from_iterable([f"id{i:05d}" for i in range(N_SPEAKERS)])
    label_encoder.expect_len(N_SPEAKERS)
    train = {name: row for name, row in rows.items() if not name.endswith("_2")}
    valid = {name: row for name, row in rows.items() if name.endswith("_2")}

    modules = {
        "compute_features": Fbank(n_mels=80, left_frames=0, right_frames=0, deltas=False),
        "mean_var_norm": InputNormalization(norm_type="sentence", std_norm=False),
        "embedding_model": ECAPA_TDNN(
            80, channels=[256, 256, 256, 256, 768], attention_channels=128, lin_neurons=192
        ),
        "classifier": Classifier(192, out_neurons=N_SPEAKERS),
    }
    augment = Augmenter(
        parallel_augment=False,
        concat_original=True,
        repeat_augment=1,
        min_augmentations=3,
        max_augmentations=3,
        shuffle_augmentations=False,
        augmentations=[
            SpeedPerturb(SAMPLE_RATE, speeds=[95, 100, 105]),
            DropFreq(drop_freq_count_low=1, drop_freq_count_high=3),
            CutCat(min_num_segments=2, max_num_segments=6),
        ],
    )
    hparams = {
        "wav_augment": augment.to("cuda"),
        "compute_cost": LogSoftmaxWrapper(AdditiveAngularMargin(margin=0.2, scale=30)),
        "lr_annealing": CyclicLRScheduler(base_lr=1e-8, max_lr=1e-3, step_size=20),
    }
    brain = SpeakerBrain(
        modules=modules,
        opt_class=lambda parameters: torch.optim.Adam(parameters, lr=1e-3, weight_decay=2e-6),
        hparams=hparams,
        run_opts={"device": "cuda", "noprogressbar": True},
        checkpointer=Checkpointer("save", {k: modules[k] for k in ("embedding_model", "classifier")}),
    )
    brain.fit(
        range(1, 4),
        dataio_prep(train, label_encoder, is_training=True),
        dataio_prep(valid, label_encoder, is_training=False),
        train_loader_kwargs={"batch_size": BATCH_SIZE, "shuffle": True, "drop_last": True},
        valid_loader_kwargs={"batch_size": BATCH_SIZE},
    )


if __name__ == "__main__":
    main()
