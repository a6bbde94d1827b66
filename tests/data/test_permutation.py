"""The order of windows: a bijection at every size, different for every key, constant in memory."""

import hashlib
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nugpt.data.permutation import keyed_permutation


@given(size=st.integers(1, 5000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 10**6))
def test_it_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    assert sorted(keyed_permutation(size, seed, epoch)(np.arange(size)).tolist()) == list(range(size))


@given(size=st.integers(1, 2**62 - 1), data=st.data())
def test_any_size_stays_in_range_and_tells_indices_apart(size: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True))
    images = keyed_permutation(size, 7, 3)(np.array(indices, np.int64))
    assert images.min() >= 0
    assert images.max() < size
    assert len(set(images.tolist())) == len(indices)


def test_an_index_does_not_depend_on_what_else_is_asked() -> None:
    order = keyed_permutation(1000, 1, 2)
    whole = order(np.arange(1000))
    assert [order(np.array([i]))[0] for i in range(0, 1000, 37)] == whole[::37].tolist()


def test_memory_is_constant_at_a_trillion() -> None:
    tracemalloc.start()
    images = keyed_permutation(10**12, 5, 0)(np.arange(512))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(images.tolist())) == 512
    # A dozen temporaries of 512 eight-byte numbers are 48 KiB; a table of the permutation would be eight terabytes.
    assert peak < 1 << 20


def test_keys_give_different_orders() -> None:
    size = 1000
    orders = [keyed_permutation(size, seed, epoch)(np.arange(size)) for seed in range(3) for epoch in range(3)]
    for i, one in enumerate(orders):
        for other in [*orders[:i], np.arange(size)]:
            # Two random orders agree in one place on average (Poisson): ten or more has probability 1e-7.
            assert (one == other).sum() < 10


def test_every_order_of_four_is_about_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(4800):
        order = tuple(keyed_permutation(4, seed, 0)(np.arange(4)).tolist())
        counts[order] = counts.get(order, 0) + 1
    # 200 expected of each of the 24 orders; the chi-square of 23 degrees of freedom exceeds 60 with probability 4e-5.
    assert len(counts) == 24
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 60


def test_neighbours_are_spread_over_the_whole() -> None:
    size = 3 << 20
    images = keyed_permutation(size, 11, 0)(np.arange(20_000))
    counts = np.histogram(images, bins=20, range=(0, size))[0]
    # 1000 expected in each of 20 bins; chi-square of 19 degrees of freedom exceeds 60 with probability 4e-6.
    assert ((counts - 1000) ** 2 / 1000).sum() < 60


@pytest.mark.parametrize("size", [0, -1, 2**62])
def test_a_size_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=str(size)):
        keyed_permutation(size, 0)


def place(size: int, key: tuple[int, ...], index: int) -> int:
    """The same in whole numbers, one index at a time: what a stored run's order of data rests on."""
    bits = 2
    while 2**bits < size:
        bits += 1
    low_size, high_size = 2 ** (bits // 2), 2 ** (bits - bits // 2)
    words = []
    for number in range(6):
        digest = hashlib.sha256(f"nugpt permutation {key} round {number}".encode()).digest()
        words.append(struct.unpack("<QQQQ", digest)[:3])

    def mixed(value: int, offset: int, first: int, second: int) -> int:
        value = (value + offset) % 2**64 * (first | 1) % 2**64
        value = (value ^ value // 2**32) * (second | 1) % 2**64
        return value // 2**32

    while True:
        high, low = divmod(index, low_size)
        for number, word in enumerate(words):
            if number % 2:
                low ^= mixed(high, *word) % low_size
            else:
                high ^= mixed(low, *word) % high_size
        index = high * low_size + low
        if index < size:
            return index


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 1000, 1024, 1025, 10**12])
def test_the_order_stays_what_it_is(size: int) -> None:
    indices = np.arange(min(size, 40))
    assert keyed_permutation(size, 7, 3)(indices).tolist() == [place(size, (7, 3), int(i)) for i in indices]


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_is_our_own_mistake(index: int) -> None:
    with pytest.raises(AssertionError):
        keyed_permutation(5, 0)(np.array([0, index]))
