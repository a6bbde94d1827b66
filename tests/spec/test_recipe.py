"""A recipe file comes back as the run it was written from, and a wrong one is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nugpt.spec import load_table, preset
from nugpt.spec.recipe import NO_DATA, load_recipe, read_recipe, recipe_of
from nugpt.spec.run import RunSpec
from nugpt.spec.toml import to_toml


def run_of(table: str = "nugpt", **values: object) -> RunSpec:
    scale, model = preset("tiny-l2h4")
    given = {"lr": 0.02, "steps": 240, "batch": scale.batch, "data": "1" * 16}
    return RunSpec(model=model, table=load_table(table), base=scale.base, **(given | values))  # type: ignore[arg-type]


@pytest.mark.parametrize("table", ["nugpt", "ngpt", "completep"])
@pytest.mark.parametrize("name", ["recipe.json", "recipe.toml"])
def test_a_file_is_read_back_as_the_same_run(tmp_path: Path, table: str, name: str) -> None:
    run = run_of(table)
    values = recipe_of(run, {"lr": run.lr, "interval": None})
    (tmp_path / name).write_text(to_toml(values) if name.endswith("toml") else json.dumps(values), encoding="utf-8")
    assert load_recipe(tmp_path / name) == run
    assert load_recipe(tmp_path / name, data="2" * 16).data == "2" * 16


def test_a_run_without_data_has_null_there() -> None:
    values = recipe_of(run_of(data=NO_DATA))
    assert values["run"]["data"] is None
    assert values["recommended"] is None
    assert read_recipe(values).data == NO_DATA


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"nugpt recipe"', "{}", "[" * 100_000, "\x00"])
@pytest.mark.parametrize("name", ["recipe.json", "recipe.toml"])
def test_what_is_no_recipe_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="recipe") as refused:
        load_recipe(tmp_path / name)
    assert "\n" not in str(refused.value)


def test_a_path_that_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.json"):
        load_recipe(tmp_path / "nowhere.json")


@pytest.mark.parametrize("part", ["lr", "init", "scale", "eps", "weight_decay", "multiplier"])
def test_a_number_that_is_not_its_tables_is_refused(part: str) -> None:
    values = recipe_of(run_of())
    row = values["resolved"]["rows"]["alpha_A"]
    row[part] = 1.001 * row[part] + 1e-12  # weight decay is 0
    with pytest.raises(ValueError, match=r" of alpha_A, but its table gives"):
        read_recipe(values)


def test_numbers_outside_the_rows_are_compared_too() -> None:
    for change, place in (
        (lambda found: found["betas"].__setitem__(1, 0.99), "its betas 1"),
        (lambda found: found.update(lr_base=0.5), "its lr_base"),
        (lambda found: found["ratios"].update(width=3.0), "its ratios width"),
        (lambda found: found.update(betas=[0.9]), "its betas 1"),
        (lambda found: found.update(table="other"), "its table"),
    ):
        values = recipe_of(run_of())
        change(values["resolved"])
        with pytest.raises(ValueError, match=rf"as {place}, but its table gives"):
            read_recipe(values)


def test_a_gain_that_is_not_its_tables_is_refused() -> None:
    values = recipe_of(run_of())
    values["resolved"]["gains"]["s_z"] *= 1.001
    with pytest.raises(ValueError, match=r"gain of s_z"):
        read_recipe(values)
