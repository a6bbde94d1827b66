"""`nugpt recommend`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from nugpt.cli.answers import nats, span
from nugpt.cli.backtested import AXES, backtest_facts, print_backtest
from nugpt.cli.curves import OfStore, check_heeded, store_curves
from nugpt.cli.own_runs import ModelColumns
from nugpt.cli.own_sweep import own_sweep
from nugpt.cli.shape import AMONG_OPTIONS, BaseShape, Length, Shape
from nugpt.cli.show import counted, number, print_json, print_table, warn
from nugpt.cli.store import check_unpacked
from nugpt.spec import checks

if TYPE_CHECKING:
    from nugpt.fit.curves import Answers
    from nugpt.fit.forecast import Forecast
    from nugpt.fit.recommend import Reach, Recommendation
    from nugpt.spec.parametrization import Parametrization
    from nugpt.spec.run import RunSpec

EMITTED = ("toml", "json", "titan", "rules")
KEPT = "recommendation.json"


@dataclass(frozen=True)
class TargetShape:
    """The target; what is not given is as in the sweep, or as in the preset."""

    preset: str | None = None
    """SCALE-lLAYERShHEADS: blocks, heads, tokens of a sequence; with --lr also vocabulary, length, batch and base."""
    n_layers: int | None = None
    """Blocks."""
    n_heads: int | None = None
    """Query heads."""
    n_kv_heads: int | None = None
    """Key-value heads; the sweep's share of the heads by default."""
    d_mlp: int | None = None
    """Hidden dimension of the MLP; the sweep's ratio to d_model by default."""
    vocab_size: int | None = None
    """Vocabulary, padding included; the sweep's by default, which is that of its data."""
    seq_len: int | None = None
    """Tokens of a sequence."""
    steps: int | None = None
    """Iterations; the sweep's by default, or with --lr the length of the scale's fixed-iteration studies."""
    batch: int | None = None
    """Sequences per step; as many tokens as in the sweep by default."""
    batch_exponent: str | None = None
    """Exponent of m_batch in η_base, as 1/2, where the table has none and the batch differs from the base's."""

    def model(self) -> dict[str, int | None]:
        """The fields of the model that are given."""
        names = ("n_layers", "n_heads", "n_kv_heads", "d_mlp", "vocab_size", "seq_len")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Recommend:
    """From a sweep, or a base learning rate, to a target: its learning rates, what they rest on and what they cost."""

    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """What the recommendation rests on: a store, or a .csv or .jsonl file of your own runs."""
    lr: float | None = None
    """Instead of a sweep: the base's best learning rate, taken as given."""
    target: TargetShape = TargetShape()
    parametrization: str = "nugpt"
    """The table: of the store's curves by its name; with a file or --lr a built-in one or the path of a TOML file."""
    group: str | None = None
    """Where there are several: of the store's curves of that table the group of this name, or of the file's rows."""
    origin: Annotated[OfStore, AMONG_OPTIONS] = OfStore()
    columns: ModelColumns = ModelColumns()
    base: BaseShape = BaseShape()
    level: float = 0.90
    """Of the intervals."""
    force: bool = False
    """Carry over even beyond the limit in octaves."""
    tflops: float | None = None
    """10¹² FLOP/s that each GPU achieves, for GPU-hours."""
    emit: str | None = None
    """Print a file instead: toml, json or titan (a recipe, for `nugpt train` and `launch`), rules (regex → values)."""
    out: Path | None = None
    """Write what --emit gives to this file."""
    keep: bool = False
    """Keep the recipe in the store, where `nugpt report` finds it."""
    backtest: bool = False
    """Instead of a target: what smaller sizes would have said of each swept one, beside what was found there."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print the recommendation, or write it."""
        from nugpt.fit.interval import check_level

        check_level(self.level)
        if (self.source is None) == (self.lr is None):
            raise ValueError("give either --from, a store or a file of runs, or --lr, the base's best learning rate")
        if self.source is not None:
            check_unpacked(self.source)
            check_heeded(self.source, self.origin, self.columns)
        if self.emit is not None and self.emit not in EMITTED:
            raise ValueError(f"emit is {self.emit!r}, but must be one of {', '.join(EMITTED)}")
        if self.out is not None:
            if self.emit is None:
                raise ValueError(f"out is {str(self.out)!r}, but --emit says what to write: {', '.join(EMITTED)}")
            _check_out(self.out, self.emit)
        if self.backtest:
            return self._backtest()
        self._check_heeded()
        if self.keep and (self.source is None or self.source.is_file()):
            raise ValueError("--keep puts the recipe into a store, but none is given with --from")
        if self.keep and self.source is not None:
            from nugpt.store.archive import is_archive
            from nugpt.store.atomic import check_writable

            if is_archive(self.source):
                raise ValueError(
                    f"--keep puts the recipe into {self.source}, but that is an archive of results, to be read alone: "
                    "--emit toml --out FILE writes the recipe elsewhere"
                )
            if self.source.is_dir():
                check_writable(self.source, "from")
        found = self._from_sweep(self.source) if self.source is not None else self._from_lr()
        if self.tflops is not None:
            found.gpu_hours(self.tflops)  # refused before anything is printed
        for warning in found.warnings:
            warn(warning)
        self._keep(found)
        self._show(found)
        return 0

    def _check_heeded(self) -> None:
        """What chooses among a store's curves needs a store, whose runs bring their base; and one form is printed."""
        if self.source is None:
            of_store = {"group": self.group, "plan": self.origin.plan, "loss": self.origin.loss}
            for name, value in of_store.items():
                if value is not None:
                    raise ValueError(f"{name} is {value!r}, but chooses among the curves of a store: give --from")
            for name, value in self.columns.given().items():
                raise ValueError(f"{name} is {value!r}, but no file of runs is given with --from")
        elif self.source.is_dir():
            for name, value in vars(self.base).items():
                if value is not None:
                    raise ValueError(
                        f"{name} is {value!r}, but the runs of a store have a base of their own: leave it out"
                    )
        if self.json and self.emit is not None:
            raise ValueError(f"emit is {self.emit!r}, but --json prints something else: leave one of them out")

    def _answers(self, source: Path) -> tuple[Answers, str, str | None]:
        """What the source's curves of this table say, the table's name, and the group that is asked for."""
        from nugpt.fit.curves import answer
        from nugpt.spec.table_file import load_table

        if source.is_dir():
            return self._of_store(source), self.parametrization, self.group
        table = self._table(load_table(self.parametrization))
        given = {**self.target.model(), "n_heads": self._heads()}
        curves, notes = own_sweep(source, self.columns, table, self.base, given, self.group, not self.backtest)
        for note in notes:
            warn(note)
        return answer(curves, self.level), table.name, None  # one group: its rows were chosen

    def _heads(self) -> int | None:
        from nugpt.spec.scales import preset

        if self.target.n_heads is None and self.target.preset is not None:
            return preset(self.target.preset)[1].n_heads
        return self.target.n_heads

    def _of_store(self, store: Path) -> Answers:
        """Those of all its plans together."""
        from nugpt.fit.curves import answer
        from nugpt.fit.measured import pooled

        planned = pooled(curve for one in store_curves(store, self.origin) for curve in one.curves)
        curves = [curve for curve in planned if curve.points]
        of_table = [c for c in curves if c.spec is not None and c.spec.table.name == self.parametrization]
        return answer(of_table or curves, self.level)

    def _backtest(self) -> int:
        from nugpt.fit.backtest import backtest, untested
        from nugpt.fit.recommend import choose_group, groups_of

        if self.source is None:
            raise ValueError("--backtest goes through the sizes of a store, but none is given with --from")
        self._check_backtest()
        answers, table, group_name = self._answers(self.source)
        groups = groups_of(answers, table)
        if group_name is not None:
            groups = [choose_group(answers, table, group_name)]
        found = {}
        for group in groups:
            sizes = backtest(answers, group)
            found[answers.names[group]] = sizes, untested(answers, group, sizes)
        if not any(sizes for sizes, _ in found.values()):
            raise ValueError(
                f"no size of {', '.join(found)} has an enclosed optimum and, below it, another that has one: "
                "sweep more sizes"
            )
        if self.json:
            facts = {name: backtest_facts(sizes, others) for name, (sizes, others) in found.items()}
            print_json({"level": self.level, "groups": facts})
        else:
            for name, (sizes, others) in found.items():
                print_backtest(name, sizes, others)
        return 0

    def _check_backtest(self) -> None:
        """Its targets are the swept sizes, it says nothing that could be written, and it goes as far as they reach."""
        of_file = self.source is not None and self.source.is_file()
        targets = vars(self.target) | ({"batch_exponent": None} if of_file else vars(self.base))
        for name, value in targets.items():
            if value is not None:
                raise ValueError(
                    f"{name} is {value!r}, but the targets of --backtest are the swept sizes: leave it out"
                )
        unused = {"emit": self.emit, "tflops": self.tflops, "keep": self.keep or None, "force": self.force or None}
        for name, value in unused.items():
            if value is not None:
                raise ValueError(f"{name} is {value!r}, but --backtest has no use for it: leave it out")

    def _from_sweep(self, source: Path) -> Recommendation:
        from nugpt.fit.recommend import choose_group, recommend

        answers, table, group_name = self._answers(source)
        group = choose_group(answers, table, group_name)
        members = [one.curve.spec for one in answers.curves if one.curve.group == group]
        target = self._retargeted([spec for spec in members if spec is not None])
        return recommend(answers, group, target, self.level, self.force)

    def _retargeted(self, swept: Sequence[RunSpec]) -> RunSpec:
        """The target: what the options say, and what all swept runs share."""
        from nugpt.fit.recommend import retarget

        template, shape = swept[0], self.target
        table = self._table(template.table)
        given = shape.model()
        if shape.preset is not None:
            from nugpt.spec.scales import preset

            model = preset(shape.preset)[1]
            if model.head_dim != template.model.head_dim:
                raise ValueError(
                    f"preset {shape.preset!r} has head_dim {model.head_dim}, the sweep {template.model.head_dim}"
                )
            for name in ("n_layers", "n_heads", "seq_len"):  # the vocabulary is that of the data, as in `train`
                given[name] = getattr(model, name) if given[name] is None else given[name]
        given_or_shared = {**given, "steps": shape.steps, "batch": shape.batch}
        for name in ("n_heads", "n_layers", "steps", "batch"):
            values = sorted({getattr(spec if name in ("steps", "batch") else spec.model, name) for spec in swept})
            if given_or_shared[name] is None and len(values) > 1:
                there = ", ".join(map(str, values))
                raise ValueError(f"{name} of the target is not given, and was swept over {there}: say which")
        ratios = sorted({round(spec.model.d_mlp / spec.model.d_model, 2) for spec in swept})
        if given["d_mlp"] is None and len(ratios) > 1:
            there = ", ".join(f"{ratio:g}" for ratio in ratios)
            raise ValueError(f"d_mlp of the target is not given, and was {there} times d_model in the sweep: say which")
        steps = template.steps if shape.steps is None else shape.steps
        return retarget(replace(template, table=table), steps, shape.batch, **given)

    def _from_lr(self) -> Recommendation:
        from nugpt.fit.recommend import from_base_lr
        from nugpt.spec.recipe import NO_DATA
        from nugpt.spec.run import RunSpec
        from nugpt.spec.table_file import load_table

        assert self.lr is not None
        table = self._table(load_table(self.parametrization))
        given: dict[str, Any] = {"preset": self.target.preset or Shape.preset, **self.target.model()}
        shape = Shape(**given)
        scale, model = shape.scale(), shape.model(table)
        extent = Length(self.target.steps, self.target.batch).extent(scale, model)
        target = RunSpec(
            model=model,
            table=table,
            base=self.base.resolve(scale),
            lr=self.lr,
            steps=extent.steps,
            batch=extent.batch_tokens // model.seq_len,
            data=NO_DATA,
            validations=scale.validations,
            val_windows=scale.val_windows,
        )
        return from_base_lr(target, self.force)

    def _table(self, table: Parametrization) -> Parametrization:
        text = self.target.batch_exponent
        if text is None:
            return table
        try:
            return replace(table, batch=checks.written_exponent(text, "batch_exponent"))
        except ValueError:
            raise ValueError(f"batch_exponent is {text!r}, but must be a number or a fraction such as 1/2") from None

    def _keep(self, found: Recommendation) -> None:
        if self.keep:
            from nugpt.fit.recommend import recipe
            from nugpt.store.atomic import write_json

            assert self.source is not None
            file, values = self.source / KEPT, recipe(found, self.tflops)
            moved = _out_of_the_way(file, values)
            write_json(file, values)
            print(f"kept {file}" + (f"; the one before is now {moved.name}" if moved else ""), file=sys.stderr)

    def _show(self, found: Recommendation) -> None:
        from nugpt.fit.recommend import facts

        if self.emit is not None:
            text = emitted(found, self.emit, self.tflops)
            if self.out is None:
                print(text, end="")
            else:
                from nugpt.store.atomic import write_bytes

                write_bytes(self.out, text.encode())
                print(f"wrote {self.out}")
        elif self.json:
            print_json(
                facts(found, self.tflops) | {"run": found.run.to_dict(), "resolved": found.run.resolved().to_dict()}
            )
        else:
            _print(found, self.tflops)


def _check_out(out: Path, form: str) -> None:
    """A new file in a folder that is there, whose ending is the one that its form is read by."""
    from nugpt.store.atomic import check_writable

    ending = ".toml" if form == "toml" else ".json"
    if out.suffix != ending:
        raise ValueError(f"out is {str(out)!r}, but a file of --emit {form} must end in {ending}")
    checks.new_file(out)
    check_writable(out.parent, "the folder of out")


def _out_of_the_way(file: Path, values: dict[str, Any]) -> Path | None:
    """Another recipe that was kept before stays, under the next free name."""
    from nugpt.store.atomic import json_bytes

    if not file.exists() or file.read_bytes() == json_bytes(values):
        return None
    free = next(path for n in count(1) if not (path := file.with_stem(f"{file.stem}-{n}")).exists())
    file.rename(free)
    return free


def emitted(found: Recommendation, form: str, tflops: float | None = None) -> str:
    """The text of the file."""
    from nugpt.fit.recommend import recipe
    from nugpt.spec.recipe import rules
    from nugpt.spec.toml import to_toml
    from nugpt.store.atomic import json_bytes

    values = rules(found.run) if form == "rules" else recipe(found, tflops)
    return to_toml(values) if form == "toml" else json_bytes(values).decode()


def _print(found: Recommendation, tflops: float | None) -> None:
    from nugpt.spec.model import total_parameters

    run, model = found.run, found.run.model
    resolved = run.resolved()
    print(
        f"target   {counted(model.n_layers, 'layer')}, {counted(model.n_heads, 'head')}: d_model {model.d_model}, "
        f"{total_parameters(model):,} parameters; {run.steps:,} steps of {run.batch} × {model.seq_len} tokens"
    )
    print(f"table    {resolved.table}; from {found.nearest}")
    expected = "" if found.expected is None else f", expected to cost {found.expected:.4f} nats"
    print(f"η        {run.lr:.4g} (log2 {found.log2_lr:.2f}){expected}")
    if found.interval is not None:
        print(
            f"optimum  {2**found.plain:.4g} (log2 {found.plain:.2f}), {found.level:.0%} interval "
            f"{span(found.interval)}, expected to cost {found.plain_expected:.4f} nats"
        )
        if found.loss is not None:
            print(_loss_line(found.loss))
        rows = [
            [f"{octaves:+g}", number(run.lr * 2**octaves), nats(cost.nats), span(cost.interval, 4)]
            for octaves, cost in found.costs
        ]
        print_table(
            ["octaves off", "η", "nats, median", "interval"], rows, title="what another η costs", right=(0, 1, 2)
        )
    columns = ["axis", "swept", "target", "octaves", "beyond", "slope of η* taken"]
    print_table(columns, [_reach_row(r) for r in found.reaches], right=(1, 2, 3, 4), title="how far it is carried")
    rows = [
        [role, number(row.lr), number(row.init), number(row.scale), number(resolved.gains.get(role))]
        for role, row in resolved.rows.items()
    ]
    print_table(["role", "learning rate", "init", "scale", "gain"], rows, right=(1, 2, 3, 4))
    cost = f"target   {found.flops:.3g} FLOPs"
    if tflops is not None:
        cost += f", {found.gpu_hours(tflops):,.1f} GPU-hours at {tflops:g} TFLOP/s"
    print(cost)
    if found.tuning_flops is not None:
        print(f"tuning   {found.tuning_flops:.3g} FLOPs, {found.tuning_flops / found.flops:.2%} of the target")


def _loss_line(found: Forecast) -> str:
    if found.loss is None or found.interval is None:
        return f"loss     no forecast: {found.why_not}"
    source = "as found there" if found.sizes == 1 else f"by a law through {found.sizes} sizes"
    return f"loss     {found.loss:.3f} at the best η, {found.level:.0%} interval {span(found.interval, 3)}, {source}"


def _reach_row(reach: Reach) -> list[str]:
    swept = f"{reach.low:g}" if reach.low == reach.high else f"{reach.low:g} … {reach.high:g}"
    source = "seen in the sweep" if reach.measured else "predicted by the table"
    slope = f"{reach.slope:+.3f} ± {reach.deviation:.3f} ({source})"
    return [AXES[reach.axis], swept, f"{reach.target:g}", f"{reach.octaves:+.2f}", f"{reach.beyond:.2f}", slope]
