"""The programs that are recorded, by name."""

from collections.abc import Callable

import language
import techniques
import unseen
import vision
from setups import Iterations, Setup

Entry = Callable[[Setup], Iterations]

SEEN: dict[str, Entry] = {
    "cnn": vision.cnn,
    "residual-cnn": vision.residual_cnn,
    "unet": vision.unet,
    "vae": vision.vae,
    "vit": vision.vit,
    "gan": vision.gan,
    "transformer": language.transformer,
    "tied": language.tied,
    "encoder-decoder": language.encoder_decoder,
    "lstm": language.lstm,
    "experts": language.experts,
    "cached-inference": language.cached_inference,
    "recommender": techniques.recommender,
    "lora": techniques.lora,
    "checkpointing": techniques.checkpointing,
    "checkpointing-reentrant": techniques.checkpointing_reentrant,
    "amp": techniques.amp,
    "accumulation": techniques.accumulation,
    "compiled": techniques.compiled,
    "averaged": techniques.averaged,
    "bfloat16": techniques.bfloat16,
}
UNSEEN: dict[str, Entry] = {
    "contrastive": unseen.contrastive,
    "distillation": unseen.distillation,
    "q-learning": unseen.q_learning,
    "bare-tensors": unseen.bare_tensors,
    "gradient-penalty": unseen.gradient_penalty,
    "validation": unseen.validation,
}
ENTRIES = {**SEEN, **UNSEEN}
