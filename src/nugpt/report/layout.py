"""What varies in a plan, and so which of its curves belong side by side and which into one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nugpt.report.source import CurveRuns, PlanRuns

Value = str | int | float | None
TABLES = ("table", "parametrization")
SIZES = ("heads", "n_heads", "d_model", "width", "layers", "n_layers", "depth", "steps", "batch", "size")
UNTITLED = "Loss against η"  # a picture of all of a plan's curves
MOST_PANELS = 12  # beyond that nobody compares them, and the curves are told apart by their whole label instead


@dataclass(frozen=True)
class Panel:
    """Curves that are drawn into one picture: they share `title`, and differ in `along`."""

    title: str
    along: str | None  # the label that tells them apart; none when it takes several
    series: tuple[tuple[Value, CurveRuns], ...]  # value of `along`, or words; and the curve

    @property
    def sizes(self) -> bool:
        """Whether the series are sizes, so that a slope over them means something."""
        values = [value for value, _ in self.series]
        return (
            self.along is not None
            and not is_multiplier(self.along)
            and all(isinstance(v, (int, float)) and v > 0 for v in values)
        )


def is_multiplier(key: str) -> bool:
    """Whether a label is the multiplier of a role (as a power of two, or as it is)."""
    return key.endswith("_log2") or key.startswith("multiplier.") or key == "octaves"


def text(key: str, value: Value) -> str:
    """One entry of a label in words."""
    if key in TABLES:
        return printable(str(value))
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, (int, float)):
        shown = shown.replace("-", "−")
    if key.endswith("_log2"):
        return printable(f"{key.removesuffix('_log2')} × 2^{shown}")
    return printable(f"{key.replace('_', ' ')} {shown}")


def key_text(key: str | None) -> str:
    """What a label is called."""
    if key is None:
        return "curve"
    return printable(f"multiplier of {key.removesuffix('_log2')}" if key.endswith("_log2") else key.replace("_", " "))


def printable(words: str) -> str:
    """The words without control characters and halves of characters, which no font, file or page can show."""
    return "".join(c if c.isprintable() else "\ufffd" for c in words)


def label_text(curve: CurveRuns, keys: Sequence[str] | None = None) -> str:
    """A curve's label in words, or those entries of it."""
    wanted = list(curve.label) if keys is None else [key for key in keys if key in curve.label]
    return ", ".join(text(key, curve.label[key]) for key in wanted)


def varying(curves: Sequence[CurveRuns]) -> list[str]:
    """The labels that differ between the curves, in the order they were given."""
    keys = list(dict.fromkeys(key for curve in curves for key in curve.label))
    return [key for key in keys if len({curve.label.get(key) for curve in curves}) > 1]


def along(plan: PlanRuns) -> str | None:
    """The label whose values are a picture's series: the one its study's rules speak of, else a size."""
    keys = varying(plan.curves)
    rules = [claim.rule for claim in plan.study.claims] if plan.study else []
    wanted = [rule.along for rule in rules] + [f"{rule.of}_log2" for rule in rules if rule.kind == "multiplier"]
    sizes = [key for key in SIZES if key in keys]
    # A user's own table calls its sizes as it likes.
    sizes += [key for key in keys if key not in sizes and any(key in curve.measured.sizes for curve in plan.curves)]
    others = [key for key in keys if key not in (*TABLES, *sizes)]
    for key in (*wanted, *sizes, *others, *keys):
        if key is not None and key in keys:
            return key
    return None


def panels(plan: PlanRuns) -> tuple[Panel, ...]:
    """The plan's curves, grouped by what tells them apart beside `along`."""
    curves = list(plan.curves)
    if not curves:
        return ()
    if len(curves) == 1:
        return (Panel(label_text(curves[0]), None, (("", curves[0]),)),)
    axis = along(plan)
    chosen = _apart(curves, axis)
    grouped = _grouped(curves, chosen)
    if axis is not None and len(grouped) <= MOST_PANELS and _told_apart(grouped, axis):
        return tuple(
            Panel(label_text(group[0], chosen) or UNTITLED, axis, _sorted([(c.label.get(axis), c) for c in group]))
            for group in grouped
        )
    keys = [key for key in varying(curves) if key in TABLES]
    rest = [key for key in varying(curves) if key not in TABLES]
    return tuple(
        Panel(label_text(group[0], keys) or UNTITLED, None, tuple((label_text(c, rest), c) for c in group))
        for group in _grouped(curves, keys)
    )


def _apart(curves: Sequence[CurveRuns], axis: str | None) -> list[str]:
    """As few labels as tell all curves apart together with the axis, tables first."""
    keys = [key for key in varying(curves) if key != axis]
    keys.sort(key=lambda key: (key not in TABLES, key not in SIZES, is_multiplier(key)))
    chosen: list[str] = []

    def groups(names: Sequence[str | None]) -> int:
        return len({tuple(c.label.get(name) for name in names if name is not None) for c in curves})

    for key in keys:
        if groups([axis, *chosen]) == len(curves):
            break
        if groups([axis, *chosen, key]) > groups([axis, *chosen]):
            chosen.append(key)
    return chosen


def _grouped(curves: Sequence[CurveRuns], keys: Sequence[str]) -> list[list[CurveRuns]]:
    groups: dict[tuple[Value, ...], list[CurveRuns]] = {}
    for curve in curves:
        groups.setdefault(tuple(curve.label.get(key) for key in keys), []).append(curve)
    return list(groups.values())


def _told_apart(groups: Sequence[Sequence[CurveRuns]], axis: str) -> bool:
    """Whether the axis tells the curves of every group apart, and groups are not mostly of one curve."""
    apart = all(len({c.label.get(axis) for c in group}) == len(group) for group in groups)
    return apart and (len(groups) == 1 or 2 * len(groups) <= sum(map(len, groups)))


def _sorted(series: Sequence[tuple[Value, CurveRuns]]) -> tuple[tuple[Value, CurveRuns], ...]:
    if all(isinstance(value, (int, float)) for value, _ in series):
        return tuple(sorted(series, key=lambda one: float(one[0] or 0)))
    return tuple(series)
