"""`table`, `explain` and `count`: what they print is what the library computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nugpt.cli.main import main
from nugpt.core.init import build
from nugpt.core.optim import param_groups
from nugpt.spec import TABLES, Extent, load_table, parametrization, preset, preset_names, resolve, table_from_dict

PAPER = ("ngpt", "depth-mup", "completep", "nugpt", "nugpt-full-align")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> str:
        assert main(list(words)) == 0
        output = capsys.readouterr()
        assert output.err == ""
        return output.out

    return run


@pytest.mark.parametrize("name", ["tiny-l2h2", "tiny-l8h2", "lab-l4h8", "paper-l12h28"])
@pytest.mark.parametrize("table", TABLES)
def test_explain_covers_every_parameter_once_with_the_learning_rate_applied(table: str, name: str, shown: Any) -> None:
    answer = json.loads(
        shown("explain", "--preset", name, "--parametrization", table, "--lr", "0.01", "--steps", "500", "--json")
    )
    scale, model = preset(name)
    config = model if TABLES[table].family == "normalized" else model.from_dict(answer["model"])
    assert answer["model"] == config.to_dict()
    built = build(config, device="meta")
    names = [tensor["name"] for tensor in answer["parameters"]]
    assert names == [name for name, _ in built.named_parameters()]
    assert len(set(names)) == len(names)
    resolved = resolve(parametrization(table), scale.base, Extent.of(config, 500, scale.batch), 0.01)
    groups = param_groups(built.named_parameters(), resolved, config.roles)
    applied = {name: group for group in groups for name in group["names"]}
    shapes = {name: list(parameter.shape) for name, parameter in built.named_parameters()}
    for tensor in answer["parameters"]:
        group = applied[tensor["name"]]
        assert (tensor["lr"], tensor["weight_decay"], tensor["eps"]) == (
            group["lr"],
            group["weight_decay"],
            group["eps"],
        )
        assert tensor["role"] == group["role"]
        assert tensor["shape"] == shapes[tensor["name"]]
        assert tensor["sphere_axis"] == config.roles(tensor["name"]).axis
    assert sum(tensor["numel"] for tensor in answer["parameters"]) == sum(p.numel() for p in built.parameters())


def test_explain_by_hand(shown: Any) -> None:
    answer = json.loads(shown("explain", "--preset", "paper-l20h40", "--lr", "0.008", "--steps", "78000", "--json"))
    tensors = {tensor["name"]: tensor for tensor in answer["parameters"]}
    # m_width 4, m_depth 2, m_data 8
    output = tensors["E_out.weight"]
    assert (output["lr"], output["multiplier"], output["sphere_axis"]) == (pytest.approx(0.000707106781186548), 0.5, 1)
    alpha = tensors["blocks.19.alpha_M.stored"]
    assert [alpha[key] for key in ("lr", "init", "scale", "gain")] == pytest.approx([0.004, 0.025, 0.03, 0.8333333333])
    assert tensors["s_z.stored"]["gain"] == pytest.approx(66.66666667)
    assert tensors["blocks.3.mlp.W_oMLP.weight"]["sphere_axis"] == 0
    assert answer["resolved"]["ratios"] == {"width": 4.0, "depth": 2.0, "data": 8.0, "batch": 1.0}


def test_explain_obeys_its_options(shown: Any, tmp_path: Path) -> None:
    def tensors(*words: str) -> dict[str, Any]:
        answer = json.loads(shown("explain", "--lr", "0.01", "--json", *words))
        return {tensor["name"]: tensor for tensor in answer["parameters"]}

    assert tensors("--multiplier", "output", "0.25", "input", "2")["E_out.weight"]["multiplier"] == 0.25
    decayed = tensors("--parametrization", "prenorm-completep", "--weight-decay", "0.3")
    assert decayed["E_in.weight"]["weight_decay"] == 0.3
    assert decayed["norm_out.weight"]["weight_decay"] == 0.0
    qk = tensors("--parametrization", "prenorm-completep", "--architecture", "prenorm-qknorm")
    assert "blocks.0.attention.q_norm.weight" in qk
    path = tmp_path / "mine.toml"
    path.write_text('extends = "nugpt"\n[rows.output]\nmultiplier_log2 = -3\n', encoding="utf-8")
    assert tensors("--parametrization", str(path))["E_out.weight"]["multiplier"] == 0.125
    wider = tensors("--preset", "tiny-l2h4", "--n-kv-heads", "2", "--base", "tiny-l2h1", "--base-steps", "60")
    assert wider["blocks.0.attention.W_k.weight"]["shape"] == [96, 192]
    assert wider["blocks.0.mlp.W_u.weight"]["shape"] == [512, 192]
    # m_width 4, m_data 2
    assert wider["blocks.0.mlp.W_u.weight"]["lr"] == pytest.approx(0.01 * 2 ** (-1 / 3) * 4**-0.75)
    assert wider["s_z.stored"]["scale"] == pytest.approx(48**-0.5)


def test_a_base_with_other_heads(shown: Any) -> None:
    heads = ("--head-dim", "96", "--base-head-dim", "96")
    answer = json.loads(shown("explain", "--preset", "tiny-l2h4", *heads, "--lr", "0.01", "--json"))
    assert answer["model"]["head_dim"] == 96
    assert answer["resolved"]["ratios"]["width"] == 2  # four heads over the base's two, as with the scale's own heads
    assert answer["resolved"]["rows"]["alpha_A"]["scale"] == pytest.approx((2 * 96) ** -0.5, rel=1e-14)


def test_the_papers_constant_is_that_of_its_own_base_width_alone(shown: Any) -> None:
    def constant(*words: str) -> float:
        answer = json.loads(shown("explain", "--preset", "paper-l12h12", "--lr", "0.01", "--json", *words))
        return float(answer["resolved"]["rows"]["s_z"]["scale"])

    assert constant() == 0.03
    assert constant("--base", "paper-l8h10") == 0.03
    assert constant("--base-steps", "5000") == 0.03
    assert constant("--base", "paper-l10h12") == pytest.approx(1224**-0.5, rel=1e-14)
    assert constant("--base", "paper-l10h12", "--rescaler-scale", "0.03") == 0.03


def lines(text: str) -> dict[str, list[str]]:
    """A printed table by the first cell of its lines; cells are two spaces apart."""
    rows = ([cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines())
    return {row[0]: row[1:] for row in rows if row}


def test_explain_shows_decay_and_epsilon_where_they_say_something(shown: Any) -> None:
    words = ["explain", "--lr", "0.01", "--preset", "tiny-l4h4"]
    plain = lines(shown(*words))
    assert plain["parameter"][-1] == "gain"
    # m_width 2, m_depth 2
    prenorm = lines(shown(*words, "--parametrization", "prenorm-completep"))
    assert prenorm["parameter"][-3:] == ["gain", "λ", "ε"]
    assert prenorm["E_in.weight"][-2:] == ["0.1", "5e-17"]
    assert prenorm["blocks.0…3.mlp.W_u.weight"][-2:] == ["0.2", "2.5e-17"]
    assert prenorm["norm_out.weight"][-2:] == ["0", "2.5e-17"]
    assert prenorm["E_out.weight"][-2:] == ["0.1", "5e-17"]


def test_explain_for_people_names_blocks_once_or_all(shown: Any) -> None:
    brief = shown("explain", "--lr", "0.01", "--preset", "tiny-l4h2")
    assert brief.count("W_oMLP") == 1
    assert "blocks.0…3.mlp.W_oMLP.weight" in brief
    full = shown("explain", "--lr", "0.01", "--preset", "tiny-l4h2", "--all")
    assert full.count("W_oMLP") == 4
    single = shown("explain", "--lr", "0.01", "--preset", "tiny-l1h2")
    assert "blocks.0.mlp.W_oMLP.weight" in single


def test_count_of_the_papers_base(shown: Any) -> None:
    answer = json.loads(shown("count", "--preset", "paper-l10h10", "--json"))
    assert answer["preset"] == "paper-l10h10"
    assert answer["total_parameters"] == 124_933_000 + 2 * 100_352 * 1020 + 100_352
    assert answer["non_embedding_parameters"] == 124_933_000
    assert (answer["tokens"], answer["steps"], answer["batch"]) == (2_498_660_000, 9_750, 64)
    assert answer["tokens_per_parameter"] == 20.0
    assert (answer["model"]["d_model"], answer["model"]["d_mlp"]) == (1020, 2720)
    flops = json.loads(shown("count", "--preset", "paper-l12h12", "--json"))["flops_per_token"]
    assert flops == 2_393_115_840


def test_count_obeys_its_options(shown: Any) -> None:
    words = ["--tokens-per-parameter", "10", "--batch", "32", "--round-steps-to", "1", "--json"]
    answer = json.loads(shown("count", "--preset", "paper-l10h10", *words))
    assert (answer["tokens"], answer["batch"]) == (1_249_330_000, 32)
    assert answer["steps"] == 9_532  # 1,249,330,000 / 131,072 = 9531.6
    grouped = json.loads(shown("count", "--n-kv-heads", "1", "--d-mlp", "10", "--vocab-size", "5", "--json"))
    built = build(
        preset("tiny-l2h2")[1].from_dict({k: v for k, v in grouped["model"].items() if k != "d_model"}), device="meta"
    )
    assert grouped["total_parameters"] == sum(p.numel() for p in built.parameters())
    assert built.config.n_kv_heads == 1


def test_count_lists_every_preset(shown: Any) -> None:
    answers = json.loads(shown("count", "--list", "--json"))
    assert [answer["preset"] for answer in answers] == preset_names()
    published = {answer["preset"]: round(answer["total_parameters"] / 1e9, 2) for answer in answers}
    assert [published[f"paper-{size}"] for size in ("l12h8", "l12h40", "l8h12", "l128h12")] == [0.26, 3.22, 0.39, 2.55]
    listed = shown("count", "--list")
    assert all(name in listed for name in preset_names())


def test_count_for_people(shown: Any) -> None:
    text = shown("count", "--preset", "paper-l10h10")
    for number in ("1020", "2720", "100,352", "124,933,000", "9,750"):
        assert number in text


def test_the_symbolic_table_says_what_the_paper_says(shown: Any) -> None:
    rows = {}
    for line in shown("table").splitlines():
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        if len(cells) == 1 + len(PAPER):
            rows[cells[0]] = dict(zip(PAPER, cells[1:], strict=True))
    third = "η·m_data^(-1/3)"
    assert list(rows["η_base"].values()) == ["η", "η", "η", third, third]
    assert rows["η of hidden"] == {
        "ngpt": "η_base",
        "depth-mup": "η_base·m_width^(-1)·m_depth^(-1/2)",
        "completep": "η_base·m_width^(-1)",
        "nugpt": "η_base·m_width^(-3/4)",
        "nugpt-full-align": "η_base·m_width^(-1)",
    }
    half = "η_base·m_width^(-1/2)"
    assert list(rows["η of input"].values()) == ["η_base", half, half, half, half]
    assert list(rows["η of output"].values()) == ["η_base", half, half, "η_base·m_width^(-3/4)", "η_base·m_width^(-1)"]
    for rescaler in ("alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z"):
        assert set(rows[f"η of {rescaler}"].values()) == {"η_base"}
    deep = "0.05·m_depth^(-1)"
    assert list(rows["alpha_A init"].values()) == ["0.05", "0.05·m_depth^(-1/2)", deep, deep, deep]
    assert list(rows["s_z init"].values()) == ["1", "1", "1", "m_width^(1/2)", "m_width^(1/2)"]
    assert list(rows["s_qk scale"].values()) == ["d_model^(-1/2)", "c", "c", "c", "c"]
    assert set(rows["s_u scale"].values()) == {"1"}
    assert list(rows["tuned multiplier of η of output"].values()) == ["1", "2^(-3/2)", "2^(-3/2)", "2^(-1)", "1"]


def test_the_table_shows_decay_epsilon_and_multipliers_where_they_say_something(shown: Any, tmp_path: Path) -> None:
    for words in (["table"], ["table", "--resolve"]):
        assert not [quantity for quantity in lines(shown(*words)) if quantity.startswith(("λ", "ε"))]
    prenorm = lines(shown("table", "--parametrization", "prenorm-completep"))
    assert prenorm["λ of hidden"] == ["0.1·m_width"]
    assert prenorm["ε of output"] == ["1e-16·m_width^(-1)"]
    assert prenorm["ε of hidden"] == ["1e-16·m_width^(-1)·m_depth^(-1)"]
    # m_width 4, m_depth 2
    numbers = lines(shown("table", "--parametrization", "nugpt", "prenorm-completep", "--preset", "paper-l20h40"))
    assert numbers["λ of hidden"] == ["0.4"]
    assert numbers["ε of output"] == ["1e-16", "2.5e-17"]
    assert numbers["ε of hidden"] == ["1e-16", "1.25e-17"]
    assert numbers["tuned multiplier of η of output"] == ["0.5", "1"]
    path = tmp_path / "mine.toml"
    path.write_text('extends = "nugpt"\neps = 1e-8\n[rows.s_z]\nmultiplier_log2 = -2\n', encoding="utf-8")
    for words in ([], ["--resolve"]):
        mine = lines(shown("table", "--parametrization", "nugpt", str(path), *words))
        assert mine["ε of hidden"] == ["1e-16", "1e-08"]
        assert mine["tuned multiplier of η of s_z"] == (["0.25"] if words else ["2^(-2)"])


def test_table_as_json_and_toml_are_tables_again(shown: Any, tmp_path: Path) -> None:
    answer = json.loads(shown("table", "--json"))
    assert {name: table_from_dict(values) for name, values in answer.items()} == {name: TABLES[name] for name in PAPER}
    for name in TABLES:
        path = tmp_path / f"{name}.toml"
        path.write_text(shown("table", "--parametrization", name, "--toml"), encoding="utf-8")
        assert load_table(str(path)) == TABLES[name]


def test_the_resolved_table(shown: Any) -> None:
    words = ["table", "--resolve", "--preset", "paper-l20h40", "--steps", "78000", "--lr", "0.008"]
    answer = json.loads(shown(*words, "--json"))
    assert list(answer) == list(PAPER)
    assert answer["nugpt"]["rows"]["hidden"]["lr"] == pytest.approx(0.00141421356237310)
    assert answer["ngpt"]["rows"]["s_z"]["scale"] == pytest.approx(0.0156556072771287)
    text = shown(*words)
    assert "m_width 4  m_depth 2  m_data 8  m_batch 1" in text
    assert "0.0156556" in text
    assert shown("table", *words[2:]) == text  # any option of the target asks for numbers
    for option in (["--preset", "paper-l12h12"], ["--lr", "1"], ["--steps", "80000"], ["--base", "paper-l10h10"]):
        assert shown("table", *option) == shown("table", "--resolve")
    prenorm = json.loads(shown("table", "--resolve", "--parametrization", "prenorm-completep", "--json"))
    assert prenorm["prenorm-completep"]["family"] == "prenorm"


def test_one_layer_is_one_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "--preset", "tiny-l1h1"]) == 0
    assert capsys.readouterr().out.startswith("1 layer, 1 head of 48: ")
    assert main(["recommend", "--lr", "0.01", "--preset", "tiny-l1h1"]) == 0
    assert capsys.readouterr().out.startswith("target   1 layer, 1 head: ")
