"""Triton kernels of a training step and of a prediction, for a ResNet with a SiLU expansion.

A program takes a tile of rows of one member through all layers. Its parameters lie in one row of an arena (`arena.py`);
the places of those whose shapes do not depend on the table are constants of the kernel. `docs/engine.md` shows the
tiling; `gp/` has the same formulas in PyTorch, and is the reference.
"""

import triton
import triton.language as tl

from deepbasis.engine.fused.machine import hopper, interpreted
from deepbasis.gp.norms import NORM_EPSILON

# An embedding has 8 waves a column, of which 3 numbers are made. 8 columns are taken at a time: 64 waves, 24 numbers
# filled up to 32. They are written out, since a constant of this file is no number in Triton's interpreter.
_PLAIN = tl.constexpr(16)  # columns at a time of the table itself
_TURN = tl.constexpr(6.283185307179586)
_NORM_EPSILON = tl.constexpr(NORM_EPSILON)
_ASSEMBLER = tl.constexpr(not interpreted())  # Triton's interpreter has none
# One instruction since Hopper; before it there is only a rounding of halves away from 0, which is four everywhere.
_TO_TF32 = tl.constexpr(f"cvt.{'rn' if hopper() else 'rna'}.tf32.f32 $0, $1;")


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a b, summed in float32; "tf32x3" is as exact as float32."""
    if PRECISION == "bf16":
        result = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    elif PRECISION == "tf32":
        result = tl.dot(_tf32(a), _tf32(b), input_precision="tf32")
    else:
        result = tl.dot(a, b, input_precision=PRECISION)
    return result


@triton.jit
def _tf32(a):
    """Rounded to the nearest: the unit itself cuts off, always towards 0, which adds up."""
    if _ASSEMBLER:
        rounded = tl.inline_asm_elementwise(_TO_TF32, "=f,f", [a], tl.float32, True, 1)
    else:
        rounded = ((a.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        rounded = tl.where(a == a, rounded, float("nan"))  # the bits of a NaN may overflow, to those of 0
    return rounded


@triton.jit
def sigmoid(u):
    """In four instructions, within three units in the last place: Triton's own, with its division, are eleven."""
    if _ASSEMBLER:
        result = tl.inline_asm_elementwise(
            "{.reg .f32 t; mul.f32 t, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3F800000;"
            "rcp.approx.ftz.f32 $0, t;}", "=f,f", [u], tl.float32, True, 1)  # fmt: skip
    else:
        result = tl.sigmoid(u)
    return result


@triton.jit
def silu_slope(u):
    """(silu(u), its derivative)."""
    s = sigmoid(u)
    a = u * s
    return a, s + a - a * s


@triton.jit
def normalised(g, H: tl.constexpr):
    centred = g - (tl.sum(g, 1) / H)[:, None]
    scale = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 1) / H + _NORM_EPSILON)
    return centred * scale[:, None], scale


@triton.jit
def normalised_back(slope, unit, scale, H: tl.constexpr):
    """From the gradient in the normalised rows to that in the rows: what changes their mean or length has none."""
    mean = tl.sum(slope, 1) / H
    along = tl.sum(slope * unit, 1) / H
    return (slope - mean[:, None] - unit * along[:, None]) * scale[:, None]


@triton.jit
def matrix(start, rows, columns, stride):
    """Elements [rows, columns] of a matrix with this many numbers in a row; or of its transpose, by turning both."""
    return tl.load(start + rows[:, None] * stride + columns[None, :])


@triton.jit
def transposed(start, rows, columns, stride):
    return tl.load(start + columns[None, :] * stride + rows[:, None])


@triton.jit
def add(place, values, more):
    """Values to a program's gradients: in place of what is there or, if it has had a tile before, added to it.

    `more` is None if a program has one tile alone: each load that is not there saves its share of the compilation.
    """
    if more is None:
        tl.store(place, values)
    else:
        tl.store(place, values + tl.load(place, mask=more, other=0.0))


@triton.jit
def _add_some(place, values, present, more):
    if more is None:
        tl.store(place, values, mask=present)
    else:
        tl.store(place, values + tl.load(place, mask=present & more, other=0.0), mask=present)


# ---- the input layer ------------------------------------------------------------------------------------------------


@triton.jit
def batch_rows(
    order, weights, mask, step, e, members, tile, batch, n, mask_step, mask_member,
    ROWS: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    """Of a tile of a member's batch: the rows' numbers and their weights.

    WEIGHTS is 0 for none, 1 for a weight of each row, 2 for those of each member.
    """
    now = tl.load(step)
    place = tile * ROWS + tl.arange(0, ROWS)
    there = place < batch
    index = tl.load(order + (now * members + e) * batch + place, mask=there, other=0)
    weight = tl.load(mask + now * mask_step + e * mask_member + place, mask=there, other=0.0)
    if WEIGHTS > 0:
        weight *= tl.load(weights + (e * n if WEIGHTS == 2 else 0) + index, mask=there, other=0.0)
    return index, weight


@triton.jit
def whole_weight(
    order, weights, mask, step, e, members, batch, n, mask_step, mask_member,
    SOME: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    """The sum of all weights of a member's batch, SOME at a time."""
    whole = tl.zeros([SOME], tl.float32)
    for at in range(0, batch, SOME):
        _, weight = batch_rows(order, weights, mask, step, e, members, at // SOME, batch, n, mask_step, mask_member,
                               SOME, WEIGHTS)  # fmt: skip
        whole += weight
    return tl.sum(whole)


@triton.jit
def _plain_columns(x, index, d, at):
    column = at + tl.arange(0, _PLAIN)
    there = column < d
    return tl.load(x + index[:, None] * d + column[None, :], mask=there[None, :], other=0.0), column, there


@triton.jit
def _cos_and_sin(turn):
    """Of 2 pi `turn`, within 2e-7: half turns are taken off first, then two polynomials in [-1/4, 1/4].

    Those of CUDA's library have a branch for arguments of any size, which costs registers and memory.
    """
    half = tl.floor(2.0 * turn + 0.5)
    r = turn - 0.5 * half
    sign = 1.0 - 2.0 * (half - 2.0 * tl.floor(0.5 * half))
    u = r * r
    cos = 60.1439523 - 24.9818362 * u
    cos = 1.0 + u * (-19.7392085 + u * (64.9393466 + u * (-85.4535682 + u * cos)))
    sin = 42.0098057 - 14.3941355 * u
    sin = 6.28318531 + u * (-41.3417021 + u * (81.6052262 + u * (-76.7042813 + u * sin)))
    return sign * cos, sign * r * sin


@triton.jit
def _waves(w, x, index, d, at, waves, turns_at):
    """cos and sin of 2 pi (c x + b) for eight columns [rows, 64], the columns' values, and which waves there are."""
    k = tl.arange(0, 64)
    column = at + k // 8
    there = column < d
    value = tl.load(x + index[:, None] * d + column[None, :], mask=there[None, :], other=0.0)
    c = tl.load(w + waves + at * 8 + k, mask=there, other=0.0)
    b = tl.load(w + turns_at + at * 8 + k, mask=there, other=0.0)
    turn = value * c[None, :] + b[None, :]
    cos, sin = _cos_and_sin(turn)
    return cos, sin, value, there


@triton.jit
def _mixing(w, d, at, mixing):
    """W of eight columns as one matrix [64, 32] with a block for each column, and where each number of it lies."""
    k, q = tl.arange(0, 64), tl.arange(0, 32)
    own = (k // 8)[:, None] == (q // 3)[None, :]
    there = own & ((at + k // 8) < d)[:, None]
    place = mixing + (at * 8 + k)[:, None] * 3 + (q % 3)[None, :]
    return tl.load(w + place, mask=there, other=0.0), place, there


@triton.jit
def _behind(d, at):
    """The columns of the projection that take these numbers, and which of them there are."""
    q = tl.arange(0, 32)
    return d + at * 3 + q, (q < 24) & (at * 3 + q < d * 3)


@triton.jit
def input_layer(
    w, x, index, d, waved, bias, project, width, waves, turns_at, mixing,
    ROWS: tl.constexpr, H: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The projection of a tile's rows, and of what an embedding makes of them: g before the first block.

    An embedding is of `waved` columns: all, or none if there is no embedding.
    """
    h = tl.arange(0, H)
    g = tl.zeros([ROWS, H], tl.float32) + tl.load(w + bias + h)[None, :]
    for at in range(0, d, _PLAIN):
        values, column, there = _plain_columns(x, index, d, at)
        P = tl.load(w + project + h[None, :] * width + column[:, None], mask=there[:, None], other=0.0)
        g += product(values, P, PRECISION)
    for at in range(0, waved, 8):
        cos, _, _, _ = _waves(w, x, index, d, at, waves, turns_at)
        W, _, _ = _mixing(w, d, at, mixing)
        column, there = _behind(d, at)
        P = tl.load(w + project + h[None, :] * width + column[:, None], mask=there[:, None], other=0.0)
        g += product(product(cos, W, PRECISION), P, PRECISION)
    return g


@triton.jit
def input_layer_back(
    w, out, more, slope, x, index, d, waved, bias, project, width, waves, turns_at, mixing,
    H: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    h = tl.arange(0, H)
    add(out + bias + h, tl.sum(slope, 0), more)
    upright = tl.trans(slope)
    for at in range(0, d, _PLAIN):
        values, column, there = _plain_columns(x, index, d, at)
        place = out + project + h[:, None] * width + column[None, :]
        _add_some(place, product(upright, values, PRECISION), there[None, :], more)
    for at in range(0, waved, 8):
        cos, sin, value, there = _waves(w, x, index, d, at, waves, turns_at)
        W, place, present = _mixing(w, d, at, mixing)
        column, behind = _behind(d, at)
        numbers = product(cos, W, PRECISION)
        place_P = out + project + h[:, None] * width + column[None, :]
        _add_some(place_P, product(upright, numbers, PRECISION), behind[None, :], more)
        P = tl.load(w + project + h[:, None] * width + column[None, :], mask=behind[None, :], other=0.0)
        of_numbers = product(slope, P, PRECISION)
        _add_some(out + place, product(tl.trans(cos), of_numbers, PRECISION), present, more)
        of_turns = -_TURN * sin * product(of_numbers, tl.trans(W), PRECISION)
        k = at * 8 + tl.arange(0, 64)
        _add_some(out + waves + k, tl.sum(of_turns * value, 0), there, more)
        _add_some(out + turns_at + k, tl.sum(of_turns, 0), there, more)


@triton.jit
def sloped(x, index, slope, d, ROWS: tl.constexpr):
    """<slope, x>, the straight line in the prior mean."""
    total = tl.zeros([ROWS], tl.float32)
    for at in range(0, d, _PLAIN):
        values, column, there = _plain_columns(x, index, d, at)
        total += tl.sum(values * tl.load(slope + column, mask=there, other=0.0)[None, :], 1)
    return total


# ---- blocks ---------------------------------------------------------------------------------------------------------


@triton.jit
def blocks(
    g, w, kept, count, inner, KEEP: tl.constexpr, ROWS: tl.constexpr, H: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """g after the blocks. With KEEP the g before each, and the last, are written to `kept`.

    The ends of loops, `count` and `inner`, are no constants: unrolled they would be no faster, and compile for long.
    """
    block_size = 3 * H + inner + 2 * inner * H
    h, k = tl.arange(0, H), tl.arange(0, CHUNK)
    for i in range(count):
        if KEEP:
            keep(kept, i, g, ROWS, H)
        # a block lies as norm.weight, norm.bias, narrow.bias, widen.bias, widen.weight, narrow.weight
        b = w + i * block_size
        unit, _ = normalised(g, H)
        n = unit * tl.load(b + h)[None, :] + tl.load(b + H + h)[None, :]
        g += tl.load(b + 2 * H + h)[None, :]
        widen = b + 3 * H + inner
        for at in range(0, inner, CHUNK):
            u = product(n, transposed(widen, h, at + k, H), PRECISION) + tl.load(b + 3 * H + at + k)[None, :]
            g += product(u * sigmoid(u), transposed(widen + inner * H, at + k, h, inner), PRECISION)
    if KEEP:
        keep(kept, count, g, ROWS, H)
    return g


@triton.jit
def keep(kept, i, g, ROWS: tl.constexpr, H: tl.constexpr):
    tl.store(kept + (i * ROWS + tl.arange(0, ROWS))[:, None] * H + tl.arange(0, H)[None, :], g)


@triton.jit
def recall(kept, i, ROWS: tl.constexpr, H: tl.constexpr):
    """What was kept: registers are too few for it, and a cache is near."""
    return tl.load(kept + (i * ROWS + tl.arange(0, ROWS))[:, None] * H + tl.arange(0, H)[None, :])


@triton.jit
def blocks_back(
    slope, w, out, more, kept, count, inner, ROWS: tl.constexpr, H: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    block_size = 3 * H + inner + 2 * inner * H
    h, k = tl.arange(0, H), tl.arange(0, CHUNK)
    for back in range(count):
        i = count - 1 - back
        b, to = w + i * block_size, out + i * block_size
        unit, scale = normalised(recall(kept, i, ROWS, H), H)
        weight = tl.load(b + h)
        n = unit * weight[None, :] + tl.load(b + H + h)[None, :]
        add(to + 2 * H + h, tl.sum(slope, 0), more)
        widen = 3 * H + inner
        narrow = widen + inner * H
        of_n = tl.zeros([ROWS, H], tl.float32)
        upright = tl.trans(slope)
        for at in range(0, inner, CHUNK):
            W = matrix(b + widen, at + k, h, H)  # [chunk, H]
            u = product(n, tl.trans(W), PRECISION) + tl.load(b + 3 * H + at + k)[None, :]
            a, a_slope = silu_slope(u)
            add(to + narrow + h[:, None] * inner + (at + k)[None, :], product(upright, a, PRECISION), more)
            of_u = product(slope, matrix(b + narrow, h, at + k, inner), PRECISION) * a_slope
            add(to + 3 * H + at + k, tl.sum(of_u, 0), more)
            place = to + widen + (at + k)[:, None] * H + h[None, :]
            add(place, product(tl.trans(of_u), n, PRECISION), more)
            of_n += product(of_u, W, PRECISION)
        add(to + h, tl.sum(of_n * unit, 0), more)
        add(to + H + h, tl.sum(of_n, 0), more)
        slope += normalised_back(of_n * weight[None, :], unit, scale, H)
    return slope
