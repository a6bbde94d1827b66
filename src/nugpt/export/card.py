"""The model card: what the model is, what every number of its training was, what it reached, and how to use it."""

from __future__ import annotations

from collections.abc import Sequence

from nugpt import __version__
from nugpt.data.tokenizer import Tokenizer
from nugpt.spec.model import non_embedding_parameters, total_parameters
from nugpt.spec.record import RunRecord
from nugpt.spec.run import RunSpec
from nugpt.store import Checkpoint

_USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("PATH", trust_remote_code=True)
prompts = tokenizer(["Once upon a time", "The"], padding=True, return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**prompts, max_new_tokens=40), skip_special_tokens=True))
```

`PATH` is this folder. `trust_remote_code` runs `modeling_nugpt.py`, which lies beside this page and needs torch and
transformers alone. With `dtype=torch.bfloat16` the products are bfloat16 and all else stays float32, as in training."""


def model_card(
    name: str,
    spec: RunSpec,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    record: RunRecord | None,
    license_name: str | None,
) -> str:
    """The text of the folder's README.md."""
    parts = [
        _front_matter(license_name),
        f"# {name}",
        _introduction(spec, checkpoint),
        _USE,
        "## Shape\n\n" + _shape(spec),
        "## Losses\n\n" + _losses(checkpoint, record),
        "## Training\n\n" + _training(spec),
        "## Every number of the parametrization\n\n" + _resolved(spec),
        "## Data\n\n" + _data(spec, tokenizer),
        "## Licence\n\n" + _licence(license_name),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(license_name: str | None) -> str:
    licence = [] if license_name is None else [f"license: {license_name}"]
    return "\n".join(["---", "library_name: transformers", "pipeline_tag: text-generation", *licence, "---"])


def _introduction(spec: RunSpec, checkpoint: Checkpoint) -> str:
    millions = total_parameters(spec.model) / 1e6
    return (
        f"A Normalized Transformer of {millions:.4g} million parameters, trained under the parametrization "
        f"`{spec.table.name}` by nugpt: step {checkpoint.step:,} of {spec.steps:,} of run `{spec.hash}` "
        f"(checkpoint `{checkpoint.hash}`), exported by nugpt {__version__}. "
        "Weights and hidden states lie on the unit sphere."
    )


def _shape(spec: RunSpec) -> str:
    m = spec.model
    return _table(
        ("", ""),
        [
            ("layers", f"{m.n_layers}"),
            ("heads", f"{m.n_heads} of {m.head_dim} ({m.n_kv_heads} key-value)"),
            ("d_model", f"{m.d_model}"),
            ("d_MLP", f"{m.d_mlp}"),
            ("vocabulary", f"{m.vocab_size:,}"),
            ("sequence", f"{m.seq_len:,}"),
            ("RoPE θ", f"{m.rope_theta:g}"),
            ("parameters", f"{total_parameters(m):,}"),
            ("non-embedding", f"{non_embedding_parameters(m):,}"),
        ],
    )


def _losses(checkpoint: Checkpoint, record: RunRecord | None) -> str:
    """The run's result where the checkpoint is its end, else what was last seen before the checkpoint."""
    state = checkpoint.state
    if record is not None:
        when = "At the end of the run, in nats per token."
        found = (record.val_loss, record.val_loss_ema, record.train_loss)
        by_source = record.val_loss_by_source
    else:
        when = "As last taken before this checkpoint, in nats per token."
        found = (state.get("val_loss"), state.get("ema"), state.get("train_loss"))
        by_source = state.get("val_loss_by_source") or {}
    rows = list(zip(("validation", "validation, smoothed", "training"), map(_number, found), strict=True))
    rows += [(f"validation on {source}", _number(value)) for source, value in by_source.items()]
    return f"{when}\n\n{_table(('loss', 'value'), rows)}"


def _training(spec: RunSpec) -> str:
    tokens = spec.steps * spec.batch * spec.model.seq_len
    schedule = f"{spec.schedule.kind} to {spec.schedule.final:g} of the peak, warm-up of {spec.schedule.warmup} steps"
    if spec.schedule.kind == "wsd":
        schedule += f", decay over the last {spec.schedule.decay:g} of them"
    return _table(
        ("", ""),
        [
            ("global learning rate η", _number(spec.lr)),
            ("steps", f"{spec.steps:,}"),
            ("batch", f"{spec.batch} sequences of {spec.model.seq_len} tokens"),
            ("tokens", f"{tokens:,}"),
            ("schedule", schedule),
            ("precision of products", spec.precision),
            ("seed", f"{spec.seed}"),
        ],
    )


def _resolved(spec: RunSpec) -> str:
    resolved = spec.resolved()
    m = resolved.ratios
    head = (
        f"Table `{resolved.table}` at η_base {_number(resolved.lr_base)}: m_width {m.width:g}, m_depth {m.depth:g}, "
        f"m_data {m.data:g}, m_batch {m.batch:g}. A stored rescaler is multiplied by its gain, init/scale."
    )
    rows = [
        (
            role,
            _number(row.lr),
            _number(row.multiplier),
            _number(row.init),
            _number(row.scale),
            _number(resolved.gains.get(role)),
            _number(row.weight_decay),
            _number(row.eps),
        )
        for role, row in resolved.rows.items()
    ]
    columns = ("role", "learning rate", "multiplier", "init", "scale", "gain", "weight decay", "Adam ε")
    return f"{head}\n\n{_table(columns, rows)}"


def _data(spec: RunSpec, tokenizer: Tokenizer) -> str:
    kind = "bytes" if tokenizer.model is None else f"`tokenizer.json`, end-of-text `{tokenizer.end_of_text}`"
    return _table(
        ("", ""),
        [
            ("content hash", f"`{spec.data}`"),
            ("tokenizer", f"{kind}, {tokenizer.n_ids:,} ids"),
            ("tokenizer's hash", f"`{tokenizer.hash}`"),
        ],
    )


def _licence(license_name: str | None) -> str:
    weights = "not stated by whoever exported them" if license_name is None else license_name
    return f"Weights: {weights}. `modeling_nugpt.py`: MIT, copyright the nugpt authors."


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
