"""A keyed permutation of 0 … n-1 in constant memory: a Feistel network with cycle walking."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Four rounds make a pseudorandom permutation of ideal round functions. Ours are cheap hashes on halves that may differ
# by a bit, so a few more; even, so that both halves are changed equally often.
ROUNDS = 6
RoundKey = tuple[np.uint64, np.uint64, np.uint64]


@dataclass(frozen=True)
class Permutation:
    """A bijection of range(size), chosen by the key; looking up one index costs the same at any size."""

    size: int
    bits: int  # the network permutes [0, 2^bits), less than twice the range (but for the smallest)
    keys: tuple[RoundKey, ...]

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each index goes."""
        assert indices.size == 0 or (indices.min() >= 0 and indices.max() < self.size)
        values = self._shuffle(indices.astype(np.uint64))
        # Following a cycle until it comes back into the range is again a bijection, and it does come back, because
        # the index we began with lies in the range.
        outside = np.flatnonzero(values >= self.size)
        while outside.size:
            walked = self._shuffle(values[outside])
            values[outside] = walked
            outside = outside[walked >= self.size]
        return values.astype(np.int64)

    def _shuffle(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low_bits = self.bits // 2
        shift = np.uint64(low_bits)
        low_mask, high_mask = np.uint64((1 << low_bits) - 1), np.uint64((1 << (self.bits - low_bits)) - 1)
        high, low = values >> shift, values & low_mask
        for even, odd in zip(self.keys[::2], self.keys[1::2], strict=True):
            high = high ^ (_scramble(low, even) & high_mask)
            low = low ^ (_scramble(high, odd) & low_mask)
        return (high << shift) | low


def keyed_permutation(size: int, *key: int) -> Permutation:
    """Return the permutation of range(size) that the integers of the key choose."""
    if not 1 <= size < 1 << 62:
        raise ValueError(f"a permutation of {size} things was asked for; the size must be between 1 and 2^62 - 1")
    bits = max(2, (size - 1).bit_length())
    return Permutation(size, bits, tuple(_round_key(key, number) for number in range(ROUNDS)))


def _round_key(key: tuple[int, ...], number: int) -> RoundKey:
    digest = hashlib.sha256(f"nugpt permutation {key} round {number}".encode()).digest()
    words = [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(3)]
    # Odd multipliers are invertible modulo 2^64: no bit of the input is lost before the shifts.
    return np.uint64(words[0]), np.uint64(words[1] | 1), np.uint64(words[2] | 1)


def _scramble(values: NDArray[np.uint64], key: RoundKey) -> NDArray[np.uint64]:
    """Return 32 bits that each depend on all bits of the value; the upper half of a product is its well mixed one."""
    offset, first, second = key
    mixed = (values + offset) * first
    mixed ^= mixed >> np.uint64(32)
    mixed *= second
    mixed >>= np.uint64(32)
    return mixed
