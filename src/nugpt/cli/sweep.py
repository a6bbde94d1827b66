"""`nugpt sweep`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nugpt.cli.execution import Execution, default_devices
from nugpt.cli.launch import early_worker, launch, show_plan
from nugpt.cli.run_arguments import Carrier, RunArguments, check_seeds
from nugpt.cli.shape import AMONG_OPTIONS
from nugpt.cli.show import print_json
from nugpt.spec.plan import Curve, Plan, Policy, StopRule, lr_at

if TYPE_CHECKING:
    from nugpt.sweep.executors.local import EarlyWorker

MOST_IN_A_RANGE = 1000  # learning rates: more are a slip of the step


@dataclass(frozen=True)
class Grid:
    """How the grid of learning rates may grow."""

    extend: int = 4
    """Points added at the most on each side where the best learning rate lies at the edge; 0: none."""
    spacing: float = 0.5
    """Octaves between points added there."""
    refine: tuple[float, ...] = ()
    """Then these spacings around the optimum, one after the other: --refine 0.25."""
    stop_hopeless: bool = False
    """Stop runs far above the curve's best, by a conservative rule that the plan states."""

    def policy(self) -> Policy:
        """As the plan keeps it."""
        return Policy(self.extend, self.spacing, self.refine, StopRule() if self.stop_hopeless else None)


@dataclass(frozen=True)
class Sweep:
    """A grid over learning rate, seed and any field of the run: printed, and run with --run."""

    name: str
    """The plan's name; the same name and arguments again go on with it."""
    arguments: Annotated[RunArguments, AMONG_OPTIONS] = RunArguments()
    log2_lr: tuple[str, ...] = ("-8:-3:0.5",)
    """Learning rates as powers of two: numbers, or FIRST:LAST:STEP."""
    seed: tuple[int, ...] = (0,)
    """Seeds; the same ones at every learning rate, so that curves are paired."""
    vary: tuple[str, ...] = ()
    """FIELD=VALUE,VALUE,…: --vary n_heads=1,2,4 parametrization=ngpt,nugpt multiplier.output=0.25,0.5,1."""
    grid: Grid = Grid()
    store: Path = Path("runs")
    """Where runs and plans are kept."""
    carrier: Carrier = Carrier()
    execution: Execution = Execution()
    json: bool = False
    """Print the plan as JSON."""

    def run(self) -> int:
        """Print the plan, or run it."""
        with early_worker(self.execution, self.store) as early:
            return self._run(early)

    def _run(self, early: EarlyWorker | None) -> int:
        from nugpt.store import Store
        from nugpt.store.plans import check_name_free

        devices = default_devices(self.execution, self.carrier.device)
        device_type = devices[0].partition(":")[0]
        lrs = log2_lrs(self.log2_lr)
        check_seeds(self.seed)
        dataset = self.arguments.dataset()
        curves = tuple(
            Curve(label, arguments.spec(dataset, device_type, lr_at(lrs[0]), self.seed[0]), lrs, self.seed)
            for label, arguments in varied(self.arguments, self.vary)
        )
        plan = Plan(self.name, curves, self.grid.policy())
        check_name_free(Store(self.store), plan)  # what is printed is what --run would run
        if self.json:
            print_json(plan.to_dict() | {"runs": [spec.hash for spec in plan.specs()]})
        else:
            show_plan(plan, self.store, device_type, len(devices))
        if not self.execution.run:
            return 0
        return launch(plan, self.store, dataset, self.carrier, self.execution, quiet=self.json, early=early)


def log2_lrs(words: tuple[str, ...]) -> tuple[float, ...]:
    """The grid that these words name: numbers, or FIRST:LAST:STEP with both ends in."""
    found: list[float] = []
    for word in words:
        try:
            parts = [float(part) for part in word.split(":")]
        except ValueError:
            parts = []
        if len(parts) == 1:
            found += parts
            continue
        if len(parts) != 3:
            raise ValueError(f"log2_lr is {word!r}, but must be a number or FIRST:LAST:STEP, as -8:-4:0.5")
        first, last, step = parts
        if first > last:
            raise ValueError(f"log2_lr is {word!r}, but FIRST must not be above LAST: {last:g}:{first:g}:{abs(step):g}")
        if not step > 0 or not (last - first) / step < MOST_IN_A_RANGE:
            raise ValueError(
                f"log2_lr is {word!r}, but STEP must be above 0 and make fewer than {MOST_IN_A_RANGE} steps"
            )
        found += [first + k * step for k in range(int((last - first) / step + 1e-9) + 1)]
    if not found:
        raise ValueError("log2_lr is empty, but must be numbers or FIRST:LAST:STEP, as -8:-4:0.5")
    return tuple(dict.fromkeys(found))


def varied(arguments: RunArguments, vary: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], RunArguments]]:
    """Every combination of the varied fields: its label and its arguments."""
    axes: list[tuple[str, list[str]]] = []
    for word in vary:
        key, equals, values = word.partition("=")
        if not equals or not values:
            raise ValueError(f"vary is {word!r}, but must be FIELD=VALUE,VALUE,… as n_heads=1,2,4")
        axes.append((key.replace("-", "_"), values.split(",")))
    if twice := [key for i, (key, _) in enumerate(axes) if key in [other for other, _ in axes[:i]]]:
        raise ValueError(f"vary names the field {twice[0]!r} twice: give all its values at once")
    for combination in product(*(values for _, values in axes)):
        label: dict[str, Any] = {} if axes else {"parametrization": arguments.parametrization}
        changed = arguments
        for (key, _), text in zip(axes, combination, strict=True):
            changed, label[key] = _set(changed, key, text)
        yield label, changed


def _set(arguments: RunArguments, key: str, text: str) -> tuple[RunArguments, Any]:
    """The arguments with one field set, wherever it stands, and the value as it was understood."""
    if key.startswith("multiplier."):
        value = _number(key, text, float)
        return replace(arguments, multiplier={**arguments.multiplier, key.removeprefix("multiplier."): value}), value
    if key == "data":
        raise ValueError("vary names the field 'data', but a plan has one data set: make a plan for each")
    for place in fields(arguments):
        inner = getattr(arguments, place.name)
        if place.name == key and not is_dataclass(inner):
            value = _typed(key, text, str(place.type))
            return replace(arguments, **{key: value}), value
        if is_dataclass(inner) and not isinstance(inner, type):
            for field in fields(inner):
                if field.name == key:
                    value = _typed(key, text, str(field.type))
                    changed: dict[str, Any] = {place.name: replace(inner, **{key: value})}
                    return replace(arguments, **changed), value
    if key in ("seed", "lr", "log2_lr"):
        raise ValueError(f"vary names {key!r}, which every curve has: give --{'seed' if key == 'seed' else 'log2-lr'}")
    known = ", ".join(_varying(arguments))
    raise ValueError(f"vary names the field {key!r}, which a run does not have: it has {known}, multiplier.ROLE")


def _varying(arguments: RunArguments) -> Iterator[str]:
    """The fields that may vary, wherever they stand."""
    for place in fields(arguments):
        inner = getattr(arguments, place.name)
        if is_dataclass(inner) and not isinstance(inner, type):
            yield from (field.name for field in fields(inner))
        elif place.name not in ("data", "multiplier"):
            yield place.name


def _typed(key: str, text: str, type_name: str) -> Any:
    """The text as the field's type has it."""
    if "int" in type_name:
        return _number(key, text, int)
    if "float" in type_name:
        return _number(key, text, float)
    if "str" in type_name:
        return text
    raise ValueError(f"vary names the field {key!r}, which takes no single value")


def _number(key: str, text: str, kind: type[int] | type[float]) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{key} is {text!r}, but must be {what}") from None
