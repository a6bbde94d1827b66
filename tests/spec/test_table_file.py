"""A user's own table from a TOML file: it comes back as it was written, and every mistake is one line that names it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nugpt.spec import Parametrization, Power, Row, load_table, table_from_dict, table_to_dict, table_to_toml
from nugpt.spec.parametrization import FAMILIES, FORWARD, TABLES
from nugpt.spec.roles import RESCALER_ROLES


def written(folder: Path, text: str, name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", TABLES)
def test_a_built_in_table_survives_the_round_trip(name: str, tmp_path: Path) -> None:
    table = TABLES[name]
    assert load_table(written(tmp_path, table_to_toml(table))) == table
    assert table_from_dict(table_to_dict(table)) == table
    assert load_table(name) is table


fractions = st.fractions(-3, 3, max_denominator=12)
positive = st.floats(1e-300, 1e300)
powers = st.builds(
    Power,
    coefficient=positive,
    width=fractions,
    depth=fractions,
    data=fractions,
    d_model=fractions,
    rescaler_scale=fractions,
)


@st.composite
def tables(draw: st.DrawFn) -> Parametrization:
    family = draw(st.sampled_from(sorted(FAMILIES)))
    rows = {}
    for role in FAMILIES[family]:
        needs_init = role in RESCALER_ROLES or family == "prenorm"
        rows[role] = Row(
            lr=draw(powers),
            init=draw(powers if needs_init else powers | st.none()),
            scale=draw(powers) if role in RESCALER_ROLES else None,
            multiplier_log2=draw(fractions),
            weight_decay=draw(powers | st.none()),
            eps=draw(powers),
        )
    return Parametrization(
        name=draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)),
        family=family,
        rows=rows,
        base=draw(powers),
        batch=draw(fractions | st.none()),
        forward={name: draw(powers) for name in FORWARD[family]},
        weight_decay=draw(st.floats(0, 1e300)),
        eps=draw(st.floats(0, 1e300)),
        betas=(draw(st.floats(0, 0.999)), draw(st.floats(0, 0.999))),
    )


@settings(max_examples=60)
@given(tables())
def test_any_table_survives_the_round_trip(table: Parametrization) -> None:
    assert table_from_dict(tomllib.loads(table_to_toml(table))) == table
    assert table_from_dict(table_to_dict(table)) == table


def test_a_table_written_by_hand(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        base = { data = "-1/3" }
        batch = 0.5
        eps = 1e-12
        betas = [0.9, 0.99]
        [rows]
        input = { lr = { width = -0.5 } }
        hidden = { lr = { coefficient = 2, width = "-3/4", depth = -1 }, multiplier_log2 = "1/2" }
        output = {}
        alpha_A = { init = { coefficient = 0.05, depth = -1 }, scale = 0.03 }
        alpha_M = { init = 0.05, scale = { rescaler_scale = 1 } }
        s_qk = { init = 1, scale = { d_model = "-1/2" } }
        s_u = { init = 1.0, scale = 1 }
        s_nu = { init = 1.0, scale = 1 }
        s_z = { init = { width = "1/2" }, scale = 0.03 }
        """,
    )
    table = load_table(path)
    assert (table.name, table.family) == ("mine", "normalized")
    assert table.base == Power(data=Fraction(-1, 3))
    assert (table.batch, table.eps, table.betas, table.weight_decay) == (Fraction(1, 2), 1e-12, (0.9, 0.99), 0.0)
    assert table.rows["hidden"] == Row(
        lr=Power(2.0, width=Fraction(-3, 4), depth=Fraction(-1)), multiplier_log2=Fraction(1, 2)
    )
    assert table.rows["output"] == Row()
    assert table.rows["alpha_M"] == Row(init=Power(0.05), scale=Power(rescaler_scale=Fraction(1)))
    assert table.rows["s_qk"].scale == Power(d_model=Fraction(-1, 2))


def test_extends_replaces_whole_cells_and_keeps_the_rest(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        extends = "nugpt"
        name = "steeper"
        batch = "1/2"
        [rows.hidden]
        lr = { depth = "-1/2" }
        [rows.output]
        multiplier_log2 = 0
        """,
    )
    start, ours = TABLES["nugpt"], load_table(path)
    assert (ours.name, ours.batch, ours.base) == ("steeper", Fraction(1, 2), start.base)
    assert ours.rows["hidden"].lr == Power(depth=Fraction(-1, 2))  # not also νGPT's width exponent
    assert ours.rows["output"] == replace(start.rows["output"], multiplier_log2=Fraction(0))
    assert ours.rows["output"].lr == Power(width=Fraction(-3, 4))
    others = set(start.rows) - {"hidden", "output"}
    assert {role: ours.rows[role] for role in others} == {role: start.rows[role] for role in others}
    assert start == TABLES["nugpt"]
    assert load_table(written(tmp_path, 'extends = "ngpt"\n', "bare.toml")) == replace(TABLES["ngpt"], name="bare")


@pytest.mark.parametrize("number", [0.1, -1 / 3, 5e-324, 99.99999999999999, 1e-05])
def test_an_exponent_of_many_digits_survives_the_round_trip(number: float, tmp_path: Path) -> None:
    power = Power(width=number)  # type: ignore[arg-type]
    table = replace(TABLES["nugpt"], name="mine", base=power, batch=number)  # type: ignore[arg-type]
    assert load_table(written(tmp_path, table_to_toml(table))) == table
    by_hand = f'extends = "nugpt"\nname = "mine"\nbatch = {number!r}\nbase = {{ width = {number!r} }}\n'
    assert load_table(written(tmp_path, by_hand)) == table


def test_a_file_may_hold_a_built_in_table_but_not_its_name_alone(tmp_path: Path) -> None:
    copy = written(tmp_path, table_to_toml(TABLES["nugpt"]), "nugpt.toml")
    assert load_table(copy) == TABLES["nugpt"]
    with pytest.raises(ValueError, match=r"nugpt\.toml: name is 'nugpt', but so is a built-in table's: give another"):
        load_table(written(tmp_path, 'extends = "nugpt"\nbatch = 1\n', "nugpt.toml"))


ROWS = table_to_toml(TABLES["nugpt"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('extends = "nugpt"\n[rows.hiden]\nlr = 1', "unknown role 'hiden', known are input, hidden"),
        ('extends = "nugpt"\n[rows.norm]\nlr = 1', "unknown role 'norm'"),
        ("[rows.hidden]\nlr = 1", "the row of role 'input' is missing"),
        (ROWS.replace("[rows.s_qk]", "[rows.s_u2]"), "unknown role 's_u2'"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = "fast"', "rows.hidden.lr is 'fast', but must be a number"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = -1', "rows.hidden.lr is -1, but must be a number of at least 0"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = nan', "rows.hidden.lr is nan"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = true', "rows.hidden.lr is True"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = [1]', "rows.hidden.lr is [1]"),
        (
            'extends = "nugpt"\n[rows.hidden]\nlr = { width = "x" }',
            "rows.hidden.lr.width is 'x', but must be a number or a fraction",
        ),
        ('extends = "nugpt"\n[rows.hidden]\nlr = { width = "1/0" }', "rows.hidden.lr.width is '1/0'"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = { width = "-3/" }', "rows.hidden.lr.width is '-3/'"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = { width = inf }', "rows.hidden.lr.width is inf"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = { width = true }', "rows.hidden.lr.width is True"),
        (
            'extends = "nugpt"\n[rows.hidden]\nlr = { width = 1000 }',
            "rows.hidden.lr.width is 1000, but must be a number from",
        ),
        ('extends = "nugpt"\n[rows.hidden]\nlr = { width = "201/2" }', "rows.hidden.lr.width is 201/2, but must be"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = { width = "1e99999999" }', "lr.width is '1e99999999', but must be"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = { width = "1e400" }', "rows.hidden.lr.width is '1e400', but must be"),
        ('extends = "nugpt"\n[rows.hidden]\nlr = { width = 1e300 }', "rows.hidden.lr.width is 1e+300, but must be"),
        (f'extends = "nugpt"\n[rows.hidden]\nlr = {{ width = "{"1" * 5000}" }}', "rows.hidden.lr.width is '1111"),
        (f'extends = "nugpt"\n[rows.hidden]\nlr = {{ width = {"1" * 5000} }}', "not valid TOML"),
        (
            'extends = "nugpt"\n[rows.hidden]\nmultiplier_log2 = 5000',
            "rows.hidden.multiplier_log2 is 5000, but must be",
        ),
        ('extends = "nugpt"\nbatch = 5000', "batch is 5000, but must be a number from -100 to 100"),
        ('extends = "nugpt"\nname = "ngpt"', "name is 'ngpt', but so is a built-in table's"),
        (
            'extends = "nugpt"\n[rows.hidden]\nlr = { with = -1 }',
            "rows.hidden.lr: unknown key 'with', known are coefficient, width",
        ),
        (
            'extends = "nugpt"\n[rows.hidden]\nlearning_rate = 1',
            "rows.hidden: unknown key 'learning_rate', known are lr",
        ),
        ('extends = "nugpt"\n[rows.hidden]\nmultiplier_log2 = "half"', "rows.hidden.multiplier_log2 is 'half'"),
        ('extends = "nugpt"\n[rows.hidden]\nscale = 1', "role 'hidden' is no rescaler"),
        ('extends = "nugpt"\n[rows.s_z]\nscale = 0', "scale of role 's_z' is 0"),
        ('extends = "nugpt"\nrows = 3', "rows is 3, but must be a table"),
        ('extends = "nugpt"\n[rows]\nhidden = 1', "rows.hidden is 1, but must be a table"),
        ('extends = "nugpt"\n[row.hidden]\nlr = 1', "unknown key 'row', known are name, family"),
        ('extends = "nuGPT"', "extends is 'nuGPT', but must be one of ngpt"),
        ("extends = 3", "extends is 3"),
        (
            'extends = "nugpt"\nfamily = "prenorm"',
            "family is 'prenorm', but 'nugpt', which it extends, is 'normalized'",
        ),
        ('family = "postnorm"', "family is 'postnorm', but must be one of normalized, prenorm"),
        ("family = []", "family is []"),
        ('extends = "nugpt"\nname = 3', "name is 3, but must be a string"),
        ('extends = "nugpt"\nname = ""', "name is ''"),
        ('extends = "nugpt"\nbatch = "b"', "batch is 'b'"),
        ('extends = "nugpt"\neps = -1e-8', "eps is -1e-08"),
        ('extends = "nugpt"\nweight_decay = "none"', "weight_decay is 'none'"),
        ('extends = "nugpt"\nbetas = [0.9]', "betas is [0.9], but must be two numbers"),
        ('extends = "nugpt"\nbetas = [0.9, 1.0]', "betas is [0.9, 1.0]"),
        ('extends = "nugpt"\nbetas = 0.9', "betas is 0.9"),
        ('extends = "nugpt"\n[forward]\nresidual = 1', "unknown forward multiplier 'residual'"),
        ('extends = "nugpt"\nforward = 1', "forward is 1"),
        ('extends = "prenorm-completep"\n[rows.s_z]\nlr = 1', "unknown role 's_z'"),
        ('extends = "nugpt', "not valid TOML"),
        ("rows.hidden = = 1", "not valid TOML"),
        ('name = "a"\nname = "b"', "not valid TOML"),
        ("eps = 1" + "0" * 400, "eps is 1000"),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_the_file(text: str, named: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError) as refusal:
        load_table(path)
    message = str(refusal.value)
    assert named in message
    assert len(message.splitlines()) == 1
    assert message.startswith(path) or f"{path!r}" in message
    assert len(message) < len(path) + 300


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    with pytest.raises(ValueError, match="does not exist") as refusal:
        load_table(missing)
    assert missing in str(refusal.value)
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    with pytest.raises(ValueError, match="is a directory"):
        load_table(str(folder))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not valid TOML"):
        load_table(str(binary))
    with pytest.raises(ValueError, match="unknown parametrization 'mine'"):
        load_table("mine")


def test_a_path_is_taken_as_its_text_and_what_is_neither_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "nugpt"\n', encoding="utf-8")
    assert load_table(tmp_path / "mine.toml") == load_table(str(tmp_path / "mine.toml"))
    for wrong in (3, None, ["nugpt"]):
        with pytest.raises(ValueError, match=rf"^unknown parametrization {re.escape(repr(wrong))}, known are ngpt"):
            load_table(wrong)  # type: ignore[arg-type]
