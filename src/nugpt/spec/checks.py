"""What a value must be: each refusal is one line that names the value and says what would be right."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

LARGEST_EXPONENT = 100  # far beyond any use; keeps a slip of the pen from becoming an overflow
LONGEST_FRACTION = 1_000  # characters: every float within the bound above, written as a fraction, is shorter
LONGEST_SHOWN = 60


def is_number(value: object) -> bool:
    """Whether it is a number, which a truth value is not."""
    return isinstance(value, (int, float, Fraction)) and not isinstance(value, bool)


def shown(value: object) -> str:
    """A value as a message prints it: a fraction as it is written, the rest as Python does, nothing at length."""
    text = str(value) if isinstance(value, Fraction) else repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def one_line(error: object) -> str:
    """An error, or what a program said, on one line; the system's own without its number, after the file's name."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        error = f"{error.filename}: {error.strerror.lower()}"
    return " ".join(str(error).split())


class OtherVersion(ValueError):
    """What another version of nugpt wrote, and can read."""


def check_format(what: str, found: object, read: int) -> None:
    """Refuse what is of another format; it is nobody's damage where the format is a number."""
    said = f"{what} has format {shown(found)}, but this version reads {read}"
    if isinstance(found, int) and found != read:
        raise OtherVersion(f"{said}: use the version of nugpt that wrote it")
    if found != read:
        raise ValueError(said)


def of_class(name: str, value: object, kind: type, way: str) -> None:
    """Refuse a value of another class, and say how one of this class is had."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {shown(value)}, but must be of the class {kind.__name__}: {way}")


def plain(value: Any) -> Any:
    """A whole number of another library's, as numpy's, as Python's own, which records can hold; the rest as it is."""
    truth = type(value).__name__.startswith("bool")  # numpy's before 2.0 would pass for a number
    if isinstance(value, int) or truth or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # numpy's truth values, and arrays of several numbers
        return value


def make_plain(one: Any, *names: str) -> None:
    """Give these fields of a frozen value that is being made as Python's own whole numbers."""
    for name in names:
        object.__setattr__(one, name, plain(getattr(one, name)))


def whole(value: Any, where: str, least: int = 1) -> int:
    """A whole number of at least `least`."""
    value = plain(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{where} is {shown(value)}, but must be a whole number of at least {least}")
    return value


def nonnegative(value: Any, where: str) -> float:
    """A finite number of at least 0."""
    if not is_number(value) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{where} is {shown(value)}, but must be a number of at least 0")
    return float(value)


def exponent(value: Any, where: str) -> Fraction:
    """An exact exponent; a number goes by way of its text, so that 0.1 means a tenth."""
    if not is_number(value) or not -LARGEST_EXPONENT <= value <= LARGEST_EXPONENT:
        wanted = f"a number from {-LARGEST_EXPONENT} to {LARGEST_EXPONENT}"
        raise ValueError(f"{where} is {shown(value)}, but must be {wanted}")
    return Fraction(str(value))


def written_exponent(value: Any, where: str) -> Fraction:
    """An exponent as a file writes it: a number, or a fraction in quotes such as "-3/4"."""
    if not isinstance(value, str):
        return exponent(value, where)
    try:
        # 1e99999999 would be worked out to its last digit.
        if len(value) > LONGEST_FRACTION or "e" in value.lower():
            raise ValueError
        number = Fraction(value)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f'{where} is {shown(value)}, but must be a number or a fraction such as "-3/4"') from None
    return exponent(number, where)


def two_betas(value: Any, where: str) -> tuple[float, float]:
    """Adam's β: two numbers from 0 to below 1."""
    pair = list(value) if isinstance(value, (list, tuple)) else []
    if len(pair) != 2 or not all(is_number(beta) and 0 <= beta < 1 for beta in pair):
        raise ValueError(f"{where} is {shown(value)}, but must be two numbers from 0 to below 1")
    return float(pair[0]), float(pair[1])


def folder(path: Path, where: str) -> None:
    """A directory, or what can become one."""
    there = next((place for place in (path, *path.parents) if place.exists()), None)
    if there is None or there.is_dir():
        return
    if there == path:
        raise ValueError(f"{where} is {str(path)!r}, which is a file, but must be a directory")
    raise ValueError(f"{where} is {str(path)!r}, but {str(there)!r} is a file, and must be a directory")


@contextmanager
def written_as(path: Path) -> Iterator[None]:
    """What goes wrong with a file under a temporary name is said of the file that it is to become."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # one of ours, in words
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # of the class that the number has


def new_file(path: Path) -> None:
    """A file that is not there yet, in a folder that is."""
    if path.exists():
        raise FileExistsError(f"{path} exists and is not overwritten: name a new file, or remove that one first")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} lies in a folder that does not exist: make it first")
