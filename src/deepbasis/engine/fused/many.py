"""The tiles of a step for many members, for Triton: forward to the loss, and back to the gradient in every activation.

What the products of `products.py` take lies in planes of T columns, one behind the other (`operands.py`). Weights are
in float16 (`half.prepare`), in blocks of T rows or columns: the projection's, two of each part of a block, the
expansion's, and those of L below and on its diagonal. A rank has one or two parts of T.
"""

import triton
import triton.language as tl

from deepbasis.engine.fused.half import exponent, half_product, halves, packed, powers, put, take, unpacked, weight_at
from deepbasis.engine.fused.head import fit, slopes_of_prior, write_losses
from deepbasis.engine.fused.layers import batch_rows, normalised, normalised_back, sigmoid, silu_slope

# What differs from table to table: no kernel is compiled anew for it.
_OF_TABLES = ["members", "batch", "n", "d", "tiles", "rows", "mask_step", "mask_member", "count", "planes", "units",
              "first_plane", "first_unit"]  # fmt: skip


@triton.jit(do_not_specialize=_OF_TABLES)
def forward(
    parameters, weights, weight_scales, shifts, wholes, operands, scales, by_row, sums, features, x, y, slope, order,
    row_weights, mask, step, steps_done, alphas, found, place_found, numbers, members, batch, n, d, tiles, rows,
    mask_step, mask_member, planes, units, second, second_weights, of_shifts, bias, norm, expansion, posterior,
    noise_at, mean_at, count, inner, floor, ROWS: tl.constexpr, WEIGHTS: tl.constexpr, TRACE: tl.constexpr,
    EXPECTED: tl.constexpr, SPLIT: tl.constexpr, T: tl.constexpr, H: tl.constexpr, PARTS: tl.constexpr, R: tl.constexpr,
    RBF: tl.constexpr,
):  # fmt: skip
    """A tile of a member's rows through all layers to the loss, and to the gradient in L^T phi; or, if the basis is an
    RBF kernel's, to the features that it takes (`rbf_tiles.py`)."""
    tile, e = tl.program_id(0), tl.program_id(1)
    if (e == 0) & (tile == 0):  # no program of this kernel reads it
        tl.store(steps_done, tl.load(steps_done) + 1)
    w = parameters + e * numbers
    weights += e.to(tl.int64) * units * (T * H)
    weight_scales += e * units
    shifts += e * of_shifts
    operands += e.to(tl.int64) * planes * rows * T
    scales += e * planes * tiles
    by_row += e * (count + 4) * rows
    row = tile * ROWS + tl.arange(0, ROWS)
    h, k = tl.arange(0, H), tl.arange(0, T)
    index, weight = batch_rows(order, row_weights, mask, step, e, members, tile, batch, n, mask_step, mask_member, ROWS,
                               WEIGHTS)  # fmt: skip
    weight = weight / tl.load(wholes + e)
    target = tl.load(y + index)
    of_units = tl.full([], 0x41000000, tl.int32)  # 8: the root of the width, of up to 128, is below 16
    line = tl.zeros([ROWS], tl.float32)
    g = tl.zeros([ROWS, H], tl.float32) + tl.load(w + bias + h)[None, :]
    # A weight [T, H] is multiplied by as it lies, or turned; one [H, T] likewise.
    flat, turned = h[None, :] * T + k[:, None], k[None, :] * H + h[:, None]
    plane, unit = 0, 0
    for at in range(0, d, T):
        column = at + k
        values = tl.load(x + index[:, None] * d + column[None, :], mask=(column < d)[None, :], other=0.0)
        W, W_low = weight_at(weights + unit * (T * H) + flat, second_weights, SPLIT)
        scale_of_W = tl.load(weight_scales + unit)
        line += tl.sum(values * tl.load(slope + e * d + column, mask=column < d, other=0.0)[None, :], 1)
        high, low, down = packed(values, exponent(values), SPLIT)
        g += half_product(high, low, W, W_low, SPLIT) * (down * scale_of_W)
        put(operands, scales, plane, row, high, low, down, rows, tile, tiles, second, T, T, SPLIT)
        plane += 1
        unit += 1
    for i in range(count):
        # a block lies as norm.weight, norm.bias, narrow.bias, widen.bias, widen.weight, narrow.weight
        of_g = tl.load(w + i * (3 * H + inner + 2 * inner * H) + 2 * H + h)
        W, W_low = weight_at(weights + unit * (T * H) + turned, second_weights, SPLIT)
        shift, scale_of_W = tl.load(shifts + i * inner + k), tl.load(weight_scales + unit)
        rescaled, scale = normalised(g, H)
        high, low, down = packed(rescaled, of_units, SPLIT)
        g += of_g[None, :]
        for part in range(PARTS):
            u = half_product(high, low, W, W_low, SPLIT) * (down * scale_of_W) + shift[None, :]
            W, W_low = weight_at(weights + (unit + PARTS) * (T * H) + flat, second_weights, SPLIT)
            scale_of_W = tl.load(weight_scales + unit + PARTS)
            if part == 0:
                put(operands, scales, plane, row, high, low, down, rows, tile, tiles, second, T, H, SPLIT)
                tl.store(by_row + i * rows + row, scale)
            u_plane = plane + H // T + part
            up, u_down = powers(exponent(u))
            scaled = u * up
            u_high, u_low = halves(scaled * sigmoid(u), SPLIT)
            g += half_product(u_high, u_low, W, W_low, SPLIT) * (u_down * scale_of_W)
            if PARTS > 1:
                after = tl.minimum(part + 1, PARTS - 1)
                W, W_low = weight_at(weights + (unit + after - part) * (T * H) + turned, second_weights, SPLIT)
                shift = tl.load(shifts + i * inner + after * T + k)
                scale_of_W = tl.load(weight_scales + unit + after - part)
            put(operands, scales, u_plane + PARTS, row, u_high, u_low, u_down, rows, tile, tiles, second, T, T, SPLIT)
            u_high, u_low = halves(scaled, SPLIT)
            put(operands, scales, u_plane, row, u_high, u_low, u_down, rows, tile, tiles, second, T, T, SPLIT)
            unit += 1
        plane += 2 * (H // T) + 3 * PARTS
        unit += PARTS
    of_weight, of_bias = tl.load(w + norm + h), tl.load(w + norm + H + h)
    if not RBF:
        W, W_low = weight_at(weights + unit * (T * H) + turned, second_weights, SPLIT)
        scale_of_W = tl.load(weight_scales + unit)
    rescaled, scale = normalised(g, H)
    s = rescaled * of_weight[None, :] + of_bias[None, :]
    s = s * sigmoid(s)
    if RBF:
        high, low, down = packed(rescaled, of_units, SPLIT)
        put(operands, scales, plane, row, high, low, down, rows, tile, tiles, second, T, H, SPLIT)
        tl.store(by_row + count * rows + row, scale)
        tl.store(by_row + (count + 1) * rows + row, target - tl.load(w + mean_at) - line)
        tl.store(by_row + (count + 2) * rows + row, weight)
        tl.store(features + (e.to(tl.int64) * rows + row[:, None]) * H + h[None, :], s)
    else:
        high, low, down = packed(s, exponent(s), SPLIT)
        t = half_product(high, low, W, W_low, SPLIT) * (down * scale_of_W) + tl.load(w + expansion + k)[None, :]
        of_L = unit + R // T
        square = weights + of_L * (T * H) + k[:, None] * T + k[None, :]
        W, W_low = weight_at(square, second_weights, SPLIT)
        scale_of_W = tl.load(weight_scales + of_L)
        put(operands, scales, plane + H // T, row, high, low, down, rows, tile, tiles, second, T, H, SPLIT)
        u_high, u_low, u_down = packed(rescaled, of_units, SPLIT)
        put(operands, scales, plane, row, u_high, u_low, u_down, rows, tile, tiles, second, T, H, SPLIT)
        tl.store(by_row + count * rows + row, scale)
        plane += 2 * (H // T)
        of_act, m = tl.load(w + expansion + R + k), tl.load(w + posterior + k)
        up, t_down = powers(exponent(t))
        scaled = t * up
        a_high, a_low = halves(scaled, SPLIT)
        put(operands, scales, plane, row, a_high, a_low, t_down, rows, tile, tiles, second, T, T, SPLIT)
        scaled *= sigmoid(t)
        a_high, a_low = halves(scaled, SPLIT)
        v = half_product(a_high, a_low, W, W_low, SPLIT) * (t_down * scale_of_W)
        if R > T:
            W, W_low = weight_at(weights + (unit + 1) * (T * H) + turned, second_weights, SPLIT)
            scale_of_W = tl.load(weight_scales + unit + 1)
        put(operands, scales, plane + R // T, row, a_high, a_low, t_down, rows, tile, tiles, second, T, T, SPLIT)
        phi = scaled * (t_down * of_act)[None, :]
        mean, prior = tl.sum(phi * m[None, :], 1), tl.sum(phi * phi, 1)
        if R > T:
            of_bias = tl.load(w + expansion + T + k)
            t = half_product(high, low, W, W_low, SPLIT) * (down * scale_of_W) + of_bias[None, :]
            W, W_low = weight_at(square + T * H, second_weights, SPLIT)
            scale_of_W = tl.load(weight_scales + of_L + 1)
            of_act, m = tl.load(w + expansion + R + T + k), tl.load(w + posterior + T + k)
            up, t_down = powers(exponent(t))
            scaled = t * up
            a_high, a_low = halves(scaled, SPLIT)
            put(operands, scales, plane + 1, row, a_high, a_low, t_down, rows, tile, tiles, second, T, T, SPLIT)
            scaled *= sigmoid(t)
            a_high, a_low = halves(scaled, SPLIT)
            v += half_product(a_high, a_low, W, W_low, SPLIT) * (t_down * scale_of_W)
            W, W_low = weight_at(square + 2 * T * H, second_weights, SPLIT)
            scale_of_W = tl.load(weight_scales + of_L + 2)
            put(operands, scales, plane + 3, row, a_high, a_low, t_down, rows, tile, tiles, second, T, T, SPLIT)
            phi = scaled * (t_down * of_act)[None, :]
            mean += tl.sum(phi * m[None, :], 1)
            prior += tl.sum(phi * phi, 1)
            behind = half_product(a_high, a_low, W, W_low, SPLIT) * (t_down * scale_of_W)
        var = tl.sum(v * v, 1)
        if R > T:
            var += tl.sum(behind * behind, 1)
        error = target - tl.load(w + mean_at) - mean - line
        raw = tl.load(w + noise_at)
        noise = floor + tl.exp(raw)
        rows_loss, of_error, of_var, of_noise = fit(error, var, noise, EXPECTED)
        loss, of_noise = tl.sum(weight * rows_loss), tl.sum(weight * of_noise)
        of_error = -weight * of_error  # the gradient in the mean
        of_var = 2.0 * weight * of_var
        plane += 2 * (R // T)
        v *= of_var[:, None]
        v_high, v_low, v_down = packed(v, exponent(v), SPLIT)
        put(operands, scales, plane, row, v_high, v_low, v_down, rows, tile, tiles, second, T, T, SPLIT)
        if R > T:
            behind *= of_var[:, None]
            v_high, v_low, v_down = packed(behind, exponent(behind), SPLIT)
            put(operands, scales, plane + 1, row, v_high, v_low, v_down, rows, tile, tiles, second, T, T, SPLIT)
        write_losses(loss, of_noise, of_error, prior, weight, raw, noise, by_row, sums, alphas, found, place_found, e,
                     tile, tiles, rows, row, count, ROWS, TRACE)  # fmt: skip


@triton.jit(do_not_specialize=_OF_TABLES)
def backward(
    parameters, weights, weight_scales, operands, scales, by_row, vectors, features, alphas, found, place_found,
    numbers, tiles, rows, planes, units, first_plane, first_unit, second, second_weights, norm, expansion, posterior,
    noise_at, count, inner, floor, ROWS: tl.constexpr, MOST_TILES: tl.constexpr, TRACE: tl.constexpr,
    THROUGH: tl.constexpr, SPLIT: tl.constexpr, T: tl.constexpr, H: tl.constexpr, PARTS: tl.constexpr, R: tl.constexpr,
    RBF: tl.constexpr,
):  # fmt: skip
    """The gradients in a tile's activations, and the sums over the tile that no product gives.

    `first_plane` and `first_unit` are those of the first block. Tiles are taken in the opposite order: what the last
    have written is still in the cache.
    """
    tile, e = tl.num_programs(0) - 1 - tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    w = parameters + e * numbers
    weights += e.to(tl.int64) * units * (T * H)
    weight_scales += e * units
    operands += e.to(tl.int64) * planes * rows * T
    scales += e * planes * tiles
    by_row += e * (count + 4) * rows
    vectors += (e * tiles + tile) * (2 * H)
    row = tile * ROWS + tl.arange(0, ROWS)
    h, k = tl.arange(0, H), tl.arange(0, T)
    flat, turned = k[:, None] * H + h[None, :], h[:, None] * T + k[None, :]
    of_block = 2 * (H // T) + 3 * PARTS
    head = first_plane + count * of_block
    of_s = tl.zeros([ROWS, H], tl.float32)
    last = head + (H // T) + 2 * (R // T)
    if RBF:
        of_s += tl.load(features + (e.to(tl.int64) * rows + row[:, None]) * H + h[None, :])
    else:
        t_plane = head + 2 * (H // T)
        last = t_plane + 4 * (R // T)
        head_unit = first_unit + 2 * count * PARTS
        of_error = tl.load(by_row + (count + 1) * rows + row)
        of_prior = of_error
        if TRACE:
            of_prior = slopes_of_prior(w, by_row, alphas, found, place_found, e, tiles, rows, row, count, noise_at,
                                       floor, MOST_TILES, THROUGH)  # fmt: skip
        for p in range(R // T):
            t_high, t_low, t_down = take(operands, scales, t_plane + p, row, rows, tile, tiles, second, T, T, SPLIT)
            plane, unit = t_plane + 2 * (R // T), head_unit + R // T + p * (p + 1) // 2
            high, low, down = take(operands, scales, plane, row, rows, tile, tiles, second, T, T, SPLIT)
            W, W_low = weight_at(weights + unit * (T * H) + k[None, :] * T + k[:, None], second_weights, SPLIT)
            down *= tl.load(weight_scales + unit)
            scale, m = tl.load(w + expansion + R + p * T + k), tl.load(w + posterior + p * T + k)
            act, act_slope = silu_slope(unpacked(t_high, t_low, t_down, SPLIT))
            of_t = of_error[:, None] * (scale * m)[None, :]
            if TRACE:
                of_t += of_prior[:, None] * act * (scale * scale)[None, :]
            of_t += half_product(high, low, W, W_low, SPLIT) * down
            for q in range(1, p + 1):  # L is lower triangular
                high, low, down = take(operands, scales, plane + q, row, rows, tile, tiles, second, T, T, SPLIT)
                place = weights + (unit + q) * (T * H) + k[None, :] * T + k[:, None]
                W, W_low = weight_at(place, second_weights, SPLIT)
                of_t += half_product(high, low, W, W_low, SPLIT) * (down * tl.load(weight_scales + unit + q))
            W_of_s, W_of_s_low = weight_at(weights + (head_unit + p) * (T * H) + flat, second_weights, SPLIT)
            of_t *= act_slope
            t_high, t_low, t_down = packed(of_t, exponent(of_t), SPLIT)
            of_W = t_down * tl.load(weight_scales + head_unit + p)
            of_s += half_product(t_high, t_low, W_of_s, W_of_s_low, SPLIT) * of_W
            plane = t_plane + 3 * (R // T) + p
            put(operands, scales, plane, row, t_high, t_low, t_down, rows, tile, tiles, second, T, T, SPLIT)
    high, low, down = take(operands, scales, head, row, rows, tile, tiles, second, T, H, SPLIT)
    rescaled = unpacked(high, low, down, SPLIT)
    weight = tl.load(w + norm + h)[None, :]
    scale_of_row = tl.load(by_row + count * rows + row)
    _, z_slope = silu_slope(rescaled * weight + tl.load(w + norm + H + h)[None, :])
    of_z = of_s * z_slope
    back = normalised_back(of_z * weight, rescaled, scale_of_row, H)
    tl.store(vectors + h, tl.sum(of_z * rescaled, 0))
    tl.store(vectors + H + h, tl.sum(of_z, 0))
    for i_back in range(count):
        i = count - 1 - i_back
        plane, unit = first_plane + i * of_block, first_unit + 2 * i * PARTS
        u_plane = plane + H // T
        of_u_plane = u_plane + 2 * PARTS
        W, W_low = weight_at(weights + (unit + PARTS) * (T * H) + turned, second_weights, SPLIT)
        u_high, u_low, u_down = take(operands, scales, u_plane, row, rows, tile, tiles, second, T, T, SPLIT)
        of_rescaled = tl.zeros([ROWS, H], tl.float32)
        high, low, down = packed(back, exponent(back), SPLIT)
        for part in range(PARTS):
            of_W = down * tl.load(weight_scales + unit + PARTS + part)
            of_u = half_product(high, low, W, W_low, SPLIT)
            W_of_n, W_of_n_low = weight_at(weights + (unit + part) * (T * H) + flat, second_weights, SPLIT)
            _, u_slope = silu_slope(unpacked(u_high, u_low, u_down, SPLIT))
            if part == 0:
                put(operands, scales, of_u_plane + PARTS, row, high, low, down, rows, tile, tiles, second, T, H, SPLIT)
            of_u *= u_slope
            n_high, n_low, n_down = packed(of_u, exponent(of_u), SPLIT)
            n_down *= of_W
            of_W = n_down * tl.load(weight_scales + unit + part)
            of_rescaled += half_product(n_high, n_low, W_of_n, W_of_n_low, SPLIT) * of_W
            if PARTS > 1:
                after = tl.minimum(part + 1, PARTS - 1)
                W, W_low = weight_at(weights + (unit + PARTS + after) * (T * H) + turned, second_weights, SPLIT)
                u_high, u_low, u_down = take(operands, scales, u_plane + after, row, rows, tile, tiles, second, T, T,
                                             SPLIT)  # fmt: skip
            put(operands, scales, of_u_plane + part, row, n_high, n_low, n_down, rows, tile, tiles, second, T, T, SPLIT)
        high, low, down = take(operands, scales, plane, row, rows, tile, tiles, second, T, H, SPLIT)
        scale_of_row = tl.load(by_row + i * rows + row)
        back += normalised_back(of_rescaled, unpacked(high, low, down, SPLIT), scale_of_row, H)
    high, low, down = packed(back, exponent(back), SPLIT)
    put(operands, scales, last, row, high, low, down, rows, tile, tiles, second, T, H, SPLIT)
