"""What holds for the repository as a whole, whatever the code in it does."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import nugpt

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1_000_000

# Written as patterns, so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:work|root|opt/wheels)(?![\w-])")
REGISTRY_HOST = re.compile(
    r"\b(?:(?:test\.)?pypi\.org|pythonhosted\.org|download\.pytorch\.org|pypi\.nvidia\.com|anaconda\.org|npmjs\.org|ghcr\.io)\b"
)


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    matches = {line: re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line) for line in lines if line[:1] != "#"}
    loose = [line for line, match in matches.items() if match is None]
    assert not loose, f"not exact pins of a name and a version without local part: {loose}"
    return {canonicalize_name(match[1]): match[2] for match in matches.values() if match}


def repository_files() -> list[Path]:
    """Tracked files and those about to be; in a copy without git, the files of the rooms we know."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        paths = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for room in (".ci", "docs", "src", "tests") for path in (ROOT / room).rglob("*")]
        paths += ROOT.iterdir()
        paths = [path for path in paths if "__pycache__" not in path.parts and ".egg-info" not in str(path)]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def texts() -> Iterator[tuple[Path, str]]:
    for path in repository_files():
        content = path.read_bytes()
        if b"\0" not in content[:8192]:  # git's own rule for "binary" looks at the same stretch
            yield path.relative_to(ROOT), content.decode("utf-8", errors="replace")


def matches_in_repository(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def run_dev(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ROOT / "dev"), *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_the_repository_has_files_to_check() -> None:
    assert ROOT / "dev" in repository_files()
    assert Path(__file__) in repository_files()


@pytest.mark.parametrize("script", ["dev", ".ci/run"])
def test_scripts_are_executable_bash(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_dev_documents_exactly_the_commands_it_has(tmp_path: Path) -> None:
    source = (ROOT / "dev").read_text(encoding="utf-8")
    dispatch = source[source.index('case "$command" in') :]
    has = set(re.findall(r"^  ([a-z][a-z-]*)(?: \| [^)]*)?\)", dispatch, flags=re.MULTILINE))
    answer = run_dev("help", cwd=tmp_path)
    documents = set(re.findall(r"^  ([a-z][a-z-]*) {2,}\S", answer.stdout, flags=re.MULTILINE))
    assert answer.returncode == 0
    assert has == documents
    assert has >= {"setup", "check", "test", "quickstart", "docs-check", "help"}


def test_dev_refuses_an_unknown_command_in_one_line() -> None:
    answer = run_dev("tset")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.count("\n") == 1
    assert "'tset'" in answer.stderr


def test_torch_is_a_range_for_users_and_a_pin_for_us(pyproject: dict[str, Any], pins: dict[str, str]) -> None:
    declared = {(req := Requirement(text)).name: req for text in pyproject["project"]["dependencies"]}
    assert str(declared["torch"].specifier) == ">=2.11"
    assert pins["torch"] == "2.13.0"


def needs_of(name: str, extra: str, project: dict[str, Any]) -> list[Requirement]:
    """What a package asks for with an extra ("" for none); ours from its source, others' as they are installed."""
    if name == "nugpt":
        asked = project["optional-dependencies"][extra] if extra else project["dependencies"]
    else:
        try:
            asked = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            asked = []  # its own pin is checked; what it would bring cannot be known here
    needs = [Requirement(text) for text in asked]
    return [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]


def test_everything_that_set_up_installs_is_pinned(pyproject: dict[str, Any], pins: dict[str, str]) -> None:
    todo = [(Requirement("nugpt[dev]"), "./dev setup"), (Requirement("nugpt[hf]"), "the extra hf")]
    todo += [(Requirement(text), "the build") for text in pyproject["build-system"]["requires"]]
    seen: set[tuple[str, str]] = set()
    problems: list[str] = []
    while todo:
        requirement, because = todo.pop()
        name = canonicalize_name(requirement.name)
        # A torch built for CUDA brings libraries of its own; the pins are those of the CPU build.
        if name.startswith(("nvidia-", "cuda-", "triton")):
            continue
        if name != "nugpt" and not (name in pins and requirement.specifier.contains(pins[name])):
            problems.append(f"{requirement} (for {because}) is pinned to {pins.get(name)}")
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                todo += [(need, name) for need in needs_of(name, extra, pyproject["project"])]
    assert not problems, "\n".join(problems)


def test_triton_is_the_one_that_torch_for_cuda_asks_for(pins: dict[str, str]) -> None:
    """Where pip sees no CPU build it takes torch for CUDA, which needs exactly one: any other pin, and set-up fails."""
    asked_for = {"2.13.0": "3.7.1"}  # by torch's own metadata; the CPU build's does not say
    assert pins["triton"] == asked_for[pins["torch"]]


def test_no_file_names_a_path_of_one_machine() -> None:
    assert not matches_in_repository(MACHINE_PATH)


def test_no_file_names_a_package_registry() -> None:
    assert not matches_in_repository(REGISTRY_HOST)


@pytest.mark.parametrize("parts", [("", "work", "main"), ("", "root", ".cache"), ("", "opt", "wheels")])
def test_the_path_pattern_finds_what_it_should(parts: tuple[str, ...]) -> None:
    path = "/".join(parts)
    assert MACHINE_PATH.search(f'open("{path}")')
    assert MACHINE_PATH.search(f"PIP_FIND_LINKS={path}")
    assert not MACHINE_PATH.search(f"docs{path}")


def test_the_host_pattern_finds_what_it_should() -> None:
    assert REGISTRY_HOST.search("https://" + ".".join(["pypi", "org"]) + "/simple")
    assert REGISTRY_HOST.search("https://files." + ".".join(["pythonhosted", "org"]))


def test_no_file_is_larger_than_a_megabyte() -> None:
    assert not [(str(p.relative_to(ROOT)), p.stat().st_size) for p in repository_files() if p.stat().st_size > MEGABYTE]


def test_licence_is_mit(pyproject: dict[str, Any]) -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.startswith("MIT License\n\nCopyright (c) 2026 the nugpt authors\n")
    assert "without restriction" in text
    assert 'THE SOFTWARE IS PROVIDED "AS IS"' in text
    assert pyproject["project"]["license"] == "MIT"


def test_version_is_the_same_everywhere(pyproject: dict[str, Any]) -> None:
    assert nugpt.__version__ == metadata.version("nugpt") == pyproject["project"]["version"]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {nugpt.__version__}\n" in cited


def test_every_marker_says_how_to_run_it(pyproject: dict[str, Any], marker_parts: dict[str, Any]) -> None:
    options = pyproject["tool"]["pytest"]["ini_options"]
    declared = {line.split(":")[0] for line in options["markers"]}
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert declared == set(marker_parts)
    for name, part in marker_parts.items():
        assert part.run == f"./dev test -m {name}"
        assert f"| `{part.run}` |" in contributing
        assert re.search(rf"not {name}\b", options["addopts"]), f"{name} is not left out by default"


def test_an_absent_part_is_skipped_with_the_way_to_get_it(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slurm: a cluster\n", encoding="utf-8")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.slurm\ndef test_marked():\n    raise SystemError\ndef test_plain():\n    pass\n",
        encoding="utf-8",
    )

    def run(expression: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-m", expression]
        # An empty PATH, so that no machine has the programs.
        environment = {**os.environ, "PATH": "", "COLUMNS": "500", "NUGPT_NEEDED_PART": "", **more}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    def outcome(expression: str) -> str:
        return run(expression).stdout

    needed = run("slurm", NUGPT_NEEDED_PART="slurm")  # as in CI, where it was to be there
    assert needed.returncode == 1
    assert "1 failed, 1 deselected" in needed.stdout
    selected = outcome("slurm")
    assert "1 skipped, 1 deselected" in selected
    assert re.search(r"no program slurmctld.* on PATH: install .*slurm-wlm.*, then \./dev test -m slurm", selected)
    default = outcome("not slurm")
    assert "1 passed, 1 deselected" in default
    assert "left out: 1 marked slurm; run with ./dev test -m slurm" in default
