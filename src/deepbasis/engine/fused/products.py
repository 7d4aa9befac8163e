"""The weights' gradients for many members, for Triton: products over all rows of what `many.py` has kept."""

import triton
import triton.language as tl

_OF_TABLES = ["tiles", "rows", "count", "planes"]  # no kernel is compiled anew for them


@triton.jit
def over_rows(
    operands, scales, left_plane, right_plane, tiles, rows, begin, end, second,
    ROWS: tl.constexpr, STEP: tl.constexpr, SPLIT: tl.constexpr, T: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """left^T right of two planes, of the rows from `begin` to `end`, and with SUM the sum of the left one's rows."""
    k, c = tl.arange(0, STEP), tl.arange(0, T)
    lefts = operands + left_plane * rows * T + k[:, None] * T + c[None, :]
    rights = operands + right_plane * rows * T + k[:, None] * T + c[None, :]
    total, of_ones = tl.zeros([T, T], tl.float32), tl.zeros([T, 16], tl.float32)
    ones = tl.full([STEP, 16], 1.0, tl.float16)  # sums are products too
    for at in range(begin, end, STEP):
        left, right = tl.load(lefts + at * T), tl.load(rights + at * T)
        of_left = tl.load(scales + left_plane * tiles + at // ROWS)
        of_both = of_left * tl.load(scales + right_plane * tiles + at // ROWS)
        if SPLIT:
            left_low, right_low = tl.load(lefts + second + at * T), tl.load(rights + second + at * T)
            part = tl.dot(tl.trans(left), right_low)
            part = tl.dot(tl.trans(left_low), right, part)
            part = tl.dot(tl.trans(left), right, part)
            if SUM:
                of_ones += of_left * tl.dot(tl.trans(left), ones, tl.dot(tl.trans(left_low), ones))
        else:
            part = tl.dot(tl.trans(left), right)
            if SUM:
                of_ones += of_left * tl.dot(tl.trans(left), ones)
        total += of_both * part
    return total, tl.max(of_ones, 1)  # which are all the same


@triton.jit
def _weighed_sums(
    operands, scales, plane, of_rows, tiles, rows, begin, end, second,
    ROWS: tl.constexpr, STEP: tl.constexpr, SPLIT: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Of a plane's rows, with the weights at `of_rows`, and of their squares, with those 2 `rows` behind."""
    k, c = tl.arange(0, STEP), tl.arange(0, T)
    place = operands + plane * rows * T + k[:, None] * T + c[None, :]
    of_values, of_squares = tl.zeros([STEP, T], tl.float32), tl.zeros([STEP, T], tl.float32)
    for at in tl.range(begin, end, STEP, loop_unroll_factor=4):
        value = tl.load(place + at * T).to(tl.float32)
        if SPLIT:
            value += tl.load(place + second + at * T).to(tl.float32)
        value *= tl.load(scales + plane * tiles + at // ROWS)
        of_values += value * tl.load(of_rows + at + k)[:, None]
        of_squares += value * value * tl.load(of_rows + 2 * rows + at + k)[:, None]
    return tl.sum(of_values, 0), tl.sum(of_squares, 0)


@triton.jit
def _parts_of_weight(
    w, out, operands, scales, tasks, tiles, rows, begin, end, second,
    ROWS: tl.constexpr, STEP: tl.constexpr, SPLIT: tl.constexpr, T: tl.constexpr, H: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    left, right, start, row_size = tl.load(tasks), tl.load(tasks + 1), tl.load(tasks + 2), tl.load(tasks + 3)
    columns, bias, norm, repeats = tl.load(tasks + 4), tl.load(tasks + 5), tl.load(tasks + 6), tl.load(tasks + 7)
    c = tl.arange(0, T)
    i, j = c[:, None], c[None, :]
    of_norm, of_shift = tl.zeros([T], tl.float32), tl.zeros([T], tl.float32)
    for part in tl.static_range(PARTS):  # written out: a loop around the loop would cost a hundred registers
        if part < repeats:
            total, of_rows = over_rows(operands, scales, left + part, right, tiles, rows, begin, end, second, ROWS,
                                        STEP, SPLIT, T, True)  # fmt: skip
            place = start + part * T * row_size + i * row_size + j
            if norm >= 0:  # the right plane is what a norm multiplies and shifts
                weight = tl.load(w + place)
                of_norm += tl.sum(weight * total, 0)
                of_shift += tl.sum(weight * of_rows[:, None], 0)
                total = total * tl.load(w + norm + c)[None, :] + of_rows[:, None] * tl.load(w + norm + H + c)[None, :]
            if bias >= 0:
                tl.store(out + bias + part * T + c, of_rows)
            tl.store(out + place, total, mask=j < columns)
    if norm >= 0:
        tl.store(out + norm + c, of_norm)
        tl.store(out + norm + H + c, of_shift)


@triton.jit
def _rows_of_L(
    w, out, operands, scales, by_row, kl_weight, i, left, right, expansion, posterior, tiles, rows, begin, end, second,
    ROWS: tl.constexpr, STEP: tl.constexpr, SPLIT: tl.constexpr, T: tl.constexpr, R: tl.constexpr, RBF: tl.constexpr,
):  # fmt: skip
    """T rows of L, the means and the scales of as many functions of the basis; an RBF basis has no scales.

    With G = act^T of_v, of_L is scale G; what comes through L to the scales is the sum of L G over its row. That of the
    KL is added: kl_weight L and m, and for the logarithms of the diagonal kl_weight (L^2 - 1).
    """
    c = tl.arange(0, T)
    at = i * T + c
    scale = tl.full([T], 1.0, tl.float32)
    if not RBF:
        scale = tl.load(w + expansion + R + at)
    of_mean, of_prior = _weighed_sums(operands, scales, left + i, by_row, tiles, rows, begin, end, second, ROWS, STEP,
                                      SPLIT, T)  # fmt: skip
    of_scale = tl.load(w + posterior + at) * of_mean + scale * of_prior
    for j in tl.static_range(R // T):
        if j <= i:
            total, _ = over_rows(operands, scales, left + i, right + j, tiles, rows, begin, end, second, ROWS, STEP,
                                 SPLIT, T, False)  # fmt: skip
            place = posterior + 2 * R + at[:, None] * R + (j * T + c)[None, :]
            below = at[:, None] > (j * T + c)[None, :]
            on = at[:, None] == (j * T + c)[None, :]
            diagonal = tl.exp(tl.load(w + posterior + R + at))
            L = tl.where(below, tl.load(w + place), tl.where(on, diagonal[:, None], 0.0))
            of_scale += tl.sum(L * total, 1)
            total = total * scale[:, None] + kl_weight * L
            tl.store(out + place, tl.where(below, total, 0.0))
            if i == j:
                of_diagonal = tl.sum(tl.where(on, total, 0.0), 1) * diagonal
                tl.store(out + posterior + R + at, of_diagonal - kl_weight)
    tl.store(out + posterior + at, scale * of_mean + kl_weight * tl.load(w + posterior + at))
    if not RBF:
        tl.store(out + expansion + R + at, of_scale)


@triton.jit
def _add_up(
    w, out, losses, vectors, sums, alphas, found, kl_weight, e, tiles, norm, posterior, noise_at, mean_at, floor,
    MOST_TILES: tl.constexpr, TRACE: tl.constexpr, H: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """A member's loss, with the KL, and the gradients that are sums over tiles, always in the same order."""
    h = tl.arange(0, 2 * H)
    total = tl.zeros([2 * H], tl.float32)
    for tile in tl.range(0, tiles, loop_unroll_factor=4):  # loads that do not wait for each other
        total += tl.load(vectors + (e * tiles + tile) * (2 * H) + h)
    tl.store(out + norm + h, total)
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
    r = tl.arange(0, R)
    m, log_diagonal = tl.load(w + posterior + r), tl.load(w + posterior + R + r)
    kl = tl.sum(0.5 * (m * m + tl.exp(2.0 * log_diagonal) - 1.0) - log_diagonal)
    i = tl.arange(0, 16)[:, None]
    squares = tl.zeros([16, R], tl.float32)
    for at in range(0, R, 16):
        lower = tl.load(w + posterior + (2 + at + i) * R + r[None, :], mask=r[None, :] < at + i, other=0.0)
        squares += lower * lower
    tl.store(losses + e, loss + kl_weight * (kl + 0.5 * tl.sum(squares)))


@triton.jit(do_not_specialize=_OF_TABLES)
def weight_gradients(
    parameters, gradients, losses, operands, scales, by_row, vectors, sums, alphas, found, tasks, kl_weights, step,
    advance, numbers, tiles, rows, planes, second, left_of_L, right_of_L, norm, expansion, posterior, noise_at, mean_at,
    count, floor, ROWS: tl.constexpr, STEP: tl.constexpr, MOST_TILES: tl.constexpr, TRACE: tl.constexpr,
    SPLIT: tl.constexpr, T: tl.constexpr, H: tl.constexpr, PARTS: tl.constexpr, R: tl.constexpr, RBF: tl.constexpr,
    SLICES: tl.constexpr,
):  # fmt: skip
    """A program: some rows of L, the longest first; or an `operands.GradientTask`; or what is a sum over tiles.

    It takes one of SLICES parts of the batch's rows, of which each has its own row of gradients: the programs of a few
    members would be fewer than a machine can run.
    """
    program, e, one = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    w, out = parameters + e * numbers, gradients + (e * SLICES + one) * numbers
    operands += e.to(tl.int64) * planes * rows * T
    scales += e * planes * tiles
    kl_weight = tl.load(kl_weights + e)
    begin, end = 0, rows
    if SLICES > 1:
        begin = one * tl.cdiv(tiles, SLICES) * ROWS
        end = tl.minimum(begin + tl.cdiv(tiles, SLICES) * ROWS, rows)
    if program < R // T:
        if SLICES > 1:
            kl_weight = tl.where(one == 0, kl_weight, 0.0)
        _rows_of_L(w, out, operands, scales, by_row + (e * (count + 4) + count + 1) * rows, kl_weight,
                   R // T - 1 - program, left_of_L, right_of_L, expansion, posterior, tiles, rows, begin, end, second,
                   ROWS, STEP, SPLIT, T, R, RBF)  # fmt: skip
    else:
        if program == tl.num_programs(0) - 1:
            if one == 0:
                if e == 0:  # no program of this kernel reads it
                    tl.store(step, tl.load(step) + advance)
                _add_up(w, out, losses, vectors, sums, alphas, found, kl_weight, e, tiles, norm, posterior, noise_at,
                        mean_at, floor, MOST_TILES, TRACE, H, R)  # fmt: skip
        else:
            _parts_of_weight(w, out, operands, scales, tasks + (program - R // T) * 8, tiles, rows, begin, end, second,
                             ROWS, STEP, SPLIT, T, H, PARTS)  # fmt: skip
