"""The interactive charts of the page, as Vega-Lite specs; colours are the page's to choose, by its ground."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nugpt.report import colours
from nugpt.report.answers import COEFFICIENTS, SIZE_WORDS, LerpLine, MultiplierLine, Path, Picture, PlanAnswer, Series
from nugpt.report.scale import Stretch, stretches
from nugpt.report.source import Run

if TYPE_CHECKING:
    import altair as alt

HEIGHT = 300
ROW = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A chart of the page: its title and description, its spec, and the palettes for either ground."""

    title: str
    description: str
    spec: dict[str, Any]
    light: tuple[str, ...]
    dark: tuple[str, ...]


def curve_charts(found: PlanAnswer) -> list[Chart]:
    """Loss against η, one chart for each picture of the plan."""
    return [_curve_chart(*one) for one in zip(found.pictures, stretches(found.pictures), strict=True)]


def law_charts(found: PlanAnswer) -> list[Chart]:
    """Best η (and the edge) against each size that has three values or more."""
    return [_law_chart(axis, paths) for axis, paths in paths_to_draw(found).items()]


def paths_to_draw(found: PlanAnswer) -> dict[str, list[Path]]:
    """By the size that they follow: those that have three values of it among them, be it two each."""
    along: dict[str, list[Path]] = {}
    for path in found.paths:
        along.setdefault(path.answer.along, []).append(path)
    return {
        axis: paths
        for axis, paths in along.items()
        if len({one.curve.sizes[axis] for path in paths for one in path.answer.curves}) > 2
    }


def multiplier_charts(found: PlanAnswer) -> list[Chart]:
    """The loss reached against the multiplier of each role."""
    roles = dict.fromkeys(line.role for line in found.multipliers)
    return [_multiplier_chart(role, [line for line in found.multipliers if line.role == role]) for role in roles]


def lerp_charts(found: PlanAnswer) -> list[Chart]:
    """The mean effective α̂ against depth."""
    return [_lerp_chart(found.lerps)] if found.lerps else []


def on_scale(run: Run, shown: Stretch) -> bool:
    """Whether a run's loss lies on the stretch that is shown."""
    return run.trained and run.loss is not None and run.loss <= shown.top


def run_row(run: Run, series: str, shown: Stretch) -> ROW:
    """A run as its point shows it; one without a place on the scale stands above it."""
    ends = run.state
    if run.state == "done" and not run.trained:
        ends = "done, without a sensible loss"
    if run.state == "diverged" and run.facts.get("diverged_at") is not None:
        ends = f"diverged at step {run.facts['diverged_at']}"
    about = {
        "x": run.log2_lr,
        "s": series,
        "run": run.id,
        "seed": run.seed,
        "lr": f"{2.0**run.log2_lr:.4g}",
        "state": ends,
    }
    if run.loss is not None and on_scale(run, shown):
        return about | {"y": round(run.loss, 5)}
    return about | {"y": round(shown.mark, 5), "loss": f"{run.loss:.4f}" if run.loss is not None else "none"}


def _curve_chart(picture: Picture, shown: Stretch) -> Chart:
    import altair as alt

    names = [series.name for series in picture.series]
    rows: dict[bool, list[ROW]] = {True: [], False: []}  # by whether they lie on the scale
    for series in picture.series:
        for run in series.runs.runs:
            if run.ended:
                rows[on_scale(run, shown)].append(run_row(run, series.name, shown))
    means = [
        {"x": x, "y": round(y, 5), "s": series.name}
        for series in picture.series
        for x, y in series.means
        if y <= shown.top
    ]
    optima = [row for series in picture.series if (row := _optimum_row(series)) is not None]
    x = alt.X("x:Q", title="log₂ η", scale=alt.Scale(zero=False, nice=False, padding=14))
    y = alt.Y(
        "y:Q",
        title="validation loss (nats)",
        scale=alt.Scale(domain=[round(shown.low, 6), round(shown.high, 6)], zero=False, nice=False),
    )
    layers = Layers(x, y, picture.along, names, strong=0.85)
    about = {"run": "run", "seed": "seed", "lr": "η", "x": "log₂ η", "state": "ended"}
    points = layers.links(rows[True], tooltips(**about, y="loss"), size=42)
    failed = layers.links(rows[False], tooltips(**about, loss="loss"), shape="cross", angle=45, size=60)
    told = tooltips(s=picture.along, at="best log₂ η", interval="90 % interval", loss="loss there", verdict="optimum")
    bounded = [row for row in optima if row["low"] is not None and row["high"] is not None]
    spans = values(bounded).mark_rule(strokeWidth=3)
    best = values(optima).mark_point(shape="diamond", size=110, strokeWidth=2, filled=False)
    drawn = [
        layers.line(means),
        *(one.transform_calculate(href="'#run-' + datum.run") for one in (points, failed)),
        spans.encode(**layers.on | {"x": alt.X("low:Q")}, x2="high:Q", tooltip=told),
        best.encode(**layers.on, tooltip=told),
    ]
    described = (
        f"Validation loss against log2 of the learning rate for {picture.title}, one line for each {picture.along}; "
        "diamonds are fitted optima, bars their intervals, crosses runs that failed or lie above the scale."
    )
    return layers.chart(filled(drawn), picture.title, described, colours.ordered)


def _optimum_row(series: Series) -> ROW | None:
    found = series.answer.optimum if series.answer else None
    if found is None or found.log2_lr is None or found.loss is None:
        return None
    low, high = (round(end, 5) if math.isfinite(end) else None for end in found.interval)
    return {
        "x": round(found.log2_lr, 5),
        "low": low,
        "high": high,
        "y": round(found.loss, 5),
        "s": series.name,
        "at": f"{found.log2_lr:.2f}",
        "interval": f"{found.interval.low:.2f} to {found.interval.high:.2f}",
        "loss": f"{found.loss:.4f}",
        "verdict": found.verdict,
    }


def path_name(path: Path) -> str:
    """A path in words: its group, and what stays or goes along."""
    rest = path.answer.name.removeprefix(path.answer.along).strip()
    rest = re.sub(r"\bbatch=(\d+)", r"\1 tokens a step", rest)  # a curve's own label has sequences
    return f"{path.name} {rest}".strip()


def law_points(path: Path) -> list[ROW]:
    """Each size's optimum (a bound where it is not enclosed) and stability edge."""
    rows: list[ROW] = []
    for one in path.answer.curves:
        best, edge = one.optimum, one.edge
        size = one.curve.sizes[path.answer.along]
        about = {"x": size, "s": path_name(path), "curve": one.curve.name}
        interval = f"{_end(best.interval.low)} to {_end(best.interval.high)}"
        if best.log2_lr is not None:
            low, high = (round(end, 5) for end in best.interval) if best.interval.bounded else (None, None)
            y = round(best.log2_lr, 5)
            rows.append(about | {"kind": "optimum", "y": y, "low": low, "high": high, "interval": interval})
        elif math.isfinite(best.interval.low) or math.isfinite(best.interval.high):
            kind = "at least" if math.isfinite(best.interval.low) else "at most"
            y = round(best.interval.low if kind == "at least" else best.interval.high, 5)
            rows.append(about | {"kind": kind, "y": y, "low": None, "high": None, "interval": interval})
        if edge.log2_lr is not None:
            span = f"{edge.interval.low:.2f} to {edge.interval.high:.2f}"
            rows.append(about | {"kind": "edge", "y": edge.log2_lr, "low": None, "high": None, "interval": span})
    return rows


def _end(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "unbounded"


def law_line(path: Path) -> list[ROW]:
    """The line through a path's optima with the band that the slope's error draws around it."""
    if path.law is None:
        return []
    sizes = [one.curve.sizes[path.answer.along] for one in path.answer.curves]
    rows = []
    for i in range(9):
        size = 2 ** (math.log2(min(sizes)) + i / 8 * math.log2(max(sizes) / min(sizes)))
        found = path.law.log2_at({path.answer.along: size})
        if found is not None:
            low, high = found[1]
            rows.append(_rounded(size, found[0], low, high) | {"s": path_name(path)})
    return rows


def _law_chart(axis: str, paths: Sequence[Path]) -> Chart:
    import altair as alt

    names = [path_name(path) for path in paths]
    points = [row for path in paths for row in law_points(path)]
    lines = [row for path in paths for row in law_line(path)]
    sizes = sorted({row["x"] for row in points})
    x = alt.X(
        "x:Q",
        title=SIZE_WORDS.get(axis, axis),
        scale=alt.Scale(type="log", base=2, padding=14),
        axis=alt.Axis(values=sizes, format=",~f"),
    )
    y = alt.Y("y:Q", title="log₂ of the best η", scale=alt.Scale(zero=False))
    layers = Layers(x, y, "curves", names)
    tooltip = tooltips(curve="curve", kind="what", y="log₂ η", interval="interval")
    of = {kind: [row for row in points if row["kind"] == kind] for kind in ("optimum", "at least", "at most", "edge")}
    marks = [
        values(of[kind])
        .mark_point(shape=shape, filled=filled, size=70, strokeWidth=1.6)
        .encode(**layers.on, tooltip=tooltip)
        for kind, shape, filled in (
            ("optimum", "diamond", True),
            ("at least", "triangle-up", False),
            ("at most", "triangle-down", False),
            ("edge", "stroke", False),
        )
    ]
    drawn = [layers.band(lines), layers.line(lines), layers.bars(of["optimum"]).encode(tooltip=tooltip), *marks]
    described = (
        f"Best learning rate against {axis}: diamonds with their intervals, the fitted power law with its band, "
        "dashes at the stability edge, open triangles where an optimum is only bounded."
    )
    return layers.chart(filled(drawn), f"Best η over {SIZE_WORDS.get(axis, axis)}", described, colours.named)


def _multiplier_chart(role: str, lines: Sequence[MultiplierLine]) -> Chart:
    import altair as alt

    names = [line.name or role for line in lines]
    rows = [
        {
            "x": one.log2_multiplier,
            "y": one.loss - line.lowest,
            "low": None if one.low is None else one.low - line.lowest,
            "high": None if one.high is None else one.high - line.lowest,
            "s": line.name or role,
            "loss": f"{one.loss:.4f}",
            "href": f"#curve-{one.curve.key}",
        }
        for line in lines
        for one in line.tried
    ]
    x = alt.X("x:Q", title=f"log₂ of the multiplier of {role}", scale=alt.Scale(zero=False, padding=14))
    y = alt.Y("y:Q", title="loss reached, above the line's lowest (nats)", scale=alt.Scale(zero=False))
    layers = Layers(x, y, "curves", names)
    tooltip = tooltips(s="curves", x="log₂ multiplier", loss="loss reached")
    drawn = [layers.line(rows), layers.bars(rows), layers.links(rows, tooltip, size=55)]
    described = (
        f"Loss reached above the lowest, against log2 of the multiplier of {role}, "
        "with intervals where the optimum is enclosed."
    )
    return layers.chart(filled(drawn), f"Multiplier of {role}", described, colours.ordered)


def lerp_name(line: LerpLine) -> str:
    """A coefficient's line in words."""
    return f"{line.table} {COEFFICIENTS[line.role]}"


def lerp_law(line: LerpLine) -> list[ROW]:
    """The power law through a coefficient's means, with its band."""
    depths = [one.layers for one in line.at]
    rows = []
    for i in range(9):
        depth = 2 ** (math.log2(min(depths)) + i / 8 * math.log2(max(depths) / min(depths)))
        found = line.law.log2_at({"depth": depth})
        if found is not None:
            low, high = 2 ** found[1].low, 2 ** found[1].high
            rows.append(_rounded(depth, 2 ** found[0], low, high) | {"s": lerp_name(line)})
    return rows


def _lerp_chart(lines: Sequence[LerpLine]) -> Chart:
    import altair as alt

    names = [lerp_name(line) for line in lines]
    points: list[ROW] = [
        {
            "x": one.layers,
            "y": one.mean,
            "s": lerp_name(line),
            "std": f"{one.std:.3g}",
            "mean": f"{one.mean:.4g}",
            "run": one.run.id,
            "seed": one.run.seed,
            "href": f"#run-{one.run.id}",
        }
        for line in lines
        for one in line.at
    ]
    fitted = [row for line in lines for row in lerp_law(line)]
    depths = sorted({row["x"] for row in points})
    x = alt.X("x:Q", title="layers", scale=alt.Scale(type="log", base=2, padding=14), axis=alt.Axis(values=depths))
    y = alt.Y("y:Q", title="mean effective α̂ at the best η", scale=alt.Scale(type="log", base=2))
    layers = Layers(x, y, "coefficient", names)
    tooltip = tooltips(s="coefficient", run="run", seed="seed", mean="mean", std="spread over components")
    drawn = [layers.band(fitted, clip=True), layers.line(fitted), layers.links(points, tooltip, size=55)]
    described = "Mean effective LERP coefficient at each depth's best learning rate, with the fitted power of depth."
    return layers.chart(filled(drawn), "α̂ over depth", described, colours.named)


def _rounded(x: float, y: float, low: float, high: float) -> ROW:
    """As many digits as a chart can show."""
    return {name: float(f"{value:.5g}") for name, value in (("x", x), ("y", y), ("low", low), ("high", high))}


def values(rows: list[ROW]) -> alt.Chart:
    """A layer of these rows."""
    import altair as alt

    return alt.Chart(alt.InlineData(values=rows))


def tooltips(**fields: str) -> list[alt.Tooltip]:
    """What a point says of these fields, each under its title."""
    import altair as alt

    return [alt.Tooltip(field=field, type="nominal", title=title) for field, title in fields.items()]


def colour(title: str, names: Sequence[str]) -> alt.Color:
    """One for each series, with their legend below."""
    import altair as alt

    columns = 1 if max(map(len, names), default=0) > 24 else 2
    legend = alt.Legend(title=title, orient="bottom", columns=columns, labelLimit=420, symbolOpacity=1)
    return alt.Color("s:N", sort=names, scale=alt.Scale(domain=names), legend=legend)


def filled(layers: Sequence[alt.Chart]) -> list[alt.Chart]:
    """Those that have rows."""
    return [layer for layer in layers if layer.data.values]


class Layers:
    """Layers over the same axes, in a colour for each series; a click on the legend shows a series alone."""

    def __init__(
        self, x: alt.X, y: alt.Y, title: str, names: Sequence[str], strong: float = 0.9, faint: float = 0.14
    ) -> None:
        import altair as alt

        self._series = len(names)
        self._toggle = alt.selection_point(name="shown", fields=["s"], bind="legend", toggle="true")
        opacity = alt.condition(self._toggle, alt.value(strong), alt.value(0.06))
        self._faint = alt.condition(self._toggle, alt.value(faint), alt.value(0.0))
        self.on = {"x": x, "y": y, "color": colour(title, names), "opacity": opacity}  # what layers encode alike
        self._between = self.on | {"y": alt.Y("low:Q"), "y2": "high:Q"}

    def line(self, rows: list[ROW]) -> alt.Chart:
        """Through the rows of each series."""
        return values(rows).mark_line(strokeWidth=1.6).encode(**self.on)

    def band(self, rows: list[ROW], **mark: Any) -> alt.Chart:
        """From low to high."""
        return values(rows).mark_area(**mark).encode(**self._between | {"opacity": self._faint})

    def bars(self, rows: list[ROW]) -> alt.Chart:
        """From low to high, where a row has them."""
        return values([row for row in rows if row["low"] is not None]).mark_rule(strokeWidth=2).encode(**self._between)

    def links(self, rows: list[ROW], tooltip: list[alt.Tooltip], **mark: Any) -> alt.Chart:
        """Points that lead to their rows' `href`."""
        points = values(rows).mark_point(filled=True, cursor="pointer", **mark)
        return points.encode(**self.on, tooltip=tooltip, href="href:N")

    def chart(self, layers: Sequence[alt.Chart], title: str, description: str, palette: Any) -> Chart:
        """These layers as one chart."""
        import altair as alt

        return finished(alt.layer(*layers).add_params(self._toggle), title, description, palette, self._series)


def finished(chart: alt.LayerChart | alt.FacetChart, title: str, description: str, palette: Any, n: int) -> Chart:
    """The chart as the page takes it, with so many colours of the palette."""
    spec: dict[str, Any] = chart.properties(width="container", height=HEIGHT).to_dict(validate=False)
    spec.pop("config", None)  # the page's, since it depends on the ground
    return Chart(title, description, _shorter(spec), tuple(palette(n)), tuple(palette(n, dark=True)))


def _shorter(spec: dict[str, Any]) -> dict[str, Any]:
    """The same chart in fewer letters: what all layers encode alike once, data by short names, digits as they show."""
    layers = [dict(layer, encoding=dict(layer["encoding"])) for layer in spec["layer"]]
    first = layers[0]["encoding"]
    shared = {
        channel: said
        for channel, said in first.items()
        if all(layer["encoding"].get(channel) == said for layer in layers)
    }
    for layer in layers:
        layer["encoding"] = {channel: said for channel, said in layer["encoding"].items() if channel not in shared}
    short = spec | {"encoding": shared, "layer": layers}
    names = {long: f"rows-{i}" for i, long in enumerate(spec["datasets"])}
    for part in (short, *layers):
        if "data" in part:  # of the whole where all layers have the same
            part["data"] = {"name": names[part["data"]["name"]]}
    short["datasets"] = {names[long]: [_printed(row) for row in rows] for long, rows in spec["datasets"].items()}
    return short


def _printed(row: ROW) -> ROW:
    """A row's values to seven digits, which no chart shows all of."""
    return {name: float(f"{x:.7g}") if isinstance(x, float) else x for name, x in row.items()}
