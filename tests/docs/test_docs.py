"""The documentation does what it says: links resolve, commands parse and print what is shown, code blocks run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.markdown import ROOT, Block, anchors, blocks, documents, links, name

from nugpt.cli import main as cli
from nugpt.spec.recipe import load_recipe
from nugpt.store import Store

PAGES = documents()
GUIDE = ROOT / "docs" / "guide.md"  # its commands, one after the other, take minutes
ELLIPSIS = "…"


def with_blocks(*languages: str) -> list[Path]:
    return [page for page in PAGES if any(block.language in languages for block in blocks(page))]


def command_lines(block: Block, program: str) -> Iterator[list[str]]:
    """The arguments of each call of the program; prompts, comments and what follows a pipe are left out."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words and words[0].removeprefix(".venv/bin/") == program:
            end = next((i for i, word in enumerate(words) if word in ("|", ">", "&&", ";")), len(words))
            yield words[1:end]


def write_files(page: Path, folder: Path) -> None:
    """Put each TOML block whose first line is a file's name into that file."""
    for block in blocks(page):
        if block.language == "toml" and (first := re.match(r"# ([\w-]+\.toml)\n", block.text)):
            (folder / first[1]).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page: Path) -> None:
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{name(page)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(path), f"{name(page)} links to {target}, but {name(path)} has no such anchor"


@pytest.mark.parametrize("page", with_blocks("sh", "bash"), ids=name)
def test_commands_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.language not in ("sh", "bash"):
            continue
        for words in command_lines(block, "nugpt"):
            if words and words[0] in ("--help", "--version"):
                continue
            command, arguments = cli._split(words)
            assert command in cli.COMMANDS, f"{name(page)}: no command {command!r}"
            if "--help" in arguments:
                continue
            try:
                cli._parse(command, arguments)
            except SystemExit as stop:
                pytest.fail(f"{name(page)}: `nugpt {shlex.join(words)}` does not parse (exit status {stop.code})")
        for words in command_lines(block, "./dev"):
            dispatch = (ROOT / "dev").read_text(encoding="utf-8").split('case "$command" in')[1]
            assert re.search(rf"^  {words[0]}\b.*\)", dispatch, flags=re.MULTILINE), f"no ./dev {words[0]}"


@pytest.mark.parametrize("page", [p for p in PAGES if p != GUIDE and any(b.run for b in blocks(p))], ids=name)
def test_commands_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    run_commands(page, capsys)


def run_commands(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the marked blocks in this folder, one after the other."""
    write_files(page, Path())
    found = blocks(page)
    for i, block in enumerate(found):
        if not block.run:
            continue
        calls = list(command_lines(block, "nugpt"))
        assert calls, f"{name(page)}:{block.line} is marked to be run, but calls no nugpt"
        for words in calls:
            assert cli.main(words) == 0, f"{name(page)}: nugpt {shlex.join(words)}"
        printed = capsys.readouterr().out
        if i + 1 < len(found) and found[i + 1].language == "text":
            compare(found[i + 1].text, printed, f"{name(page)}:{found[i + 1].line}")


@pytest.mark.slow
def test_the_guide_leads_from_text_to_a_trained_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands(GUIDE, capsys)
    target = load_recipe("recipe.json")
    assert target.model.n_heads == 8
    record = Store(Path("runs")).run(target).record()
    assert record is not None
    assert record.status == "done"
    assert (tmp_path / "report" / "report.html").is_file()


def compare(shown: str, printed: str, where: str) -> None:
    """Each shown line must follow the one before it in the output; a line of its own with an ellipsis skips some."""
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    at, skipping = 0, False
    for line in (line.rstrip() for line in shown.splitlines() if line.strip()):
        if line.strip() == ELLIPSIS:
            skipping = True
            continue
        if skipping:
            assert line in lines[at:], f"{where}: not printed: {line!r}"
            at += lines[at:].index(line)
        assert at < len(lines), f"{where}: not printed: {line!r}"
        assert lines[at] == line, f"{where}: line {at + 1} of the output"
        at, skipping = at + 1, False
    assert skipping or at == len(lines), f"{where}: more was printed: {lines[at]!r}"


@pytest.mark.parametrize("page", with_blocks("python"), ids=name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            # Empty lines in front give a traceback the page's own line numbers.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)


def test_the_python_side_asserts_what_it_shows() -> None:
    for page in ("api.md", "adding.md", "choices.md"):
        code = "".join(block.text for block in blocks(ROOT / "docs" / page) if block.language == "python")
        assert code.count("assert") >= 5, page


def test_readme_maps_every_file() -> None:
    source = ROOT / "src" / "nugpt"
    there = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and (path.name != "__init__.py" or path.parent == source)  # a folder's line stands for its __init__.py
    }
    (tree,) = [block for block in blocks(ROOT / "README.md") if block.text.startswith("src/nugpt/\n")]
    folders: list[str] = []
    mapped: list[str] = []
    for line in tree.text.splitlines()[1:]:
        match = re.fullmatch(r"((?:  )+)(\S+)  +(\S.*)", line)
        assert match, f"the map's line {line!r} is not an indented name, two spaces and what it is"
        depth = len(match[1]) // 2
        del folders[depth - 1 :]
        if match[2].endswith("/"):
            folders.append(match[2])
        else:
            mapped.append("".join(folders) + match[2])
    assert sorted(mapped) == sorted(there)
