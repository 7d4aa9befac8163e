"""The kernels over tiles of rows: a training step's gradients, the in-batch maximum before it, and a prediction."""

import triton
import triton.language as tl

from deepbasis.engine.fused.head import basis, basis_back, fit, variance, variance_back
from deepbasis.engine.fused.layers import (
    add,
    batch_rows,
    blocks,
    blocks_back,
    input_layer,
    input_layer_back,
    keep,
    recall,
    sloped,
    whole_weight,
)

# What differs from table to table: to compile anew for a 1 or a multiple of 16 would cost seconds, and gain nothing.
_OF_TABLES = ["members", "batch", "n", "d", "tiles", "mask_step", "mask_member", "waved", "width", "count"]


@triton.jit(do_not_specialize=_OF_TABLES)
def tile_forward(
    parameters, kept, x, order, weights, mask, step, steps_done, found, place_found,
    numbers, members, batch, n, d, tiles, mask_step, mask_member,
    waved, bias, project, width, waves, turns_at, mixing, norm, expansion, posterior, noise_at, mean_at, count, inner,
    rank, ROWS: tl.constexpr, WEIGHTS: tl.constexpr, TRACE: tl.constexpr, H: tl.constexpr, CHUNK: tl.constexpr,
    R: tl.constexpr, PRECISION: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """A tile through the network: g before each block, and the last, are kept.

    With TRACE also the largest ||phi(x)||^2 of the tile, and where in the batch it is: for the trace term of Eq. 15.
    """
    e, tile = tl.program_id(0), tl.program_id(1)
    if (e == 0) & (tile == 0):  # no program of this kernel reads it
        tl.store(steps_done, tl.load(steps_done) + 1)
    w = parameters + e * numbers
    kept += (e * tiles + tile).to(tl.int64) * (count + 1) * (ROWS * H)
    index, weight = batch_rows(order, weights, mask, step, e, members, tile, batch, n, mask_step, mask_member, ROWS,
                               WEIGHTS)  # fmt: skip
    g = input_layer(w, x, index, d, waved, bias, project, width, waves, turns_at, mixing, ROWS, H, PRECISION)
    g = blocks(g, w, kept, count, inner, True, ROWS, H, CHUNK, PRECISION)
    if TRACE:
        phi, _, _, _, _, _, _ = basis(g, w, norm, expansion, H, R, HEAD)
        prior = tl.where(weight > 0.0, tl.sum(phi * phi, 1), float("-inf"))
        value, place = tl.max(prior, 0, return_indices=True)
        tl.store(found + e * tiles + tile, value)
        tl.store(place_found + e * tiles + tile, tile * ROWS + place)


@triton.jit(do_not_specialize=_OF_TABLES)
def tile_losses(
    parameters, gradients, kept, losses, x, y, slope, order, weights, mask, step, alphas, found, place_found,
    numbers, members, batch, n, d, tiles, mask_step, mask_member,
    norm, expansion, posterior, noise_at, mean_at, count, rank, floor,
    ROWS: tl.constexpr, TILES: tl.constexpr, MOST_TILES: tl.constexpr, WEIGHTS: tl.constexpr, TRACE: tl.constexpr,
    THROUGH: tl.constexpr, EXPECTED: tl.constexpr, H: tl.constexpr, R: tl.constexpr, PART: tl.constexpr,
    HEAD: tl.constexpr,
):  # fmt: skip
    """A program's share of a member's loss, without the KL, and of the gradients in all that is behind the blocks.

    It takes TILES tiles one after another, and adds them up in that order. TRACE is whether any alpha is not 0, THROUGH
    whether the gradient passes through the maximum, EXPECTED whether the fit is E log p (Eq. 5), not log E p (Eq. 6).
    The gradient in the last g takes its place.
    """
    e, program = tl.program_id(0), tl.program_id(1)
    share = e * tl.num_programs(1) + program
    w, out = parameters + e * numbers, gradients + share * numbers
    r = tl.arange(0, R)
    whole = whole_weight(order, weights, mask, step, e, members, batch, n, mask_step, mask_member, 128,
                         WEIGHTS)  # fmt: skip
    raw = tl.load(w + noise_at)
    noise = floor + tl.exp(raw)
    loss, of_noise, of_mean = 0.0, 0.0, 0.0
    pull, largest_at, largest = 0.0, -1, 0.0
    if TRACE:
        pull = tl.load(alphas + e) / (2.0 * noise)
        t = tl.arange(0, MOST_TILES)
        each = tl.load(found + e * tiles + t, mask=t < tiles, other=float("-inf"))
        largest, best = tl.max(each, 0, return_indices=True)
        largest_at = tl.load(place_found + e * tiles + best)
        if program == 0:  # the maximum itself is in the loss once
            loss += pull * largest
            of_noise -= pull * largest / noise
    for tile_of_mine in range(TILES):
        tile = program * TILES + tile_of_mine
        more = tile_of_mine > 0 if TILES > 1 else None
        if (TILES == 1) | (tile < tiles):
            index, weight = batch_rows(order, weights, mask, step, e, members, tile, batch, n, mask_step,
                                       mask_member, ROWS, WEIGHTS)  # fmt: skip
            weight = weight / whole
            last = kept + ((e * tiles + tile).to(tl.int64) * (count + 1) + count) * (ROWS * H)
            phi, act, act_slope, s, z, unit, scale = basis(recall(last, 0, ROWS, H), w, norm, expansion, H, R, HEAD)
            m = tl.load(w + posterior + r)
            error = tl.load(y + index) - tl.load(w + mean_at) - tl.sum(phi * m[None, :], 1)
            error -= sloped(x, index, slope + e * d, d, ROWS)
            var = variance(phi, w, posterior, rank, ROWS, R, PART, HEAD)
            rows_loss, of_error, of_var, of_s = fit(error, var, noise, EXPECTED)
            loss += tl.sum(weight * rows_loss)
            of_noise += tl.sum(weight * of_s)
            of_error = -weight * of_error  # the gradient in the mean
            of_mean += tl.sum(of_error)
            of_phi = of_error[:, None] * m[None, :]
            if TRACE:
                prior = tl.sum(phi * phi, 1)
                loss -= pull * tl.sum(weight * prior)
                of_noise += pull / noise * tl.sum(weight * prior)
                of_prior = -pull * weight
                if THROUGH:
                    of_prior += tl.where(tile * ROWS + tl.arange(0, ROWS) == largest_at, pull, 0.0)
                of_phi += 2.0 * of_prior[:, None] * phi
            add(out + posterior + r, tl.sum(of_error[:, None] * phi, 0), more)
            of_phi = variance_back(of_phi, weight * of_var, phi, w, out, more, posterior, rank, R, PART, HEAD)
            back = basis_back(of_phi, act, act_slope, s, z, unit, scale, w, out, more, norm, expansion, H, R, HEAD)
            keep(last, 0, back, ROWS, H)
    tl.store(out + noise_at, of_noise * tl.exp(raw))
    tl.store(out + mean_at, of_mean)
    tl.store(losses + share, loss)


@triton.jit(do_not_specialize=_OF_TABLES)
def tile_gradients(
    parameters, gradients, kept, x, order, step, numbers, members, batch, d, tiles,
    waved, bias, project, width, waves, turns_at, mixing, count, inner,
    ROWS: tl.constexpr, TILES: tl.constexpr, H: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A program's share of the gradients in the blocks and in the input layer."""
    e, program = tl.program_id(0), tl.program_id(1)
    w = parameters + e * numbers
    out = gradients + (e * tl.num_programs(1) + program) * numbers
    for tile_of_mine in range(TILES):
        tile = program * TILES + tile_of_mine
        more = tile_of_mine > 0 if TILES > 1 else None
        if (TILES == 1) | (tile < tiles):
            mine = kept + (e * tiles + tile).to(tl.int64) * (count + 1) * (ROWS * H)
            row = tile * ROWS + tl.arange(0, ROWS)
            index = tl.load(order + (tl.load(step) * members + e) * batch + row, mask=row < batch, other=0)
            back = recall(mine, count, ROWS, H)
            back = blocks_back(back, w, out, more, mine, count, inner, ROWS, H, CHUNK, PRECISION)
            input_layer_back(w, out, more, back, x, index, d, waved, bias, project, width, waves, turns_at, mixing, H,
                             PRECISION)  # fmt: skip


@triton.jit(do_not_specialize=_OF_TABLES)
def tile_terms(
    parameters, x, slope, means, variances, priors, numbers, n, d,
    waved, bias, project, width, waves, turns_at, mixing, norm, expansion, posterior, noise_at, mean_at, count, inner,
    rank, ROWS: tl.constexpr, H: tl.constexpr, CHUNK: tl.constexpr, R: tl.constexpr, PART: tl.constexpr,
    PRECISION: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Mean and variance of f, and k(x, x), of a tile of rows by one member."""
    tile, e = tl.program_id(0), tl.program_id(1)
    w = parameters + e * numbers
    row = tile * ROWS + tl.arange(0, ROWS)
    there = row < n
    index = tl.where(there, row, 0).to(tl.int64)
    g = input_layer(w, x, index, d, waved, bias, project, width, waves, turns_at, mixing, ROWS, H, PRECISION)
    g = blocks(g, w, means, count, inner, False, ROWS, H, CHUNK, PRECISION)
    phi, _, _, _, _, _, _ = basis(g, w, norm, expansion, H, R, HEAD)
    mean = tl.load(w + mean_at) + tl.sum(phi * tl.load(w + posterior + tl.arange(0, R))[None, :], 1)
    mean += sloped(x, index, slope + e * d, d, ROWS)
    at = e.to(tl.int64) * n + row
    tl.store(means + at, mean, mask=there)
    tl.store(variances + at, variance(phi, w, posterior, rank, ROWS, R, PART, HEAD), mask=there)
    tl.store(priors + at, tl.sum(phi * phi, 1), mask=there)
