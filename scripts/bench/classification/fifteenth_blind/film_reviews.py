"""ULMFiT as the fastai course teaches it: the encoder of an AWD-LSTM language model is loaded under a fresh pooling head that tells good film reviews from bad ones, in bfloat16, with one-cycle rates that differ by layer, first the head alone, then the last LSTM too."""

import random

import pandas as pd
import torch
from fastai.text.all import (
    AWD_LSTM,
    BaseTokenizer,
    Callback,
    CategoryBlock,
    ColReader,
    DataBlock,
    F1Score,
    RandomSplitter,
    TextBlock,
    accuracy,
    awd_lstm_clas_config,
    awd_lstm_lm_config,
    language_model_learner,
    set_seed,
    text_classifier_learner,
)
from fastai.text.models.awdlstm import WeightDropout
from programs import end_of_step, tell

GOOD = "moving brilliant charming gripping funny masterpiece tender honest delightful superb".split()
BAD = "boring dull clumsy predictable tedious awful wooden pointless shallow endless".split()
SHAPE = {"emb_sz": 320, "n_hid": 768, "n_layers": 3}


def write_reviews(n, seed):
    rng = random.Random(seed)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    lexicon = random.Random(0)
    words = ["".join(lexicon.choices(syllables, k=lexicon.randint(1, 4))) for _ in range(5000)]
    rows = []
    for _ in range(n):
        label = rng.choice(("neg", "pos"))
        opinions = GOOD if label == "pos" else BAD
        sentences = []
        for _ in range(rng.randint(6, 24)):
            sentence = rng.choices(words, k=rng.randint(6, 14))
            sentence.insert(rng.randrange(len(sentence)), rng.choice(opinions))
            sentences.append(" ".join(sentence).capitalize() + " .")
        rows.append({"text": " ".join(sentences), "label": label})
    return pd.DataFrame(rows)


class EndOfBatch(Callback):
    order = 80

    def after_batch(self):
        if self.training:
            opt = self.learn.opt
            moments = [
                value
                for state in opt.state.values()
                for value in state.values()
                if isinstance(value, torch.Tensor)
            ]
            end_of_step(
                inputs=[self.learn.xb, self.learn.yb],
                activations=[self.learn.pred, self.learn.loss, self.learn.loss_grad],
                states=moments,
            )


class TellBatch(Callback):
    order = 80

    def before_train(self):
        """The model was reset: each LSTM's recurrent matrix is a plain copy of the raw one until its next forward."""
        tell(
            weights=[
                m.module.weight_hh_l0 for m in self.learn.model.modules() if isinstance(m, WeightDropout)
            ]
        )

    before_validate = before_train

    def before_batch(self):
        tell(inputs=[self.learn.xb, self.learn.yb])


def language_model(df, path):
    """The language model of an earlier script; only its encoder and vocabulary are used here."""
    block = DataBlock(
        blocks=TextBlock.from_df("text", is_lm=True, seq_len=72, tok=BaseTokenizer(), min_freq=1),
        get_x=ColReader("text"),
        splitter=RandomSplitter(0.1, seed=42),
    )
    dls = block.dataloaders(df, bs=16, seq_len=72, path=path, device=torch.device("cpu"))
    learn = language_model_learner(dls, AWD_LSTM, pretrained=False, config={**awd_lstm_lm_config, **SHAPE})
    learn.save_encoder("finetuned")
    return dls.vocab


def main():
    set_seed(42)
    df = write_reviews(72, seed=1)
    vocab = language_model(df, path=".")

    block = DataBlock(
        blocks=(TextBlock.from_df("text", vocab=vocab, seq_len=72, tok=BaseTokenizer()), CategoryBlock),
        get_x=ColReader("text"),
        get_y=ColReader("label"),
        splitter=RandomSplitter(0.1, seed=42),
    )
    dls = block.dataloaders(df, bs=32, path=".", device=torch.device("cuda"))
    learn = text_classifier_learner(
        dls,
        AWD_LSTM,
        pretrained=False,
        drop_mult=0.5,
        config={**awd_lstm_clas_config, **SHAPE},
        metrics=[accuracy, F1Score()],
        cbs=[TellBatch(), EndOfBatch()],
    ).to_bf16()
    learn = learn.load_encoder("finetuned")

    learn.freeze()
    with learn.no_bar():
        learn.fit_one_cycle(1, 2e-2)
        learn.freeze_to(-2)
        learn.fit_one_cycle(1, slice(1e-2 / (2.6**4), 1e-2))
        learn.freeze_to(-3)
        learn.fit_one_cycle(1, slice(5e-3 / (2.6**4), 5e-3))
        learn.unfreeze()
        learn.fit_one_cycle(2, slice(1e-3 / (2.6**4), 1e-3))
        print(learn.predict("A tender and honest film ."))


main()
