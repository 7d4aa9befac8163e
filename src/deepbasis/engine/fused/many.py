"""The kernels of a step for many members: forward, backward, then every weight's gradient as one product over the rows.

What a product takes, activations and the gradients in them, lies in planes of T columns, one behind the other
(`operands.py`), in float16: it has as many digits as tf32. A tile's numbers are multiplied by a power of two, by which
the largest is just below float16's largest, and which is kept beside them: digits are lost 2^-29 below the largest.
SPLIT is whether what was rounded off lies in a second set of planes, for products as exact as float32.
"""

import triton
import triton.language as tl

from deepbasis.engine.fused.head import columns_of_L, fit
from deepbasis.engine.fused.layers import matrix, normalised, normalised_back, product, sigmoid, silu_slope, transposed
from deepbasis.engine.fused.tiles import batch_rows

# What differs from table to table: no kernel is compiled anew for it.
_OF_TABLES = ["members", "batch", "n", "d", "tiles", "rows", "mask_step", "mask_member", "width", "count", "planes"]


@triton.jit
def _exponent(values):
    """That of the largest, in the bits of a float32, within 2^-86 to 2^100. A NaN is not the largest, and stays one."""
    bits = tl.max(tl.abs(values)).to(tl.int32, bitcast=True) & 0x7F800000
    return tl.minimum(tl.maximum(bits, 0x14800000), 0x71800000)


@triton.jit
def _put(operands, scales, plane, row, values, bits, rows, tile, tiles, low, T: tl.constexpr, WIDE: tl.constexpr,
         SPLIT: tl.constexpr):  # fmt: skip
    """A tile of values [ROWS, WIDE] to its planes, and its scale, for a largest number with this exponent."""
    up = (0x43000000 - bits + 0x43000000).to(tl.float32, bitcast=True)  # 2^(14 - exponent)
    down = (bits - 0x07000000).to(tl.float32, bitcast=True)
    column = tl.arange(0, WIDE)
    place = operands + ((plane + column // T)[None, :] * rows + row[:, None]) * T + (column % T)[None, :]
    scaled = values * up
    high = scaled.to(tl.float16)
    tl.store(place, high)
    if SPLIT:
        tl.store(place + low, (scaled - high.to(tl.float32)).to(tl.float16))
    tl.store(scales + (plane + tl.arange(0, WIDE // T)) * tiles + tile, down)


@triton.jit
def _take(operands, scales, plane, row, rows, tile, tiles, low, T: tl.constexpr, WIDE: tl.constexpr,
          SPLIT: tl.constexpr):  # fmt: skip
    column = tl.arange(0, WIDE)
    place = operands + ((plane + column // T)[None, :] * rows + row[:, None]) * T + (column % T)[None, :]
    values = tl.load(place).to(tl.float32)
    if SPLIT:
        values += tl.load(place + low).to(tl.float32)
    return values * tl.load(scales + plane * tiles + tile)


@triton.jit(do_not_specialize=_OF_TABLES)
def forward(
    parameters, operands, scales, by_row, vectors, sums, x, y, slope, order, weights, mask, step, steps_done, alphas,
    found, place_found, numbers, members, batch, n, d, tiles, rows, mask_step, mask_member, planes, low, sums_of_tile,
    bias, project, width, norm, expansion, posterior, noise_at, mean_at, count, inner, rank, floor,
    ROWS: tl.constexpr, WEIGHTS: tl.constexpr, TRACE: tl.constexpr, EXPECTED: tl.constexpr, SPLIT: tl.constexpr,
    T: tl.constexpr, H: tl.constexpr, CHUNK: tl.constexpr, R: tl.constexpr, PART: tl.constexpr,
    PRECISION: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """A tile of a member's rows through all layers to the loss, and to the gradient in L^T phi."""
    tile, e = tl.program_id(0), tl.program_id(1)
    if (e == 0) & (tile == 0):  # no program of this kernel reads it
        tl.store(steps_done, tl.load(steps_done) + 1)
    w = parameters + e * numbers
    operands += e.to(tl.int64) * planes * rows * T
    scales += e * planes * tiles
    by_row += e * (count + 3) * rows
    row = tile * ROWS + tl.arange(0, ROWS)
    h, k, r = tl.arange(0, H), tl.arange(0, CHUNK), tl.arange(0, R)
    index, weight, whole = batch_rows(order, weights, mask, step, e, members, tile, batch, n, mask_step, mask_member,
                                      ROWS, WEIGHTS)  # fmt: skip
    present = weight > 0.0
    weight = weight / whole
    of_units = tl.full([], 0x41000000, tl.int32)  # 8: the root of the width, of up to 128, is below 16
    line = tl.zeros([ROWS], tl.float32)
    g = tl.zeros([ROWS, H], tl.float32) + tl.load(w + bias + h)[None, :]
    plane = 0
    for at in range(0, d, T):
        column = at + tl.arange(0, T)
        values = tl.load(x + index[:, None] * d + column[None, :], mask=(column < d)[None, :], other=0.0)
        P = tl.load(w + project + h[None, :] * width + column[:, None], mask=(column < d)[:, None], other=0.0)
        _put(operands, scales, plane, row, values, _exponent(values), rows, tile, tiles, low, T, T, SPLIT)
        line += tl.sum(values * tl.load(slope + e * d + column, mask=column < d, other=0.0)[None, :], 1)
        g += product(values, P, PRECISION)
        plane += 1
    for i in range(count):
        # a block lies as norm.weight, norm.bias, narrow.bias, widen.bias, widen.weight, narrow.weight
        b = w + i * (3 * H + inner + 2 * inner * H)
        unit, scale = normalised(g, H)
        tl.store(by_row + i * rows + row, scale)
        _put(operands, scales, plane, row, unit, of_units, rows, tile, tiles, low, T, H, SPLIT)
        plane += H // T
        of_inner = inner // T
        unit = unit * tl.load(b + h)[None, :] + tl.load(b + H + h)[None, :]
        g += tl.load(b + 2 * H + h)[None, :]
        widen = b + 3 * H + inner
        for at in range(0, inner, CHUNK):
            u = product(unit, transposed(widen, h, at + k, H), PRECISION) + tl.load(b + 3 * H + at + k)[None, :]
            bits = _exponent(u)
            _put(operands, scales, plane, row, u, bits, rows, tile, tiles, low, T, CHUNK, SPLIT)
            u = u * sigmoid(u)  # not larger
            _put(operands, scales, plane + of_inner, row, u, bits, rows, tile, tiles, low, T, CHUNK, SPLIT)
            g += product(u, transposed(widen + inner * H, at + k, h, inner), PRECISION)
            plane += CHUNK // T
        plane += 2 * of_inner + H // T
    unit, scale = normalised(g, H)
    tl.store(by_row + count * rows + row, scale)
    _put(operands, scales, plane, row, unit, of_units, rows, tile, tiles, low, T, H, SPLIT)
    s = unit * tl.load(w + norm + h)[None, :] + tl.load(w + norm + H + h)[None, :]
    s = s * sigmoid(s)
    plane += H // T
    _put(operands, scales, plane, row, s, _exponent(s), rows, tile, tiles, low, T, H, SPLIT)
    plane += H // T
    phi = product(s, transposed(w + expansion + 2 * R, h, r, H), HEAD) + tl.load(w + expansion + r)[None, :]
    _put(operands, scales, plane, row, phi, _exponent(phi), rows, tile, tiles, low, T, R, SPLIT)
    phi = phi * sigmoid(phi) * tl.load(w + expansion + R + r)[None, :]
    plane += R // T
    _put(operands, scales, plane, row, phi, _exponent(phi), rows, tile, tiles, low, T, R, SPLIT)
    plane += R // T
    m = tl.load(w + posterior + r)
    error = tl.load(y + index) - tl.load(w + mean_at) - tl.sum(phi * m[None, :], 1) - line
    v = product(phi, columns_of_L(w, 0, posterior, R, PART), HEAD)
    var = tl.sum(v * v, 1)
    if R > PART:  # a rank of up to 128, in parts of 64
        v_behind = product(phi, columns_of_L(w, PART, posterior, R, PART), HEAD)
        var += tl.sum(v_behind * v_behind, 1)
    raw = tl.load(w + noise_at)
    noise = floor + tl.exp(raw)
    rows_loss, of_error, of_var, of_noise = fit(error, var, noise, EXPECTED)
    loss, of_noise = tl.sum(weight * rows_loss), tl.sum(weight * of_noise)
    of_error = -weight * of_error  # the gradient in the mean
    of_var = 2.0 * weight * of_var
    v = v * of_var[:, None]
    _put(operands, scales, plane, row, v, _exponent(v), rows, tile, tiles, low, T, PART, SPLIT)
    if R > PART:
        of_v = v_behind * of_var[:, None]
        _put(operands, scales, plane + PART // T, row, of_v, _exponent(of_v), rows, tile, tiles, low, T, PART, SPLIT)
    if TRACE:
        prior = tl.sum(phi * phi, 1)
        pull = tl.load(alphas + e) / (2.0 * noise)
        part = pull * tl.sum(weight * prior)
        loss -= part
        of_noise += part / noise
        value, place = tl.max(tl.where(present, prior, float("-inf")), 0, return_indices=True)
        tl.store(found + e * tiles + tile, value)
        tl.store(place_found + e * tiles + tile, tile * ROWS + place)
    tl.store(by_row + (count + 1) * rows + row, of_error)
    tl.store(by_row + (count + 2) * rows + row, weight)
    vectors += (e * tiles + tile) * sums_of_tile
    tl.store(vectors + 2 * (count + 1) * H + R + r, tl.sum(of_error[:, None] * phi, 0))
    sums += (e * tiles + tile) * 4
    tl.store(sums, loss)
    tl.store(sums + 1, of_noise * tl.exp(raw))
    tl.store(sums + 2, tl.sum(of_error))


@triton.jit(do_not_specialize=_OF_TABLES)
def backward(
    parameters, operands, scales, by_row, vectors, alphas, found, place_found,
    numbers, tiles, rows, planes, low, sums_of_tile, first_plane, norm, expansion, posterior, noise_at, count, inner,
    rank, floor, ROWS: tl.constexpr, MOST_TILES: tl.constexpr, TRACE: tl.constexpr, THROUGH: tl.constexpr,
    SPLIT: tl.constexpr, T: tl.constexpr, H: tl.constexpr, CHUNK: tl.constexpr, R: tl.constexpr, PART: tl.constexpr,
    PRECISION: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """The gradients in a tile's activations, and the sums over the tile that no product gives.

    `first_plane` is that of the first block. Tiles are taken in the opposite order: the last are still in the cache.
    """
    tile, e = tl.num_programs(0) - 1 - tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    w = parameters + e * numbers
    operands += e.to(tl.int64) * planes * rows * T
    scales += e * planes * tiles
    by_row += e * (count + 3) * rows
    vectors += (e * tiles + tile) * sums_of_tile
    row = tile * ROWS + tl.arange(0, ROWS)
    h, k, p = tl.arange(0, H), tl.arange(0, CHUNK), tl.arange(0, PART)
    of_error = tl.load(by_row + (count + 1) * rows + row)
    of_prior = tl.zeros([ROWS], tl.float32)
    if TRACE:
        pull = tl.load(alphas + e) / (2.0 * (floor + tl.exp(tl.load(w + noise_at))))
        of_prior = -pull * tl.load(by_row + (count + 2) * rows + row)
        if THROUGH:
            q = tl.arange(0, MOST_TILES)
            each = tl.load(found + e * tiles + q, mask=q < tiles, other=float("-inf"))
            _, best = tl.max(each, 0, return_indices=True)
            of_prior += tl.where(row == tl.load(place_found + e * tiles + best), pull, 0.0)
    of_block = 2 * (H // T) + 3 * (inner // T)
    head = first_plane + count * of_block
    of_s = tl.zeros([ROWS, H], tl.float32)
    t_plane = head + 2 * (H // T)
    for at in range(0, rank, PART):
        of_phi = of_error[:, None] * tl.load(w + posterior + at + p)[None, :]
        for behind in range(0, at + PART, PART):  # L is lower triangular
            plane = t_plane + 2 * (R // T) + behind // T
            of_v = _take(operands, scales, plane, row, rows, tile, tiles, low, T, PART, SPLIT)
            i, j = (at + p)[None, :], (behind + p)[:, None]
            lower = tl.load(w + posterior + 2 * R + i * R + j)
            diagonal = tl.exp(tl.load(w + posterior + R + behind + p))
            L = tl.where(i > j, lower, tl.where(i == j, diagonal[:, None], 0.0))
            of_phi += product(of_v, L, HEAD)
        t = _take(operands, scales, t_plane + at // T, row, rows, tile, tiles, low, T, PART, SPLIT)
        act, act_slope = silu_slope(t)
        scale = tl.load(w + expansion + R + at + p)[None, :]
        of_phi += 2.0 * of_prior[:, None] * act * scale
        tl.store(vectors + 2 * (count + 1) * H + at + p, tl.sum(of_phi * act, 0))
        of_t = of_phi * scale * act_slope
        plane = t_plane + 3 * (R // T) + at // T
        _put(operands, scales, plane, row, of_t, _exponent(of_t), rows, tile, tiles, low, T, PART, SPLIT)
        of_s += product(of_t, matrix(w + expansion + 2 * R, at + p, h, H), HEAD)
    unit = _take(operands, scales, head, row, rows, tile, tiles, low, T, H, SPLIT)
    weight = tl.load(w + norm + h)[None, :]
    _, z_slope = silu_slope(unit * weight + tl.load(w + norm + H + h)[None, :])
    of_z = of_s * z_slope
    tl.store(vectors + 2 * count * H + h, tl.sum(of_z * unit, 0))
    tl.store(vectors + 2 * count * H + H + h, tl.sum(of_z, 0))
    slope = normalised_back(of_z * weight, unit, tl.load(by_row + count * rows + row), H)
    for back in range(count):
        b_index = count - 1 - back
        b = w + b_index * (3 * H + inner + 2 * inner * H)
        plane = first_plane + b_index * of_block
        u_plane = plane + H // T
        of_u_plane = u_plane + 2 * (inner // T)
        _put(operands, scales, of_u_plane + inner // T, row, slope, _exponent(slope), rows, tile, tiles, low, T, H, SPLIT)
        of_n = tl.zeros([ROWS, H], tl.float32)
        widen = b + 3 * H + inner
        for at in range(0, inner, CHUNK):
            u = _take(operands, scales, u_plane + at // T, row, rows, tile, tiles, low, T, CHUNK, SPLIT)
            _, u_slope = silu_slope(u)
            of_u = product(slope, matrix(widen + inner * H, h, at + k, inner), PRECISION) * u_slope
            _put(operands, scales, of_u_plane + at // T, row, of_u, _exponent(of_u), rows, tile, tiles, low, T, CHUNK, SPLIT)
            of_n += product(of_u, matrix(widen, at + k, h, H), PRECISION)
        unit = _take(operands, scales, plane, row, rows, tile, tiles, low, T, H, SPLIT)
        tl.store(vectors + 2 * b_index * H + h, tl.sum(of_n * unit, 0))
        tl.store(vectors + 2 * b_index * H + H + h, tl.sum(of_n, 0))
        slope += normalised_back(of_n * tl.load(b + h)[None, :], unit, tl.load(by_row + b_index * rows + row), H)
    plane = head + 2 * (H // T) + 4 * (R // T)
    _put(operands, scales, plane, row, slope, _exponent(slope), rows, tile, tiles, low, T, H, SPLIT)


@triton.jit
def _sum(vectors, start, tiles, sums_of_tile, WIDE: tl.constexpr):
    """Of a vector over the tiles, always in the same order."""
    total = tl.zeros([WIDE], tl.float32)
    for tile in range(tiles):
        total += tl.load(vectors + tile * sums_of_tile + start + tl.arange(0, WIDE))
    return total


@triton.jit
def _add_up(
    w, out, losses, vectors, sums, alphas, found, e, tiles, sums_of_tile, norm, expansion, posterior, noise_at,
    mean_at, count, inner, floor, MOST_TILES: tl.constexpr, TRACE: tl.constexpr, H: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """A member's loss, and the gradients that are sums over tiles."""
    vectors += e * tiles * sums_of_tile
    h, r = tl.arange(0, 2 * H), tl.arange(0, R)
    for i in range(count):
        place = out + i * (3 * H + inner + 2 * inner * H) + h
        tl.store(place, _sum(vectors, 2 * i * H, tiles, sums_of_tile, 2 * H))
    tl.store(out + norm + h, _sum(vectors, 2 * count * H, tiles, sums_of_tile, 2 * H))
    tl.store(out + expansion + R + r, _sum(vectors, 2 * (count + 1) * H, tiles, sums_of_tile, R))
    tl.store(out + posterior + r, _sum(vectors, 2 * (count + 1) * H + R, tiles, sums_of_tile, R))
    t = tl.arange(0, MOST_TILES)
    of_tiles = sums + (e * tiles + t) * 4
    loss = tl.sum(tl.load(of_tiles, mask=t < tiles, other=0.0))
    of_noise = tl.sum(tl.load(of_tiles + 1, mask=t < tiles, other=0.0))
    if TRACE:  # the maximum itself is in the loss once
        raw = tl.load(w + noise_at)
        noise = floor + tl.exp(raw)
        largest = tl.max(tl.load(found + e * tiles + t, mask=t < tiles, other=float("-inf")), 0)
        pull = tl.load(alphas + e) / (2.0 * noise) * largest
        loss += pull
        of_noise -= pull / noise * tl.exp(raw)
    tl.store(out + noise_at, of_noise)
    tl.store(out + mean_at, tl.sum(tl.load(of_tiles + 2, mask=t < tiles, other=0.0)))
    tl.store(losses + e, loss)


@triton.jit
def _part_of_weight(
    w, out, operands, scales, tasks, task, e, tiles, rows, planes, low,
    ROWS: tl.constexpr, STEP: tl.constexpr, SPLIT: tl.constexpr, T: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    tasks += task * 8
    left_plane, right_plane = tl.load(tasks), tl.load(tasks + 1)
    begin, row_size, columns = tl.load(tasks + 2), tl.load(tasks + 3), tl.load(tasks + 4)
    bias, affine, diagonal = tl.load(tasks + 5), tl.load(tasks + 6), tl.load(tasks + 7)
    operands += e.to(tl.int64) * planes * rows * T
    scales += e * planes * tiles
    k, c = tl.arange(0, STEP), tl.arange(0, T)
    lefts = operands + left_plane * rows * T + k[:, None] * T + c[None, :]
    rights = operands + right_plane * rows * T + k[:, None] * T + c[None, :]
    total = tl.zeros([T, T], tl.float32)
    along = tl.zeros([STEP, T], tl.float32)
    for at in range(0, rows, STEP):
        left, right = tl.load(lefts + at * T), tl.load(rights + at * T)
        of_left = tl.load(scales + left_plane * tiles + at // ROWS)
        of_both = of_left * tl.load(scales + right_plane * tiles + at // ROWS)
        if SPLIT:
            left_low, right_low = tl.load(lefts + low + at * T), tl.load(rights + low + at * T)
            part = tl.dot(tl.trans(left), right_low)
            part = tl.dot(tl.trans(left_low), right, part)
            part = tl.dot(tl.trans(left), right, part)
            along += of_left * (left.to(tl.float32) + left_low.to(tl.float32))
        else:
            part = tl.dot(tl.trans(left), right)
            along += of_left * left.to(tl.float32)
        total += of_both * part
    of_rows = tl.sum(along, 0)
    i, j = c[:, None], c[None, :]
    if affine >= 0:  # the right plane is what a norm multiplies and shifts
        total = total * tl.load(w + affine + c)[None, :] + of_rows[:, None] * tl.load(w + affine + H + c)[None, :]
    if bias >= 0:
        tl.store(out + bias + c, of_rows)
    if diagonal >= 0:
        of_diagonal = tl.sum(tl.where(i == j, total, 0.0), 0)
        tl.store(out + diagonal + c, of_diagonal * tl.exp(tl.load(w + diagonal + c)))
        total = tl.where(i > j, total, 0.0)
    tl.store(out + begin + i * row_size + j, total, mask=j < columns)


@triton.jit(do_not_specialize=_OF_TABLES)
def weight_gradients(
    parameters, gradients, losses, operands, scales, vectors, sums, alphas, found, tasks,
    numbers, tiles, rows, planes, low, sums_of_tile, norm, expansion, posterior, noise_at, mean_at, count, inner,
    floor, ROWS: tl.constexpr, STEP: tl.constexpr, MOST_TILES: tl.constexpr, TRACE: tl.constexpr,
    SPLIT: tl.constexpr, T: tl.constexpr, H: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """A T x T part of a weight's gradient: the planes of two operands, multiplied over all rows of a member.

    `operands.Task` is what a program is told. The last one adds up what the tiles have summed.
    """
    task, e = tl.program_id(0), tl.program_id(1)
    w, out = parameters + e * numbers, gradients + e * numbers
    if task == tl.num_programs(0) - 1:
        _add_up(w, out, losses, vectors, sums, alphas, found, e, tiles, sums_of_tile, norm, expansion, posterior,
                noise_at, mean_at, count, inner, floor, MOST_TILES, TRACE, H, R)  # fmt: skip
    else:
        _part_of_weight(w, out, operands, scales, tasks, task, e, tiles, rows, planes, low, ROWS, STEP, SPLIT, T, H)
