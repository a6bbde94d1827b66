"""What every test run shares: one thread, reproducible examples, and markers that say what they need."""

import importlib.util
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest

# Before torch is imported, here or in a command a test starts: sums over several threads are not reproducible,
# and the machine's cores may be shared. Not setdefault: a variable of the caller's must not change results.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

# What a script starts in the background ignores Ctrl-C, and so would every command that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "nugpt",
    derandomize=True,
    deadline=None,
    # This health check measures time, so it would fail on a busy machine.
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("nugpt")


@dataclass(frozen=True)
class Part:
    """What a marker's tests need beyond the default set-up, and how to run them."""

    run: str
    get: str
    missing: Callable[[], str | None]  # what is absent, in words; None when nothing is


def _missing_modules(*names: str) -> str | None:
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return f"no Python package {', '.join(absent)}" if absent else None


def _missing_programs(*names: str) -> str | None:
    absent = [name for name in names if shutil.which(name) is None]
    return f"no program {', '.join(absent)} on PATH" if absent else None


def _missing_cuda() -> str | None:
    import torch

    return None if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA device"


def _missing_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return None if any(map(shutil.which, names)) else f"none of the programs {', '.join(names)} on PATH"


_INSTALL = '.venv/bin/python -m pip install -c constraints.txt -e ".[{extra}]"'

PARTS: Mapping[str, Part] = {
    "slow": Part("./dev test -m slow", "nothing to install", lambda: None),
    "gpu": Part("./dev test -m gpu", "use a CUDA machine and a torch built for it", _missing_cuda),
    "titan": Part("./dev test -m titan", _INSTALL.format(extra="titan"), lambda: _missing_modules("torchtitan")),
    "triton": Part("./dev test -m triton", _INSTALL.format(extra="kernels"), lambda: _missing_modules("triton")),
    "slurm": Part(
        "./dev test -m slurm",
        "install the system packages slurm-wlm and munge",
        lambda: _missing_programs("slurmctld", "slurmd", "sbatch", "munged"),
    ),
    "browser": Part("./dev test -m browser", "install the system package chromium", _missing_chromium),
    "hf": Part(
        "./dev test -m hf",
        _INSTALL.format(extra="hf"),
        lambda: _missing_modules("transformers", "accelerate", "lm_eval"),
    ),
}

# Names a part that was installed for these tests, as CI does: without it they fail, and are not skipped.
NEEDED = "NUGPT_NEEDED_PART"

MOST_PROCESSES = 8  # each holds a torch of its own in memory
SLOW_TIMEOUT_S = 900  # three times any other test's: enough on a machine that does something else too

_left_out: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    """Where there is no GPU, let Triton interpret its kernels: it decides that when anything first imports it."""
    wanted = re.search(r"(?<!not )\btriton\b", config.option.markexpr or "")
    if wanted and not os.path.exists("/dev/nvidiactl"):  # torch knows better, but may import Triton
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes that share the tests' files: one per core; none where a test starts many itself or needs a place."""
    alone = re.search(r"(?<!not )\b(titan|slurm|browser|gpu)\b", config.option.markexpr or "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if alone else min(MOST_PROCESSES, cores)


@pytest.hookimpl(trylast=True)  # after -m has deselected: what is not wanted is not probed either
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip a selected test whose part is absent, with the reason and the way to get it; give the slow ones time."""
    wanted = {name for item in items for name in PARTS if item.get_closest_marker(name)}
    wanted.discard(os.environ.get(NEEDED, ""))
    absent = {name: why for name in wanted if (why := PARTS[name].missing()) is not None}
    for item in items:
        for name in (name for name in absent if item.get_closest_marker(name)):
            item.add_marker(pytest.mark.skip(f"{absent[name]}: {PARTS[name].get}, then {PARTS[name].run}"))
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


def pytest_deselected(items: Iterable[pytest.Item]) -> None:
    """Count the marked tests that this run leaves out."""
    _left_out.update(name for item in items for name in PARTS if item.get_closest_marker(name))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that shows the results what was left out, where this one has only a share of the tests."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear it: every process has left out the same."""
    _left_out.update(Counter(getattr(node, "workeroutput", {}).get("left_out", {})) - _left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to run the marked tests that were left out."""
    for name, count in sorted(_left_out.items()):
        terminalreporter.write_line(f"left out: {count} marked {name}; run with {PARTS[name].run}")


@pytest.fixture(scope="session")
def marker_parts() -> Mapping[str, Part]:
    """The table of markers, for the test that holds it against pyproject.toml."""
    return PARTS


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Cover a torch that was imported before the environment above was set, by a plugin for instance."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def fresh_compiler() -> None:
    """torch's compiler has forgotten what other tests had it compile: their number counts against its limit."""
    import torch

    torch.compiler.reset()


@pytest.fixture(scope="session")
def mended_interpreter() -> None:
    """Where Triton interprets kernels: sums by slices, loops up to a tile of one number, and nothing out of bounds."""
    from tests.kernels.fused.interpreter import count_with_any_tile_of_one, keep_within_operands, reduce_by_slices

    reduce_by_slices()
    count_with_any_tile_of_one()
    keep_within_operands()
