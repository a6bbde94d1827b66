"""Find the command, parse its arguments, run it, and turn a user's mistake into one line and exit status 2."""

from __future__ import annotations

import difflib
import inspect
import io
import os
import re
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, Protocol

# Command → module, class, what it does. Modules are imported only when their command is called.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "table": ("nugpt.cli.table", "Table", "the parametrizations, symbolic or resolved for a base and a target"),
    "explain": (
        "nugpt.cli.explain",
        "Explain",
        "per tensor: role, sphere axis, applied learning rate, initial value, scale",
    ),
    "count": ("nugpt.cli.count", "Count", "parameters, FLOPs per token, tokens and steps at N tokens per parameter"),
    "data prepare": ("nugpt.cli.data", "Prepare", "text, jsonl, parquet or a hub data set to checksummed token shards"),
    "data inspect": ("nugpt.cli.data", "Inspect", "what a prepared data set holds"),
    "data verify": ("nugpt.cli.data", "Verify", "check every shard against its checksum"),
    "train": ("nugpt.cli.train", "Train", "one model, or an ensemble of learning rates and seeds, on one device"),
    "sweep": ("nugpt.cli.sweep", "Sweep", "a grid over learning rate, seed and any field of a run"),
    "study": ("nugpt.cli.study", "Study", "the paper's studies and ours: printed, or run"),
    "status": (
        "nugpt.cli.status",
        "Status",
        "what a store holds: done, running, interrupted, stale, diverged, failed, missing",
    ),
    "worker": ("nugpt.cli.worker", "Worker", "take runs of a plan until none is left"),
    "store pack": ("nugpt.cli.store", "Pack", "records and metrics of a store as one small file"),
    "store merge": ("nugpt.cli.store", "Merge", "add what others packed, overwriting nothing"),
    "store prune": ("nugpt.cli.store", "Prune", "drop the checkpoints of finished runs"),
    "fit": (
        "nugpt.cli.fit",
        "Fit",
        "optimum, stability edge, drift, regret, power law: of a store or of your own runs",
    ),
    "recommend": ("nugpt.cli.recommend", "Recommend", "learning rates for a target, from a sweep or a base's best"),
    "transfer-test": (
        "nugpt.cli.transfer_test",
        "TransferTest",
        "a gate: does the best learning rate hold over sizes?",
    ),
    "measure align": (
        "nugpt.cli.measure",
        "Align",
        "alignment exponents and the width exponent they imply: of given runs, else of some that it trains",
    ),
    "measure coords": (
        "nugpt.cli.coords",
        "Coords",
        "sizes of h, logits and rescalers over width and depth, for any table: trains a few steps",
    ),
    "measure lerp": (
        "nugpt.cli.measure",
        "Lerp",
        "effective α_A, α_M by layer and their power of depth: of given runs, else of some that it trains",
    ),
    "report": ("nugpt.cli.report", "Report", "figures, and one offline page whose every number leads back to its run"),
    "generate": ("nugpt.cli.generate", "Generate", "text from a trained model"),
    "bench": ("nugpt.cli.bench", "Bench", "speed of training steps, kernels and data on this machine"),
    "export hf": ("nugpt.cli.export", "ExportHF", "a trained model as a folder that transformers loads"),
    "import hf": ("nugpt.cli.export", "ImportHF", "an exported folder as a run, its weights to the bit"),
    "launch": ("nugpt.cli.launch_run", "Launch", "a recipe on many GPUs: a torchrun command, or a SLURM job"),
    "titan plan": ("nugpt.cli.titan", "Plan", "memory per GPU and mesh of a recipe on many devices"),
    "convert": ("nugpt.cli.convert", "Convert", "checkpoints of a run: distributed to safetensors, and back"),
    "bench data": ("nugpt.cli.data", "BenchData", "tokens per second of preparing and of loading data"),
    "quickstart": (
        "nugpt.cli.quickstart",
        "Quickstart",
        "the whole job at tiny scale on a CPU: sweep, fit, recommend, report",
    ),
}

# The commands that take options alone, and the one that a word behind them is likely meant for.
BY_OPTION = {
    "table": "--parametrization",
    "explain": "--preset",
    "count": "--preset",
    "train": "--recipe",
    "sweep": "--name",
    "status": "--store",
    "store prune": "--store",
    "recommend": "--from",
    "measure align": "--runs",
    "measure coords": "--parametrization",
    "measure lerp": "--runs",
    "launch": "--recipe",
    "titan plan": "--recipe",
    "quickstart": "--out",
}

PAIRS = "--multiplier"  # the option of names and their values
REPEATED = ("--sbatch", "--engine")  # the options that are given once for each of their values


class Command(Protocol):
    """What every command class offers."""

    def run(self) -> int:
        """Do it and return the exit status."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `nugpt ARGUMENTS`: 0 done, 1 a failed verdict or run, 2 a mistake in what the user gave."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    status = 0
    _open_streams()
    try:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                status = _run(words)
        finally:
            sys.stdout.flush()  # here and not at exit, where Python would print that the reader has gone
    except BrokenPipeError:
        _drop_output()  # the reader has gone (as `| head` does): nothing is left to say
    except OSError as error:  # what the output goes to is full
        if "--debug" in words:
            raise
        _drop_output()
        status = _complaint(error, status=1)
    return status


def _open_streams() -> None:
    """Standard streams that take whatever we print: a closed one drops it, a narrow encoding shows `?`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # as `>&-` leaves it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """What is still in the buffer goes nowhere, or Python would try to write it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    if words[:1] == ["--complete"]:  # bash adds nugpt, the word that is begun and the one before it
        from nugpt.cli.completion import completions

        for word in completions(words[2] if len(words) > 2 else ""):
            print(word)
        return 0
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    if words[0] in ("-V", "--version"):
        from nugpt import __version__

        print(__version__)
        return 0
    name, rest = _split(words)
    if name not in COMMANDS and _family(name) and rest[:1] in (["-h"], ["--help"]):
        print(_help_on(name))
        return 0
    if name not in COMMANDS:
        return _complaint(_unknown(name), status=2)
    try:
        return _parse(name, rest).run()
    except BrokenPipeError:
        raise  # for main, not a mistake of the user's
    except (
        ValueError,
        FileNotFoundError,
        FileExistsError,
        NotADirectoryError,
        IsADirectoryError,
        PermissionError,
    ) as error:
        if debug:
            raise
        return _complaint(error, status=2, way_out=_ways_out(error, name))
    except OSError as error:  # a full disk, a lost mount: not what the user typed
        if debug:
            raise
        return _complaint(error, status=1)
    except KeyboardInterrupt:
        return 130


def _ways_out(error: Exception, command: str) -> str:
    """What a command offers where the refusal, which knows of no command, says what is missing."""
    from nugpt.spec.resolve import NoBatchExponent, OtherHeads

    if isinstance(error, OtherHeads):
        return " (--base-head-dim N, where η was tuned with heads of N)"
    if not isinstance(error, NoBatchExponent):
        return ""
    if command == "recommend":
        return " (--batch-exponent 1/2, or what you know it to be)"
    of_yours = 'a TOML table of yours that extends it with batch = "1/2"'
    return f" (--base-batch N, where η was tuned at N sequences per step; or --parametrization with {of_yours})"


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Our own warnings as one line of ours; a library's deprecations are not the user's business."""
    if issubclass(category, (RuntimeWarning, UserWarning)):
        from nugpt.cli.show import warn
        from nugpt.spec.checks import one_line

        warn(one_line(message))


def _split(words: list[str]) -> tuple[str, list[str]]:
    """The command's name (one word, or two as in `data prepare`) and its arguments."""
    two = " ".join(words[:2])
    return (two, words[2:]) if two in COMMANDS else (words[0], words[1:])


def _parse(name: str, arguments: list[str]) -> Command:
    """The command as its arguments describe it; a parse error or --help leaves through SystemExit, as tyro does it."""
    try:
        import tyro
    except ModuleNotFoundError as missing:
        needs = "the command line needs it, the Python API does not: pip install tyro"
        raise ValueError(f"{missing.name} is not installed; {needs}") from None

    from nugpt.cli import hints

    if name in BY_OPTION and arguments and not arguments[0].startswith("-"):
        how = f"{BY_OPTION[name]} {shlex.quote(arguments[0])}"
        raise ValueError(f"nugpt {name} takes options alone, not {arguments[0]!r}: did you mean {how}?")
    module, cls, help_line = COMMANDS[name]
    kind = getattr(import_module(module), cls)
    command: Command = tyro.cli(
        kind,
        prog=f"nugpt {name}",
        description=inspect.cleandoc(kind.__doc__ or help_line),
        args=arguments,
        # An option that is left out is None; the help need not offer the word.
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
        registry=hints.registry(),
    )
    given = _given(arguments)
    _check_pairs(given.get(PAIRS, []))
    _check_once(given, command)
    return command


def _given(arguments: Sequence[str]) -> dict[str, list[list[str]]]:
    """The words behind each option, once for every time that it is given."""
    given: dict[str, list[list[str]]] = {}
    option = ""
    for word in arguments:
        if re.match(r"--|-[a-z]", word):  # what else begins with a dash is a number
            option, *value = word.split("=", 1)
            option = option.replace("_", "-")  # tyro takes either
            given.setdefault(option, []).append(value)
        elif option:
            given[option][-1].append(word)
    return given


def _check_once(given: Mapping[str, Sequence[Sequence[str]]], command: object) -> None:
    """Refuse an option of several values with others each time, of which tyro would keep the last and drop the rest.

    Of an option of one value the last counts, so that a command's words can be a script's and then one's own.
    """
    for option, times in given.items():
        if option in REPEATED or len({tuple(words) for words in times}) == 1:
            continue
        if isinstance(_field(command, option.removeprefix("--").replace("-", "_")), (tuple, dict)):
            at_once = " ".join(word for words in times for word in words)
            raise ValueError(f"{option} is given {len(times)} times, but must be given once: {option} {at_once}")


def _field(of: object, name: str) -> Any:
    """What a command's option has become, whichever of its parts holds it."""
    if not is_dataclass(of):
        return None
    if name in (known := {one.name: getattr(of, one.name) for one in fields(of)}):
        return known[name]
    return next((found for part in known.values() if (found := _field(part, name)) is not None), None)


def _check_pairs(given: Sequence[Sequence[str]]) -> None:
    """Refuse a name with two values, of which again the last would be kept."""
    pairs = [pair for words in given for pair in zip(words[::2], words[1::2], strict=False)]
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            values = " and ".join(value for key, value in pairs if key == name)
            raise ValueError(f"{PAIRS} has {values} for {name!r}, but must have one number for each role")


def _unknown(name: str) -> str:
    """One line about a command that does not exist, with those that were likely meant."""
    if family := _family(name):
        return f"{name!r} needs a second word: {', '.join(family)}"
    near = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(COMMANDS)}"
    return f"unknown command {name!r}, {hint}"


def _family(name: str) -> list[str]:
    """The commands of two words that begin with this one."""
    return [known for known in COMMANDS if known.split()[0] == name]


def _complaint(error: Exception | str, status: int, way_out: str = "") -> int:
    """One line on standard error."""
    from nugpt.spec.checks import one_line

    print(f"nugpt: error: {one_line(error)}{way_out}", file=sys.stderr)
    return status


def _listed(names: Sequence[str]) -> list[str]:
    """What each of these commands does, in columns."""
    width = max(len(name) for name in names)
    return [f"  {name:<{width}}  {COMMANDS[name][2]}" for name in names]


def _help_on(word: str) -> str:
    """The commands that begin with this word."""
    usage = f"usage: nugpt {word} COMMAND [OPTIONS]        nugpt {word} COMMAND --help"
    return "\n".join([usage, "", *_listed(_family(word))])


def _help() -> str:
    return "\n".join(
        [
            "usage: nugpt COMMAND [OPTIONS]        nugpt COMMAND --help",
            "",
            "Normalized Transformers whose learning rate is tuned once, on a small model, and holds for the large one.",
            "",
            *_listed(list(COMMANDS)),
            "",
            "--debug after any command shows the traceback of an error. --version prints the version.",
        ]
    )
