"""The exported folder in `transformers`: the lab model's numbers, tokens and refusals, and no need of nugpt."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.docs.markdown import ROOT, blocks
from tests.engines.small import make_ensemble
from tests.export.small import Run, edit_config
from torch import Tensor

from nugpt.core.optim import retract_
from nugpt.data import open_dataset
from nugpt.engines.lab.generate import Sampling, Trained, generate
from nugpt.export.read import import_folder, read_folder
from nugpt.spec.roles import NORMALIZED

pytestmark = pytest.mark.hf
NAMES = ("bytes_run", "bpe_run")  # grouped queries over bytes, all heads over BPE
ATTENTIONS = ("sdpa", "eager")
PROMPTS = ("7 the ", "naïve café 你好 🙂 of", "1")


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No network, and a cache of our own for the folders' code; set before transformers is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        yield


@pytest.fixture(scope="module")
def labs(runs: dict[str, Run]) -> dict[str, Trained]:
    return {name: run.lab() for name, run in runs.items()}


def load(folder: Path, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options).eval()


def load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def tokens_of(lab: Trained, batch: int = 3, time: int = 40) -> Tensor:
    """Random ids; longer than the 16 that the model was trained on."""
    return torch.randint(lab.tokenizer.n_ids, (batch, time), generator=torch.Generator().manual_seed(5))


def corpus_tokens(run: Run) -> Tensor:
    """The first windows of the run's own corpus: enough tokens for the rounding of each to even out in their mean."""
    data = open_dataset(run.data)
    inputs, targets = data.batch(seed=0, step=0, batch_size=256, seq_len=16)
    windows = np.concatenate([inputs, targets[:, -1:]], axis=1)
    return torch.from_numpy(windows.astype(np.int64))


def lab_logits(lab: Trained, tokens: Tensor) -> Tensor:
    return lab.model.logits(lab.model(tokens, lab.gains), lab.gains)


def greedy(lab: Trained, prompt: str, n: int) -> list[int]:
    return list(generate(lab, lab.tokenizer.encode(prompt), n, Sampling(temperature=0)))


def until_end(ids: list[int], eot: int) -> list[int]:
    return ids[: ids.index(eot)] if eot in ids else ids


# --- numbers


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_logits_are_the_lab_models_in_float32(
    labs: dict[str, Trained], folders: dict[str, Path], name: str, attention: str
) -> None:
    model, tokens = load(folders[name], attn_implementation=attention), tokens_of(labs[name])
    assert model.config._attn_implementation == attention
    expected = lab_logits(labs[name], tokens)
    assert expected.std() > 0.5  # not a flat model
    assert (model(tokens).logits - expected).abs().max() < 1e-5
    assert (model(tokens, use_cache=False, logits_to_keep=2).logits - expected[:, -2:]).abs().max() < 1e-5


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_loss_is_the_lab_engines_in_both_precisions(
    runs: dict[str, Run], folders: dict[str, Path], name: str, attention: str
) -> None:
    tokens = corpus_tokens(runs[name])
    for precision, tolerance in (("float32", 1e-5), ("bfloat16", 1e-4)):
        ensemble = make_ensemble([replace(runs[name].spec, precision=precision)])
        params = {key: value.unsqueeze(0) for key, value in runs[name].checkpoint.model.items()}
        expected = ensemble.token_losses(params, tokens[None, :, :-1], tokens[None, :, 1:]).mean()
        model = load(folders[name], attn_implementation=attention, dtype=getattr(torch, precision))
        found = model(tokens, labels=tokens)
        assert abs(float(found.loss) - float(expected)) < tolerance
        assert found.logits.dtype == torch.float32


def test_in_bfloat16_the_matrices_of_products_are_and_nothing_else(folders: dict[str, Path]) -> None:
    model = load(folders["bytes_run"], dtype=torch.bfloat16, output_hidden_states=True)
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    narrow = {name for name, dtype in kinds.items() if dtype == torch.bfloat16}
    assert narrow == {name for name in kinds if ".W_" in name or name == "E_out.weight"}
    states = model(torch.tensor([[1, 2, 3]]), output_hidden_states=True).hidden_states
    assert {state.dtype for state in states} == {torch.float32}
    assert len(states) == 3


@torch.no_grad()
def test_cast_as_a_whole_it_still_runs_close_to_itself(labs: dict[str, Trained], folders: dict[str, Path]) -> None:
    tokens = tokens_of(labs["bytes_run"], batch=8)
    model = load(folders["bytes_run"])
    wide = float(model(tokens, labels=tokens).loss)
    narrow = float(model.to(torch.bfloat16)(tokens, labels=tokens).loss)
    assert abs(narrow - wide) < 0.05  # rescalers and embedding lose digits as well


@torch.no_grad()
def test_in_float64_eager_and_sdpa_agree_to_the_last_digits(folders: dict[str, Path]) -> None:
    tokens = torch.tensor([[5, 9, 200, 31, 7]])
    eager, fused = (load(folders["bytes_run"], attn_implementation=a).double()(tokens).logits for a in ATTENTIONS)
    assert (eager - fused).abs().max() < 1e-12


def test_gradients_reach_every_parameter(folders: dict[str, Path]) -> None:
    tokens = torch.tensor([[5, 9, 200, 31, 7]])
    for attention in ATTENTIONS:
        model = load(folders["bytes_run"], attn_implementation=attention)
        model(tokens, labels=tokens).loss.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
        assert all(float(p.grad.abs().sum()) > 0 for p in model.parameters())


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_of_recomputed_activations_are_the_same(folders: dict[str, Path], reentrant: bool) -> None:
    tokens = torch.tensor([[5, 9, 200, 31, 7], [8, 8, 1, 2, 3]])
    whole, again = (load(folders["bytes_run"]).train() for _ in range(2))
    again.gradient_checkpointing_enable({"use_reentrant": reentrant})
    runs_of_a_block = []
    again.blocks[0].attention.register_forward_hook(lambda *_: runs_of_a_block.append(1))
    for model in (whole, again):
        model(tokens, labels=tokens).loss.backward()
    assert len(runs_of_a_block) == 2  # forward, and once more on the way back
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter.grad, whole.get_parameter(name).grad), name


@torch.no_grad()
def test_eager_gives_attention_weights_and_sdpa_says_that_it_does_not(folders: dict[str, Path]) -> None:
    tokens = torch.tensor([[5, 9, 200, 31, 7]])
    weights = load(folders["bytes_run"], attn_implementation="eager")(tokens, output_attentions=True).attentions
    assert [tuple(one.shape) for one in weights] == [(1, 2, 5, 5)] * 2
    for one in weights:
        assert torch.allclose(one.sum(-1), torch.ones(1, 2, 5))
        assert float(one.triu(1).abs().max()) == 0
    with pytest.raises(ValueError, match="output_attentions needs 'eager'"):
        load(folders["bytes_run"], attn_implementation="sdpa")(tokens, output_attentions=True)


# --- generation


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_the_labs_token_for_token(
    labs: dict[str, Trained], folders: dict[str, Path], name: str, attention: str
) -> None:
    lab, n = labs[name], 40
    model, tokenizer = load(folders[name], attn_implementation=attention), load_tokenizer(folders[name])
    expected = [greedy(lab, prompt, n) for prompt in PROMPTS]
    assert max(len(set(ids)) for ids in expected) > 3  # no single letter over and over

    def tokens_after(prompts: tuple[str, ...], **options: Any) -> list[list[int]]:
        batch = tokenizer(list(prompts), padding=True, return_tensors="pt")
        made = model.generate(**batch, max_new_tokens=n, do_sample=False, **options)
        return [until_end(row, lab.tokenizer.eot) for row in made[:, batch["input_ids"].shape[1] :].tolist()]

    for options in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        alone = [tokens_after((prompt,), **options)[0] for prompt in PROMPTS]
        assert alone == expected, options
        assert tokens_after(PROMPTS, **options) == expected, options  # padded on the left


@torch.no_grad()
def test_padding_on_the_left_changes_no_logit(labs: dict[str, Trained], folders: dict[str, Path]) -> None:
    lab = labs["bytes_run"]
    short = lab.tokenizer.encode(PROMPTS[0])
    padded = torch.tensor([[lab.tokenizer.eot] * 9 + short])
    mask = torch.tensor([[0] * 9 + [1] * len(short)])
    expected = lab_logits(lab, torch.tensor([short]))
    for attention in ATTENTIONS:
        found = load(folders["bytes_run"], attn_implementation=attention)(padded, attention_mask=mask).logits
        assert bool(found.isfinite().all())
        assert (found[:, 9:] - expected).abs().max() < 1e-5


@torch.no_grad()
def test_piece_by_piece_through_the_cache_the_logits_are_the_same(
    labs: dict[str, Trained], folders: dict[str, Path]
) -> None:
    from transformers import DynamicCache

    tokens = tokens_of(labs["bytes_run"])
    expected = lab_logits(labs["bytes_run"], tokens)
    for attention in ATTENTIONS:
        model = load(folders["bytes_run"], attn_implementation=attention)
        cache, pieces = DynamicCache(config=model.config), []
        for part in tokens.split([1, 7, 1, 20, 11], dim=1):
            pieces.append(model(part, past_key_values=cache).logits)
        assert cache.get_seq_length() == 40
        assert cache.layers[0].keys.shape == (3, 1, 40, 12)  # one key-value head, not one per query head
        assert (torch.cat(pieces, dim=1) - expected).abs().max() < 1e-5


def test_sampling_and_an_empty_prompt_work_and_padded_ids_are_never_drawn(
    labs: dict[str, Trained], folders: dict[str, Path]
) -> None:
    model = load(folders["bytes_run"])
    with torch.no_grad():
        model.s_z.stored[257:] = 50 * model.s_z.stored.abs().max()
        model.E_out.weight[257:] = model.E_out.weight[101]
    torch.manual_seed(0)
    for options in ({"do_sample": True, "temperature": 2.0}, {"do_sample": False}, {"num_beams": 3}):
        made = model.generate(max_new_tokens=30, **options)  # begins with end-of-text, as a document does
        assert int(made[0, 0]) == 256
        assert int(made.max()) <= 256


# --- tokenizer


@pytest.mark.parametrize("name", NAMES)
def test_the_tokenizer_is_the_one_of_training(labs: dict[str, Trained], folders: dict[str, Path], name: str) -> None:
    ours = labs[name].tokenizer
    for tokenizer in (load_tokenizer(folders[name]), _without_trust(folders[name])):
        for text in (*PROMPTS, "", "ends <|endoftext|> here", "a  b\r\n\t\x00 e\u0301", "你好🙂" * 30):
            assert tokenizer(text)["input_ids"] == ours.encode(text)
            assert tokenizer.decode(ours.encode(text)) == text
        assert tokenizer.eos_token_id == tokenizer.pad_token_id == tokenizer.bos_token_id == ours.eot
        assert len(tokenizer) == ours.n_ids


def _without_trust(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


# --- elsewhere

ELSEWHERE = """
import sys

class NoNugpt:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "nugpt":
            raise ModuleNotFoundError("nugpt is not installed here")

sys.meta_path.insert(0, NoNugpt())
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

folder = sys.argv[1]
try:
    import nugpt
except ModuleNotFoundError:
    pass
else:
    sys.exit("nugpt can be imported: this shows nothing")
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
batch = tokenizer(["7 the ", "1"], padding=True, return_tensors="pt")
made = model.generate(**batch, max_new_tokens=12)
print(made[:, batch["input_ids"].shape[1]:].tolist())
assert not any(name.split(".")[0] == "nugpt" for name in sys.modules)
"""


def test_it_works_where_nugpt_is_not_installed(
    labs: dict[str, Trained], folders: dict[str, Path], tmp_path: Path
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", ELSEWHERE, str(folders["bytes_run"])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = [until_end(row, 256) for row in json.loads(done.stdout)]
    assert made == [greedy(labs["bytes_run"], prompt, 12) for prompt in ("7 the ", "1")]


def test_the_code_that_the_card_and_the_documentation_show_runs(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folders["bytes_run"], tmp_path / "mymodel")
    monkeypatch.chdir(tmp_path)
    pages = {tmp_path / "mymodel" / "README.md": "python", ROOT / "docs" / "export.md": "py"}
    for page, language in pages.items():
        shown = [block.text.replace('"PATH"', '"mymodel"') for block in blocks(page) if block.language == language]
        names: dict[str, Any] = {}
        for block in shown:
            exec(compile(block, str(page), "exec"), names)
        assert capsys.readouterr().out.startswith("['")
    trained = load(tmp_path / "tuned" / "checkpoint-4")  # what the documentation fine-tunes, on the sphere to the end
    before = load(tmp_path / "mymodel")
    for name, parameter in trained.named_parameters():
        assert not torch.equal(parameter, before.get_parameter(name)), name
        if (axis := NORMALIZED(name).axis) is not None:
            lengths = parameter.norm(dim=axis)
            torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=0, atol=1e-6)


# --- saved again


def test_saved_by_transformers_it_is_the_same_model_and_comes_back_to_the_bit(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    model, tokenizer = load(folders["bytes_run"]), load_tokenizer(folders["bytes_run"])
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    again = load(saved)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert read_folder(saved).unchanged
    directory, _ = import_folder(saved, tmp_path / "runs")
    there, back = read_folder(folders["bytes_run"]).tensors, read_folder(saved).tensors
    assert all(torch.equal(there[name], back[name]) for name in there)
    assert directory.record() is not None


def test_fine_tuned_weights_come_back_as_what_they_are(folders: dict[str, Path], tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    model = load(folders["bytes_run"])
    tokens = torch.tensor([[5, 9, 200, 31, 7]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    retract_(model.named_parameters(), NORMALIZED)  # our names: our rules put them back on the sphere
    lengths = [model.E_out.weight.norm(dim=1), model.blocks[1].mlp.W_oMLP.weight.norm(dim=0)]
    assert all(torch.allclose(one, torch.ones_like(one)) for one in lengths)
    model.save_pretrained(saved)
    load_tokenizer(folders["bytes_run"]).save_pretrained(saved)
    directory, found = import_folder(saved, tmp_path / "runs")
    assert not found.unchanged
    assert directory.record() is None
    assert torch.equal(found.tensors["s_z.stored"], model.s_z.stored)


# --- what is wrong is said in a line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 25}, "hidden_size is 25, but must be num_attention_heads times head_dim"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, but must divide"),
        ({"gains": {"s_z": 1.0}}, "gains is {'s_z': 1.0}, but must be a finite number for each of alpha_A"),
    ],
)
def test_a_configuration_that_cannot_be_is_one_line(folder: Path, changes: dict[str, Any], words: str) -> None:
    edit_config(folder, **changes)
    with pytest.raises(ValueError, match=words.split("{")[0]) as error:
        load(folder)
    assert "\n" not in str(error.value)
    assert words in str(error.value)


def test_the_vocabulary_cannot_be_resized(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="s_z holds a trained number for each id"):
        load(folders["bytes_run"]).resize_token_embeddings(500)


def test_tokens_and_embeddings_at_once_are_refused(folders: dict[str, Path]) -> None:
    model = load(folders["bytes_run"])
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model()
    tokens = torch.tensor([[5, 9, 200]])
    with torch.no_grad():
        from_embeddings = model(inputs_embeds=model.get_input_embeddings()(tokens)).logits
        assert torch.equal(from_embeddings, model(tokens).logits)
