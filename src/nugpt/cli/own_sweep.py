"""A file of the user's own runs as a sweep that can be carried to a target: the model, table and base of each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nugpt.cli.own_runs import ModelColumns, read_table
from nugpt.cli.shape import BaseShape

if TYPE_CHECKING:
    from nugpt.fit.measured import Measured
    from nugpt.spec.parametrization import Parametrization
    from nugpt.spec.run import RunSpec


def own_sweep(
    file: Path,
    columns: ModelColumns,
    table: Parametrization,
    base: BaseShape,
    target: Mapping[str, int | None],
    group: str | None = None,
    mlp_needed: bool = True,
) -> tuple[list[Measured], list[str]]:
    """The curves of a file's rows, and what there is to say about rows that do not count by themselves.

    What no column says is the base's; what neither says (vocabulary, the MLP's share, key-value heads) is the target's.
    Without a target the MLP is not needed exactly: no learning rate depends on it.
    """
    from nugpt.fit.measured import as_runs

    curves, notes = read_table(file, columns)
    at_base = _run_at_base(file, curves[0].sizes, table, base, target, mlp_needed)
    named = columns.sizes(list(curves[0].sizes))
    return as_runs(_of_group(curves, group), lambda sizes: _resized(at_base, sizes, named, file)), notes


def _of_group(curves: list[Measured], group: str | None) -> list[Measured]:
    """One group's: a table's learning rates are carried over, not those of several."""
    groups = list(dict.fromkeys(curve.group for curve in curves))
    if group is not None and groups == [""]:
        raise ValueError(f"group is {group!r}, but no column says which row is of which: name it with --group-column")
    if group is not None and group not in groups:
        raise ValueError(f"group is {group!r}, but the file has {', '.join(map(repr, groups))}")
    if group is None and len(groups) > 1:
        raise ValueError(f"the file has {len(groups)} groups ({', '.join(groups)}): choose one with --group")
    return [curve for curve in curves if group in (None, curve.group)]


def _run_at_base(
    file: Path,
    said: Mapping[str, float],
    table: Parametrization,
    base: BaseShape,
    target: Mapping[str, int | None],
    mlp_needed: bool,
) -> RunSpec:
    """The base's run; `said` are the sizes that the file's rows say."""
    from nugpt.spec.recipe import NO_DATA
    from nugpt.spec.run import RunSpec
    from nugpt.spec.scales import preset

    if base.base is None:
        raise ValueError(
            f"base is not given, but {file} does not say what its table's ratios are taken over, nor what its runs "
            "share: --base names a preset"
        )
    if base.base_steps is None and ("steps" not in said or table.base.data):
        way = "" if "steps" in said else ", or name their column with --steps-column"
        raise ValueError(f"base_steps is not given, but {file} does not say the base's: give --base-steps{way}")
    if base.base_batch is None and "batch" not in said:
        raise ValueError(
            f"base_batch is not given, but {file} does not say the sequences of a step: give --base-batch, or name "
            "their column with --batch-column"
        )
    scale, model = preset(base.base)
    given = {name: value for name in ("head_dim", "seq_len") if (value := getattr(base, f"base_{name}")) is not None}
    given |= {name: value for name in ("vocab_size",) if (value := target.get(name)) is not None}
    heads, kv_heads, d_mlp = (target.get(name) for name in ("n_heads", "n_kv_heads", "d_mlp"))
    width = model.n_heads * given.get("head_dim", model.head_dim)
    of_target = round(model.n_heads * d_mlp / heads) if heads and d_mlp else None
    whole = width * 8 % 3 == 0
    if mlp_needed and of_target is None and "d_mlp" not in said and not whole:
        raise ValueError(
            f"d_mlp is not given, and 8/3 of d_model = {width} is not a whole number: name its column with "
            "--d-mlp-column, or give the target's --d-mlp with --n-heads"
        )
    # Where rows say it, theirs stands in its place; where it is not needed, rounding must not tell sizes apart.
    own = of_target or (width * 8 // 3 if whole else width * 3)
    shared = max(1, model.n_heads * kv_heads // heads) if heads and kv_heads else 0
    model = replace(model, architecture=table.family, n_kv_heads=shared, d_mlp=own, **given)
    resolved = base.resolve(scale)
    return RunSpec(
        model=model,
        table=table,
        base=resolved,
        lr=1.0,
        steps=resolved.extent.steps,
        batch=resolved.extent.batch_tokens // model.seq_len,
        data=NO_DATA,
        validations=scale.validations,
        val_windows=scale.val_windows,
    )


def _resized(run: RunSpec, sizes: Mapping[str, float], columns: Mapping[str, str], file: Path) -> RunSpec:
    """The run of a row."""
    from nugpt.fit.recommend import retarget

    whole = {}
    for name, value in sizes.items():
        if value != int(value):
            raise ValueError(f"{columns[name]} is {value:g} in {file}, but must be a whole number")
        whole[name] = int(value)
    head_dim, heads = run.model.head_dim, whole.pop("n_heads", None)
    d_model = whole.pop("d_model", run.model.d_model if heads is None else heads * head_dim)
    other = "--base-head-dim gives another"
    if (said := whole.pop("head_dim", head_dim)) != head_dim:
        raise ValueError(f"{columns['head_dim']} is {said} in {file}, but the base's heads have {head_dim}: {other}")
    if heads is not None and heads * head_dim != d_model:
        raise ValueError(
            f"{columns['n_heads']} is {heads} at d_model {d_model} in {file}, which makes heads of "
            f"{d_model / heads:g}, but the base's have {head_dim}: {other}"
        )
    if d_model % head_dim:
        raise ValueError(
            f"{columns['d_model']} is {d_model} in {file}, but must be a multiple of the heads' dimension, which is "
            f"{head_dim}: {other}"
        )
    steps, batch = whole.pop("steps", run.steps), whole.pop("batch", run.batch)
    return retarget(run, steps, batch, n_heads=d_model // head_dim, **whole)
