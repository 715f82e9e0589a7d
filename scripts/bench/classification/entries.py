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
_SECOND_BLIND = Path(__file__).parent / "second_blind"
_THIRD_BLIND = Path(__file__).parent / "third_blind"
_FOURTH_BLIND = Path(__file__).parent / "fourth_blind"
_FIFTH_BLIND = Path(__file__).parent / "fifth_blind"
_SIXTH_BLIND = Path(__file__).parent / "sixth_blind"
_SEVENTH_BLIND = Path(__file__).parent / "seventh_blind"
# The scripts were of the five groups after this one until rules were changed for what they showed.
BLIND: dict[str, Entry] = {
    "flat-minima": Script(_SECOND_BLIND / "flat_minima.py"),
    "chat": Script(_SECOND_BLIND / "chat.py"),
    "clicks": Script(_SECOND_BLIND / "clicks.py"),
    "codebook": Script(_SECOND_BLIND / "codebook.py"),
    "conditioned-pictures": Script(_FIFTH_BLIND / "conditioned_pictures.py"),
    "few-shots": Script(_SECOND_BLIND / "few_shots.py"),
    "rollouts": Script(_SECOND_BLIND / "rollouts.py"),
    "curvature": Script(_SECOND_BLIND / "curvature.py"),
    "dreambooth-flux": Script(_SIXTH_BLIND / "dreambooth_flux.py"),
    "electricity": Script(_THIRD_BLIND / "electricity.py"),
    "flow-matching": Script(_FIFTH_BLIND / "flow_matching.py"),
    "flowers": Script(_FIFTH_BLIND / "flowers.py"),
    "full-precision-masters": Script(_SECOND_BLIND / "full_precision_masters.py"),
    "learned-rates": Script(_SECOND_BLIND / "learned_rates.py"),
    "lightning-images": Script(_SECOND_BLIND / "lightning_images.py"),
    "masks-from-boxes": Script(_FOURTH_BLIND / "masks_from_boxes.py"),
    "picture-autoencoder": Script(_FIFTH_BLIND / "picture_autoencoder.py"),
    "poses": Script(_FIFTH_BLIND / "poses.py"),
    "preconditioned": Script(_SECOND_BLIND / "preconditioned.py"),
    "prefetching": Script(_SECOND_BLIND / "prefetching.py"),
    "segments": Script(_SECOND_BLIND / "segments.py"),
    "serving": Script(_SECOND_BLIND / "serving.py"),
    "soft-actor": Script(_FOURTH_BLIND / "soft_actor.py"),
    "street-scenes": Script(_FIFTH_BLIND / "street_scenes.py"),
    "tabular": Script(_THIRD_BLIND / "tabular.py"),
    "transcripts": Script(_SIXTH_BLIND / "transcripts.py"),
    "translations": Script(_FOURTH_BLIND / "translations.py"),
    "two-towers": Script(_FIFTH_BLIND / "two_towers.py"),
    "state-space": blind_language.state_space,
    "speculative": blind_language.speculative,
    "momentum-contrast": blind_images.momentum_contrast,
    "sharpness": blind_images.sharpness,
    "style": blind_others.style,
    "trainer": blind_others.trainer,
    "world-model": blind_control.world_model,
    "meta-learning": blind_control.meta_learning,
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
# Written when the rules were done, and committed before the first run of any rule on them.
SECOND_BLIND: dict[str, Entry] = {
    path.stem.replace("_", "-"): Script(path)
    for path in sorted(_SECOND_BLIND.glob("*.py"))
    if path.stem.replace("_", "-") not in BLIND
}
# Written later, by an author who had seen no rule, and committed before the first run of any rule on them.
THIRD_BLIND: dict[str, Entry] = {
    path.stem.replace("_", "-"): Script(path)
    for path in sorted(_THIRD_BLIND.glob("*.py"))
    if path.stem.replace("_", "-") not in BLIND
}
# Written later still, in the same way.
FOURTH_BLIND: dict[str, Entry] = {
    path.stem.replace("_", "-"): Script(path)
    for path in sorted(_FOURTH_BLIND.glob("*.py"))
    if path.stem.replace("_", "-") not in BLIND
}
# Later still, in the same way.
FIFTH_BLIND: dict[str, Entry] = {
    path.stem.replace("_", "-"): Script(path)
    for path in sorted(_FIFTH_BLIND.glob("*.py"))
    if path.stem.replace("_", "-") not in BLIND
}
# Later still, in the same way.
SIXTH_BLIND: dict[str, Entry] = {
    path.stem.replace("_", "-"): Script(path)
    for path in sorted(_SIXTH_BLIND.glob("*.py"))
    if path.stem.replace("_", "-") not in BLIND
}
# Written last, in the same way.
SEVENTH_BLIND: dict[str, Entry] = {
    path.stem.replace("_", "-"): Script(path)
    for path in sorted(_SEVENTH_BLIND.glob("*.py"))
    if path.stem.replace("_", "-") not in BLIND
}
NEEDED_LIBRARIES = ("transformers", "peft", "accelerate", "lightning", "diffusers")
GROUPS: dict[str, dict[str, Entry]] = {
    "seen": SEEN,
    "unseen": UNSEEN,
    "heldout": HELDOUT,
    "blind": BLIND,
    "second-blind": SECOND_BLIND,
    "third-blind": THIRD_BLIND,
    "fourth-blind": FOURTH_BLIND,
    "fifth-blind": FIFTH_BLIND,
    "sixth-blind": SIXTH_BLIND,
    "seventh-blind": SEVENTH_BLIND,
    "libraries": LIBRARIES,
}
ENTRIES: dict[str, Entry] = {name: entry for group in GROUPS.values() for name, entry in group.items()}
GROUP_OF = {name: group for group, entries in GROUPS.items() for name in entries}


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
