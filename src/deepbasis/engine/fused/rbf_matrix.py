"""K_ZZ of many members, for Triton: its inverse Cholesky factor, and the gradients in the kernel's own parameters.

The plain way is `gp/expansion.py`. K_ZZ and its factor are in float64: they decide a variance.
"""

import sys

import triton
import triton.language as tl

from deepbasis.engine.fused.half import exponent, half_product, packed, weight_at

_EPSILON = tl.constexpr(sys.float_info.epsilon)


@triton.jit
def _points(w, expansion, R: tl.constexpr, H: tl.constexpr):
    """The inducing points in lengthscales from their middle, the middle, and 1 over the lengthscales."""
    r, h = tl.arange(0, R), tl.arange(0, H)
    Z = tl.load(w + expansion + r[:, None] * H + h[None, :])
    middle = tl.sum(Z, 0) / R
    inverse = tl.exp(-tl.load(w + expansion + R * H + h))
    return (Z - middle[None, :]) * inverse[None, :], middle, inverse


@triton.jit
def kernel_matrix(
    parameters, matrices, factors, factor_scales, frames, numbers, expansion, jitter, second,
    T: tl.constexpr, H: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """A part [T, T] of K_ZZ, its lower triangle turned; on the diagonal also the points in float16 and their frame."""
    part, e = tl.program_id(0), tl.program_id(1)
    parts: tl.constexpr = R // T
    pieces: tl.constexpr = parts + parts * (parts + 1) // 2
    w = parameters + e * numbers
    i, j = (part + 1) // 2, part // 2  # of one or two parts
    r, h, t = tl.arange(0, R), tl.arange(0, H), tl.arange(0, T)
    b, middle, inverse = _points(w, expansion, R, H)
    norms, bits = tl.sum(b * b, 1), exponent(b)
    rows, columns = w + expansion + (i * T + t) * H, w + expansion + (j * T + t) * H
    distance = tl.zeros([T, T], tl.float64)
    for at in tl.range(0, H, loop_unroll_factor=4):  # loads that do not wait for each other
        scale = tl.exp(-tl.load(w + expansion + R * H + at)).to(tl.float64)
        left, right = tl.load(rows + at).to(tl.float64) * scale, tl.load(columns + at).to(tl.float64) * scale
        difference = right[:, None] - left[None, :]
        distance += difference * difference
    variance = tl.exp(tl.load(w + expansion + R * H + H)).to(tl.float64)
    K = variance * tl.exp(-0.5 * distance)
    on = (j * T + t)[:, None] == (i * T + t)[None, :]
    # beside the jitter what the plain way, which takes distances by products, adds for their rounding
    K += tl.where(on, variance * (jitter + tl.max(norms, 0).to(tl.float64) * _EPSILON * R), 0.0)
    tl.store(matrices + e * R * R + (j * T + t)[:, None] * R + (i * T + t)[None, :], K)
    if i == j:
        frames += e * (2 * H + R)
        tl.store(frames + h, middle)  # by both programs, the same
        tl.store(frames + H + h, inverse)
        tl.store(frames + 2 * H + r, norms)
        Z = tl.load(rows[:, None] + h[None, :])
        high, low, down = packed((Z - middle[None, :]) * inverse[None, :], bits, True)
        place = factors + (e * pieces + i) * (T * H) + t[:, None] * H + h[None, :]
        tl.store(place, high)
        tl.store(place + second, low)
        tl.store(factor_scales + e * pieces + i, down)


@triton.jit
def _four_pivots(square, multipliers, first, SOME: tl.constexpr):
    """Of a symmetric matrix: what its four rows from `first` on take off all others. Every thread finds all pivots."""
    c = tl.arange(0, SOME)
    corner = square + first * SOME + first
    row_0, row_1 = tl.load(square + first * SOME + c), tl.load(square + (first + 1) * SOME + c)
    row_2, row_3 = tl.load(square + (first + 2) * SOME + c), tl.load(square + (first + 3) * SOME + c)
    d_01, d_02, d_03 = tl.load(corner + 1), tl.load(corner + 2), tl.load(corner + 3)
    d_11, d_12, d_13 = tl.load(corner + SOME + 1), tl.load(corner + SOME + 2), tl.load(corner + SOME + 3)
    d_22, d_23 = tl.load(corner + 2 * SOME + 2), tl.load(corner + 2 * SOME + 3)
    d_33 = tl.load(corner + 3 * SOME + 3)
    pivot_0 = tl.rsqrt(tl.load(corner))
    m_1, m_2, m_3 = d_01 * pivot_0 * pivot_0, d_02 * pivot_0 * pivot_0, d_03 * pivot_0 * pivot_0
    row_1, row_2, row_3 = row_1 - row_0 * m_1, row_2 - row_0 * m_2, row_3 - row_0 * m_3
    d_11, d_12, d_13 = d_11 - d_01 * m_1, d_12 - d_01 * m_2, d_13 - d_01 * m_3
    d_22, d_23, d_33 = d_22 - d_02 * m_2, d_23 - d_02 * m_3, d_33 - d_03 * m_3
    pivot_1 = tl.rsqrt(d_11)
    m_2, m_3 = d_12 * pivot_1 * pivot_1, d_13 * pivot_1 * pivot_1
    row_2, row_3 = row_2 - row_1 * m_2, row_3 - row_1 * m_3
    d_22, d_23, d_33 = d_22 - d_12 * m_2, d_23 - d_12 * m_3, d_33 - d_13 * m_3
    pivot_2 = tl.rsqrt(d_22)
    m_3 = d_23 * pivot_2 * pivot_2
    row_3 -= row_2 * m_3
    pivot_3 = tl.rsqrt(d_33 - d_23 * m_3)
    row_0, row_1, row_2, row_3 = row_0 * pivot_0, row_1 * pivot_1, row_2 * pivot_2, row_3 * pivot_3
    _put_multipliers(multipliers, first, row_0, pivot_0, SOME)
    _put_multipliers(multipliers, first + 1, row_1, pivot_1, SOME)
    _put_multipliers(multipliers, first + 2, row_2, pivot_2, SOME)
    _put_multipliers(multipliers, first + 3, row_3, pivot_3, SOME)
    taken = row_0[:, None] * row_0[None, :] + row_1[:, None] * row_1[None, :]
    return taken + row_2[:, None] * row_2[None, :] + row_3[:, None] * row_3[None, :]


@triton.jit
def _put_multipliers(multipliers, s, row, pivot, SOME: tl.constexpr):
    c = tl.arange(0, SOME)
    tl.store(multipliers + s * (SOME + 1) + c, tl.where(c > s, row * pivot, 0.0))
    tl.store(multipliers + s * (SOME + 1) + SOME, pivot)


@triton.jit
def inverse_root(
    matrices, columns, diagonals, multipliers, factors, factor_scales, second,
    T: tl.constexpr, R: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """The inverse root of K_ZZ, a member a program: SOME columns of the Cholesky factor L at a time.

    What turns the columns of K_ZZ into those of L turns the identity, which lies below it, into L^-T: [K; I] L^-T =
    [L; L^-T]. So `columns` [R, 2 R] are, one a row, the columns of L and behind each a row of L^-1. By which numbers
    columns are subtracted from those behind them comes from the SOME rows on the diagonal, which are taken first, four
    pivots at a time; then each thread has rows of its own. SOME divides T, since a diagonal part of K_ZZ is there as a
    whole. If K_ZZ is not positive definite, the rows of L^-1 from the failing pivot on are NaN.
    """
    e = tl.program_id(0)
    parts: tl.constexpr = R // T
    pieces: tl.constexpr = parts + parts * (parts + 1) // 2
    matrices += e * R * R
    columns += e * 2 * R * R
    diagonals += e * 2 * SOME * SOME
    multipliers += e * SOME * (SOME + 1)
    i, c, t = tl.arange(0, 2 * R), tl.arange(0, SOME), tl.arange(0, T)
    for block in range(R // SOME):
        at = block * SOME
        there = (i >= at) & (i < R)
        diagonal = tl.load(matrices + (at + c)[None, :] * R + (at + c)[:, None])
        values = tl.load(matrices + (at + c)[None, :] * R + i[:, None], mask=there[:, None], other=0.0)
        values += tl.where(i[:, None] == (R + at + c)[None, :], 1.0, 0.0).to(tl.float64)
        values, diagonal = -values, -diagonal  # a sum has one instruction less than a difference
        for p in tl.range(0, at, loop_unroll_factor=16):  # loads that do not wait for each other
            of_block = tl.load(columns + p * 2 * R + at + c)
            diagonal += of_block[:, None] * of_block[None, :]
            values += tl.load(columns + p * 2 * R + i)[:, None] * of_block[None, :]
        values, diagonal = -values, -diagonal
        for first in range(0, SOME, 4):
            square = diagonals + (first // 4 % 2) * SOME * SOME  # in turns: the one before may still be read
            tl.store(square + c[:, None] * SOME + c[None, :], diagonal)
            tl.debug_barrier()  # what one thread has written, another reads
            diagonal -= _four_pivots(square, multipliers, first, SOME)
        tl.debug_barrier()
        for s in range(SOME):
            row = tl.load(multipliers + s * (SOME + 1) + c)
            column = tl.sum(tl.where(c[None, :] == s, values, 0.0), 1)
            values -= column[:, None] * row[None, :]
            column *= tl.load(multipliers + s * (SOME + 1) + SOME)
            tl.store(columns + (at + s) * 2 * R + i, tl.where(i >= at + s, column, 0.0))
        tl.debug_barrier()
    for row in tl.static_range(parts):
        for column in tl.static_range(row + 1):
            rows, place = (row * T + t)[:, None], (column * T + t)[None, :]
            value = tl.load(columns + rows * 2 * R + R + place).to(tl.float32)
            high, low, down = packed(value, exponent(value), True)
            unit = e * pieces + parts + row * (row + 1) // 2 + column
            tl.store(factors + unit * (T * T) + t[:, None] * T + t[None, :], high)
            tl.store(factors + second + unit * (T * T) + t[:, None] * T + t[None, :], low)
            tl.store(factor_scales + unit, down)


@triton.jit
def _times(high, low, down, factors, factor_scales, second, unit, TURNED: tl.constexpr, T: tl.constexpr):
    """A tile times a factor, or the factor's transpose."""
    k = tl.arange(0, T)
    place = k[None, :] * T + k[:, None] if TURNED else k[:, None] * T + k[None, :]
    W, W_low = weight_at(factors + unit * (T * T) + place, second, True)
    return half_product(high, low, W, W_low, True) * (down * tl.load(factor_scales + unit))


@triton.jit
def _turned_times(factors, factor_scales, second, unit, high, low, down, T: tl.constexpr):
    """A factor's transpose times a tile."""
    k = tl.arange(0, T)
    W, W_low = weight_at(factors + unit * (T * T) + k[None, :] * T + k[:, None], second, True)
    return half_product(W, W_low, high, low, True) * (down * tl.load(factor_scales + unit))


@triton.jit
def _half(product, T: tl.constexpr):
    """Minus the lower triangle with half of the diagonal."""
    i, j = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    half = tl.where(i > j, -product, tl.where(i == j, -0.5 * product, 0.0))
    return packed(half, exponent(half), True)


@triton.jit
def _off_diagonal(of_K, matrices, part, R: tl.constexpr, T: tl.constexpr):
    """What the distances of a diagonal part get through both of its halves: (of_K + of_K^T) K, but for the diagonal."""
    i, j = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    K = tl.load(matrices + (part * T + i) * R + part * T + j).to(tl.float32)
    return tl.where(i == j, 0.0, (of_K + tl.trans(of_K)) * K)


@triton.jit
def _to_points(
    w, out, of_b, along, of_points, of_logs, frames, part, expansion, R: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """The gradient in a part of Z, of what K_ZZ gives and what k_Z does; and the sums of of_b b.

    d log k / d b_i = a - b_i, summed over all a: of_b are the sums of a, and `along` how often b_i is taken off.
    """
    t, h = tl.arange(0, T), tl.arange(0, T)
    inverse = tl.load(frames + T + h)[None, :]
    place = expansion + (part * T + t)[:, None] * T + h[None, :]
    b = (tl.load(w + place) - tl.load(frames + h)[None, :]) * inverse
    of_b += tl.load(of_points + (part * T + t)[:, None] * T + h[None, :])
    of_b -= (along + tl.load(of_logs + part * T + t))[:, None] * b
    tl.store(out + place, of_b * inverse)
    return tl.sum(of_b * b, 0)


@triton.jit(do_not_specialize=["tiles"])
def kernel_gradients(
    parameters, gradients, matrices, factors, factor_scales, of_roots, of_root_scales, of_points, of_logs, moments,
    frames, numbers, tiles, expansion, second, second_of_roots, T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """From the gradients in R, in log k_Z and in the features to those in Z, lengthscales and variance: a member each.

    With dR = -half(R dK R^T) R, as in `gp/expansion.py`: of_K = -R^T half(of_R R^T) R. How far the middle is from the
    points changes nothing; and since phi is proportional to the root of the variance, that of its logarithm is half of
    the sum of of_phi phi.
    """
    e = tl.program_id(0)
    parts: tl.constexpr = R // T
    pieces: tl.constexpr = parts + parts * (parts + 1) // 2
    w, out = parameters + e * numbers, gradients + e * numbers
    matrices += e * R * R
    factors += e * pieces * (T * T)
    factor_scales += e * pieces
    of_roots += e * (pieces - parts) * (T * T)
    of_root_scales += e * (pieces - parts)
    of_points += e * R * T
    of_logs += e * R
    frames += e * (2 * T + R)
    t, h = tl.arange(0, T), tl.arange(0, T)
    lies = t[:, None] * T + t[None, :]
    high, low = weight_at(of_roots + lies, second_of_roots, True)
    down = tl.load(of_root_scales)
    high, low, down = _half(_times(high, low, down, factors, factor_scales, second, parts, True, T), T)
    back = _times(high, low, down, factors, factor_scales, second, parts, False, T)
    high, low, down = packed(back, exponent(back), True)
    of_K = _turned_times(factors, factor_scales, second, parts, high, low, down, T)
    if R > T:
        high, low = weight_at(of_roots + T * T + lies, second_of_roots, True)
        down = tl.load(of_root_scales + 1)
        below = -_times(high, low, down, factors, factor_scales, second, parts, True, T)
        last = _times(high, low, down, factors, factor_scales, second, parts + 1, True, T)
        high, low = weight_at(of_roots + 2 * T * T + lies, second_of_roots, True)
        down = tl.load(of_root_scales + 2)
        last += _times(high, low, down, factors, factor_scales, second, parts + 2, True, T)
        high, low, down = packed(below, exponent(below), True)
        below = _times(high, low, down, factors, factor_scales, second, parts, False, T)
        high, low, down = _half(last, T)
        below += _times(high, low, down, factors, factor_scales, second, parts + 1, False, T)
        last = _times(high, low, down, factors, factor_scales, second, parts + 2, False, T)
        high, low, down = packed(below, exponent(below), True)
        of_K += _turned_times(factors, factor_scales, second, parts + 1, high, low, down, T)
        below = _turned_times(factors, factor_scales, second, parts + 2, high, low, down, T)
        high, low, down = packed(last, exponent(last), True)
        below += tl.trans(_turned_times(factors, factor_scales, second, parts + 1, high, low, down, T))
        last = _turned_times(factors, factor_scales, second, parts + 2, high, low, down, T)
    C = _off_diagonal(of_K, matrices, 0, R, T)
    along = tl.sum(C, 1)
    high, low, down = packed(C, exponent(C), True)
    of_b = _times(high, low, down, factors, factor_scales, second, 0, False, T)
    of_lengthscale = tl.zeros([T], tl.float32)
    if R > T:
        C = below * tl.load(matrices + t[None, :] * R + (T + t)[:, None]).to(tl.float32)
        along += tl.sum(C, 0)
        more = tl.sum(C, 1)
        high, low, down = packed(C, exponent(C), True)
        of_b += _times(tl.trans(high), tl.trans(low), down, factors, factor_scales, second, 1, False, T)
        behind = _times(high, low, down, factors, factor_scales, second, 0, False, T)
        C = _off_diagonal(last, matrices, 1, R, T)
        more += tl.sum(C, 1)
        high, low, down = packed(C, exponent(C), True)
        behind += _times(high, low, down, factors, factor_scales, second, 1, False, T)
        of_lengthscale -= _to_points(w, out, behind, more, of_points, of_logs, frames, 1, expansion, R, T)
    of_lengthscale -= _to_points(w, out, of_b, along, of_points, of_logs, frames, 0, expansion, R, T)
    of_variance, r = tl.zeros([R], tl.float32), tl.arange(0, R)
    for tile in tl.range(0, tiles, loop_unroll_factor=4):
        of_lengthscale -= tl.load(moments + (e * tiles + tile) * (T + R) + h)
        of_variance += tl.load(moments + (e * tiles + tile) * (T + R) + T + r)
    tl.store(out + expansion + R * T + h, of_lengthscale)
    tl.store(out + expansion + R * T + T, 0.5 * tl.sum(of_variance))
