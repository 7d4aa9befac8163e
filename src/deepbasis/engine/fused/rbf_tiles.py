"""The RBF basis of many members, for Triton: from a tile's features to the loss and back, and the sums over all rows.

Distances and whitening cancel, so each of their products is three, of float16 tiles in two parts (`half.py`), whatever
the precision of the network is. What they need lies in planes of their own: a, which is the features in lengthscales
from the middle of the inducing points; k_Z; the gradients in phi and in log k_Z. `rbf_matrix.py` has the factors: the
inducing points b, and below them the parts of the inverse root of K_ZZ. A feature has as many columns as a plane.
"""

import triton
import triton.language as tl

from deepbasis.engine.fused.half import exponent, half_product, packed, put, take, unpacked, weight_at
from deepbasis.engine.fused.head import fit, slopes_of_prior, write_losses
from deepbasis.engine.fused.products import over_rows

_OF_TABLES = ["tiles", "rows", "planes", "units", "of_L", "phi", "count"]  # no kernel is compiled anew for them
_EXACT = tl.constexpr(True)


@triton.jit
def _cross_kernel(a_high, a_low, down, squares, log_variance, norms, factors, factor_scales, second, part,
                  T: tl.constexpr):  # fmt: skip
    """k_Z of T inducing points (Eq. 16)."""
    k = tl.arange(0, T)
    b, b_low = weight_at(factors + part * (T * T) + k[None, :] * T + k[:, None], second, _EXACT)
    of_product = -2.0 * down * tl.load(factor_scales + part)
    distance = half_product(a_high, a_low, b, b_low, _EXACT) * of_product
    distance += squares[:, None] + tl.load(norms + part * T + k)[None, :]
    return tl.exp(log_variance - 0.5 * tl.where(distance < 0.0, 0.0, distance))  # a NaN stays one


@triton.jit
def _whitened(high, low, down, factors, factor_scales, second, unit, T: tl.constexpr):
    """A part of k_Z times a part of the inverse root's transpose."""
    k = tl.arange(0, T)
    W, W_low = weight_at(factors + unit * (T * T) + k[None, :] * T + k[:, None], second, _EXACT)
    return half_product(high, low, W, W_low, _EXACT) * (down * tl.load(factor_scales + unit))


@triton.jit(do_not_specialize=_OF_TABLES)
def basis_forward(
    parameters, weights, weight_scales, operands, scales, by_row, sums, features, exact, exact_scales, factors,
    factor_scales, frames, alphas, found, place_found, numbers, tiles, rows, planes, units, second, second_weights,
    second_exact, second_factors, of_L, phi, expansion, posterior, noise_at, count, floor, ROWS: tl.constexpr,
    TRACE: tl.constexpr, EXPECTED: tl.constexpr, CORRECTED: tl.constexpr, SPLIT: tl.constexpr, T: tl.constexpr,
    R: tl.constexpr,
):  # fmt: skip
    """A tile's features to phi (Eq. 12), to the loss, and to the gradient in L^T phi.

    With CORRECTED the variance has what phi misses of the kernel (Eq. 4).
    """
    tile, e = tl.program_id(0), tl.program_id(1)
    parts: tl.constexpr = R // T
    pieces: tl.constexpr = parts + parts * (parts + 1) // 2
    w = parameters + e * numbers
    weights += (e.to(tl.int64) * units + of_L) * (T * T)
    weight_scales += e * units + of_L
    operands += e.to(tl.int64) * planes * rows * T
    scales += e * planes * tiles
    by_row += e * (count + 4) * rows
    exact += e.to(tl.int64) * (1 + 3 * parts) * rows * T
    exact_scales += e * (1 + 3 * parts) * tiles
    factors += e * pieces * (T * T)
    factor_scales += e * pieces
    frames += e * (2 * T + R)
    row, k = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, T)
    s = tl.load(features + (e.to(tl.int64) * rows + row[:, None]) * T + k[None, :])
    a = (s - tl.load(frames + k)[None, :]) * tl.load(frames + T + k)[None, :]
    squares = tl.sum(a * a, 1)
    high, low, down = packed(a, exponent(a), _EXACT)
    put(exact, exact_scales, 0, row, high, low, down, rows, tile, tiles, second_exact, T, T, _EXACT)
    log_variance = tl.load(w + expansion + R * T + T)
    near = _cross_kernel(high, low, down, squares, log_variance, frames + 2 * T, factors, factor_scales, second_factors,
                         0, T)  # fmt: skip
    k_high, k_low, k_down = packed(near, exponent(near), _EXACT)
    put(exact, exact_scales, 1, row, k_high, k_low, k_down, rows, tile, tiles, second_exact, T, T, _EXACT)
    basis = _whitened(k_high, k_low, k_down, factors, factor_scales, second_factors, parts, T)
    if R > T:
        behind = _whitened(k_high, k_low, k_down, factors, factor_scales, second_factors, parts + 1, T)
        near = _cross_kernel(high, low, down, squares, log_variance, frames + 2 * T, factors, factor_scales,
                             second_factors, 1, T)  # fmt: skip
        k_high, k_low, k_down = packed(near, exponent(near), _EXACT)
        put(exact, exact_scales, 2, row, k_high, k_low, k_down, rows, tile, tiles, second_exact, T, T, _EXACT)
        behind += _whitened(k_high, k_low, k_down, factors, factor_scales, second_factors, parts + 2, T)
    mean, prior = tl.sum(basis * tl.load(w + posterior + k)[None, :], 1), tl.sum(basis * basis, 1)
    square = weights + k[:, None] * T + k[None, :]
    W, W_low = weight_at(square, second_weights, SPLIT)
    high, low, down = packed(basis, exponent(basis), SPLIT)
    put(operands, scales, phi, row, high, low, down, rows, tile, tiles, second, T, T, SPLIT)
    v = half_product(high, low, W, W_low, SPLIT) * (down * tl.load(weight_scales))
    if R > T:
        mean += tl.sum(behind * tl.load(w + posterior + T + k)[None, :], 1)
        prior += tl.sum(behind * behind, 1)
        high, low, down = packed(behind, exponent(behind), SPLIT)
        put(operands, scales, phi + 1, row, high, low, down, rows, tile, tiles, second, T, T, SPLIT)
        W, W_low = weight_at(square + T * T, second_weights, SPLIT)
        v += half_product(high, low, W, W_low, SPLIT) * (down * tl.load(weight_scales + 1))
        W, W_low = weight_at(square + 2 * T * T, second_weights, SPLIT)
        behind = half_product(high, low, W, W_low, SPLIT) * (down * tl.load(weight_scales + 2))
    var = tl.sum(v * v, 1)
    if R > T:
        var += tl.sum(behind * behind, 1)
    missed = tl.exp(log_variance) - prior
    if CORRECTED:
        var += tl.where(missed < 0.0, 0.0, missed)  # a NaN stays one
    # what `many.forward` left: the target without the prior mean, and the rows' weights
    error = tl.load(by_row + (count + 1) * rows + row) - mean
    weight = tl.load(by_row + (count + 2) * rows + row)
    raw = tl.load(w + noise_at)
    noise = floor + tl.exp(raw)
    rows_loss, of_error, of_var, of_noise = fit(error, var, noise, EXPECTED)
    loss, of_noise = tl.sum(weight * rows_loss), tl.sum(weight * of_noise)
    of_error = -weight * of_error  # the gradient in the mean
    of_var = 2.0 * weight * of_var
    if CORRECTED:  # twice the gradients in the rows' prior variances
        tl.store(by_row + (count + 3) * rows + row, tl.where(missed < 0.0, 0.0, -of_var))
    v *= of_var[:, None]
    high, low, down = packed(v, exponent(v), SPLIT)
    put(operands, scales, phi + parts, row, high, low, down, rows, tile, tiles, second, T, T, SPLIT)
    if R > T:
        behind *= of_var[:, None]
        high, low, down = packed(behind, exponent(behind), SPLIT)
        put(operands, scales, phi + parts + 1, row, high, low, down, rows, tile, tiles, second, T, T, SPLIT)
    write_losses(loss, of_noise, of_error, prior, weight, raw, noise, by_row, sums, alphas, found, place_found, e, tile,
                 tiles, rows, row, count, ROWS, TRACE)  # fmt: skip


@triton.jit
def _back_to_phi(
    operands, scales, w, weights, weight_scales, moments, of_error, of_prior, more, row, rows, tile, tiles, second,
    second_weights, posterior, phi, part: tl.constexpr, PRIOR: tl.constexpr, SPLIT: tl.constexpr, T: tl.constexpr,
    R: tl.constexpr,
):  # fmt: skip
    """The gradient in a part of phi, through the mean, the prior variance (PRIOR) and L^T phi; times phi it is
    summed, and `more` is added to the first sum."""
    k = tl.arange(0, T)
    of_phi = of_error[:, None] * tl.load(w + posterior + part * T + k)[None, :]
    high, low, down = take(operands, scales, phi + part, row, rows, tile, tiles, second, T, T, SPLIT)
    basis = unpacked(high, low, down, SPLIT)
    if PRIOR:
        of_phi += of_prior[:, None] * basis
    for q in tl.static_range(part + 1):  # L is lower triangular
        high, low, down = take(operands, scales, phi + R // T + q, row, rows, tile, tiles, second, T, T, SPLIT)
        unit = part * (part + 1) // 2 + q
        W, W_low = weight_at(weights + unit * (T * T) + k[None, :] * T + k[:, None], second_weights, SPLIT)
        of_phi += half_product(high, low, W, W_low, SPLIT) * (down * tl.load(weight_scales + unit))
    tl.store(moments + (1 + part) * T + k, tl.sum(of_phi * basis, 0) + tl.where(k == 0, more, 0.0))
    return of_phi


@triton.jit
def _back_to_features(
    of_k, exact, exact_scales, factors, factor_scales, row, rows, tile, tiles, second, second_factors,
    part: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """From the gradient in a part of k_Z: that in the features but for its share of a, and the sum that a is taken by.

    d log k_Z / d a = b - a.
    """
    k = tl.arange(0, T)
    high, low, down = take(exact, exact_scales, 1 + part, row, rows, tile, tiles, second, T, T, _EXACT)
    b, b_low = weight_at(factors + part * (T * T) + k[:, None] * T + k[None, :], second_factors, _EXACT)
    of_log = of_k * unpacked(high, low, down, _EXACT)
    high, low, down = packed(of_log, exponent(of_log), _EXACT)
    plane = 1 + 2 * (R // T) + part
    put(exact, exact_scales, plane, row, high, low, down, rows, tile, tiles, second, T, T, _EXACT)
    return half_product(high, low, b, b_low, _EXACT) * (down * tl.load(factor_scales + part)), tl.sum(of_log, 1)


@triton.jit(do_not_specialize=_OF_TABLES)
def basis_backward(
    parameters, weights, weight_scales, operands, scales, by_row, features, exact, exact_scales, factors, factor_scales,
    frames, moments, alphas, found, place_found, numbers, tiles, rows, planes, units, second, second_weights,
    second_exact, second_factors, of_L, phi, expansion, posterior, noise_at, count, floor, ROWS: tl.constexpr,
    MOST_TILES: tl.constexpr, TRACE: tl.constexpr, THROUGH: tl.constexpr, CORRECTED: tl.constexpr, SPLIT: tl.constexpr,
    T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """The gradients in a tile's phi, in log k_Z, and in its features, which take the features' place."""
    tile, e = tl.num_programs(0) - 1 - tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    parts: tl.constexpr = R // T
    pieces: tl.constexpr = parts + parts * (parts + 1) // 2
    w = parameters + e * numbers
    weights += (e.to(tl.int64) * units + of_L) * (T * T)
    weight_scales += e * units + of_L
    operands += e.to(tl.int64) * planes * rows * T
    scales += e * planes * tiles
    by_row += e * (count + 4) * rows
    exact += e.to(tl.int64) * (1 + 3 * parts) * rows * T
    exact_scales += e * (1 + 3 * parts) * tiles
    factors += e * pieces * (T * T)
    factor_scales += e * pieces
    row, k = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, T)
    as_it_lies = k[:, None] * T + k[None, :]
    PRIOR: tl.constexpr = TRACE or CORRECTED
    moments += (e * tiles + tile) * (T + R)
    of_error = tl.load(by_row + (count + 1) * rows + row)
    of_prior = of_error
    if TRACE:
        of_prior = slopes_of_prior(w, by_row, alphas, found, place_found, e, tiles, rows, row, count, noise_at, floor,
                                   MOST_TILES, THROUGH)  # fmt: skip
    of_variance = 0.0  # twice the gradient in its logarithm that does not come through phi
    if CORRECTED:
        of_prior = tl.load(by_row + (count + 3) * rows + row)
        of_variance = -tl.exp(tl.load(w + expansion + R * T + T)) * tl.sum(of_prior)
    of_phi = _back_to_phi(operands, scales, w, weights, weight_scales, moments, of_error, of_prior, of_variance, row,
                          rows, tile, tiles, second, second_weights, posterior, phi, 0, PRIOR, SPLIT, T, R)  # fmt: skip
    high, low, down = packed(of_phi, exponent(of_phi), _EXACT)
    put(exact, exact_scales, 1 + parts, row, high, low, down, rows, tile, tiles, second_exact, T, T, _EXACT)
    W, W_low = weight_at(factors + parts * (T * T) + as_it_lies, second_factors, _EXACT)
    of_k = half_product(high, low, W, W_low, _EXACT) * (down * tl.load(factor_scales + parts))
    if R > T:
        of_phi = _back_to_phi(operands, scales, w, weights, weight_scales, moments, of_error, of_prior, 0.0, row, rows,
                              tile, tiles, second, second_weights, posterior, phi, 1, PRIOR, SPLIT, T, R)  # fmt: skip
        high, low, down = packed(of_phi, exponent(of_phi), _EXACT)
        put(exact, exact_scales, 2 + parts, row, high, low, down, rows, tile, tiles, second_exact, T, T, _EXACT)
        W, W_low = weight_at(factors + (parts + 1) * (T * T) + as_it_lies, second_factors, _EXACT)
        of_k += half_product(high, low, W, W_low, _EXACT) * (down * tl.load(factor_scales + parts + 1))
    of_a, total = _back_to_features(of_k, exact, exact_scales, factors, factor_scales, row, rows, tile, tiles,
                                    second_exact, second_factors, 0, T, R)  # fmt: skip
    if R > T:
        W, W_low = weight_at(factors + (parts + 2) * (T * T) + as_it_lies, second_factors, _EXACT)
        of_k = half_product(high, low, W, W_low, _EXACT) * (down * tl.load(factor_scales + parts + 2))
        more, more_total = _back_to_features(of_k, exact, exact_scales, factors, factor_scales, row, rows, tile, tiles,
                                             second_exact, second_factors, 1, T, R)  # fmt: skip
        of_a += more
        total += more_total
    high, low, down = take(exact, exact_scales, 0, row, rows, tile, tiles, second_exact, T, T, _EXACT)
    a = unpacked(high, low, down, _EXACT)
    of_a -= total[:, None] * a
    tl.store(moments + k, tl.sum(of_a * a, 0))
    of_s = of_a * tl.load(frames + e * (2 * T + R) + T + k)[None, :]
    tl.store(features + (e.to(tl.int64) * rows + row[:, None]) * T + k[None, :], of_s)


@triton.jit(do_not_specialize=_OF_TABLES)
def basis_products(
    exact, exact_scales, of_roots, of_root_scales, of_points, of_logs, tiles, rows, second, second_of_roots,
    ROWS: tl.constexpr, STEP: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Over all rows: a part of the gradient in the inverse root, of_phi^T k_Z, lower triangular and in float16; or
    of_log^T a and the sums of of_log."""
    program, e = tl.program_id(0), tl.program_id(1)
    parts: tl.constexpr = R // T
    squares: tl.constexpr = parts * (parts + 1) // 2
    exact += e.to(tl.int64) * (1 + 3 * parts) * rows * T
    exact_scales += e * (1 + 3 * parts) * tiles
    c = tl.arange(0, T)
    if program < squares:
        i, j = (program + 1) // 2, program // 2  # of one or two parts
        total, _ = over_rows(exact, exact_scales, 1 + parts + i, 1 + j, tiles, rows, 0, rows, second, ROWS, STEP,
                             _EXACT, T, False)  # fmt: skip
        total = tl.where((i * T + c)[:, None] >= (j * T + c)[None, :], total, 0.0)
        high, low, down = packed(total, exponent(total), _EXACT)
        place = of_roots + (e * squares + program) * (T * T) + c[:, None] * T + c[None, :]
        tl.store(place, high)
        tl.store(place + second_of_roots, low)
        tl.store(of_root_scales + e * squares + program, down)
    else:
        part = program - squares
        total, of_rows = over_rows(exact, exact_scales, 1 + 2 * parts + part, 0, tiles, rows, 0, rows, second, ROWS,
                                   STEP, _EXACT, T, True)  # fmt: skip
        tl.store(of_points + (e * R + part * T + c)[:, None] * T + c[None, :], total)
        tl.store(of_logs + e * R + part * T + c, of_rows)
