"""The programs that are recorded, by name."""

from collections.abc import Callable

import blind_control
import blind_images
import blind_language
import blind_others
import heldout_adapters
import heldout_codes
import heldout_imagenet
import heldout_images
import heldout_language
import heldout_others
import heldout_pretraining
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
    "closure": techniques.closure,
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
HELDOUT: dict[str, Entry] = {
    "diffusion": heldout_images.diffusion,
    "policy": heldout_others.policy,
    "generation": heldout_language.generation,
    "finetune": heldout_language.finetune,
    "speech": heldout_language.speech,
    "graph": heldout_others.graph,
    "radiance": heldout_others.radiance,
    "detector": heldout_images.detector,
    "master-weights": heldout_images.master_weights,
    "letters": heldout_language.letters,
    "pretraining": heldout_pretraining.pretraining,
    "preference": heldout_pretraining.preference,
    "adapters": heldout_adapters.adapters,
    "embedding": heldout_adapters.embedding,
    "imagenet": heldout_imagenet.imagenet,
    "latents": heldout_imagenet.latents,
    "perceptual": heldout_codes.perceptual,
    "actor-critic": heldout_adapters.actor_critic,
}
BLIND: dict[str, Entry] = {
    "state-space": blind_language.state_space,
    "speculative": blind_language.speculative,
    "momentum-contrast": blind_images.momentum_contrast,
    "sharpness": blind_images.sharpness,
    "style": blind_others.style,
    "trainer": blind_others.trainer,
    "world-model": blind_control.world_model,
    "meta-learning": blind_control.meta_learning,
}
ENTRIES = {**SEEN, **UNSEEN, **HELDOUT, **BLIND}
