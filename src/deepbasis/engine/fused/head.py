"""What comes behind the network, for Triton: the basis, q(w) and the fit of a tile of rows, with their gradients."""

import triton
import triton.language as tl

from deepbasis.engine.fused.layers import add, normalised, normalised_back, product, sigmoid, silu_slope, transposed

_LOG_TURN = tl.constexpr(1.8378770664093453)  # log(2 pi)


@triton.jit
def basis(g, w, norm, expansion, H: tl.constexpr, R: tl.constexpr, HEAD: tl.constexpr):
    """phi = s silu(E silu(norm(g)) + e) and what its gradient needs. The expansion lies as bias, scale, weight."""
    h, r = tl.arange(0, H), tl.arange(0, R)
    unit, scale = normalised(g, H)
    z = unit * tl.load(w + norm + h)[None, :] + tl.load(w + norm + H + h)[None, :]
    s = z * sigmoid(z)
    t = product(s, transposed(w + expansion + 2 * R, h, r, H), HEAD) + tl.load(w + expansion + r)[None, :]
    act, act_slope = silu_slope(t)
    return act * tl.load(w + expansion + R + r)[None, :], act, act_slope, s, z, unit, scale


@triton.jit
def basis_back(
    of_phi, act, act_slope, s, z, unit, scale, w, out, more, norm, expansion, H: tl.constexpr, R: tl.constexpr,
    HEAD: tl.constexpr,
):  # fmt: skip
    h, r = tl.arange(0, H), tl.arange(0, R)
    add(out + expansion + R + r, tl.sum(of_phi * act, 0), more)
    of_t = of_phi * tl.load(w + expansion + R + r)[None, :] * act_slope
    add(out + expansion + r, tl.sum(of_t, 0), more)
    place = expansion + 2 * R + r[:, None] * H + h[None, :]
    add(out + place, product(tl.trans(of_t), s, HEAD), more)
    _, z_slope = silu_slope(z)
    of_z = product(of_t, tl.load(w + place), HEAD) * z_slope
    add(out + norm + h, tl.sum(of_z * unit, 0), more)
    add(out + norm + H + h, tl.sum(of_z, 0), more)
    return normalised_back(of_z * tl.load(w + norm + h)[None, :], unit, scale, H)


@triton.jit
def columns_of_L(w, at, posterior, R: tl.constexpr, PART: tl.constexpr):
    """[R, PART] of L. The mean, the log-diagonal and the lower part of q(w) lie behind each other."""
    i, j = tl.arange(0, R)[:, None], at + tl.arange(0, PART)[None, :]
    lower = tl.load(w + posterior + 2 * R + i * R + j)  # all of it: wide loads have no mask
    diagonal = tl.exp(tl.load(w + posterior + R + at + tl.arange(0, PART)))
    return tl.where(i > j, lower, tl.where(i == j, diagonal[None, :], 0.0))


@triton.jit
def variance(phi, w, posterior, rank, ROWS: tl.constexpr, R: tl.constexpr, PART: tl.constexpr, HEAD: tl.constexpr):
    """||L^T phi||^2 of each row, some columns of L at a time."""
    var = tl.zeros([ROWS], tl.float32)
    for at in range(0, rank, PART):
        v = product(phi, columns_of_L(w, at, posterior, R, PART), HEAD)
        var += tl.sum(v * v, 1)
    return var


@triton.jit
def variance_back(
    of_phi, of_var, phi, w, out, more, posterior, rank,
    R: tl.constexpr, PART: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """`of_phi` with what comes through the variance; the gradients of L on the way."""
    upright = tl.trans(phi)
    for at in range(0, rank, PART):
        L = columns_of_L(w, at, posterior, R, PART)
        of_v = 2.0 * of_var[:, None] * product(phi, L, HEAD)
        of_phi += product(of_v, tl.trans(L), HEAD)
        of_L = product(upright, of_v, HEAD)
        k = at + tl.arange(0, PART)
        i, j = tl.arange(0, R)[:, None], k[None, :]
        diagonal = tl.sum(tl.where(i == j, of_L, 0.0), 0)
        add(out + posterior + R + k, diagonal * tl.exp(tl.load(w + posterior + R + k)), more)
        add(out + posterior + 2 * R + i * R + j, tl.where(i > j, of_L, 0.0), more)
    return of_phi


@triton.jit
def fit(error, var, noise, EXPECTED: tl.constexpr):
    """-E log p (Eq. 5) or -log E p (Eq. 6) of each row; minus its derivative in the error, and those in the variance
    and in the noise."""
    if EXPECTED:
        rows_loss = 0.5 * (_LOG_TURN + tl.log(noise) + (error * error + var) / noise)
        of_error = error / noise
        of_var = 0.5 / noise + 0.0 * var
        of_noise = 0.5 * (1.0 - (error * error + var) / noise) / noise
    else:
        total = var + noise
        rows_loss = 0.5 * (_LOG_TURN + tl.log(total) + error * error / total)
        of_error = error / total
        of_var = 0.5 * (1.0 - error * error / total) / total
        of_noise = of_var
    return rows_loss, of_error, of_var, of_noise


@triton.jit
def write_losses(
    loss, of_noise, of_error, prior, weight, raw, noise, by_row, sums, alphas, found, place_found, e, tile, tiles, rows,
    row, count, ROWS: tl.constexpr, TRACE: tl.constexpr,
):  # fmt: skip
    """Of a tile of many members: its sums, with its part of the trace term, and the gradients in the rows' means."""
    if TRACE:
        pull = tl.load(alphas + e) / (2.0 * noise)
        part_of_loss = pull * tl.sum(weight * prior)
        loss -= part_of_loss
        of_noise += part_of_loss / noise
        value, place_of = tl.max(tl.where(weight > 0.0, prior, float("-inf")), 0, return_indices=True)
        tl.store(found + e * tiles + tile, value)
        tl.store(place_found + e * tiles + tile, tile * ROWS + place_of)
    tl.store(by_row + (count + 1) * rows + row, of_error)
    tl.store(by_row + (count + 2) * rows + row, weight)
    sums += (e * tiles + tile) * 4
    tl.store(sums, loss)
    tl.store(sums + 1, of_noise * tl.exp(raw))
    tl.store(sums + 2, tl.sum(of_error))


@triton.jit
def slopes_of_prior(
    w, by_row, alphas, found, place_found, e, tiles, rows, row, count, noise_at, floor,
    MOST_TILES: tl.constexpr, THROUGH: tl.constexpr,
):  # fmt: skip
    """Twice the gradients in the rows' prior variances, which are kept too: the trace term, whose maximum is over all
    tiles."""
    pull = tl.load(alphas + e) / (2.0 * (floor + tl.exp(tl.load(w + noise_at))))
    of_prior = -pull * tl.load(by_row + (count + 2) * rows + row)
    if THROUGH:
        others = tl.arange(0, MOST_TILES)
        each = tl.load(found + e * tiles + others, mask=others < tiles, other=float("-inf"))
        _, best = tl.max(each, 0, return_indices=True)
        of_prior += tl.where(row == tl.load(place_found + e * tiles + best), pull, 0.0)
    of_prior *= 2.0
    tl.store(by_row + (count + 3) * rows + row, of_prior)
    return of_prior
