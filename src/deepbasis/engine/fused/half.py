"""Tiles in float16 with a power of two beside them, for Triton: what the kernels of many members multiply and keep.

float16 has as many digits as tf32, and few exponents. So a tile is multiplied by the power of two by which its largest
number is just below float16's largest: digits are lost 2^-29 below that. With SPLIT what was rounded off is kept too,
as a second tile: three products are then as exact as float32.
"""

import triton
import triton.language as tl

from deepbasis.engine.fused.layers import whole_weight

_OF_TABLES = ["units", "members", "batch", "n", "mask_step", "mask_member"]  # no kernel is compiled anew for them


@triton.jit
def exponent(values):
    """That of the largest, in the bits of a float32, within 2^-86 to 2^100. A NaN is not the largest, and stays one."""
    bits = tl.max(tl.abs(values)).to(tl.int32, bitcast=True) & 0x7F800000
    return tl.minimum(tl.maximum(bits, 0x14800000), 0x71800000)


@triton.jit
def powers(bits):
    """2^(14 - exponent), and 1 over that."""
    up = (0x43000000 - bits + 0x43000000).to(tl.float32, bitcast=True)
    return up, (bits - 0x07000000).to(tl.float32, bitcast=True)


@triton.jit
def halves(scaled, SPLIT: tl.constexpr):
    high = scaled.to(tl.float16)
    low = high
    if SPLIT:
        low = (scaled - high.to(tl.float32)).to(tl.float16)
    return high, low


@triton.jit
def packed(values, bits, SPLIT: tl.constexpr):
    """In float16, for a largest with this exponent; what was rounded off, with SPLIT; what to multiply both by."""
    up, down = powers(bits)
    high, low = halves(values * up, SPLIT)
    return high, low, down


@triton.jit
def put(operands, scales, plane, row, high, low, down, rows, tile, tiles, second, T: tl.constexpr, WIDE: tl.constexpr,
        SPLIT: tl.constexpr):  # fmt: skip
    """A tile [ROWS, WIDE] to its planes of T columns; its low part lies `second` numbers behind."""
    column = tl.arange(0, WIDE)
    place = operands + ((plane + column // T)[None, :] * rows + row[:, None]) * T + (column % T)[None, :]
    tl.store(place, high)
    if SPLIT:
        tl.store(place + second, low)
    tl.store(scales + (plane + tl.arange(0, WIDE // T)) * tiles + tile, down)


@triton.jit
def take(operands, scales, plane, row, rows, tile, tiles, second, T: tl.constexpr, WIDE: tl.constexpr,
         SPLIT: tl.constexpr):  # fmt: skip
    """A tile as it was put: high, low, and what to multiply both by."""
    column = tl.arange(0, WIDE)
    place = operands + ((plane + column // T)[None, :] * rows + row[:, None]) * T + (column % T)[None, :]
    high = tl.load(place)
    low = high
    if SPLIT:
        low = tl.load(place + second)
    return high, low, tl.load(scales + plane * tiles + tile)


@triton.jit
def unpacked(high, low, down, SPLIT: tl.constexpr):
    values = high.to(tl.float32)
    if SPLIT:
        values += low.to(tl.float32)
    return values * down


@triton.jit
def weight_at(place, second, SPLIT: tl.constexpr):
    """High and low part of a weight. It is to be loaded a while before it is needed: nothing else hides the latency."""
    high = tl.load(place)
    low = high
    if SPLIT:
        low = tl.load(place + second)
    return high, low


@triton.jit
def half_product(high, low, weight, weight_low, SPLIT: tl.constexpr):
    """Of a tile and a weight in float16: both as they are, not yet times their scales."""
    if SPLIT:
        result = tl.dot(high, weight_low)
        result = tl.dot(low, weight, result)
        result = tl.dot(high, weight, result)
    else:
        result = tl.dot(high, weight)
    return result


@triton.jit(do_not_specialize=_OF_TABLES)
def prepare(
    parameters, weights, weight_scales, shifts, wholes, blocks, order, row_weights, mask, step, numbers, units, second,
    of_shifts, members, batch, n, mask_step, mask_member,
    WEIGHTS: tl.constexpr, SPLIT: tl.constexpr, T: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """A member's weights in float16, one block of T rows or columns a program: `operands.WeightPiece` says which.

    A norm's weights are taken into the matrix behind it, and its biases into that one's; the scales of the basis into
    L. Nothing is left to do for a tile of rows. The last program sums the weights of a member's batch.
    """
    unit, e = tl.program_id(0), tl.program_id(1)
    if unit == units:
        whole = whole_weight(order, row_weights, mask, step, e, members, batch, n, mask_step, mask_member, 512, WEIGHTS)
        tl.store(wholes + e, whole)
    else:
        wide = tl.load(blocks + unit * 9 + 2)
        if (H == T) | (wide == H):
            _prepare_weight(parameters, weights, weight_scales, shifts, blocks + unit * 9, unit, e, numbers, units,
                            second, of_shifts, SPLIT, T, H)  # fmt: skip
        else:
            _prepare_weight(parameters, weights, weight_scales, shifts, blocks + unit * 9, unit, e, numbers, units,
                            second, of_shifts, SPLIT, H, T)  # fmt: skip


@triton.jit
def _prepare_weight(
    parameters, weights, weight_scales, shifts, block, unit, e, numbers, units, second, of_shifts,
    SPLIT: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    w = parameters + e * numbers
    begin, row_size, columns = tl.load(block), tl.load(block + 1), tl.load(block + 3)
    norm, bias, shift_at = tl.load(block + 4), tl.load(block + 5), tl.load(block + 6)
    scale, diagonal = tl.load(block + 7), tl.load(block + 8)
    r, c = tl.arange(0, TALL), tl.arange(0, WIDE)
    i, j = r[:, None], c[None, :]
    inside = (j < columns) & ((scale < 0) | (i < WIDE))  # a part of L is square
    value = tl.load(w + begin + i * row_size + j, mask=inside, other=0.0)
    if diagonal >= 0:
        of_diagonal = tl.exp(tl.load(w + diagonal + r, mask=r < WIDE, other=0.0))
        value = tl.where(i > j, value, tl.where((i == j) & inside, of_diagonal[:, None], 0.0))
    if scale >= 0:
        value *= tl.load(w + scale + r, mask=r < WIDE, other=0.0)[:, None]
    if norm >= 0:  # then the norm is as wide as the block, and its biases lie behind its weights
        shift = tl.sum(value * tl.load(w + norm + WIDE + c)[None, :], 1)
        tl.store(shifts + e * of_shifts + shift_at + r, shift + tl.load(w + bias + r))
        value *= tl.load(w + norm + c)[None, :]
    high, low, down = packed(value, exponent(value), SPLIT)
    place = weights + (e.to(tl.int64) * units + unit) * (TALL * WIDE) + i * WIDE + j
    tl.store(place, high)
    if SPLIT:
        tl.store(place + second, low)
    tl.store(weight_scales + e * units + unit, down)
