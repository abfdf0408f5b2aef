"""Values of narrow codes inside kernels, by arithmetic on bits: no table, and no fp8 or fp4 in hardware.

e4m3: sign, exponent and mantissa are moved into an fp32 and re-biased by 2^120.
e2m1: the same with 2^126; both hold for codes whose exponent is 0, which are subnormal on the way.
"""

from .jit import jit, tl


@jit
def e4m3_value(codes):
    """Exact fp32 values of e4m3 bytes (uint8), NaN included."""
    bits = codes.to(tl.int32)
    value = (((bits & 0x7F) << 20) | ((bits & 0x80) << 24)).to(tl.float32, bitcast=True) * 1.329227995784916e36
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), value)


@jit
def e2m1_value(codes):
    """Exact fp32 values of e2m1 codes 0..15 (int32)."""
    return (((codes & 7) << 22) | ((codes & 8) << 28)).to(tl.float32, bitcast=True) * 8.507059173023462e37


@jit
def e4m3_code(ratio):
    """Code of each fp32 value of magnitude up to 448, ties to even, as uint8; 0x7F or 0xFF for NaN.

    A value of exponent e (-6 where it is below) lies on a grid of steps 2^(e-3).
    """
    bits = ratio.to(tl.int32, bitcast=True)
    power = tl.maximum((bits >> 23) & 0xFF, 121)  # of 2^-6, below which steps stop shrinking
    magic = (((power + 20) << 23) | 0x400000).to(tl.float32, bitcast=True)  # 1.5 * 2^(e+20): its last bit is a step
    rounded = tl.abs((ratio + magic) - magic)
    whole = rounded.to(tl.int32, bitcast=True)
    code = tl.where(rounded < 0.015625, (rounded * 512).to(tl.int32), (whole >> 20) - 960)
    code = tl.where(ratio == ratio, code, 0x7F)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
