"""The data of the two local tasks: a file of the user's own, or the small one beside this module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset

HERE = Path(__file__).parent


def text(text_file: str = "", **_: Any) -> dict[str, Dataset]:
    """A text file as one document; lm_eval gives us all of its metadata, of which we want the path alone."""
    path = Path(text_file or HERE / "sample.txt")
    content = path.read_bytes().decode()  # read_text would change line ends
    if not content:
        raise ValueError(f"{path} is empty, but must hold a text")
    return {"test": Dataset.from_list([{"text": content}])}


def choices(choice_file: str = "", **_: Any) -> dict[str, Dataset]:
    """A file of lines such as {"question": "Two and two are", "choices": ["four", "five"], "answer": 0}."""
    path = Path(choice_file or HERE / "sample.jsonl")
    rows = [
        _row(line, f"{path}, line {number}")
        for number, line in enumerate(
            path.read_bytes().decode().split("\n"), 1
        )  # JSON may hold what splitlines splits at
        if line.strip()
    ]
    if not rows:
        raise ValueError(f"{path} is empty, but must hold a question a line")
    return {"test": Dataset.from_list(rows)}


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        question, options, answer = row["question"], row["choices"], row["answer"]
    except (ValueError, KeyError, TypeError) as error:
        wanted = "a JSON object with question, choices and answer"
        raise ValueError(f"{where}: must be {wanted}: {error!r}") from None
    if not isinstance(question, str) or not _texts(options):
        raise ValueError(f"{where}: question must be a text and choices a list of texts, none of them empty")
    if type(answer) is not int or not 0 <= answer < len(options):
        raise ValueError(f"{where}: answer is {answer!r}, but must be the place of one of {len(options)} choices")
    return {"question": question, "choices": options, "answer": answer}


def _texts(values: object) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(one, str) and one for one in values)
