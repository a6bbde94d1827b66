"""The page's part on coordinate checks: a table and charts of each that the store keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nugpt.fit.coords import AXES, FALLS, FLAT, GROWS, STATES
from nugpt.report import colours
from nugpt.report.charts import Chart, colour, finished, tooltips, values
from nugpt.report.html import Child, Html, joined, table, tag
from nugpt.report.words import NONE, number, short

COORDS = "coords"
_BADGES = {FLAT: "badge holds", GROWS: "badge fails", FALLS: "badge fails"}
Check = Mapping[str, Any]


def shown_name(quantity: str) -> str:
    """A size as a reader knows it."""
    return quantity.replace("h1", "h¹")


def coord_charts(checks: Sequence[Check]) -> list[Chart]:
    """Sizes of h, Δh, logits and Δlogits against width and depth, each relative to its smallest model."""
    return [_coord_chart(check, axis) for check in checks for axis in AXES]


def octaves(slope: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(width or depth, octaves that a size lies above the smallest model's, less those that are wanted)."""
    sizes = slope["sizes"]
    return [(float(x), math.log2(y / sizes[0][1]) - slope["wanted"] * math.log2(x / sizes[0][0])) for x, y in sizes]


def _coord_chart(check: Check, axis: str) -> Chart:
    import altair as alt

    rows = [
        {"x": x, "y": round(y, 4), "s": shown_name(slope["quantity"]), "verdict": slope["verdict"]}
        for slope in check["slopes"]
        if slope["axis"] == axis and slope["quantity"] in STATES
        for x, y in octaves(slope)
    ]
    names = list(dict.fromkeys(row["s"] for row in rows))
    x = alt.X("x:Q", title=axis, scale=alt.Scale(type="log", base=2, padding=14))
    most = max((abs(row["y"]) for row in rows), default=0.0)
    domain = [-max(1.0, 1.1 * most), max(1.0, 1.1 * most)]  # so that flat looks flat
    y = alt.Y("y:Q", title="octaves above the smallest model", scale=alt.Scale(domain=domain, nice=False))
    encoded = {"x": x, "y": y, "color": colour("size of", names)}
    tooltip = tooltips(s="size of", x=axis, y="octaves", verdict="verdict")
    line = values(rows).mark_line(strokeWidth=1.6).encode(**encoded)
    points = values(rows).mark_point(filled=True, size=55).encode(**encoded, tooltip=tooltip)
    what = f"{check['name']}: sizes over {axis}"
    described = f"Sizes of hidden states and logits and of their changes over {axis}, relative to the smallest model."
    return finished(alt.layer(line, points), what, described, colours.named, len(names))


def coord_section(checks: Sequence[Check], charts: Html, stills: Html) -> Html:
    """Every check: whether all is flat, what is at fault, and every size with its slope."""
    parts: list[Child] = [tag("h2", "Coordinate checks")]
    parts.append(
        tag(
            "p",
            "A few training steps at several widths and depths. A slope is in octaves of a size per octave of width ",
            "or depth, less the slope that is wanted; flat means that its whole interval lies within 1/8 ",
            "of what is wanted.",
            class_="soft",
        )
    )
    parts += [charts, stills]
    for check in checks:
        parts += [tag("h3", f"{check['name']}: table {check['table']}"), _faults(check), _table(check)]
    return tag("section", *parts, id=COORDS)


def _wanted(slope: Mapping[str, Any]) -> str:
    low, slack = slope["wanted"], slope["slack"]
    return short(low) if not slack else f"{short(low)} to {short(low + slack)}"


def _faults(check: Check) -> Html:
    far = "; ".join(one["text"] for one in check.get("too_large", ()))  # checks of earlier versions have none
    large = f"Not decided: the steps were too large for a power law, and matrices moved far around the sphere: {far}."
    said = tag("p", large) if far else None
    if check["mistakes"]:
        return joined([tag("ul", *(tag("li", mistake["text"]) for mistake in check["mistakes"])), said])
    if said is not None:
        return said
    told = "Everything is flat." if check["passed"] else "No exponent is named; not every size is known to be flat."
    return tag("p", told)


def _table(check: Check) -> Html:
    rows: list[list[Child]] = []
    for slope in check["slopes"]:
        ends = slope["interval"]
        between = f"{number(ends[0])} to {number(ends[1])}" if ends else "unbounded"
        value = NONE if slope["slope"] is None else f"{number(slope['slope'])} ({between})"
        sizes = ", ".join(f"{x}: {short(y)}" for x, y in slope["sizes"])
        verdict = tag("span", slope["verdict"], class_=_BADGES.get(slope["verdict"], "badge"))
        rows.append([shown_name(slope["quantity"]), slope["axis"], sizes, _wanted(slope), value, verdict])
    return table(["size of", "over", "sizes", "wanted", "slope less wanted", "verdict"], rows, right=(3, 4))
