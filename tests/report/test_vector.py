"""Figures as SVG: the same text every time, and the labels that the axes have."""

from __future__ import annotations

import re

from nugpt.report.vector import svg


def test_labels_are_left_alone_and_places_rounded() -> None:
    from matplotlib.figure import Figure

    def drawn() -> str:
        figure = Figure(figsize=(3, 2))
        axes = figure.add_subplot()
        axes.plot([0.0, 1 / 3, 1.0], [0.0, 0.0125, 0.05])
        axes.set_yticks([0.0, 0.0125, 0.025, 0.0375])
        return svg(figure)

    text = drawn()
    assert re.findall(r">([0-9.]+)</text>", text)[-4:] == ["0.0000", "0.0125", "0.0250", "0.0375"]
    places = re.findall(r"[ML] ([0-9.]+) ([0-9.]+)", text)
    assert len(places) > 10
    assert all(len(number.partition(".")[2]) <= 2 for place in places for number in place)
    assert drawn() == text
