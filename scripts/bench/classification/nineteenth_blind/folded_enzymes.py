"""Structures of designed enzymes are predicted by an ESMFold, longest last: language model in float16, trunk in float32, chunked attention, confident ones written as PDB files."""

import random
from pathlib import Path

import torch
from programs import end_of_step
from transformers import EsmConfig, EsmForProteinFolding
from transformers.models.esm.openfold_utils import residue_constants

torch.manual_seed(23)
random.seed(23)


def designs(n):
    for i in range(n):
        yield f"design_{i:03d}", "".join(random.choices("ACDEFGHIKLMNPQRSTVWY", k=random.randint(72, 108)))


config = EsmConfig(
    vocab_size=33,
    mask_token_id=32,
    pad_token_id=1,
    hidden_size=640,
    num_hidden_layers=6,
    num_attention_heads=20,
    intermediate_size=2560,
    position_embedding_type="rotary",
    token_dropout=True,
    emb_layer_norm_before=False,
    layer_norm_eps=1e-5,
    is_folding_model=True,
    esmfold_config={
        "trunk": {
            "num_blocks": 3,
            "sequence_state_dim": 512,
            "pairwise_state_dim": 128,
            "max_recycles": 2,
            "structure_module": {"num_blocks": 3},
        }
    },
)
model = EsmForProteinFolding(config)
model = model.cuda().eval()
model.esm = model.esm.half()
model.trunk.set_chunk_size(128)
torch.backends.cuda.matmul.allow_tf32 = True

folder = Path("structures")
folder.mkdir(exist_ok=True)
order = residue_constants.restype_order_with_x

for name, sequence in sorted(designs(5), key=lambda item: len(item[1])):
    tokens = torch.tensor([[order[residue] for residue in sequence]], device="cuda")
    with torch.no_grad():
        output = model(tokens)
    confidence, tm = output["plddt"][..., 1].mean().item(), output["ptm"].item()
    print(f"{name}: {len(sequence)} residues, pLDDT {100 * confidence:.1f}, pTM {tm:.3f}")
    (pdb,) = model.output_to_pdb(output)
    (folder / f"{name}.pdb").write_text(pdb)
    end_of_step(inputs=tokens)
