"""The paper map is complete and points to what exists: equations, tables, figures, choices, each with code and test.

Code is read with `ast`, and the tables come from `nugpt.spec`, so nothing here imports torch.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.docs.markdown import ROOT, anchors, entries, prose, rows, sections

from nugpt.spec.parametrization import FAMILIES, PAPER_TABLES, TABLES
from nugpt.spec.roles import RESCALER_ROLES

PAPER_MAP = ROOT / "docs" / "paper-map.md"
CHOICES = ROOT / "docs" / "choices.md"
NOT_YET = "not yet"

# The labels of the paper's figures, without `fig:`; subfigures left out.
FIGURES = (
    "width-sweep-ngpt-ours-with-token-corr",
    "width-fixed-steps",
    "depth-sweeps",
    "alignment_val",
    "alignment_val_loss_weighted",
    "alignment_val_layer_dependence",
    "mup-drifts-ours-not",
    "depth-mup-depth-sweep",
    "steps-sweep-ngpt-ours",
    "depth-sweep-baseline-alpha-power-law",
    "depth-sweep-ours-alpha-power-law",
    "alignment_val_l12h28",
    "alignment_val_loss_weighted_l12h28",
    "alignment_val_layer_dependence_l12h28",
    "width-sweep-ngpt-ours-without-tc-corrections",
    "both-eta-input-output-sweep",
    "width-sweep-ngpt-mup-vs-muppr",
    "width-sweep-ngpt-mup-vs-muppr-tuned",
)

# The hyperparameters of Table 1, which are also those of Table 2.
QUANTITIES = (
    "η_base",
    "σ²_input",
    "η_input",
    "σ²_hidden",
    "η_hidden",
    "α_A,init",
    "α_A,scale",
    "α_M,init",
    "α_M,scale",
    "s_qk,init",
    "s_qk,scale",
    "s_u,init",
    "s_ν,init",
    "s_u,scale",
    "s_ν,scale",
    "s_z,init",
    "s_z,scale",
    "σ²_output",
    "η_output",
)


@cache
def definitions(path: Path) -> dict[str, ast.stmt]:
    """Qualified name → statement, for every function, class, method and assigned name of a module."""
    found: dict[str, ast.stmt] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[prefix + node.name] = node
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update({prefix + target.id: node for target in targets if isinstance(target, ast.Name)})

    visit(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return found


def source_of(entry: str) -> str:
    """The lines of the definition that `path::qualname` names."""
    file, _, qualname = entry.partition("::")
    node = definitions(ROOT / file)[qualname]
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])


def table(section: str) -> list[list[str]]:
    return rows(sections(PAPER_MAP)[section])


def problem(entry: str) -> str | None:
    """What is wrong with `path::qualname`; None when it is there."""
    file, _, qualname = entry.partition("::")
    if not file.startswith(("src/nugpt/", "tests/")):
        return f"{entry}: neither in src/nugpt nor in tests"
    if not (ROOT / file).is_file():
        return f"{entry}: no such file"
    if qualname not in definitions(ROOT / file):
        return f"{entry}: no such name in the file"
    if file.startswith("tests/") and not qualname.rpartition(".")[2].startswith("test_"):
        return f"{entry}: no test function"
    return None


def test_entries_point_to_something() -> None:
    named = entries(prose(PAPER_MAP)) + entries(prose(CHOICES))
    assert len(named) > 100
    assert not [why for entry in named if (why := problem(entry))]


def test_nothing_in_backticks_looks_like_an_entry_and_is_none() -> None:
    for page in (PAPER_MAP, CHOICES):
        looks = re.findall(r"`([^`]*::[^`]*)`", prose(page))
        assert sorted(looks) == sorted(entries(prose(page)))


@pytest.mark.parametrize(
    "entry",
    [
        "src/nugpt/core/missing.py::norm",
        "src/nugpt/core/sphere.py::normalise",
        "src/nugpt/core/transformer.py::Block.backward",
        "tests/docs/test_paper_map.py::problem",
        "dev.py::main",
    ],
)
def test_a_wrong_entry_is_found(entry: str) -> None:
    assert problem(entry)


def test_every_row_has_a_function_and_a_test_or_says_not_yet() -> None:
    for section in sections(PAPER_MAP):
        for cells in table(section):
            *_, code, tests = cells
            for cell, start in ((code, "src/"), (tests, "tests/")):
                named = entries(cell)
                assert all(entry.startswith(start) for entry in named), f"{section}: {cell}"
                assert bool(named) != cell.startswith(NOT_YET), f"{section}: {' | '.join(cells)}"


@pytest.mark.parametrize("number", range(1, 10))
def test_each_equation_is_mapped_to_lines_that_carry_its_number(number: int) -> None:
    found = [cells for cells in table("Equations") if cells[0] == f"({number})"]
    assert len(found) == 1
    *_, code, tests = found[0]
    assert entries(tests)
    assert any(re.search(rf"#.*\({number}\)|\({number}\)\.?\s*\"\"\"", source_of(entry)) for entry in entries(code))


def test_each_column_of_the_tables_is_mapped_to_its_literal() -> None:
    found = {cells[1].strip("`"): entries(cells[-2]) for cells in table("Tables: columns")}
    for name in PAPER_TABLES:
        literals = [source_of(entry) for entry in found.get(name, ())]
        assert any(f'name="{name}"' in literal for literal in literals), f"the column of {name!r}"
    assert set(found) <= set(TABLES)


def test_each_row_of_the_tables_is_mapped_to_its_cell() -> None:
    found = table("Tables: rows")
    assert sorted(quantity for cells in found for quantity in cells[0].split(" = ")) == sorted(QUANTITIES)
    named = {cell for cells in found for cell in re.findall(r"`(\w+\.\w+)`", cells[1])}
    roles = FAMILIES["normalized"]
    wanted = {f"{role}.lr" for role in roles if role not in RESCALER_ROLES}
    wanted |= {f"{role}.{cell}" for role in RESCALER_ROLES for cell in ("init", "scale")}
    assert wanted <= named


def test_each_figure_is_listed_once() -> None:
    assert sorted(cells[0].strip("`") for cells in table("Figures")) == sorted(FIGURES)


def test_choices_and_map_list_the_same_choices() -> None:
    text = prose(CHOICES)
    there = re.findall(r'<a id="([^"]+)"></a>\n### ', text)
    assert len(there) == len(re.findall(r"^### ", text, flags=re.MULTILINE))
    mapped = [anchor for cells in table("Choices") for anchor in re.findall(r"\(choices\.md#([\w-]+)\)", cells[0])]
    assert sorted(mapped) == sorted(there)
    assert anchors(CHOICES) >= set(there)


def marked_in_source() -> Iterator[str]:
    """`path::qualname` of each `# CHOICE:` comment: the innermost definition around it, or the next one below."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and re.match(r"#\s*CHOICE\b", token.string):
                yield f"{path.relative_to(ROOT).as_posix()}::{owner(path, token.start[0])}"


def owner(path: Path, line: int) -> str:
    spans = {name: (node.lineno, node.end_lineno or node.lineno) for name, node in definitions(path).items()}
    around = [name for name, (first, last) in spans.items() if first <= line <= last]
    if around:
        return max(around, key=lambda name: spans[name][0])
    below = [name for name, (first, _) in spans.items() if first > line]
    assert below, f"{path}:{line}: a choice that belongs to nothing"
    return min(below, key=lambda name: spans[name][0])


def test_every_choice_in_the_code_is_explained_and_every_mark_is_there() -> None:
    explained = Counter(entries("\n".join(re.findall(r"^Marked: .*$", prose(CHOICES), flags=re.MULTILINE))))
    in_source = Counter(marked_in_source())
    assert in_source, "no choice found in the source"
    assert in_source - explained == Counter(), "without an entry in docs/choices.md"
    assert explained - in_source == Counter(), "no `# CHOICE:` there any more"
