"""The programs that are recorded, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from programs import OnEnd, Script, run_script
from setups import Iterations, Setup
from tables import BLIND_GROUPS, WITH_MORE_LIBRARIES

Entry = Callable[[Setup], Iterations] | Script

_ECOSYSTEM = Path(__file__).parents[3] / "tests" / "ecosystem" / "programs"

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
# Of the scripts of BLIND_GROUPS, those that rules were changed for.
_NO_LONGER_BLIND = {
    "asking-documents",
    "authors-and-venues",
    "batched-pendulums",
    "cars",
    "chances-of-tomorrow",
    "chat",
    "clicks",
    "code-search",
    "codebook",
    "conditioned-pictures",
    "curvature",
    "cutmix",
    "dictation",
    "dictionary-of-features",
    "drafted-replies",
    "dreambooth-flux",
    "electricity",
    "essays",
    "faces",
    "few-shots",
    "film-reviews",
    "flat-minima",
    "flow-matching",
    "flowers",
    "forward-only",
    "full-precision-masters",
    "hard-hats",
    "help-center-search",
    "hourly-loads",
    "imagined-rollouts",
    "installed-after-the-ad",
    "late-interaction",
    "learned-rates",
    "lightning-images",
    "long-contracts",
    "marines",
    "masks-from-boxes",
    "math-problems",
    "monsters-from-noise",
    "moods-of-posts",
    "museum-guide",
    "mushrooms",
    "new-word",
    "offline-ants",
    "page-edits",
    "paged-answers",
    "palms-from-the-air",
    "paraphrases",
    "phone-interpreter",
    "picture-autoencoder",
    "poses",
    "positive-reviews",
    "preconditioned",
    "preferences",
    "prefetching",
    "private-pictures",
    "quick-pictures",
    "river-levels",
    "rollouts",
    "same-person",
    "segments",
    "serving",
    "sharper-photos",
    "soft-actor",
    "stacked-members",
    "stacking-blocks-fast",
    "stitched-panoramas",
    "street-scenes",
    "surfaces-from-points",
    "tabular",
    "telescope-showers",
    "topics-of-debates",
    "torques-from-pixels",
    "transcripts",
    "translations",
    "two-towers",
    "unlabelled-pictures",
    "viscosity",
    "warehouse-teams",
    "warm-plate",
    "wrist-sensors",
}
_SCRIPTS: dict[str, dict[str, Entry]] = {
    group: {
        path.stem.replace("_", "-"): Script(path)
        for path in sorted((Path(__file__).parent / group.replace("-", "_")).glob("*.py"))
    }
    for group in BLIND_GROUPS
}
BLIND: dict[str, Entry] = {
    name: script
    for scripts in _SCRIPTS.values()
    for name, script in scripts.items()
    if name in _NO_LONGER_BLIND
} | {
    "state-space": blind_language.state_space,
    "speculative": blind_language.speculative,
    "momentum-contrast": blind_images.momentum_contrast,
    "sharpness": blind_images.sharpness,
    "style": blind_others.style,
    "trainer": blind_others.trainer,
    "world-model": blind_control.world_model,
    "meta-learning": blind_control.meta_learning,
}
STILL_BLIND: dict[str, dict[str, Entry]] = {
    group: {name: script for name, script in scripts.items() if name not in BLIND}
    for group, scripts in _SCRIPTS.items()
}
# Programs of tests/ecosystem, as they are, most of them around the libraries of its requirements.txt.
LIBRARIES: dict[str, Entry] = {
    name: Script(_ECOSYSTEM / file)
    for name, file in {
        "lib-gpt2-trainer": "gpt2_trainer.py",
        "lib-llama-bf16": "llama_bf16.py",
        "lib-llama-checkpointing": "llama_checkpointing.py",
        "lib-bert": "bert_classifier.py",
        "lib-t5-adafactor": "t5_adafactor.py",
        "lib-mixtral": "mixtral_trainer.py",
        "lib-whisper": "whisper_finetune.py",
        "lib-lora": "lora_peft.py",
        "lib-accelerate": "accelerate_loop.py",
        "lib-lightning": "lightning_autoencoder.py",
        "lib-lightning-mixed": "lightning_mixed.py",
        "lib-diffusers": "diffusion_latents.py",
        "lib-nanogpt": "nanogpt/train.py",
        "lib-word-language-model": "word_language_model/main.py",
        "lib-dcgan": "dcgan.py",
        "lib-mean-teacher": "mean_teacher.py",
        "lib-master-weights": "master_weights.py",
    }.items()
}
_NEEDED_LIBRARIES = ("transformers", "peft", "accelerate", "lightning", "diffusers")
_MORE_LIBRARIES = (*_NEEDED_LIBRARIES, "torchvision", "trl", "monai", "torch_geometric", "ultralytics")
# Where their own group has changed, the programs still need what they are written around.
_WITH_MORE_LIBRARIES = {name for group in WITH_MORE_LIBRARIES for name in _SCRIPTS[group]}
GROUPS: dict[str, dict[str, Entry]] = {
    "seen": SEEN,
    "unseen": UNSEEN,
    "heldout": HELDOUT,
    "blind": BLIND,
    **STILL_BLIND,
    "libraries": LIBRARIES,
}
ENTRIES: dict[str, Entry] = {name: entry for group in GROUPS.values() for name, entry in group.items()}
GROUP_OF = {name: group for group, entries in GROUPS.items() for name in entries}


def needed_libraries(entry: str) -> tuple[str, ...]:
    """What an entry cannot be recorded without, as it is imported; nothing for the entries of this folder."""
    if not isinstance(ENTRIES[entry], Script):
        return ()
    return _MORE_LIBRARIES if needs_more_libraries(entry) else _NEEDED_LIBRARIES


def needs_more_libraries(entry: str) -> bool:
    """Whether it is one of the scripts around the libraries of libraries.txt."""
    return entry in _WITH_MORE_LIBRARIES


def run_entry(
    entry: str, setup: Setup, on_end: OnEnd, *, call: Callable[..., Any], on_told: OnEnd | None = None
) -> None:
    """Run the steps of an entry; ``call`` calls its code, ``on_end`` is given what it knows after each."""
    program = ENTRIES[entry]
    if isinstance(program, Script):
        run_script(program, setup.n_steps, on_end, call=call, on_told=on_told)
        return
    steps = program(setup)
    for _ in range(setup.n_steps):
        on_end(call(next, steps))
