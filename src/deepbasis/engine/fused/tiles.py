"""The kernels over tiles of rows: a training step's gradients, the in-batch maximum before it, and a prediction."""

import triton
import triton.language as tl

from deepbasis.engine.fused.layers import (
    add,
    basis,
    basis_back,
    blocks,
    blocks_back,
    input_layer,
    input_layer_back,
    recall,
    sloped,
    variance,
    variance_back,
)

_LOG_TURN = tl.constexpr(1.8378770664093453)  # log(2 pi)


@triton.jit
def _batch(order, weights, mask, step, e, members, tile, batch, n, ROWS: tl.constexpr, WEIGHTS: tl.constexpr,
           MASK: tl.constexpr, mask_step, mask_member):  # fmt: skip
    """Of a tile of a member's batch: the rows' numbers, their weights, and the sum of all the batch's weights.

    WEIGHTS is 0 for none, 1 for a weight of each row, 2 for those of each member.
    """
    now = tl.load(step)
    place = tile * ROWS + tl.arange(0, ROWS)
    there = place < batch
    mine = order + (now * members + e) * batch
    index = tl.load(mine + place, mask=there, other=0)
    weight = there.to(tl.float32)
    whole = 1.0 * batch
    if WEIGHTS > 0 or MASK:
        if MASK:
            of_mask = mask + now * mask_step + e * mask_member
            weight = tl.load(of_mask + place, mask=there, other=0.0)
        if WEIGHTS > 0:
            own = weights + (e * n if WEIGHTS == 2 else 0)
            weight *= tl.load(own + index, mask=there, other=0.0)
        whole = 0.0
        for at in range(0, batch, ROWS):
            all_places = at + tl.arange(0, ROWS)
            inside = all_places < batch
            part = inside.to(tl.float32)
            if MASK:
                part = tl.load(of_mask + all_places, mask=inside, other=0.0)
            if WEIGHTS > 0:
                rows = tl.load(mine + all_places, mask=inside, other=0)
                part *= tl.load(own + rows, mask=inside, other=0.0)
            whole += tl.sum(part)
    return index, weight, whole


@triton.jit
def largest_prior(
    parameters, x, order, weights, mask, step, kept, found, place_found,
    numbers, members, batch, n, d, tiles, mask_step, mask_member, project, waves, turns_at, mixing, count, inner, rank,
    ROWS: tl.constexpr, WEIGHTS: tl.constexpr, MASK: tl.constexpr,
    H: tl.constexpr, INNER: tl.constexpr, CHUNK: tl.constexpr, BLOCK_SIZE: tl.constexpr, R: tl.constexpr,
    PART: tl.constexpr, NORM: tl.constexpr, EXPANSION: tl.constexpr, PROJECT_BIAS: tl.constexpr,
    FREQUENCIES: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """The largest ||phi(x)||^2 of each tile, and where in the batch it is: for the trace term of Eq. 15."""
    e, tile = tl.program_id(0), tl.program_id(1)
    w = parameters + e * numbers
    index, weight, _ = _batch(order, weights, mask, step, e, members, tile, batch, n, ROWS, WEIGHTS, MASK,
                              mask_step, mask_member)  # fmt: skip
    g = input_layer(w, x, index, d, project, waves, turns_at, mixing, ROWS, H, PROJECT_BIAS, FREQUENCIES, OUTPUTS,
                    PRECISION)  # fmt: skip
    g = blocks(g, w, kept, count, inner, False, ROWS, H, INNER, CHUNK, BLOCK_SIZE, PRECISION)
    phi, _, _, _, _, _, _ = basis(g, w, H, R, NORM, EXPANSION, HEAD)
    prior = tl.where(weight > 0.0, tl.sum(phi * phi, 1), float("-inf"))
    value, place = tl.max(prior, 0, return_indices=True)
    tl.store(found + e * tiles + tile, value)
    tl.store(place_found + e * tiles + tile, tile * ROWS + place)


@triton.jit
def tile_gradients(
    parameters, gradients, kept, losses, x, y, slope, order, weights, mask, step, steps_done, alphas, found,
    place_found, numbers, members, batch, n, d, tiles, mask_step, mask_member, project, waves, turns_at, mixing, count,
    inner, rank, floor,
    ROWS: tl.constexpr, TILES: tl.constexpr, WEIGHTS: tl.constexpr, MASK: tl.constexpr, SLOPE: tl.constexpr,
    TRACE: tl.constexpr, THROUGH: tl.constexpr, EXPECTED: tl.constexpr, MOST_TILES: tl.constexpr,
    H: tl.constexpr, INNER: tl.constexpr, CHUNK: tl.constexpr, BLOCK_SIZE: tl.constexpr, R: tl.constexpr,
    PART: tl.constexpr, NORM: tl.constexpr, EXPANSION: tl.constexpr, POSTERIOR: tl.constexpr,
    PROJECT_BIAS: tl.constexpr, NOISE: tl.constexpr, MEAN: tl.constexpr,
    FREQUENCIES: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """A program's share of each gradient of a member's loss, without that of the KL; and of the loss itself.

    It takes TILES tiles one after another, and adds them up in that order. TRACE is whether any alpha is not 0, THROUGH
    whether the gradient passes through the maximum, EXPECTED whether the fit is E log p (Eq. 5), not log E p (Eq. 6).
    """
    e, program = tl.program_id(0), tl.program_id(1)
    if (e == 0) & (program == 0):  # no other program of this kernel reads it
        tl.store(steps_done, tl.load(steps_done) + 1)
    share = e * tl.num_programs(1) + program
    w, out = parameters + e * numbers, gradients + share * numbers
    kept += share * (count + 1) * (ROWS * H)
    r = tl.arange(0, R)
    raw = tl.load(w + NOISE)
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
        tile, more = program * TILES + tile_of_mine, tile_of_mine > 0
        index, weight, whole = _batch(order, weights, mask, step, e, members, tile, batch, n, ROWS, WEIGHTS, MASK,
                                      mask_step, mask_member)  # fmt: skip
        weight = weight / whole
        g = input_layer(w, x, index, d, project, waves, turns_at, mixing, ROWS, H, PROJECT_BIAS, FREQUENCIES, OUTPUTS,
                        PRECISION)  # fmt: skip
        g = blocks(g, w, kept, count, inner, True, ROWS, H, INNER, CHUNK, BLOCK_SIZE, PRECISION)
        phi, _, _, _, _, _, _ = basis(g, w, H, R, NORM, EXPANSION, HEAD)
        m = tl.load(w + POSTERIOR + r)
        error = tl.load(y + index) - tl.load(w + MEAN) - tl.sum(phi * m[None, :], 1)
        if SLOPE:
            error -= sloped(x, index, slope + e * d, d, ROWS)
        var = variance(phi, w, rank, ROWS, R, PART, POSTERIOR, HEAD)
        if EXPECTED:
            rows_loss = 0.5 * (_LOG_TURN + tl.log(noise) + (error * error + var) / noise)
            of_error = error / noise
            of_var = 0.5 / noise + 0.0 * var
            of_s = 0.5 * (1.0 - (error * error + var) / noise) / noise
        else:
            total = var + noise
            rows_loss = 0.5 * (_LOG_TURN + tl.log(total) + error * error / total)
            of_error = error / total
            of_var = 0.5 * (1.0 - error * error / total) / total
            of_s = of_var
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
        add(out + POSTERIOR + r, tl.sum(of_error[:, None] * phi, 0), more)
        of_phi = variance_back(of_phi, weight * of_var, phi, w, out, more, rank, R, PART, POSTERIOR, HEAD)
        tl.debug_barrier()  # what was kept is read by other threads than wrote it
        g = recall(kept, count, ROWS, H)
        back = basis_back(of_phi, g, w, out, more, H, R, NORM, EXPANSION, HEAD)
        back = blocks_back(back, w, out, more, kept, count, inner, ROWS, H, INNER, CHUNK, BLOCK_SIZE, PRECISION)
        input_layer_back(w, out, more, back, x, index, d, project, waves, turns_at, mixing, H, PROJECT_BIAS,
                         FREQUENCIES, OUTPUTS, PRECISION)  # fmt: skip
        tl.debug_barrier()
    tl.store(out + NOISE, of_noise * tl.exp(raw))
    tl.store(out + MEAN, of_mean)
    tl.store(losses + share, loss)


@triton.jit
def tile_terms(
    parameters, x, slope, means, variances, priors, kept, numbers, n, d, project, waves, turns_at, mixing, count,
    inner, rank, ROWS: tl.constexpr, SLOPE: tl.constexpr,
    H: tl.constexpr, INNER: tl.constexpr, CHUNK: tl.constexpr, BLOCK_SIZE: tl.constexpr, R: tl.constexpr,
    PART: tl.constexpr, NORM: tl.constexpr, EXPANSION: tl.constexpr, POSTERIOR: tl.constexpr,
    PROJECT_BIAS: tl.constexpr, MEAN: tl.constexpr,
    FREQUENCIES: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Mean and variance of f, and k(x, x), of a tile of rows by one member."""
    tile, e = tl.program_id(0), tl.program_id(1)
    w = parameters + e * numbers
    row = tile * ROWS + tl.arange(0, ROWS)
    there = row < n
    index = tl.where(there, row, 0).to(tl.int64)
    g = input_layer(w, x, index, d, project, waves, turns_at, mixing, ROWS, H, PROJECT_BIAS, FREQUENCIES, OUTPUTS,
                    PRECISION)  # fmt: skip
    g = blocks(g, w, kept, count, inner, False, ROWS, H, INNER, CHUNK, BLOCK_SIZE, PRECISION)
    phi, _, _, _, _, _, _ = basis(g, w, H, R, NORM, EXPANSION, HEAD)
    mean = tl.load(w + MEAN) + tl.sum(phi * tl.load(w + POSTERIOR + tl.arange(0, R))[None, :], 1)
    if SLOPE:
        mean += sloped(x, index, slope + e * d, d, ROWS)
    var = variance(phi, w, rank, ROWS, R, PART, POSTERIOR, HEAD)
    at = e.to(tl.int64) * n + row
    tl.store(means + at, mean, mask=there)
    tl.store(variances + at, var, mask=there)
    tl.store(priors + at, tl.sum(phi * phi, 1), mask=there)
