"""What the codes of --weights stand for, in NumPy: int8, int4 and nf4 as llmc/adapt/weight_codes.h describes them."""
import re

import numpy as np

from files import ROOT

FORMATS = ("none", "int8", "int4", "nf4")  # numbers of the field BESIDE_AT of an adapter's header
BESIDE_AT = 13
BLOCK, INT4_BLOCK, GROUP = 64, 32, 256


def nf4_levels():
    header = (ROOT / "llmc/adapt/weight_codes.h").read_text(encoding="utf-8")
    return np.array(re.findall(r"^    (-?[\d.]+)f,$", header, re.M), "<f4")


def scale_values():
    """The dynamic code of 8 bits: in each of 7 decades the middles of 1, 2, 4, ... equal parts."""
    positive = [10.0 ** (i - 6) * (0.1 + 0.9 * (j + 0.5) / 2 ** i) for i in range(7) for j in range(2 ** i)]
    return np.array(sorted([0.0, 1.0, *positive, *(-value for value in positive)]), "<f4")


def nearest(values, table):
    """The numbers of the table's elements, which rise, that are nearest to values."""
    return np.searchsorted((table[1:] + table[:-1]) / 2, values)


def inverse(scale):
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def nf4_codes(weights):
    """Codes (blocks, 64) of a matrix, codes of the blocks' scales, their mean, and scales of groups of 256 of them."""
    blocks = np.pad(weights, ((0, 0), (0, -weights.shape[1] % BLOCK))).reshape(-1, BLOCK)
    scales = np.abs(blocks).max(1)
    codes = nearest(blocks * inverse(scales)[:, None], nf4_levels())
    mean = np.float32(scales.astype("f8").mean())
    groups = np.pad(scales - mean, (0, -scales.size % GROUP)).reshape(-1, GROUP)
    group_scales = np.abs(groups).max(1)
    scale_codes = nearest(groups * inverse(group_scales)[:, None], scale_values()).ravel()[:scales.size]
    return codes, scale_codes, mean, group_scales


def from_nf4(codes, scale_codes, mean, group_scales):
    scales = scale_values()[scale_codes].astype("f8") * np.repeat(group_scales, GROUP)[:scale_codes.size] + mean
    return nf4_levels()[codes] * scales.astype("<f4")[:, None]


def decoded(weights, name):
    """The fp32 numbers that the codes of a matrix (rows, C) in fp32 stand for."""
    rows, C = weights.shape
    if name == "nf4":
        return from_nf4(*nf4_codes(weights)).reshape(rows, -1)[:, :C]
    if name == "int8":
        scale = np.abs(weights).max(1, keepdims=True) / np.float32(127)
        return np.rint(weights * inverse(scale)) * scale
    if name == "int4":
        blocks = np.pad(weights, ((0, 0), (0, -C % INT4_BLOCK))).reshape(-1, INT4_BLOCK)
        extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
        scale = extreme / np.float32(-8)
        codes = np.minimum(np.trunc(blocks * inverse(scale) + np.float32(8.5)), 15)
        return ((codes - 8) * scale.astype("<f2").astype("<f4")).reshape(rows, -1)[:, :C]
    return weights
