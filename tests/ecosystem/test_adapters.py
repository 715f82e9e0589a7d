"""LoRA on a model in bfloat16: what advice says that adapters keep, and what the changed program saves."""

import pytest

import snapconv
from tests.ecosystem.recorded_program import run_snapconv

pytest.importorskip("peft")

LORA = """
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

base = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=500, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
    )
).to("cuda", torch.bfloat16)
adapters = LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
model = get_peft_model(base, adapters, autocast_adapter_dtype={in_32_bits})
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(3):
    ids = torch.randint(0, 500, (8, 256), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.long
def test_adapters_in_the_precision_of_the_model_save_at_least_what_is_said(tmp_path):
    advice = []
    for in_32_bits in (True, False):
        (tmp_path / "lora.py").write_text(LORA.format(in_32_bits=in_32_bits), encoding="utf-8")
        options = ["--simulate", "--no-compute", "--force", "-o", "lora.capture"]
        run = run_snapconv(["record", *options, "lora.py"], tmp_path)
        assert run.code == 0, run.said
        advice += snapconv.load(tmp_path / "lora.capture").advise(trades=True)
    before, after = advice
    (finding,) = [finding for finding in before.findings if finding.kind == "adapter-inputs"]
    measured = before.peak.n_bytes - after.peak.n_bytes
    # Two adapters share an input, which stays in the place of two copies: 3/4 go where 1/2 is said
    # to.
    assert finding.peak.n_bytes - after.peak.n_bytes == pytest.approx(measured / 3, rel=0.1)
    assert "adapter-inputs" not in {finding.kind for finding in after.findings}
