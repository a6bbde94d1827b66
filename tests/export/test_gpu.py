"""The exported folder on a CUDA device: the lab model's numbers and tokens there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.export.small import Run, bytes_run

from nugpt.engines.lab.ensemble import Ensemble
from nugpt.engines.lab.generate import Sampling, generate, load_trained
from nugpt.export.write import write_folder

pytestmark = [pytest.mark.gpu, pytest.mark.hf]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return bytes_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def folder(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "out"
    write_folder(out, run.directory, run.checkpoint)
    return out


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_logits_loss_and_greedy_text_are_the_labs(run: Run, folder: Path, attention: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def load(dtype: torch.dtype) -> torch.nn.Module:
        options = {"trust_remote_code": True, "attn_implementation": attention, "dtype": dtype}
        return AutoModelForCausalLM.from_pretrained(folder, **options).to("cuda").eval()

    lab = load_trained(run.directory, device="cuda")
    # The model's own text: there the rounding of single tokens evens out in the mean.
    text = list(generate(lab, [], 2000, Sampling(seed=0)))
    tokens = torch.tensor(text[: len(text) // 16 * 16], device="cuda").view(-1, 16)
    expected = lab.model.logits(lab.model(tokens, lab.gains), lab.gains)
    model = load(torch.float32)
    assert (model(tokens).logits - expected).abs().max() < 1e-5
    ensemble = Ensemble([replace(run.spec, precision="bfloat16")], torch.device("cuda"), "folded", "plain", False)
    params = {name: value.unsqueeze(0).cuda() for name, value in run.checkpoint.model.items()}
    loss = ensemble.token_losses(params, tokens[None, :, :-1], tokens[None, :, 1:]).mean()
    assert abs(float(load(torch.bfloat16)(tokens, labels=tokens).loss) - float(loss)) < 1e-4
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer(["7 the ", "1"], padding=True, return_tensors="pt").to("cuda")
    made = model.generate(**batch, max_new_tokens=30, do_sample=False)[:, batch["input_ids"].shape[1] :].tolist()
    for prompt, row in zip(("7 the ", "1"), made, strict=True):
        ids = list(generate(lab, lab.tokenizer.encode(prompt), 30, Sampling(temperature=0)))
        assert (row[: row.index(256)] if 256 in row else row) == ids
