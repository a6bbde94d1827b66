"""TOML as we write it is read back by the standard library."""

from __future__ import annotations

import tomllib

from nugpt.spec.toml import to_toml


def test_toml_keeps_what_it_can_say() -> None:
    values = {
        "a key": 1,
        "text": 'quote " back \\ line\n 𝄞 \x7f',
        "list": [1.5, [2, 3], {"x": True, "y": None}],
        "none": None,
        "empty": {},
        "deep": {"er": {"x": 1e-16, "y": 1e300}},
    }
    assert tomllib.loads(to_toml(values)) == {
        "a key": 1,
        "text": values["text"],
        "list": [1.5, [2, 3], {"x": True}],
        "empty": {},
        "deep": {"er": {"x": 1e-16, "y": 1e300}},
    }
