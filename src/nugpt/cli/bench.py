"""`nugpt bench`: what this machine reaches, in one run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from nugpt.cli.data import print_environment, print_rates
from nugpt.cli.show import print_json, print_table
from nugpt.spec import checks

Section = Literal["paper", "lab", "kernels", "data"]
STEPS = ("paper", "lab")  # the sections that time training steps
INSTEAD = "there is no CUDA device: small shapes, a CPU's and not the paper's or a sweep's, are timed instead, as cpu"


@dataclass(frozen=True)
class Bench:
    """Measure training steps, fused kernels and data, each against the ceiling or the twin measured in the same run.

    A shape that fails is named, the others are measured, and the exit status is 1.
    """

    sections: Annotated[tuple[Section, ...], tyro.conf.Positional] = ("paper", "lab", "kernels", "data")
    """paper (large shapes), lab (sweep shapes), kernels (each against its plain twin), data."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    kernels: str = "auto"
    """Of paper and lab: auto, plain or fused."""
    attention: str | None = None
    """Of paper and lab on a GPU: the fused step's attention, not the fastest but short, flash, cudnn or efficient."""
    runs: int = 10
    """Timed steps per shape."""
    compiled: bool = False
    """Of kernels: time plain functions between a block's products also as torch's compiler makes them, which takes a
    minute or two more."""
    profile: bool = False
    """Of paper and lab: also where the time of a step goes, by kind of kernel; on a CPU by operator."""
    out: str | None = None
    """Also write the figures to this new file, as they come: a failure loses nothing that was measured before it."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Measure, print, and write what was asked for."""
        import torch

        from nugpt.bench.steps import TABLES, check_attention
        from nugpt.bench.timing import ceilings, environment
        from nugpt.engines.lab.options import Options

        if self.runs < 1:
            raise ValueError(f"runs is {self.runs}, but must be a whole number of at least 1")
        self._check_sections()
        options = Options(device=self.device, kernels=self.kernels)
        device = options.torch_device()
        for architecture in TABLES if {*STEPS} & {*self.sections} else ():
            options.kernels_on(device, architecture)  # refuses what cannot be had
        if self.attention is not None:
            shapes = [shape for pairs in map(_pairs, self.sections) for pair in pairs for shape in pair]
            check_attention(self.attention, shapes, device, options)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # events and Triton use the current one
        asked = {name: getattr(self, name) for name in ("kernels", "attention", "runs", "compiled", "profile")}
        result: dict[str, Any] = {"environment": environment(device), "options": asked}
        self._begin_file(result)
        try:
            result["ceilings"] = ceilings(device)
            self._sections(result, device, options)
        finally:  # what was measured before a failure is not lost with it
            if self.json:
                print_json(result)
        return 1 if any("failed" in row for rows in result.values() if isinstance(rows, list) for row in rows) else 0

    def _check_sections(self) -> None:
        """Refuse an option that no section asked for would heed."""
        steps, named = {*STEPS} & {*self.sections}, ", ".join(dict.fromkeys(self.sections)) or "none"
        if self.kernels != "auto" and not steps:
            raise ValueError(f"kernels is {self.kernels!r}, but is for paper and lab, and the sections are {named}")
        if self.attention is not None and not steps:
            raise ValueError(f"attention is {self.attention!r}, but is for paper and lab, and the sections are {named}")
        if self.profile and not steps:
            raise ValueError(f"profile is for paper and lab, and the sections are {named}: add one or leave it out")
        if self.compiled and "kernels" not in self.sections:
            raise ValueError(f"compiled is for kernels, and the sections are {named}: add kernels or leave it out")

    def _begin_file(self, result: dict[str, Any]) -> None:
        """Write what is known before anything is measured, so that a file that cannot be had is found out now."""
        if self.out is None:
            return
        if not self.out:
            raise ValueError("out is '', but must be the name of a new file")
        try:
            checks.new_file(Path(self.out))
            self._keep(result)
        except OSError as error:
            if error.errno is None:  # one of ours, from above
                raise
            why = (error.strerror or str(error)).lower()
            raise ValueError(f"out is {self.out!r}, but cannot be written there: {why}") from None

    def _keep(self, result: dict[str, Any]) -> None:
        """The file as it is now, whole at any time."""
        from nugpt.store.atomic import write_json

        if self.out is not None:
            write_json(Path(self.out), result)

    def _sections(self, result: dict[str, Any], device: Any, options: Any) -> None:
        """Measure each section into the result, print it, and write the file anew after every shape."""
        if not self.json:
            print_environment(result["environment"])
            found = result["ceilings"]
            print(f"ceilings: product {found['product_tflops']:.3g} TFLOP/s, copy {found['copy_tbps']:.3g} TB/s")
        for section in self._sections_on(device, result):
            measured = self._measure(section, device, options, result["ceilings"])
            if isinstance(measured, dict):
                result[section] = measured
            else:
                result[section] = []
                for rows in measured:
                    result[section] += rows
                    self._keep(result)
                    _say_failed(section, rows)
            self._keep(result)
            if not self.json:
                _show(section, result[section])
        if self.profile:
            self._profile(result, device, options)

    def _profile(self, result: dict[str, Any], device: Any, options: Any) -> None:
        """Where the time goes, after all that is timed."""
        from nugpt.bench.profile import profile_pairs

        result["profile"] = []
        for section in STEPS if device.type == "cuda" else ("cpu",):
            if section in (*self.sections, "cpu"):
                for rows in profile_pairs(_pairs(section), device, options, self.attention):
                    result["profile"] += [{"section": section} | row for row in rows]
                    self._keep(result)
                    _say_failed(f"profile of {section}", rows)
                    if not self.json:
                        _show_profile(section, rows)

    def _sections_on(self, device: Any, result: dict[str, Any]) -> list[str]:
        """The sections asked for; without a GPU the steps of a CPU's shapes, once, in place of those of large ones."""
        asked = [section for section in dict.fromkeys(self.sections) if section in STEPS]
        if device.type == "cuda" or not asked:
            return list(dict.fromkeys(self.sections))
        result |= {section: {"not_run": INSTEAD} for section in asked}
        if not self.json:
            print(f"\n{', '.join(asked)}: {INSTEAD}")
        return list(dict.fromkeys("cpu" if section in STEPS else section for section in self.sections))

    def _measure(
        self, section: str, device: Any, options: Any, best: dict[str, float]
    ) -> dict[str, Any] | Iterator[list[dict[str, Any]]]:
        """A section's figures at once, or its rows shape by shape."""
        from nugpt.bench.data import bench_data
        from nugpt.bench.kernels import bench_kernels
        from nugpt.engines.lab.options import why_not_fused

        if section == "data":
            return bench_data()
        if section == "kernels":
            if device.type != "cuda":
                return {"not_run": "there is no CUDA device: the plain functions are all there is"}
            if reason := why_not_fused("normalized", device):
                return {"not_run": reason}
            return bench_kernels(device, best["copy_tbps"], self.runs, self.compiled)
        return self._steps(section, device, options, best)

    def _steps(self, section: str, device: Any, options: Any, best: dict[str, float]) -> Iterator[list[dict[str, Any]]]:
        from nugpt.bench.floor import counts, floor_ms
        from nugpt.bench.steps import bench_pair

        pairs, say = _pairs(section), partial(print, file=sys.stderr, flush=True)
        measured = bench_pair(pairs, device, options, self.runs, say, self.attention)
        for pair, rows in zip(pairs, measured, strict=True):
            for shape, row in zip(pair, rows, strict=True):
                if "ms" in row:
                    row["share_of_ceiling"] = row["tflops"] / best["product_tflops"]
                    # The bytes are those of bfloat16 products and of fused operations, which a CPU has not.
                    row["floor_ms"] = floor_ms(counts(shape), best) if device.type == "cuda" else None
            yield rows


def _pairs(section: str) -> list[tuple[Any, Any]]:
    """The shapes of a section's steps, of νGPT and of the plain transformer; none where it has no steps."""
    from nugpt.bench import steps

    of = {"paper": steps.paper_shapes, "lab": steps.lab_shapes, "cpu": steps.host_shapes}
    return list(zip(of[section]("normalized"), of[section]("prenorm"), strict=True)) if section in of else []


def _show(section: str, found: Any) -> None:
    print()
    if isinstance(found, dict):
        if "not_run" in found:
            print(f"{section}: {found['not_run']}")
        else:
            print_rates(section, found)
        return
    rows = [row for row in found if "ms" in row]
    if rows:
        (_show_kernels if section == "kernels" else _show_steps)(section, rows)
    for row in found:
        if "not_run" in row:
            print(f"{section}, {_of(row)}: {row['not_run']}")


def _of(row: dict[str, Any]) -> str:
    """Shape and model of a row; of kernels the shape."""
    return f"{row['shape']} {MODELS[row['architecture']]}" if "architecture" in row else str(row["shape"])


def _say_failed(section: str, rows: list[dict[str, Any]]) -> None:
    """A line for each shape that failed, whatever else is printed."""
    for row in rows:
        if "failed" in row:
            print(f"nugpt: error: {section}, {_of(row)}: {row['failed']}", file=sys.stderr, flush=True)


MODELS = {"normalized": "νGPT", "prenorm": "plain"}


def _show_kernels(section: str, rows: list[dict[str, Any]]) -> None:
    columns = [section, "shape", "ms", "spread", "plain ms", "times faster", "compiled ms", "GB", "TB/s", "of copy"]
    lines = [
        [
            r["kernel"],
            r["shape"],
            f"{r['ms']['median']:.3f}",
            _spread(r["ms"]),
            f"{r['plain_ms']['median']:.3f}",
            f"{r['times_faster']:.1f}",
            f"{r['compiled_ms']['median']:.3f}" if r["compiled_ms"] else "–",
            f"{r['bytes'] / 1e9:.2f}",
            f"{r['tbps']:.2f}",
            f"{r['share_of_copy']:.0%}",
        ]
        for r in rows
    ]
    print_table(columns, lines, right=list(range(2, 10)))


def _show_steps(section: str, rows: list[dict[str, Any]]) -> None:
    columns = [section, "model", "ms", "spread", "floor ms", "ms/replica", "tokens/ms", "TFLOP/s", "of product"]
    columns += ["GiB", "first s", "kernels", "attention"]
    lines = [
        [
            r["shape"],
            MODELS[r["architecture"]],
            f"{r['ms']['median']:.2f}",
            _spread(r["ms"]),
            "–" if r["floor_ms"] is None else f"{r['floor_ms']:.2f}",
            f"{r['ms_per_replica']:.3f}",
            f"{r['tokens_per_ms']:.1f}",
            f"{r['tflops']:.3g}",
            f"{r['share_of_ceiling']:.0%}",
            "–" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 2**30:.1f}",
            f"{r['first_step_s']:.1f}",
            "compiled" if r["compile"] else r["kernels"],
            r["attention"],
        ]
        for r in rows
    ]
    print_table(columns, lines, right=list(range(2, 11)))
    for r in rows:
        if "against_plain" in r:
            print(f"{r['shape']}: νGPT runs at {r['against_plain']:.3f} of the plain transformer's speed")
        if r["diverged"]:
            print(f"{r['shape']} {MODELS[r['architecture']]}: {r['diverged']} of {r['replicas']} replicas diverged")


def _show_profile(section: str, rows: list[dict[str, Any]]) -> None:
    """Both models of a shape side by side."""
    from nugpt.bench.profile import side_by_side

    print()
    found = [row for row in rows if "ms" in row]
    times = side_by_side([row["ms"] for row in found])
    lines = [[kind, *(f"{ms:.3f}" if ms else "–" for ms in each)] for kind, each in times.items()]
    lines.append(["all", *(f"{row['total_ms']:.3f}" for row in found)])
    columns = [f"{section}, {rows[0]['shape']}: ms a step", *(MODELS[row["architecture"]] for row in found)]
    if found:
        print_table(columns, lines, right=list(range(1, len(columns))))
    for row in rows:
        if "not_run" in row:
            print(f"{section}, {_of(row)}: {row['not_run']}")
        elif row.get("uneven"):
            unseen = f"{len(row['uneven'])} kernels were not seen in every step, so that these sums are wrong"
            print(f"{section}, {_of(row)}: {unseen}")


def _spread(ms: dict[str, float]) -> str:
    return f"{ms['low']:.2f}–{ms['high']:.2f}"
