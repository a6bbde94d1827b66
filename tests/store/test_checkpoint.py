"""Checkpoints: what was saved comes back to the bit, and what was spoiled is passed over by name."""

from __future__ import annotations

import ast
import errno
import json
import os
import pickle
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

import nugpt
from nugpt.store import Checkpoint, RunDirectory, latest_checkpoint, load_checkpoint, save_checkpoint
from nugpt.store.checkpoint import drop_after, path_at, steps_in

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def tensors(step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(step)
    model = {"E_in.weight": torch.randn(5, 3, generator=generator), "s_z.stored": torch.randn(5, generator=generator)}
    moments = {f"{which}.{name}": torch.rand(x.shape, generator=generator) for which in ("first", "second") for name, x
               in model.items()}  # fmt: skip
    return model, moments


def state_at(step: int) -> dict[str, object]:
    return {"ema": 5.0 + 0.1 * step, "counters": {"died_at": -1, "loss_sum": 0.1 + 0.2}, "spec": "0123456789abcdef"}


def save(directory: Path, step: int, keep: int | None = 9) -> Path:
    return save_checkpoint(directory, step, *tensors(step), state_at(step), keep)


def check(found: Checkpoint | None, step: int) -> None:
    """That this is what `save` wrote at that step, to the bit."""
    assert found is not None
    assert found.step == step
    for expected, got in zip(tensors(step), (found.model, found.optimizer), strict=True):
        assert set(expected) == set(got)
        assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert {key: found.state[key] for key in state_at(step)} == state_at(step)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_comes_back_to_the_bit_and_is_named_by_its_content(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    assert path.name == "step-000000020"
    check(load_checkpoint(path), 20)
    check(latest_checkpoint(tmp_path), 20)
    again, other = save(tmp_path / "again", 20), save(tmp_path / "again", 21)
    assert load_checkpoint(again).hash == load_checkpoint(path).hash != load_checkpoint(other).hash
    assert latest_checkpoint(tmp_path / "nothing here") is None


def test_numbers_that_are_not_finite_come_back_too(tmp_path: Path) -> None:
    model = {"w": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])}  # of a replica that diverged
    save_checkpoint(tmp_path, 3, model, {}, {}, keep=2)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert torch.equal(found.model["w"].view(torch.int32), model["w"].view(torch.int32))


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_few_are_kept(tmp_path: Path, keep: int) -> None:
    for step in (5, 10, 100, 1000):
        save(tmp_path, step, keep)
    assert names(tmp_path) == ["step-000000005", "step-000000010", "step-000000100", "step-000001000"][-keep:]


def spoil_by_flip(file: Path, place: float) -> None:
    content = bytearray(file.read_bytes())
    content[min(int(place * len(content)), len(content) - 1)] ^= 1
    file.write_bytes(content)


def spoil_by_cut(file: Path, place: float) -> None:
    file.write_bytes(file.read_bytes()[: int(place * file.stat().st_size)])


def spoil_by_loss(file: Path, place: float) -> None:
    file.unlink()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    ("spoil", "place"),
    [(spoil_by_flip, 0.5), (spoil_by_flip, 0.99), (spoil_by_cut, 0.5), (spoil_by_cut, 0.0), (spoil_by_loss, 0.0)],
)
def test_a_spoiled_newest_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, file: str, spoil: object, place: float
) -> None:
    save(tmp_path, 10)
    newest = save(tmp_path, 20)
    spoil(newest / file, place)  # type: ignore[operator]
    with pytest.warns(RuntimeWarning, match=re.escape(str(newest))) as said:
        check(latest_checkpoint(tmp_path), 10)
    assert len(said) == 1
    assert "going back" in str(said[0].message)
    assert "\n" not in str(said[0].message)
    with pytest.raises(ValueError, match=re.escape(str(newest))):
        load_checkpoint(newest)


def test_no_flipped_bit_of_the_small_state_goes_unnoticed(tmp_path: Path) -> None:
    save(tmp_path, 10)
    file = save(tmp_path, 20) / "state.json"
    whole = file.read_bytes()
    truth = json.loads(whole)
    for place in range(len(whole)):
        spoiled = bytearray(whole)
        spoiled[place] ^= 1
        file.write_bytes(spoiled)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            found = latest_checkpoint(tmp_path)
        assert found is not None
        # Either it was seen, or it changed nothing that is read.
        assert found.step == 10 or found.state == truth, f"byte {place}: {bytes(spoiled[place - 20 : place + 20])!r}"


def test_state_that_is_another_document_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    whole = json.loads((path / "state.json").read_bytes())
    without = [{key: value for key, value in whole.items() if key != left_out} for left_out in ("sha256", "step")]
    for document in ([], "text", None, {}, *without, whole | {"format": 2}, whole | {"sha256": {}}):
        (path / "state.json").write_text(json.dumps(document))
        with pytest.raises(ValueError, match="step-000000010"):
            load_checkpoint(path)
        with pytest.warns(RuntimeWarning):
            assert latest_checkpoint(tmp_path) is None


def test_spoiled_ones_do_not_push_out_good_ones(tmp_path: Path) -> None:
    # After two spoiled checkpoints the run begins again: what it then saves must outlive them.
    for step in (40, 60):
        (save(tmp_path, step, keep=2) / "state.json").write_text("{")
    for step in (20, 40):
        save(tmp_path, step, keep=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(latest_checkpoint(tmp_path), step)
    assert names(tmp_path) == ["step-000000020", "step-000000040"]


def test_what_a_killed_save_left_is_no_checkpoint_and_goes_with_the_next_save(tmp_path: Path) -> None:
    save(tmp_path, 10)
    left = tmp_path / ".step-000000020.0123456789abcdef.tmp"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(latest_checkpoint(tmp_path), 10)
    save(tmp_path, 20)
    assert names(tmp_path) == ["step-000000010", "step-000000020"]


@pytest.mark.parametrize("failing", ["safetensors.torch.save_file", "nugpt.store.atomic.os.fsync"])
def test_on_a_full_disk_the_old_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    save(tmp_path, 10)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(failing, full)
    with pytest.raises(OSError, match="No space left") as refusal:
        save(tmp_path, 20)
    assert refusal.value.filename == str(tmp_path / "step-000000020")
    assert names(tmp_path) == ["step-000000010"]
    check(latest_checkpoint(tmp_path), 10)


class Trap:
    """Unpickled, it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def test_a_pickle_beside_the_tensors_is_not_read(tmp_path: Path) -> None:
    directory, trace = tmp_path / "checkpoints", tmp_path / "trace"
    path = save(directory, 10)
    poison = pickle.dumps(Trap(trace))
    for name in ("model.pt", "optimizer.pkl", "state.pickle", "pytorch_model.bin"):
        (path / name).write_bytes(poison)
        (directory / name).write_bytes(poison)
    check(latest_checkpoint(directory), 10)
    for name in ("model.safetensors", "state.json"):
        (path / name).write_bytes(poison)
        with pytest.warns(RuntimeWarning):
            assert latest_checkpoint(directory) is None
    assert not trace.exists()
    pickle.loads(poison)  # noqa: S301
    assert trace.exists(), "the trap itself does not work"


def test_nothing_in_the_package_trusts_a_pickle() -> None:
    """TorchTitan's checkpoints hold one: a single file reads it, and by an unpickler that knows a list of classes."""
    readers = re.compile(r"torch\.load\b|\b(pickle|dill|joblib|shelve|marshal)\b|allow_pickle\s*=\s*True")
    package = Path(nugpt.__file__).parent
    sources = sorted(package.rglob("*.py"))
    assert len(sources) > 40
    found: dict[str, set[str]] = {}
    for path in sources:
        tree = ast.parse(path.read_text())
        code = ast.unparse(_without_docstrings(tree)).splitlines()
        if lines := {line.strip() for line in code if readers.search(line)}:
            found[str(path.relative_to(package))] = lines
    assert found == {
        "engines/titan/dcp.py": {
            "import pickle",
            "_IN_PYTHON: Any = pickle._Unpickler",  # the base of one that knows a list of classes
            "dispatch[pickle.BUILD[0]] = load_build",
            "except (CheckpointException, OSError, RuntimeError, pickle.UnpicklingError) as error:",
        }
    }


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body[0] = ast.Pass()
    return tree


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_checkpoint_that_is_saved_again_is_never_without_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """The process dies before the first or the second renaming, as a kill would have it: nothing is cleaned up."""
    save(tmp_path, 20)
    renames, rename = 0, Path.rename

    class Killed(BaseException):
        pass

    def dying(self: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames == dies_at:
            raise Killed
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying)
        patch.setattr("nugpt.store.checkpoint.shutil.rmtree", lambda *args, **kwargs: None)
        with pytest.raises(Killed):
            save(tmp_path, 20)
    assert steps_in(tmp_path) == [20]
    check(latest_checkpoint(tmp_path), 20)
    save(tmp_path, 30)
    save(tmp_path, 20)
    assert [name for name in names(tmp_path) if name.startswith("step")] == ["step-000000020"]
    check(latest_checkpoint(tmp_path), 20)


def test_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 20)
    for name in ("step-old", "step-12", "step-000000030.bak", "notes"):
        (tmp_path / "checkpoints" / name).mkdir()
    assert RunDirectory(tmp_path).newest_step() == 20
    check(latest_checkpoint(tmp_path / "checkpoints"), 20)
    assert RunDirectory(tmp_path / "nowhere").newest_step() == -1


def test_without_a_number_to_keep_nothing_is_dropped(tmp_path: Path) -> None:
    for step in (10, 30):
        save(tmp_path, step)
    left = tmp_path / f".step-000000015.{'0' * 32}.old"
    (tmp_path / "step-000000010").rename(left)  # as of a process that was killed
    save(tmp_path, 20, keep=None)
    assert steps_in(tmp_path) == [15, 20, 30]
    assert path_at(tmp_path, 15) == left
    assert path_at(tmp_path, 20) == tmp_path / "step-000000020"
    assert path_at(tmp_path, 10) is None
    check(load_checkpoint(left), 10)


def test_what_lies_beyond_a_step_is_dropped(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    drop_after(tmp_path, 20)
    assert steps_in(tmp_path) == [10, 20]
    drop_after(tmp_path, 0)
    assert steps_in(tmp_path) == []
    drop_after(tmp_path / "nowhere", 0)
