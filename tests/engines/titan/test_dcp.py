"""Distributed checkpoints are read without running what they hold."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from nugpt.engines.titan.dcp import METADATA_FILE, by_step, load_tensors, read_metadata, read_state, save_tensors
from nugpt.engines.titan.sums import check_sums, own_files, sums_of, write_sums
from nugpt.store.forms import SUMS

TENSORS = {"E_in.weight": torch.randn(6, 4), "optimizer.state.E_in.weight.exp_avg": torch.randn(6, 4).bfloat16()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_tensors(tmp_path / "step-3", dict(TENSORS))
    return tmp_path / "step-3"


def rewrite(checkpoint: Path, change: Any) -> None:
    """Change the metadata as an attacker would: with all of pickle."""
    path = checkpoint / METADATA_FILE
    found = pickle.loads(path.read_bytes())  # noqa: S301 - written by this test
    change(found)
    path.write_bytes(pickle.dumps(found))


class Evil:
    """A pickle that makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_what_was_written_comes_back(checkpoint: Path) -> None:
    found = load_tensors(checkpoint)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    some = load_tensors(checkpoint, {"E_in.weight": torch.empty(6, 4)})
    assert torch.equal(some["E_in.weight"], TENSORS["E_in.weight"])


@pytest.mark.parametrize("place", ["whole", "within"])
def test_code_in_the_metadata_does_not_run(place: str, checkpoint: Path, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    evil = pickle.dumps(Evil(trace))
    pickle.loads(evil)  # noqa: S301 - shows that it would
    assert trace.exists()
    trace.unlink()
    if place == "whole":
        (checkpoint / METADATA_FILE).write_bytes(evil)
    else:
        rewrite(checkpoint, lambda found: setattr(found, "planner_data", Evil(trace)))
    for read in (read_metadata, load_tensors):
        with pytest.raises(ValueError, match=r"cannot be read: names .*, which no checkpoint of ours holds"):
            read(checkpoint)
    assert not trace.exists()


def test_code_in_a_tensor_file_does_not_run(checkpoint: Path, tmp_path: Path) -> None:
    trace, (path,) = tmp_path / "ran", list(checkpoint.glob("*.distcp"))
    buffer = io.BytesIO()
    torch.save(Evil(trace), buffer)
    path.write_bytes(buffer.getvalue())

    def whole_file(found: Any) -> None:
        for info in found.storage_data.values():
            info.offset, info.length = 0, len(buffer.getvalue())

    rewrite(checkpoint, whole_file)
    with pytest.raises(ValueError, match="cannot be read"):
        load_tensors(checkpoint)
    assert not trace.exists()


@pytest.mark.parametrize(
    "target", [b"cTORCH\nMetadata\n", b"cbuiltins\ngetattr\n", b"ctorch\nfloat32\n"], ids=["class", "function", "dtype"]
)
def test_what_is_listed_cannot_be_changed(target: bytes, checkpoint: Path) -> None:
    where = Metadata.__module__.encode()
    state = b"}Vchanged\nI1\ns"  # {"changed": 1}
    (checkpoint / METADATA_FILE).write_bytes(target.replace(b"TORCH", where) + state + b"b.")
    with pytest.raises(ValueError, match="which no checkpoint of ours does"):
        read_metadata(checkpoint)
    assert not hasattr(Metadata, "changed")


def test_what_is_no_tensor_is_refused(checkpoint: Path) -> None:
    rewrite(checkpoint, lambda found: found.state_dict_metadata.update({"E_in.weight": BytesStorageMetadata()}))
    with pytest.raises(ValueError, match=r"holds 'E_in\.weight', which is no tensor"):
        load_tensors(checkpoint)


@pytest.mark.parametrize("name", ["../secret.distcp", "/etc/passwd", "a/b.distcp"])
def test_a_file_outside_the_checkpoint_is_refused(name: str, checkpoint: Path) -> None:
    def elsewhere(found: Any) -> None:
        for info in found.storage_data.values():
            info.relative_path = name

    rewrite(checkpoint, elsewhere)
    with pytest.raises(ValueError, match="which is none of a checkpoint's"):
        load_tensors(checkpoint)


def test_spoiled_files_are_refused_in_words(checkpoint: Path) -> None:
    (path,) = checkpoint.glob("*.distcp")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="cannot be read"):
        load_tensors(checkpoint)
    (checkpoint / METADATA_FILE).write_bytes(b"\x80")
    with pytest.raises(ValueError, match=r"\.metadata cannot be read"):
        read_metadata(checkpoint)
    with pytest.raises(ValueError, match=r"has no nugpt\.json"):
        read_state(checkpoint)


def test_a_checkpoint_that_was_cut_off_is_none(checkpoint: Path) -> None:
    save_tensors(checkpoint.parent / "step-20", dict(TENSORS))
    (checkpoint.parent / "step-100").mkdir()
    assert [path.name for path in by_step(checkpoint.parent)] == ["step-3", "step-20"]
    (checkpoint.parent / "step-20" / METADATA_FILE).unlink()
    assert [path.name for path in by_step(checkpoint.parent)] == ["step-3"]
    with pytest.raises(ValueError, match="is no distributed checkpoint"):
        read_metadata(checkpoint.parent / "step-20")


def test_one_that_lost_its_metadata_after_it_was_whole_is_spoiled(checkpoint: Path) -> None:
    with_sums(checkpoint)
    (checkpoint / METADATA_FILE).unlink()
    assert by_step(checkpoint.parent) == [checkpoint]
    with pytest.raises(ValueError, match=r"step-3 lacks \.metadata"):
        check_sums(checkpoint)


class OldMember:
    """Pickled as early versions of Python 3.11 pickle a member of an enumeration: getattr(owner, name)."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (self.owner, self.name))


def test_members_of_an_enumeration_are_read_as_any_python_writes_them(checkpoint: Path) -> None:
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

    path = checkpoint / METADATA_FILE
    plain = pickle.loads(path.read_bytes())  # noqa: S301 - written by this test
    for entry in plain.state_dict_metadata.values():
        entry.properties.memory_format = OldMember(_MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT")
    # The class pickles its properties through itself; only how the member is written differs.
    for entry in plain.state_dict_metadata.values():
        state = (
            entry.properties.dtype,
            entry.properties.layout,
            entry.properties.requires_grad,
            entry.properties.memory_format,
            entry.properties.pin_memory,
        )
        entry.properties.__class__ = WithState
        entry.properties.state = state
    path.write_bytes(pickle.dumps(plain))
    assert load_tensors(checkpoint).keys() == TENSORS.keys()


class WithState:
    """Stands for the class of properties while it is written."""

    state: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        from torch.distributed.checkpoint.metadata import TensorProperties

        return (TensorProperties, (), self.state)


@pytest.mark.parametrize(
    "member", [OldMember(Path, "touch"), OldMember(torch.Size, "__class__"), OldMember(torch.float32, "itemsize")]
)
def test_attributes_of_anything_else_are_not_looked_up(member: OldMember, checkpoint: Path) -> None:
    (checkpoint / METADATA_FILE).write_bytes(pickle.dumps(member))
    with pytest.raises(ValueError, match="no checkpoint of ours holds"):
        read_metadata(checkpoint)


def with_sums(checkpoint: Path) -> Path:
    write_sums(checkpoint, [sums_of(own_files(checkpoint, 0))])
    return checkpoint


def test_sums_are_of_every_file_and_pass(checkpoint: Path) -> None:
    (checkpoint / "__1_0.distcp").write_bytes(b"another rank's")
    own, others = (sums_of(own_files(checkpoint, rank)) for rank in (0, 1))
    assert (own.keys(), others.keys()) == ({METADATA_FILE, "__0_0.distcp"}, {"__1_0.distcp"})
    assert others["__1_0.distcp"] == {"bytes": 14, "sha256": hashlib.sha256(b"another rank's").hexdigest()}
    check_sums(checkpoint)  # without sums, as before there were any
    write_sums(checkpoint, [own, others])
    check_sums(checkpoint)
    assert {path.name for path in own_files(checkpoint, 0)} == own.keys()  # not the sums themselves


@pytest.mark.parametrize("file", ["__0_0.distcp", METADATA_FILE])
def test_a_flipped_bit_is_noticed_by_the_process_that_reads_the_file(file: str, checkpoint: Path) -> None:
    path = with_sums(checkpoint) / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{file} does not match its checksum"):
        check_sums(checkpoint)
    wrong = []
    for part in range(2):
        try:
            check_sums(checkpoint, part, 2)
        except ValueError:
            wrong.append(part)
    assert len(wrong) == 1


def test_lost_and_shortened_files_are_noticed_by_all(checkpoint: Path) -> None:
    path = with_sums(checkpoint) / "__0_0.distcp"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:100])
    for part in range(3):
        with pytest.raises(ValueError, match=rf"__0_0\.distcp has 100 bytes, but was written with {size}"):
            check_sums(checkpoint, part, 3)
    path.unlink()
    with pytest.raises(ValueError, match=r"step-3 lacks __0_0\.distcp"):
        check_sums(checkpoint)
    (checkpoint / SUMS).write_text("[]")
    with pytest.raises(ValueError, match="holds no checksums"):
        check_sums(checkpoint)
