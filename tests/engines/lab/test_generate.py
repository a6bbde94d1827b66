"""Text from a trained model: the cache changes nothing, sampling is what it says, characters come out whole."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tests.engines.small import MODEL, directory_of, make_dataset, make_spec, train

from nugpt.core.init import build
from nugpt.data import TokenDataset
from nugpt.data.tokenizer import Tokenizer, byte_tokenizer, train_bpe
from nugpt.engines.lab.generate import Sampling, Trained, _draw, generate, load_trained, stream_text

GREEDY = Sampling(temperature=0)
PROMPT = list(b"7 the ")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def models(dataset: TokenDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Models trained for some steps at a high rate, so that their logits are far from flat."""
    store = tmp_path_factory.mktemp("runs")
    specs = {
        "grouped": make_spec(dataset, layers=2, lr=2**-2, steps=40),
        "all heads": make_spec(dataset, model=replace(MODEL, n_kv_heads=2), lr=2**-2, steps=40),
        "prenorm": make_spec(dataset, "prenorm-completep", lr=2**-4, steps=40),
    }
    for spec in specs.values():
        train([spec], store, dataset, log_every=40, checkpoint_every=40)
    return {name: load_trained(directory_of(spec, store)) for name, spec in specs.items()}


@pytest.mark.parametrize("name", ["grouped", "all heads", "prenorm"])
@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Sampling(seed=1), Sampling(0.7, seed=2), Sampling(1.3, top_k=20, seed=3), Sampling(1.0, 0, 0.9, 4)],
    ids=["greedy", "plain", "cool", "top_k", "top_p"],
)
def test_with_the_cache_and_without_the_tokens_are_the_same(
    models: dict[str, Trained], name: str, sampling: Sampling
) -> None:
    trained = models[name]
    for prompt in (PROMPT, []):
        cached = list(generate(trained, prompt, 60, sampling))
        assert cached == list(generate(trained, prompt, 60, sampling, use_cache=False))
    assert len(cached) > 0


def test_the_models_are_worth_sampling_from(models: dict[str, Trained]) -> None:
    for trained in models.values():
        tokens = list(generate(trained, PROMPT, 200, Sampling(seed=0)))
        assert len(set(tokens)) > 10
        logits = trained.model.logits(trained.model(torch.tensor([PROMPT]), trained.gains), trained.gains)[0, -1]
        assert float(logits.softmax(-1).max()) > 20 / MODEL.vocab_size


def test_greedy_takes_the_likeliest_token_each_time(models: dict[str, Trained]) -> None:
    trained = models["grouped"]
    tokens, text = list(PROMPT), []
    for _ in range(30):
        hidden = trained.model(torch.tensor([tokens]), trained.gains)
        logits = trained.model.logits(hidden, trained.gains)[0, -1, :257]
        token = max(range(257), key=lambda i: float(logits[i]))
        if token == 256:
            break
        tokens.append(token)
        text.append(token)
    assert list(generate(trained, PROMPT, 30, GREEDY)) == text
    for same in (
        Sampling(0, seed=9),
        Sampling(1.0, top_k=1, seed=9),
        Sampling(5.0, top_p=1e-9),
        Sampling(1e-30, seed=3),
    ):
        assert list(generate(trained, PROMPT, 30, same)) == text


def test_a_seed_is_a_text(models: dict[str, Trained]) -> None:
    trained = models["grouped"]
    texts = [tuple(generate(trained, PROMPT, 40, Sampling(seed=seed))) for seed in (0, 1, 2, 0)]
    assert texts[0] == texts[3]
    assert len(set(texts)) == 3


def test_no_more_tokens_than_asked_for_and_none_after_the_end(models: dict[str, Trained]) -> None:
    trained = models["grouped"]
    for n in (1, 5, 33):
        assert len(list(generate(trained, PROMPT, n, Sampling(seed=0)))) <= n
    for seed in range(3):
        tokens = list(generate(trained, [], 150, Sampling(2.0, seed=seed)))
        assert 256 not in tokens  # end-of-text ends it and is no text


def sure_of_padding(trained: Trained) -> Trained:
    """The same model, whose padded ids have by far the largest logits."""
    model = build(trained.spec.model)
    model.load_state_dict(trained.model.state_dict())
    with torch.no_grad():
        model.E_out.weight[257:] = model.E_out.weight[101]
        model.s_z.stored[257:] = 50 * model.s_z.stored[101]
    return replace(trained, model=model.requires_grad_(False))


def test_ids_that_only_pad_the_vocabulary_are_never_drawn(models: dict[str, Trained]) -> None:
    trained = sure_of_padding(models["grouped"])
    hidden = trained.model(torch.tensor([PROMPT]), trained.gains)
    assert int(trained.model.logits(hidden, trained.gains)[0, -1].abs().argmax()) >= 257
    for sampling in (GREEDY, Sampling(3.0, seed=1)):
        tokens = list(generate(trained, PROMPT, 50, sampling))
        assert all(token < 256 for token in tokens)


LOGITS = torch.tensor([0.3, 2.0, -1.0, 1.2, 0.3, -40.0, 1.9])


def expected_shares(sampling: Sampling) -> list[float]:
    """Probabilities after cutting, written out for a handful of tokens."""
    weights = [math.exp(float(x) / sampling.temperature) for x in LOGITS]
    shares = [weight / sum(weights) for weight in weights]
    order = sorted(range(len(shares)), key=lambda i: (-shares[i], i))
    kept: list[int] = []
    for place, token in enumerate(order):
        if sampling.top_k and place >= sampling.top_k:
            break
        if sum(shares[i] for i in kept) >= sampling.top_p:
            break
        kept.append(token)
    total = sum(shares[i] for i in kept)
    return [shares[i] / total if i in kept else 0.0 for i in range(len(shares))]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(0.5),
        Sampling(2.0),
        Sampling(top_k=3),
        Sampling(top_p=0.8),
        Sampling(top_p=0.3),
        Sampling(1.5, 5, 0.7),
        Sampling(1.0, 100, 1.0),
    ],
)
def test_tokens_are_drawn_as_often_as_their_probability_says(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(0)
    n = 4000
    counts = Counter(_draw(LOGITS, sampling, generator) for _ in range(n))
    for token, share in enumerate(expected_shares(sampling)):
        if share == 0:
            assert counts[token] == 0
        # Five standard deviations of a binomial: with a fixed seed this is a check of the shares, not of luck.
        assert abs(counts[token] / n - share) <= 5 * math.sqrt(share * (1 - share) / n) + 1e-12


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-46, 5e-324])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    assert _draw(LOGITS, Sampling(temperature), torch.Generator().manual_seed(0)) == 1
    assert _draw(1e30 * LOGITS, Sampling(temperature), torch.Generator().manual_seed(0)) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_a_wrong_setting_is_one_line(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name) as error:
        Sampling(**{name: value})  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_weights_that_are_no_numbers_are_refused(models: dict[str, Trained]) -> None:
    trained = models["grouped"]
    model = build(trained.spec.model)
    model.load_state_dict(trained.model.state_dict())
    with torch.no_grad():
        model.s_z.stored[3] = math.nan
    spoiled = replace(trained, model=model.requires_grad_(False))
    for sampling in (GREEDY, Sampling()):
        with pytest.raises(ValueError, match="not finite"):
            list(generate(spoiled, PROMPT, 3, sampling))


# --- tokens to text


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(["the naïve café 你好 🙂 the of sphere " * 20], 280)


def check_stream(tokenizer: Tokenizer, tokens: list[int]) -> None:
    pieces = list(stream_text(tokenizer, iter(tokens)))
    assert "".join(pieces) == tokenizer.decode(tokens)
    assert "" not in pieces


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
@example("naïve 你好 🙂🙂 \ufffd e\u0301")
def test_pieces_join_to_the_text(bpe: Tokenizer, text: str) -> None:
    for tokenizer in (byte_tokenizer(), bpe):
        tokens = tokenizer.encode(text)
        check_stream(tokenizer, tokens)
        if "\ufffd" not in text:  # a character is never shown before it is whole
            assert "\ufffd" not in "".join(stream_text(tokenizer, iter(tokens)))
        for cut in range(len(tokens)):
            check_stream(tokenizer, tokens[:cut])


@given(st.lists(st.sampled_from([*b"ab \xf0\x9f\x99\x82\xe4\xbd\xa0\xc3\xaf\xff\x80\xef\xbf\xbd", 256]), max_size=24))
@example([0xFF, 0xFF, 0xFF, 0xF0, 0x9F, 0x99, 0x82, 0x61])
@example([0xF0, 0x9F, 0x99, 0xF0, 0x9F, 0x99, 0x82])
def test_pieces_join_to_the_text_of_bytes_that_are_none(bpe: Tokenizer, tokens: list[int]) -> None:
    check_stream(byte_tokenizer(), tokens)
    check_stream(bpe, tokens)  # the same numbers are other bytes there


def test_text_comes_as_it_is_made(bpe: Tokenizer) -> None:
    for tokenizer in (byte_tokenizer(), bpe):
        seen = ""
        given_out = 0

        def source() -> list[int]:
            return tokenizer.encode("the sphere 🙂 of")  # noqa: B023

        def count(tokens: list[int]):  # type: ignore[no-untyped-def]
            nonlocal given_out
            for token in tokens:
                given_out += 1
                yield token

        for piece in stream_text(tokenizer, count(source())):
            seen += piece
            whole = tokenizer.decode(source()[:given_out])
            assert seen == whole.rstrip("\ufffd") or seen == whole


# --- loading


def test_a_named_checkpoint_and_one_that_is_not_there(dataset: TokenDataset, tmp_path: Path) -> None:
    spec = make_spec(dataset, lr=2**-3)
    train([spec], tmp_path, dataset, keep=3)
    directory = directory_of(spec, tmp_path)
    assert load_trained(directory).step == 24
    assert load_trained(directory, "step-000000016").step == 16
    first, last = (load_trained(directory, name).model for name in ("step-000000008", "step-000000024"))
    assert not torch.equal(first.E_out.weight, last.E_out.weight)
    for name in ("step-000000017", "nonsense", "../../x", ""):
        with pytest.raises(ValueError, match="step-000000008") as error:
            load_trained(directory, name)
        assert "\n" not in str(error.value)


def test_a_run_without_a_checkpoint_is_one_line(dataset: TokenDataset, tmp_path: Path) -> None:
    from nugpt.store import Store

    directory = Store(tmp_path).run(make_spec(dataset))
    with pytest.raises(ValueError, match="no checkpoint") as error:
        load_trained(directory)
    assert "\n" not in str(error.value)
