"""`nugpt measure align` and `nugpt measure lerp`."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nugpt.cli.measured_runs import Chosen, unmeasured
from nugpt.cli.shape import AMONG_OPTIONS
from nugpt.cli.show import counted, number, print_json, print_table

if TYPE_CHECKING:
    from nugpt.fit.alignment import AlignmentRun, Implied
    from nugpt.fit.verdict import Estimate
    from nugpt.spec.run import RunSpec
    from nugpt.store import RunDirectory


@dataclass(frozen=True)
class Align:
    """Alignment exponents α, ω, ν of runs that were measured while they trained, and the width exponent they imply.

    Without --runs and --plan it trains three widths of the preset's scale itself. At one width an exponent holds an
    unknown constant factor: the slope across three widths or more is the estimate.
    """

    chosen: Annotated[Chosen, AMONG_OPTIONS] = Chosen()
    weighting: str = "loss"
    """Of the table that --suggest writes: loss (by loss decrease), uniform (all steps alike) or first (first steps)."""
    suggest: Path | None = None
    """Write a parametrization with the measured width exponents to this TOML file; `sweep` and `train` accept it."""
    out: Path | None = None
    """Write the paper's three views of the exponents as figures into this folder."""
    formats: tuple[str, ...] = ("pdf", "svg", "png")
    """Of the figures."""
    level: float = 0.9
    """Of the intervals."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Measure what is missing, and print what it says."""
        from nugpt.fit.alignment import WEIGHTINGS, alignment_run
        from nugpt.fit.interval import check_level

        if self.weighting not in WEIGHTINGS:
            raise ValueError(f"weighting is {self.weighting!r}, but must be one of {', '.join(WEIGHTINGS)}")
        check_level(self.level)
        heads, layers = _default_sizes(self.chosen, ("heads",))
        self._check_files(len(set(self.chosen.heads or heads)))
        directories = self.chosen.directories("alignment", heads, layers)
        _complain_unmeasured(directories, "alignment")
        pairs = [(d.spec(), alignment_run(d.spec(), d.read_metrics(("alignment",)))) for d in directories]
        groups = _grouped([(spec, run) for spec, run in pairs if run is not None])
        if not groups:
            raise ValueError(
                "none of these runs was measured: train with --measure alignment, or give --again to train them again"
            )
        answers = [(name, spec, runs, _answers(runs, self.level)) for name, (spec, runs) in groups.items()]
        if self.json:
            print_json([_group_values(name, runs, found) for name, _, runs, found in answers])
        else:
            for name, _, runs, found in answers:
                _print_group(name, runs, found, self.level)
        if self.out is not None:
            _draw(self.out, {name: runs for name, _, runs, _ in answers}, self.formats)
        if self.suggest is not None:
            self._suggest(answers)
        return 0

    def _check_files(self, widths: int) -> None:
        """Find out before anything is trained what could not be written afterwards."""
        from nugpt.fit.alignment import FEWEST_WIDTHS
        from nugpt.report.write import check_formats
        from nugpt.spec import checks
        from nugpt.store.atomic import check_writable

        if self.out is not None:
            check_formats(self.formats)
            checks.folder(self.out, "out")
            check_writable(self.out, "out")
        if self.suggest is not None and self.suggest.suffix != ".toml":
            raise ValueError(f"suggest is {self.suggest}, but must end in .toml")
        if self.suggest is not None and not self.suggest.absolute().parent.is_dir():
            raise ValueError(f"suggest is {self.suggest}, but {self.suggest.parent} is no folder: make it first")
        if self.suggest is not None:
            check_writable(self.suggest.parent, "the folder of suggest")
        if self.suggest is not None and self.chosen.from_scratch and widths < FEWEST_WIDTHS:
            raise ValueError(f"--heads has {widths} widths, but --suggest derives a table from {FEWEST_WIDTHS} or more")

    def _suggest(self, answers: Sequence[tuple[str, RunSpec, list[AlignmentRun], list[Implied]]]) -> None:
        from nugpt.fit.alignment import suggested_table
        from nugpt.spec.table_file import load_table, table_to_toml
        from nugpt.store.atomic import write_bytes

        assert self.suggest is not None
        if len(answers) > 1:
            names = "; ".join(name for name, *_ in answers)
            raise ValueError(
                f"these runs are of {len(answers)} kinds ({names}): name those that a table is to come from"
            )
        name, spec, runs, found = answers[0]
        hidden, output = (
            next(one for one in found if (one.part, one.weighting) == (part, self.weighting))
            for part in ("hidden", "output")
        )
        table = suggested_table(spec.table, hidden, output, self.suggest.stem)
        slopes = [f"{x.part}: {x.quantity}, slope over widths {_text(x.slope)}: {x.reading}" for x in (hidden, output)]
        used = {*hidden.runs, *output.runs}
        lines = [f"# Width exponents of η_hidden and η_output as measured: {name}.", f"# {_WEIGHTED[self.weighting]}"]
        lines += [f"# {line}." for line in slopes]
        lines.append(f"# Runs: {', '.join(run.id for run in runs if run.id in used)}.")
        write_bytes(self.suggest, ("\n".join(lines) + "\n\n" + table_to_toml(table)).encode())
        load_table(str(self.suggest))  # as `sweep` will read it
        over_width = {role: table.base.over_width + table.rows[role].lr.over_width for role in ("hidden", "output")}
        rates = ", ".join(f"η_{role} ∝ m_width^({exponent})" for role, exponent in over_width.items())
        print(f"{self.suggest}: {rates}; the rest is {spec.table.name}", file=sys.stderr)
        for line in slopes:  # a table comes of whatever was measured: how well that is known is for the user to see
            print(line, file=sys.stderr)


_WEIGHTED = {
    "loss": "Measurements count by how far the loss fell since the one before.",
    "uniform": "Every step of the run counts the same.",
    "first": "The first steps alone count.",
}


def _default_sizes(chosen: Chosen, vary: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Heads and layers to train from scratch: the scale's own sweep along what varies, the preset along the other."""
    from nugpt.studies.grids import DEPTHS, WIDTHS

    if chosen.from_scratch:
        _check_sizes(chosen, vary)
    model, scale = chosen.arguments.shape.model(), chosen.arguments.shape.scale()
    heads = WIDTHS[scale.name] if "heads" in vary else (model.n_heads,)
    return heads, DEPTHS[scale.name] if "layers" in vary else (model.n_layers,)


def _check_sizes(chosen: Chosen, vary: tuple[str, ...]) -> None:
    """Refuse sizes that would be left out in silence, or that runs of several widths cannot share."""
    shape = chosen.arguments.shape
    for axis in vary:
        if (given := getattr(shape, f"n_{axis}")) is not None:
            raise ValueError(f"n_{axis} is {given}, but these are runs of several sizes: name them with --{axis}")
    if "heads" in vary and shape.d_mlp is not None:
        raise ValueError(f"d_mlp is {shape.d_mlp}, but over widths it must grow with d_model: leave it out")


def _complain_unmeasured(directories: list[RunDirectory], kind: str) -> None:
    left = unmeasured(directories, kind)
    if left and len(left) < len(directories):
        print(f"{len(left)} of {len(directories)} runs were not measured ({left[0]} …): left out", file=sys.stderr)


def _grouped(
    pairs: Sequence[tuple[RunSpec, AlignmentRun]],
) -> dict[str, tuple[RunSpec, list[AlignmentRun]]]:
    """Runs that differ in width and seed alone, each group under a name."""
    from nugpt.fit.measured import apart, group_key

    def kind(pair: tuple[RunSpec, AlignmentRun]) -> Hashable:
        spec, _ = pair
        # What began with given weights has another step 0, and is no repetition of what began with none.
        return group_key(spec), spec.lr, spec.model.n_layers, spec.steps, spec.batch, spec.began

    groups = apart(pairs, kind, lambda pair: (pair[0].model.d_model, pair[0].seed))
    named: dict[str, tuple[RunSpec, list[AlignmentRun]]] = {}
    for members in groups.values():
        spec = members[0][0]
        layers = counted(spec.model.n_layers, "layer")
        name = f"{spec.table.name}, {layers}, {spec.steps} steps, η {number(spec.lr)}"
        unique = name if name not in named else f"{name} ({len(named) + 1})"
        named[unique] = (spec, [run for _, run in members])
    return named


def _answers(runs: list[AlignmentRun], level: float) -> list[Implied]:
    from nugpt.fit.alignment import PARTS, WEIGHTINGS, implied

    return [implied(runs, part, weighting, level=level) for part in PARTS for weighting in WEIGHTINGS]


def _print_group(name: str, runs: list[AlignmentRun], found: list[Implied], level: float) -> None:
    from nugpt.fit.alignment import PARTS, QUANTITIES, implied, left_out

    widths, seeds = sorted({run.width for run in runs}), sorted({run.seed for run in runs})
    print(f"{name}: widths {', '.join(map(str, widths))}, {counted(len(seeds), 'seed')}, {counted(len(runs), 'run')}")
    widest = [run for run in runs if run.width == widths[-1]]
    rows = []
    for part in PARTS:
        for quantity in QUANTITIES:
            answers = [implied(widest, part, w, quantity, level) for w in ("first", "loss", "uniform", "end")]
            rows.append([part, quantity, *(_text(one.estimate) for one in answers)])
    columns = ["", "exponent", "first steps", "by loss decrease", "every step alike", "end"]
    print_table(columns, rows, f"at width {widths[-1]}, averaged over layers: a constant factor shifts these")
    rows = []
    for one in found:
        known = dict(one.at_widths)
        at = [_text(known.get(width)) for width in widths]  # a weighting may have no measurement at some
        rows.append([one.part, one.weighting, one.quantity, *at, _text(one.slope), _text(one.per_token), one.reading])
    columns = ["", "weighting", "larger", *(f"width {w}" for w in widths), "slope over widths", "per token", "reading"]
    print_table(columns, rows, "max(α, ν), what the exponents of η_hidden and η_output follow")
    if left := left_out(runs, found):
        which = ", ".join(f"width {run.width} seed {run.seed}" for run in left)
        print(f"slopes are of seeds that were measured at every width; not of {which}")


def _text(estimate: Estimate | None) -> str:
    if estimate is None or estimate.value is None:
        return "–"
    low, high = estimate.interval
    return f"{estimate.value:.3f} ({low:.2f} to {high:.2f})" if estimate.interval.bounded else f"{estimate.value:.3f}"


def _values(estimate: Estimate | None) -> Any:
    """An estimate as JSON has it: an open interval has no ends there."""
    if estimate is None:
        return None
    bounded = estimate.interval.bounded
    return {"value": estimate.value, "interval": list(estimate.interval) if bounded else None, "level": estimate.level}


def _group_values(name: str, runs: list[AlignmentRun], found: list[Implied]) -> dict[str, Any]:
    return {
        "group": name,
        "runs": [{"id": run.id, "width": run.width, "layers": run.layers, "seed": run.seed} for run in runs],
        "implied": [
            {
                "part": one.part,
                "weighting": one.weighting,
                "larger": one.quantity,
                "at_widths": [{"width": width, **_values(estimate)} for width, estimate in one.at_widths],
                "slope": _values(one.slope),
                "per_token": _values(one.per_token),
                "reading": one.reading,
                "regimes": list(one.regimes),
            }
            for one in found
        ],
    }


def _draw(out: Path, groups: dict[str, list[AlignmentRun]], formats: Sequence[str]) -> None:
    from nugpt.report.figures.alignment import alignment_figures
    from nugpt.report.write import save_figures

    written = save_figures({f"alignment-{k}": f for k, f in alignment_figures(groups).items()}, out, formats)
    print(f"{len(written)} figure files in {out}", file=sys.stderr)


@dataclass(frozen=True)
class Lerp:
    """Mean and spread of the effective α_A, α_M over components and blocks: by layer, during and after training.

    Without --runs and --plan it trains the depths of the preset's scale itself. Across three depths or more the mean is
    fitted by a power of depth.
    """

    chosen: Annotated[Chosen, AMONG_OPTIONS] = Chosen()
    level: float = 0.9
    """Of the interval."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the statistics of each run, and the power law."""
        from nugpt.fit.interval import check_level
        from nugpt.fit.lerp import lerp_laws
        from nugpt.spec.table_file import load_table

        check_level(self.level)
        heads, layers = _default_sizes(self.chosen, ("layers",))
        if self.chosen.from_scratch:
            table = load_table(self.chosen.arguments.parametrization)
            if table.family != "normalized":
                raise ValueError(
                    f"parametrization is {table.name!r}, but LERP is of normalised models: name their table"
                )
        found = []
        for directory in self.chosen.directories("lerp", heads, layers):
            record = directory.record()
            if record is not None and record.lerp:
                found.append((directory.spec(), record.lerp, directory.read_metrics(("lerp",))))
        if not found:
            raise ValueError("none of these runs has LERP coefficients: they are of normalised models that trained")
        laws = lerp_laws([(spec, at_end) for spec, at_end, _ in found], self.level)
        if self.json:
            print_json({"runs": [_lerp_values(*one) for one in found], "laws": [law.to_dict() for law in laws]})
            return 0
        for spec, at_end, rows in found:
            _print_lerp(spec, at_end, rows)
        for law in laws:
            print(law.text)
        return 0


def _lerp_values(spec: RunSpec, at_end: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    place = {"run": spec.hash, "table": spec.table.name, "width": spec.model.d_model, "layers": spec.model.n_layers}
    return {**place, "seed": spec.seed, "lr": spec.lr, "end": dict(at_end), "during": rows}


def _print_lerp(spec: RunSpec, at_end: Any, rows: list[dict[str, Any]]) -> None:
    size = f"width {spec.model.d_model}, {counted(spec.model.n_layers, 'layer')}"
    where = f"{spec.table.name}, {size}, η {number(spec.lr)}"
    print(f"{where}, seed {spec.seed}   {spec.hash}")
    shown = [rows[i] for i in sorted({round(k * (len(rows) - 1) / 4) for k in range(5)})] if rows else []
    cells = [[f"step {row['step']}", *(_mean_and_std(row[role]) for role in _ROLES)] for row in shown]
    cells.append(["end", *(_mean_and_std(at_end[role]) for role in _ROLES)])
    for i in range(spec.model.n_layers):
        cells.append([f"end, block {i + 1}", *(_mean_and_std(at_end[role], i) for role in _ROLES)])
    print_table(["", "α̂_A mean ± spread", "α̂_M mean ± spread"], cells)


_ROLES = ("alpha_A", "alpha_M")


def _mean_and_std(of: Any, block: int | None = None) -> str:
    mean, std = (of["mean"], of["std"]) if block is None else (of["mean_by_block"][block], of["std_by_block"][block])
    return f"{mean:.4g} ± {std:.2g}"
