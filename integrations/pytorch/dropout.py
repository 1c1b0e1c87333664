"""Dropout with a mask that depends on sample and position, not on the rank that holds them.

Every element's random bits are a hash (splitmix64; Steele, Lea, Flood, OOPSLA 2014) of seed, site,
global sample number, position and feature. A step needs no part in it: sample numbers never repeat.

Shape suffixes: B batch, S positions, D features.
"""

import torch
from torch import Tensor

# Multipliers of splitmix64, as signed 64-bit numbers; products wrap.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def dropout(
    x_BSD: Tensor, rate: float, *, seed: int, site: int, samples_B: Tensor, positions_S: Tensor
) -> Tensor:
    """Zero elements with probability `rate` and scale the rest by 1 / (1 - rate).

    Args:
        x_BSD: any part of a batch.
        rate: in [0, 1).
        seed: of the run.
        site: tells the places in the model apart (layer and branch).
        samples_B: global sample numbers of the rows, int64.
        positions_S: positions of the columns within their sequences, int64.
    """
    if rate == 0:
        return x_BSD
    keep_BSD = bits(x_BSD.shape[-1], seed, site, samples_B, positions_S) >= int(rate * (1 << 32))
    return x_BSD * keep_BSD / (1 - rate)


def bits(width: int, seed: int, site: int, samples_B: Tensor, positions_S: Tensor) -> Tensor:
    """Return 32 random bits per element, int64 in [0, 2^32), (B, S, width)."""
    key_B = _mix(_mix(samples_B + _wrap(seed * _STEP)) + _wrap(site * _STEP))
    key_BS = _mix(key_B[:, None] + positions_S[None, :] * _STEP)
    features_D = torch.arange(width, device=samples_B.device)
    return (_mix(key_BS[:, :, None] + features_D * _STEP) >> 32) & 0xFFFFFFFF


def _wrap(number: int) -> int:
    """A whole number modulo 2^64, as a signed 64-bit one."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _mix(value: Tensor) -> Tensor:
    """Scramble 64 bits; a bijection."""
    value = (value ^ _shift(value, 30)) * _MIX_1
    value = (value ^ _shift(value, 27)) * _MIX_2
    return value ^ _shift(value, 31)


def _shift(value: Tensor, count: int) -> Tensor:
    """Logical shift right: torch's shift is arithmetic and copies the sign bit."""
    return (value >> count) & ((1 << (64 - count)) - 1)
