"""The command line as a whole: help, exit statuses, one line per mistake, late imports, broken pipes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nugpt.cli.main import BY_OPTION, COMMANDS, _parse, main

SHOWING = [
    ["--help"],
    ["--version"],
    ["measure", "--help"],
    ["table"],
    ["table", "--help"],
    ["table", "--resolve", "--json"],
    ["explain", "--help"],
    ["explain", "--lr", "0.01"],
    ["explain", "--lr", "0.01", "--json"],
    ["count"],
    ["count", "--help"],
    ["count", "--list", "--json"],
]


def nugpt(*words: str, code: str | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    """`python -m nugpt WORDS` in a process of its own, or other code with WORDS as its arguments."""
    start = ["-m", "nugpt"] if code is None else ["-c", code]
    return subprocess.run([sys.executable, *start, *words], capture_output=True, text=True, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize("words", SHOWING, ids=" ".join)
def test_commands_that_show_facts_import_no_torch(words: Sequence[str]) -> None:
    code = """
import sys
from nugpt.cli.main import main
try:
    status = main(sys.argv[1:])
except SystemExit as left:
    status = left.code
heavy = sorted({"torch", "numpy", "scipy", "pyarrow", "tokenizers", "matplotlib"} & set(sys.modules))
sys.exit(f"imported {heavy}" if heavy else status)
"""
    done = nugpt(*words, code=code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_importing_the_package_imports_no_torch_until_a_name_needs_it() -> None:
    code = """
import sys, nugpt
assert nugpt.preset("tiny-l2h2") and nugpt.resolve
assert "torch" not in sys.modules
assert nugpt.retract_
assert "torch" in sys.modules
for name in nugpt.__all__:
    assert getattr(nugpt, name) is not None, name
assert set(nugpt.__all__) <= set(dir(nugpt))
"""
    done = nugpt(code=code)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for words in ([], ["-h"], ["--help"], ["help"]):
        assert main(words) == 0
        outputs.append(capsys.readouterr().out)
    assert len(set(outputs)) == 1
    for name in COMMANDS:
        assert f"\n  {name} " in outputs[0]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import nugpt

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == nugpt.__version__


@pytest.mark.parametrize("command", ["table", "explain", "count"])
def test_every_command_explains_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([command, "--help"], ["help", command]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 0
    shown = capsys.readouterr()
    assert shown.out.count(f"usage: nugpt {command}") == 2
    assert "--json" in shown.out
    assert not shown.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_speaks_of_options_and_not_of_fields(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "{None}" not in shown
    assert "{[" not in shown, "several values are shown alike, whether there is a default or not"
    told = re.sub(r"[\s│]+", " ", shown)
    assert not re.search(r"\(default: (None|False)?\)", told), "an option that is left out has no default to show"
    assert not re.search(r"\w\.\w+ options", shown), "a part of a part has the name of the inner one"
    about = shown.split("\n\n", 1)[1].partition("options")[0]
    assert not re.search(r"^ +\w", about.partition("positional")[0], flags=re.MULTILINE), "paragraphs are not indented"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_words_or_knows_the_option_they_are_meant_for(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert ("positional arguments" in shown) == (command not in BY_OPTION)
    assert f" {BY_OPTION.get(command, '--help')} " in shown


def test_help_shows_defaults_that_are_values(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {
        "sweep": ["--store PATH Where runs and plans are kept. (default: runs)", "warm-up. (default: 0)", "-8:-3:0.5)"],
        "table": ["are factors on it. (default: 1.0)", "(default: paper-l12h12)"],  # the commands' own words
        "launch": ["--sbatch=--qos=long. (repeatable)"],
        "worker": ["one after the other. (required)"],
        "recommend": ["--json Print JSON. "],
    }
    for command, hints in expected.items():
        with pytest.raises(SystemExit):
            main([command, "--help"])
        told = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
        assert [hint for hint in hints if hint not in told] == []


@pytest.mark.parametrize(("word", "value"), [("True", True), ("False", False)])
def test_whether_to_compile_is_a_word(word: str, value: bool) -> None:
    assert vars(_parse("train", ["--compile", word]))["carrier"].compile is value
    assert vars(_parse("train", []))["carrier"].compile is None


TYPO = 'extends = "nugpt"\n[rows.hidden]\nlr = { widht = "-3/4" }\n'
MISTAKES = {
    "unknown preset": (["count", "--preset", "huge-l2h2"], ["'huge-l2h2'", "SCALE-lLAYERShHEADS"]),
    "unknown preset of explain": (["explain", "--lr", "0.1", "--preset", "paper"], ["'paper'"]),
    "heads 0": (["count", "--n-heads", "0"], ["n_heads is 0", "at least 1"]),
    "heads 0 of explain": (["explain", "--lr", "0.1", "--n-heads", "0"], ["n_heads is 0"]),
    "no layers in a preset": (["count", "--preset", "tiny-l0h2"], ["n_layers is 0"]),
    "negative lr": (["explain", "--lr", "-0.1"], ["lr is -0.1", "above 0"]),
    "lr zero": (["explain", "--lr", "0"], ["lr is 0.0"]),
    "lr not a number": (["explain", "--lr", "nan"], ["lr is nan"]),
    "lr infinite": (["table", "--resolve", "--lr", "inf"], ["lr is inf"]),
    "another head dimension": (
        ["explain", "--lr", "0.1", "--preset", "tiny-l2h4", "--base", "paper-l10h10"],
        ["head_dim is 48 in the target but 102 in the base", "(--base-head-dim N, "],
    ),
    "no head dimension of the base": (["explain", "--lr", "0.1", "--base-head-dim", "0"], ["base_head_dim is 0,"]),
    "another head dimension of table": (["table", "--resolve", "--head-dim", "96"], ["head_dim is 96"]),
    "odd head dimension": (["count", "--head-dim", "51"], ["head_dim is 51", "even"]),
    "groups that do not divide": (["count", "--n-kv-heads", "3"], ["n_kv_heads is 3", "divide"]),
    "no groups": (["count", "--n-kv-heads", "0"], ["n_kv_heads is 0"]),
    "another batch": (
        ["explain", "--lr", "0.1", "--batch", "7"],
        ["896 tokens", "2048", "--base-batch N", 'batch = "1/2"'],
    ),
    "negative batch": (["explain", "--lr", "0.1", "--batch", "-1"], ["batch is -1,"]),
    "negative batch of the base": (["table", "--base-batch", "-1"], ["batch is -1,"]),
    "unknown preset of table": (["table", "--preset", "nonsense"], ["'nonsense'"]),
    "lr of table": (["table", "--lr", "-1"], ["lr is -1.0"]),
    "steps of table": (["table", "--steps", "0"], ["steps is 0"]),
    "unknown base of table": (["table", "--base", "nonsense"], ["'nonsense'"]),
    "no table": (["table", "--parametrization"], ["--parametrization is empty"]),
    "TOML and JSON": (["table", "--parametrization", "nugpt", "--toml", "--json"], ["--toml", "--json"]),
    "TOML of numbers": (["table", "--parametrization", "nugpt", "--toml", "--lr", "1"], ["--toml", "numbers"]),
    "no steps": (["explain", "--lr", "0.1", "--steps", "0"], ["steps is 0"]),
    "unknown table": (["table", "--parametrization", "nuGPT"], ["'nuGPT'", "nugpt-full-align"]),
    "table that is not there": (["explain", "--lr", "0.1", "--parametrization", "no.toml"], ["'no.toml'"]),
    "typo in a table": (
        ["explain", "--lr", "0.1", "--parametrization", "typo.toml"],
        ["typo.toml", "'widht'", "width"],
    ),
    "typo in a table of table": (["table", "--parametrization", "typo.toml"], ["typo.toml", "'widht'"]),
    "wrong family": (["explain", "--lr", "0.1", "--architecture", "prenorm"], ["'prenorm'", "'nugpt'"]),
    "unknown architecture": (["count", "--architecture", "gpt"], ["'gpt'", "normalized, prenorm"]),
    "unknown role": (["explain", "--lr", "0.1", "--multiplier", "E_out", "0.5"], ["'E_out'", "output"]),
    "multiplier twice": (
        ["explain", "--lr", "0.1", "--multiplier", "output", "0.5", "input", "2", "output", "0.25"],
        ["'output'", "0.5 and 0.25", "one number"],
    ),
    "multiplier in two options": (
        ["train", "--multiplier", "output", "0.5", "--lr", "0.1", "--multiplier", "output", "0.25"],
        ["'output'", "0.5 and 0.25", "one number"],
    ),
    "two options of multipliers": (
        ["sweep", "--name", "mine", "--multiplier", "output", "0.5", "--multiplier", "input", "2"],
        ["--multiplier is given 2 times", "once: --multiplier output 0.5 input 2"],
    ),
    "a list in two options": (
        ["report", "runs", "--plan", "first", "--plan=second", "--json"],
        ["--plan is given 2 times", "once: --plan first second"],
    ),
    "a list in two spellings": (
        ["sweep", "--name", "mine", "--log2_lr=-7", "-6", "--log2-lr", "-5"],
        ["--log2-lr is given 2 times", "once: --log2-lr -7 -6 -5"],
    ),
    "the same list twice, before and after a short option": (
        ["report", "nowhere", "--formats", "svg", "-o", "page", "--formats=svg"],
        ["nowhere"],
    ),
    "a list of words with signs": (
        ["sweep", "--name", "mine", "--vary=n_heads=2,4", "--steps", "8", "--vary", "n_layers=2"],
        ["--vary is given 2 times", "once: --vary n_heads=2,4 n_layers=2"],
    ),
    "multiplier zero": (["explain", "--lr", "0.1", "--multiplier", "output", "0"], ["multiplier of output is 0.0"]),
    "negative weight decay": (["explain", "--lr", "0.1", "--weight-decay", "-1"], ["weight_decay is -1.0"]),
    "tokens per parameter": (["count", "--tokens-per-parameter", "-20"], ["tokens per parameter is -20.0"]),
    "no batch": (["count", "--batch", "0"], ["batch is 0"]),
    "rounding": (["count", "--round-steps-to", "0"], ["rounding of steps is 0"]),
    "several tables as TOML": (["table", "--toml"], ["--toml", "5"]),
    "rescaler scale": (["explain", "--lr", "0.1", "--rescaler-scale", "0"], ["rescaler_scale is 0.0"]),
    "unknown command": (["tabel"], ["'tabel'", "did you mean 'table'"]),
    "a run without its option": (["measure", "lerp", "2d0e", "--json"], ["'2d0e'", "measure lerp", "--runs 2d0e?"]),
    "a store without its option": (["status", "my runs"], ["'my runs'", "--store 'my runs'?"]),
    "a command in capitals": (["TABLE"], ["'TABLE'", "did you mean 'table'"]),
    "command without its second word": (["data"], ["'data' needs a second word", "data prepare"]),
}


GROUPS = ("measure", "data", "store", "export", "import", "titan")


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("asked", ["{} --help", "{} -h", "help {}"])
def test_a_group_of_commands_has_help(group: str, asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked.format(group).split()) == 0
    out, err = capsys.readouterr()
    assert err == ""
    listed = [line.strip() for line in out.splitlines()[2:]]
    wanted = {name: told for name, (_, _, told) in COMMANDS.items() if name.startswith(f"{group} ")}
    assert [line.split("  ")[0] for line in listed] == list(wanted)
    assert all(line.endswith(told) for line, told in zip(listed, wanted.values(), strict=True))


def test_every_group_without_a_command_of_its_own_is_listed_above() -> None:
    first = {name.split()[0] for name in COMMANDS if " " in name}
    assert first - set(COMMANDS) == set(GROUPS)


@pytest.fixture
def _in_a_folder_with_a_typo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typo.toml").write_text(TYPO, encoding="utf-8")


@pytest.mark.usefixtures("_in_a_folder_with_a_typo")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_status_2_and_one_line(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, named = MISTAKES[mistake]
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("nugpt: error: ")
    assert shown.err.count("\n") == 1
    for text in named:
        assert text in shown.err


FOLDERS = {
    "data prepare": (["data", "prepare", "embedded", "--out", "typo.toml"], "out"),
    "fit": (["fit", "runs.csv", "--out", "typo.toml"], "out"),
    "report": (["report", "empty", "-o", "typo.toml"], "out"),
    "results": (["report", "empty", "-o", "typo.toml", "--results"], "out"),
    "report of a file": (["report", "typo.toml"], "store"),
    "study": (["study", "width-fixed-steps", "--store", "typo.toml", "--run"], "store"),
    "sweep": (["sweep", "--name", "a", "--store", "typo.toml", "--run"], "store"),
    "train": (["train", "--steps", "1", "--store", "typo.toml"], "store"),
    "measure align": (["measure", "align", "--store", "typo.toml"], "store"),
    "measure coords": (["measure", "coords", "--store", "typo.toml"], "store"),
    "figures of measure": (["measure", "coords", "--out", "typo.toml"], "out"),
    "status": (["status", "--store", "typo.toml"], "store"),
    "store merge": (["store", "merge", "a.tar.gz", "--store", "typo.toml"], "store"),
    "store prune": (["store", "prune", "--store", "typo.toml"], "store"),
    "quickstart": (["quickstart", "--out", "typo.toml"], "out"),
}


@pytest.mark.parametrize("part", ["plans", "coords", "archive.json", "0123456789abcdef/spec.json"])
def test_quickstart_makes_no_store_in_a_store(part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / part
    made.parent.mkdir(exist_ok=True)
    made.touch() if made.suffix else made.mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["quickstart", "--out", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    said = (
        f"nugpt: error: out is {tmp_path}, which is a store itself: quickstart makes one of its own, in a new folder\n"
    )
    assert (shown.out, shown.err) == ("", said)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        "status --store",
        "fit",
        "recommend --n-heads 8 --from",
        "transfer-test",
        "report",
        "measure lerp --plan a --store",
    ],
)
def test_the_folder_around_a_store_is_told_from_it(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "plans").mkdir(parents=True)
    assert main([*words.split(), str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    said = f"nugpt: error: {tmp_path} is no store, but holds one: give {tmp_path / 'runs'}"
    assert shown.err.splitlines()[-1] == said


@pytest.mark.usefixtures("_in_a_folder_with_a_typo")
@pytest.mark.parametrize("command", FOLDERS)
@pytest.mark.parametrize("below", ["", "/below"])
def test_a_file_where_a_directory_must_be_is_named(
    command: str, below: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, option = FOLDERS[command]
    Path("empty").mkdir()
    assert main([word.replace("typo.toml", f"typo.toml{below}") for word in words]) == 2
    shown = capsys.readouterr()
    file = "but 'typo.toml' is a file, and" if below else "which is a file, but"
    assert (shown.out, shown.err) == ("", f"nugpt: error: {option} is 'typo.toml{below}', {file} must be a directory\n")
    assert Path("typo.toml").read_text(encoding="utf-8") == TYPO


UNWRITABLE = {  # none of them has anything to work on, of which it would speak if it began with the work
    "store of measure coords": (["measure", "coords", "--store", "locked", "--data", "no"], "store is 'locked'"),
    "figures of measure coords": (["measure", "coords", "--out", "locked/new", "--data", "no"], "out is 'locked/new'"),
    "figures of measure align": (["measure", "align", "--out", "locked", "--plan", "no"], "out is 'locked'"),
    "table of measure align": (
        ["measure", "align", "--suggest", "locked/a.toml", "--plan", "no"],
        "the folder of suggest is 'locked'",
    ),
    "fit": (["fit", "no.csv", "--out", "locked"], "out is 'locked'"),
    "report": (["report", "empty", "-o", "locked"], "out is 'locked'"),
    "results": (["report", "empty", "-o", "locked", "--results"], "out is 'locked'"),
    "recommend": (
        ["recommend", "--from", "empty", "--emit", "toml", "--out", "locked/a.toml"],
        "the folder of out is 'locked'",
    ),
    "kept by recommend": (["recommend", "--from", "locked", "--keep"], "from is 'locked'"),
    "data prepare": (["data", "prepare", "no.txt", "--out", "locked/new"], "out is 'locked/new'"),
    "store pack": (["store", "pack", "locked/a.tar.gz", "--store", "empty"], "the folder of file is 'locked'"),
    "export": (["export", "hf", "no", "locked/new"], "the folder of OUT is '"),
}


@pytest.mark.usefixtures("_in_a_folder_with_a_typo")
@pytest.mark.parametrize("command", UNWRITABLE)
def test_where_nothing_can_be_written_is_found_out_before_the_work(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, named = UNWRITABLE[command]
    Path("empty").mkdir()
    Path("locked").mkdir()
    made = tempfile.TemporaryFile

    def refused(*arguments: Any, dir: Path, **options: Any) -> Any:  # root, who may run this, can write anywhere
        if dir.name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(dir / "tmp1234"))
        return made(*arguments, dir=dir, **options)

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    assert main(words) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"nugpt: error: {named}")
    assert shown.err.endswith("but cannot be written: permission denied\n")
    assert list(Path("locked").iterdir()) == []


@pytest.mark.usefixtures("_in_a_folder_with_a_typo")
@pytest.mark.parametrize(
    "mistake", ["unknown preset", "heads 0", "negative lr", "another head dimension", "typo in a table"]
)
def test_debug_raises_the_error_itself(mistake: str) -> None:
    words, named = MISTAKES[mistake]
    with pytest.raises(ValueError) as raised:
        main([*words, "--debug"])
    assert named[0] in str(raised.value)


def test_a_process_that_fails_shows_a_traceback_only_with_debug() -> None:
    words = ["explain", "--lr", "-0.1"]
    plain, debug = nugpt(*words), nugpt(*words, "--debug")
    assert (plain.returncode, plain.stdout) == (2, "")
    assert "Traceback" not in plain.stderr
    assert plain.stderr.count("\n") == 1
    assert debug.returncode != 0
    assert "Traceback" in debug.stderr
    assert "ValueError: lr is -0.1" in debug.stderr


@pytest.mark.parametrize(
    "words",
    [["explain"], ["explain", "--lr", "fast"], ["count", "--no-such-option"], ["fit", "runs", "extra"]],
    ids=" ".join,
)
def test_what_the_parser_refuses_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("error", [FileNotFoundError(2, "Denied", "my x"), PermissionError(13, "Denied", "my x")])
def test_a_file_of_the_users_that_cannot_be_read_is_status_2(
    error: OSError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("nugpt.cli.count.Count.run", fail)
    assert main(["count"]) == 2
    assert capsys.readouterr().err == "nugpt: error: my x: denied\n"


def test_a_full_disk_is_status_1_and_an_interrupt_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, status in ((OSError(28, "No space left on device"), 1), (KeyboardInterrupt(), 130)):

        def fail(_: object, error: BaseException = error) -> int:
            raise error

        monkeypatch.setattr("nugpt.cli.count.Count.run", fail)
        assert main(["count"]) == status
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="pipes close in another way there")
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["table"], ["table", "--help"], ["explain", "--lr", "0.01"], ["count", "--json"]],
    ids=" ".join,
)
def test_a_reader_that_has_gone_leaves_no_traceback(words: list[str], unbuffered: str) -> None:
    # The pipe has no reader from the start, which is what `| head -1` comes to for a writer that is late. Buffered,
    # the writer learns of it at the end; unbuffered, in the middle.
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "nugpt", *words]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["table"], ["table", "--help"]], ids=" ".join)
def test_an_output_that_is_full_is_one_line(words: list[str], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "nugpt", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("nugpt: error: ")
    assert "No space left" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="a shell that closes streams")
@pytest.mark.parametrize(
    ("words", "status"), [("table", 0), ("--help", 0), ("count --json", 0), ("count --n-heads 0", 2)]
)
def test_streams_that_are_closed_leave_no_traceback(words: str, status: int) -> None:
    start = f'"{sys.executable}" -m nugpt {words}'
    done = subprocess.run(["bash", "-c", f"{start} >&-"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (status, 1 if status else 0)
    assert "Traceback" not in done.stderr
    done = subprocess.run(["bash", "-c", f"{start} >&- 2>&-"], capture_output=True, text=True)
    assert done.returncode == status


def test_an_encoding_that_lacks_our_letters_shows_question_marks_and_whole_json(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "nugpt"\nname = "νGPT 2 😀"\n', encoding="utf-8")
    bare = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for narrow in (bare, environment):
        done = nugpt("table", env=narrow)
        assert (done.returncode, done.stderr) == (0, "")
        assert "?_base" in done.stdout
    done = nugpt("explain", "--lr", "0.01", "--parametrization", str(mine), "--json", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["resolved"]["table"] == "νGPT 2 😀"


def test_head_gets_its_line() -> None:
    command = f'"{sys.executable}" -m nugpt count --list | head -1'
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_without_tyro_a_command_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)  # as on a machine with torch alone
    assert main(["table"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "nugpt: error: tyro is not installed; the command line needs it, the Python API does not: pip install tyro"
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["table", "--parametrization", "ngpt", "nugpt", "--json", "--parametrization", "ngpt", "nugpt"],
        ["sweep", "--name", "a", "--executor", "slurm", "--sbatch=--qos=long", "--sbatch=--exclusive"],
    ],
)
def test_a_list_may_be_repeated_as_it_is_and_what_is_given_word_by_word(words: list[str]) -> None:
    assert main(words) == 0


def test_of_an_option_of_one_value_the_last_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--lr", "0.5", "--preset", "tiny-l2h2", "--lr", "0.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["resolved"]["lr"] == 0.1
