"""`nugpt measure coords`."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nugpt.cli.run_arguments import check_seeds, open_data
from nugpt.cli.shape import BaseShape
from nugpt.cli.show import counted, number, print_json, print_table

if TYPE_CHECKING:
    from nugpt.data import TokenDataset
    from nugpt.fit.coords import CoordCheck, Sized, SizeSlope
    from nugpt.spec.parametrization import Parametrization
    from nugpt.spec.resolve import Base
    from nugpt.spec.scales import Scale

SMALLER = 16  # η of the check below the scale's own: a step then moves weights by a share, not around the sphere


@dataclass(frozen=True)
class Coords:
    """Train a few steps at several widths and depths and see that nothing grows or shrinks with either.

    Takes the size of h, Δh, logits, Δlogits, and how far each role's parameters move; each gets a slope with an
    interval and a verdict. A wrong exponent is named. Exit status 1 when something grows or falls, 2 when steps are too
    large to tell or end in values that are no numbers: a smaller --lr is then what is right.
    """

    parametrization: str = "nugpt"
    """A built-in table of normalised models by name, or the path of a TOML file."""
    scale: str = "tiny"
    """tiny, lab, evidence or paper: its base, its batch and its data."""
    heads: tuple[int, ...] = ()
    """Widths at the base's depth; half the base's heads, as many, and twice as many by default."""
    layers: tuple[int, ...] = ()
    """Depths at the base's width; likewise."""
    base: BaseShape = BaseShape()
    seed: tuple[int, ...] = (0, 1)
    """Seeds of initial weights and data."""
    steps: int = 4
    """Steps to take."""
    lr: float | None = None
    """The global learning rate η; by default a sixteenth of the scale's: steps small against the weights."""
    alignment: float = 0.75
    """How aligned weights and activations are taken to be, from 0.5 to 1: the paper's 3/4, or what you measured."""
    data: Path | None = None
    """A directory made by `nugpt data prepare`; by default the embedded corpus."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    windows: int = 8
    """Validation windows that h and logits are taken on."""
    store: Path | None = None
    """Keep the check in this store, where `nugpt report` finds it."""
    name: str | None = None
    """Its name there; the table's by default."""
    out: Path | None = None
    """Write the plots into this folder."""
    formats: tuple[str, ...] = ("pdf", "svg", "png")
    """Of the plots."""
    level: float = 0.9
    """Of the intervals."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Measure, print slopes and verdicts, and say which exponent is at fault."""
        from nugpt.engines.lab.options import Options
        from nugpt.fit.coords import check_alignment, check_coordinates
        from nugpt.fit.interval import check_level
        from nugpt.report.write import check_formats
        from nugpt.spec import checks
        from nugpt.spec.scales import scale_named
        from nugpt.spec.table_file import load_table
        from nugpt.store.atomic import check_writable

        table, scale = load_table(self.parametrization), scale_named(self.scale)
        if table.family != "normalized":
            raise ValueError(
                f"parametrization is {table.name!r} for {table.family!r} models, but must be for normalized"
            )
        check_level(self.level)
        check_alignment(self.alignment)
        if self.out is not None:
            check_formats(self.formats)
            checks.folder(self.out, "out")
            check_writable(self.out, "out")
        for name in ("steps", "windows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be a whole number of at least 1")
        check_seeds(self.seed)
        if self.store is not None:
            from nugpt.store import Store

            Store(self.store).check_runs_here()  # before the minutes that measuring takes
            check_writable(self.store, "store")
            check_writable(self.store / "coords", "store")
        if self.store is not None or self.out is not None:
            from nugpt.store.coords import check_name

            check_name(self.name or table.name)
        device = str(Options(device=self.device).torch_device())
        base = self.base.resolve(scale)
        self._check_sizes(base)
        dataset = open_data(self.data, scale.name, scale.vocab_size)
        models = self._measure(table, scale, base, dataset, device)
        check = check_coordinates(table, models, self.alignment, self.level)
        values = _values(check, models, self._lr(scale), self.steps)
        if self.store is not None:
            from nugpt.store.coords import write_coords

            values["kept"] = str(write_coords(Store(self.store), self.name or table.name, values))
        if self.json:
            print_json(values)
        else:
            _print(check)
        if self.out is not None:
            self._draw(check)
        if check.too_large:
            print(f"not decided here: {check.too_large_text}: give --lr below {self._lr(scale):g}", file=sys.stderr)
        return 1 if check.failed else 2 if check.too_large else 0

    def _lr(self, scale: Scale) -> float:
        if self.lr is not None:
            return self.lr
        if scale.default_lr is None:
            raise ValueError(f"--lr is needed: scale {scale.name!r} has no learning rate that was tuned here")
        return scale.default_lr / SMALLER

    def _sizes(self, base: Base) -> list[tuple[int, int]]:
        """Layers and heads of each model: widths at the base's depth, then depths at its width."""
        base_layers, base_heads = base.extent.n_layers, base.extent.d_model // base.extent.head_dim
        heads, layers = self.heads or _around(base_heads), self.layers or _around(base_layers)
        return list(dict.fromkeys([(base_layers, h) for h in heads] + [(n, base_heads) for n in layers]))

    def _check_sizes(self, base: Base) -> None:
        """Refuse sizes that give no slope along an axis that they were named for."""
        from nugpt.fit.coords import FEWEST_SIZES

        sizes, base_heads = self._sizes(base), base.extent.d_model // base.extent.head_dim
        widths = [h for n, h in sizes if n == base.extent.n_layers]
        depths = [n for n, h in sizes if h == base_heads]
        for axis, option, found in (("width", "heads", widths), ("depth", "layers", depths)):
            given = getattr(self, option)
            if given and len(found) < FEWEST_SIZES:
                raise ValueError(
                    f"--{option} is {' '.join(map(str, given))}, but a slope over {axis} needs at least "
                    f"{FEWEST_SIZES} sizes: name more, or leave --{option} out"
                )

    def _measure(
        self, table: Parametrization, scale: Scale, base: Base, dataset: TokenDataset, device: str
    ) -> list[Sized]:
        """Every size and seed, one after the other; the base's own stands on both axes and is trained once."""
        from dataclasses import replace

        import numpy as np
        import torch

        from nugpt.fit.coords import Sized, not_a_number
        from nugpt.measure.coords import Batch, coordinates
        from nugpt.spec.resolve import Extent, resolve

        watched = torch.from_numpy(np.asarray(dataset.validation(scale.seq_len, self.windows).inputs, dtype=np.int64))
        found = []
        for n_layers, n_heads in self._sizes(base):
            model = replace(scale.model(n_layers, n_heads), vocab_size=dataset.vocab_size)
            extent = Extent.of(model, base.extent.steps, scale.batch)
            resolved = resolve(table, base, extent, self._lr(scale))
            for seed in self.seed:

                def batch(step: int, seed: int = seed) -> Batch:
                    pair = dataset.batch(seed, step, scale.batch, scale.seq_len)
                    inputs, targets = (torch.from_numpy(np.asarray(x, dtype=np.int64)) for x in pair)
                    return inputs, targets

                taken = coordinates(model, resolved, seed, batch, watched, self.steps, device)
                found.append(Sized(model.d_model, n_layers, seed, taken.start, taken.steps))
                if wrong := not_a_number(found[-1]):
                    raise ValueError(f"{wrong}: the steps are too large, give --lr below {self._lr(scale):g}")
            seeds = counted(len(self.seed), "seed")
            print(f"{counted(n_layers, 'layer')}, width {model.d_model}: {seeds}", file=sys.stderr)
        return found

    def _draw(self, check: CoordCheck) -> None:
        from nugpt.report.figures.coords import draw_coords
        from nugpt.report.write import save_figures

        assert self.out is not None
        shown = [slope_values(one) for one in check.slopes]
        written = save_figures(
            {f"coords-{self.name or check.table}": draw_coords(check.table, shown)}, self.out, self.formats
        )
        print(f"{len(written)} figure files in {self.out}", file=sys.stderr)


def _around(base: int) -> tuple[int, ...]:
    """Half the base, the base and twice it; where half of it is none, four times it too."""
    return tuple(sorted({max(1, base // 2), base, 2 * base, 4 * base}))[:3]


def slope_values(one: SizeSlope) -> dict[str, Any]:
    """A slope as JSON has it: an open interval has no ends there."""
    return {
        "quantity": one.quantity,
        "axis": one.axis,
        "slope": one.slope,
        "interval": list(one.interval) if one.interval.bounded else None,
        "wanted": one.wanted,
        "slack": one.slack,
        "verdict": one.verdict,
        "sizes": [list(pair) for pair in one.sizes],
    }


def _values(check: CoordCheck, models: list[Sized], lr: float, steps: int) -> dict[str, Any]:
    return {
        "table": check.table,
        "lr": lr,
        "steps": steps,
        "alignment": check.alignment,
        "level": check.level,
        "seeds": sorted({m.seed for m in models}),
        "slopes": [slope_values(one) for one in check.slopes],
        "mistakes": [
            {**asdict(one), "interval": list(one.interval) if one.interval.bounded else None, "text": one.text}
            for one in check.mistakes
        ],
        "too_large": [asdict(one) | {"text": one.text} for one in check.too_large],
        "passed": check.passed,
    }


def _wanted(one: SizeSlope) -> str:
    return f"{one.wanted:g}" if not one.slack else f"{one.wanted:g} to {one.wanted + one.slack:g}"


def _print(check: CoordCheck) -> None:
    from nugpt.fit.coords import AXES, FLAT, STATES

    for axis in AXES:
        rows = []
        of_axis = [s for s in check.slopes if s.axis == axis]
        told = [s for s in of_axis if s.quantity in STATES or s.quantity.startswith("moved ") or s.verdict != FLAT]
        for one in told:
            sizes = " ".join(f"{number(round(size, 5))}" for _, size in one.sizes)
            low, high = one.interval
            slope = "–" if one.slope is None else f"{one.slope:+.3f} ({low:+.2f} to {high:+.2f})"
            rows.append([one.quantity, sizes, _wanted(one), slope, one.verdict])
        places = ", ".join(str(x) for x, _ in next(s for s in check.slopes if s.axis == axis).sizes)
        columns = ["size of", f"at {axis} {places}", "wanted", "slope less wanted", "verdict"]
        rest = f"; {len(of_axis) - len(told)} others are flat too (--json)" if len(told) < len(of_axis) else ""
        print_table(columns, rows, f"{check.table} over {axis}{rest}")
    for mistake in check.mistakes:
        print(f"mistake: {mistake.text}")
    if not check.mistakes:
        print("no exponent is at fault" if check.passed else "no exponent is named; see the verdicts")
