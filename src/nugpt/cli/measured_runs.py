"""Which runs a `measure` command is about: runs or a plan of a store, or a few that it trains itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nugpt.cli.run_arguments import Carrier, RunArguments, check_seeds, differing
from nugpt.cli.shape import AMONG_OPTIONS
from nugpt.cli.show import counted

if TYPE_CHECKING:
    from nugpt.data import TokenDataset
    from nugpt.spec.plan import Plan
    from nugpt.spec.run import RunSpec
    from nugpt.store import RunDirectory, Store

NOT_ENDED = "not ended"  # the state of a run without a record


@dataclass(frozen=True)
class Chosen:
    """Runs of a store, or, without --runs and --plan, runs that are trained here and kept there."""

    store: Path = Path("runs")
    """The store."""
    runs: tuple[str, ...] = ()
    """Runs to read, by the beginning of their hash or by directory. Without --runs and --plan some are trained."""
    plan: str | None = None
    """All runs of a plan."""
    again: bool = False
    """Train runs again that ended without being measured; their results stay as they are."""
    arguments: Annotated[RunArguments, AMONG_OPTIONS] = RunArguments()
    heads: tuple[int, ...] = ()
    """From scratch: the widths, in heads."""
    layers: tuple[int, ...] = ()
    """From scratch: the depths."""
    lr: float | None = None
    """From scratch: the global learning rate η; the scale's by default."""
    seed: tuple[int, ...] = (0,)
    """From scratch: seeds."""
    carrier: Carrier = Carrier()

    def directories(self, kind: str, heads: tuple[int, ...], layers: tuple[int, ...]) -> list[RunDirectory]:
        """The chosen runs that have ended; trained first where none are named, at these sizes by default."""
        from nugpt.engines.lab import Interrupted

        if self.from_scratch:
            check_seeds(self.seed)
        if self.runs and self.plan:
            raise ValueError("--runs and --plan exclude each other: name the runs, or the plan that has them")
        self._check_heeded()
        try:
            return self._directories(kind, heads, layers)
        except Interrupted as stopped:
            print(stopped, file=sys.stderr)
            raise SystemExit(128 + stopped.signal_number) from None

    def _check_heeded(self) -> None:
        """What describes runs to train is refused where runs are named that a store has."""
        if self.from_scratch:
            return
        usual = Chosen(self.store, self.runs, self.plan, self.again)
        if self.again:  # it trains, on the runs' own data
            usual = replace(usual, carrier=self.carrier, arguments=replace(usual.arguments, data=self.arguments.data))
        for name, value in differing(self, usual):
            raise ValueError(f"{name} is {value!r}, but --runs and --plan read runs that a store has: leave it out")

    @property
    def from_scratch(self) -> bool:
        """Whether runs are trained here."""
        return not self.runs and self.plan is None

    def _directories(self, kind: str, heads: tuple[int, ...], layers: tuple[int, ...]) -> list[RunDirectory]:
        from nugpt.store import opened

        store = opened(self.store)
        if self.from_scratch or self.again:
            store.check_runs_here()
        if self.from_scratch:
            store.check_is_one()
        if self.plan is not None:
            found = self._of_plan(store)
        elif self.runs:
            found = self._named(store)
        else:
            found = self._trained(store, kind, self.heads or heads, self.layers or layers)
        by_state: dict[str, list[RunDirectory]] = {}
        for directory in found:
            record = directory.record()
            by_state.setdefault(record.status if record is not None else NOT_ENDED, []).append(directory)
        ended = by_state.get("done", [])
        if not ended:
            states = {state: len(runs) for state, runs in by_state.items()}
            told = ", ".join(f"{n} {state}" for state, n in states.items())
            smaller = "; a smaller --lr may train" if self.from_scratch and "diverged" in states else ""
            raise ValueError(f"none of the {counted(len(found), 'run')} asked for is done ({told}){smaller}")
        self._say_left_out(kind, by_state)
        if self.again:
            self._train_again(store, kind, ended)
        return ended

    def _say_left_out(self, kind: str, by_state: Mapping[str, list[RunDirectory]]) -> None:
        """Which runs have nothing to be measured: a width that is not there would else look as if not asked for."""
        diverged = [directory.spec().model for directory in by_state.get("diverged", ())]
        if diverged:
            sizes = sorted({model.d_model if kind == "alignment" else model.n_layers for model in diverged})
            where = f"{'width' if kind == 'alignment' else 'layers'} {', '.join(map(str, sizes))}"
            smaller = ": a smaller --lr may train" if self.from_scratch else ""
            print(f"{counted(len(diverged), 'run')} diverged ({where}){smaller}", file=sys.stderr)
        stopped, left = (len(by_state.get(state, ())) for state in ("stopped", NOT_ENDED))
        if stopped:
            print(f"{counted(stopped, 'run')} {'was' if stopped == 1 else 'were'} stopped as hopeless", file=sys.stderr)
        if left:
            print(f"{counted(left, 'run')} {'is' if left == 1 else 'are'} not done yet", file=sys.stderr)

    def _named(self, store: Store) -> list[RunDirectory]:
        """The runs of --runs, refused where two names are of one run, which would be read as two."""
        found: dict[str, RunDirectory] = {}
        for name in self.runs:
            run = store.find(name)
            if (hash_ := run.path.resolve().name) in found:
                raise ValueError(f"--runs names the run {hash_} twice, the second time as {name!r}: name it once")
            found[hash_] = run
        return list(found.values())

    def _of_plan(self, store: Store) -> list[RunDirectory]:
        from nugpt.store import RunDirectory
        from nugpt.store.plans import plans

        there = {directory.path.name: directory for directory in plans(store)}
        if self.plan not in there:
            raise ValueError(f"store {store.shown} has no plan {self.plan!r}, it has {', '.join(there) or 'none'}")
        return [RunDirectory(store.root / spec.hash) for spec in there[self.plan].specs()]

    def _trained(self, store: Store, kind: str, heads: tuple[int, ...], layers: tuple[int, ...]) -> list[RunDirectory]:
        from nugpt.cli.progress import training_progress
        from nugpt.engines.lab import Hooks, check_trainable, execute
        from nugpt.store.claims import holding

        options = replace(self.carrier, measure=tuple(dict.fromkeys((*self.carrier.measure, kind)))).options()
        device_type = options.torch_device().type
        dataset = self.arguments.dataset()
        lr = self.arguments.default_lr() if self.lr is None else self.lr
        sizes = [
            replace(self.arguments, shape=replace(self.arguments.shape, n_heads=n_heads, n_layers=n_layers))
            for n_layers in layers
            for n_heads in heads
        ]
        ensembles = [[size.spec(dataset, device_type, lr, seed) for seed in self.seed] for size in sizes]
        for specs in ensembles:
            check_trainable(specs, dataset, options, {})  # what is refused leaves no run behind
        self._say_trained(store, [spec for specs in ensembles for spec in specs])
        found = []
        for specs in ensembles:
            directories = [store.run(spec) for spec in specs]
            model = specs[0].model
            size = f"{counted(model.n_layers, 'layer')}, {counted(model.n_heads, 'head')}"
            print(f"{size}: {counted(len(specs), 'run')}", file=sys.stderr)
            with training_progress(specs, None, None) as progress, holding(directories) as guard:
                execute(specs, store, dataset, options, progress, hooks=Hooks(guard))
            found += directories
        return found

    def _say_trained(self, store: Store, specs: list[RunSpec]) -> None:
        """What is about to be trained, and where: whoever meant the runs of a store did not ask for it."""
        from nugpt.store import RunDirectory

        ended = ("done", "diverged")
        left = sum(not RunDirectory(store.root / spec.hash).has_ended(ended) for spec in specs)
        if left:
            what = f"{counted(left, 'model')} of {counted(specs[0].steps, 'step')}"
            print(f"training {what} in {store.root}; --plan or --runs reads runs of a store instead", file=sys.stderr)

    def _train_again(self, store: Store, kind: str, ended: list[RunDirectory]) -> None:
        from nugpt.cli.progress import training_progress
        from nugpt.engines.lab.remeasure import remeasure
        from nugpt.store.atomic import check_writable

        again = [directory for directory in ended if not directory.read_metrics((kind,))]
        for directory in again:
            check_writable(directory.path, "run")
        specs = [directory.spec() for directory in again]
        options = replace(self.carrier, measure=(kind,)).options()
        for spec in specs:
            print(f"run {spec.hash} was not measured: training it again", file=sys.stderr)
            with training_progress([spec], None, None) as progress:
                remeasure([spec], store, self._dataset(store, spec), options, progress)

    def _dataset(self, store: Store, spec: RunSpec) -> TokenDataset:
        """The data the run was trained on: what is asked for, else where its record says it lay."""
        from nugpt.data import open_dataset

        record = store.run(spec).record()
        where = self.arguments.data or (record.carried_by.get("data") if record is not None else None)
        dataset = self.arguments.dataset() if where is None else open_dataset(where)
        if dataset.content_hash != spec.data:  # an archive's records do not say where the data lay
            raise ValueError(
                f"run {spec.hash} was trained on data with the content hash {spec.data}, but {dataset.path} has "
                f"{dataset.content_hash}: give --data with the directory that has the first"
            )
        return dataset


def unmeasured(directories: list[RunDirectory], kind: str) -> list[str]:
    """The runs among these that have no row of a kind."""
    return [directory.path.name for directory in directories if not directory.read_metrics((kind,))]


def say_unmeasured(plan: Plan, store: Path) -> None:
    """Runs that another plan had trained before are done, and were not measured: say so, and what to do."""
    from nugpt.store import RunDirectory

    directories = [RunDirectory(store / spec.hash) for spec in plan.specs()]
    left = unmeasured([directory for directory in directories if directory.has_ended(("done",))], "alignment")
    if left:
        how = f"`nugpt measure align --store {store} --plan {plan.name} --again` trains them again, measuring"
        print(f"{len(left)} runs had ended before they were to be measured: {how}", file=sys.stderr)
