"""The kernels that make a step of gradients: their sum over programs with that of the KL, AdamW, Muon, the average."""

import triton
import triton.language as tl

from deepbasis.engine.fused.layers import product
from deepbasis.engine.muon import ITERATIONS, MOMENTUM, NEWTON_SCHULZ, SMALLEST
from deepbasis.engine.optimiser import AVERAGE_START, BETAS, EPSILON

# Of a number in the arena: in the KL as its square, as a logarithm of L's diagonal, or not at all.
_SQUARE = tl.constexpr(1)
_LOGARITHM = tl.constexpr(2)

# A constant comes after the numbers that it is for, since before them it is no number in Triton's interpreter.
_BETA_1, _BETA_2, _EPSILON = tl.constexpr(BETAS[0]), tl.constexpr(BETAS[1]), tl.constexpr(EPSILON)
_START = tl.constexpr(AVERAGE_START)
_MOMENTUM, _SMALLEST, _ITERATIONS = tl.constexpr(MOMENTUM), tl.constexpr(SMALLEST), tl.constexpr(ITERATIONS)
_A, _B, _C = tl.constexpr(NEWTON_SCHULZ[0]), tl.constexpr(NEWTON_SCHULZ[1]), tl.constexpr(NEWTON_SCHULZ[2])


@triton.jit
def gather(
    parameters, shares, gradients, kinds, kl_weights, squares, divergences, step, advance, numbers,
    programs, COMPLETE: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a member's gradient: the programs' shares, always added in the same order, and that of the KL.

    Also the block's part of the squared norm, and of the KL, times its weight in the loss. COMPLETE is whether the KL
    is in the shares already; and if the gradient is not SHARED either, all that is missing is the norm.
    """
    e, block = tl.program_id(0), tl.program_id(1)
    if (e == 0) & (block == 0):
        tl.store(step, tl.load(step) + advance)
    at = block * BLOCK + tl.arange(0, BLOCK)
    there = at < numbers
    total = tl.zeros([BLOCK], tl.float32)
    for program in range(programs):
        total += tl.load(shares + (e * programs + program) * numbers + at, mask=there, other=0.0)
    if not COMPLETE:
        kind = tl.load(kinds + at, mask=there, other=0)
        value = tl.load(parameters + e * numbers + at, mask=there, other=0.0)
        weight = tl.load(kl_weights + e)
        of_diagonal = tl.exp(2.0 * tl.where(kind == _LOGARITHM, value, 0.0))
        slope = tl.where(kind == _SQUARE, value, tl.where(kind == _LOGARITHM, of_diagonal - 1.0, 0.0))
        part = tl.where(kind == _SQUARE, 0.5 * value * value, 0.0)
        part += tl.where(kind == _LOGARITHM, 0.5 * of_diagonal - value - 0.5, 0.0)
        total += weight * slope
        tl.store(divergences + e * tl.num_programs(1) + block, weight * tl.sum(part))
    if SHARED:
        tl.store(gradients + e * numbers + at, total, mask=there)
    tl.store(squares + e * tl.num_programs(1) + block, tl.sum(total * total))


@triton.jit
def _clipping(squares, e, blocks, limit, CLIP: tl.constexpr, MOST_BLOCKS: tl.constexpr):
    """What a member's gradient is multiplied by, so that its norm is `limit` at most."""
    scale = 1.0
    if CLIP:
        block = tl.arange(0, MOST_BLOCKS)
        norm = tl.sqrt_rn(tl.sum(tl.load(squares + e * blocks + block, mask=block < blocks, other=0.0)))
        scale = tl.where(norm > limit, limit / norm, tl.where(norm == norm, 1.0, norm))
    return scale


@triton.jit
def _averaged(averages, place, value, t, slowest, mask):
    mean = tl.load(averages + place, mask=mask, other=0.0)
    weight = tl.maximum(tl.fdiv(_START - 1.0, t + _START), slowest)
    tl.store(averages + place, mean + (value - mean) * weight, mask=mask)


@triton.jit
def adamw(
    parameters, shares, gradients, first, second, averages, rates, decays, factors, corrections, squares, divergences,
    losses, loss_sums, steps_done, numbers, blocks, programs, last_factor, last_correction, limit, slowest,
    CLIP: tl.constexpr, AVERAGE: tl.constexpr, SHARES: tl.constexpr, MOST_BLOCKS: tl.constexpr,
    MOST_PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """AdamW and the running average, for the numbers with a rate of at least 0; others are Muon's. One block a program.

    `factors` is the schedule, by step; `corrections` are 1 - b1^t and sqrt(1 - b2^t). The first program of a member
    adds its loss to the epoch's. More SHARES than one are added up first, if `gather` has not been there.
    """
    e, block = tl.program_id(0), tl.program_id(1)
    done = tl.load(steps_done)  # this step included
    if block == 0:
        p, b = tl.arange(0, MOST_PROGRAMS), tl.arange(0, MOST_BLOCKS)
        loss = tl.sum(tl.load(losses + e * programs + p, mask=p < programs, other=0.0))
        loss += tl.sum(tl.load(divergences + e * blocks + b, mask=b < blocks, other=0.0))
        tl.store(loss_sums + e, tl.load(loss_sums + e) + loss.to(tl.float64))
    scale = _clipping(squares, e, blocks, limit, CLIP, MOST_BLOCKS)
    at = block * BLOCK + tl.arange(0, BLOCK)
    rate = tl.load(rates + at, mask=at < numbers, other=-1.0)
    there = rate >= 0.0
    rate *= tl.load(factors + tl.minimum(done - 1, last_factor))
    place = e * numbers + at
    correction = corrections + 2 * tl.minimum(done - 1, last_correction)
    if SHARES > 1:
        g = tl.zeros([BLOCK], tl.float32)
        for share in tl.static_range(SHARES):
            g += tl.load(shares + (e * SHARES + share) * numbers + at, mask=there, other=0.0)
        tl.store(gradients + place, g, mask=there)
    else:
        g = tl.load(gradients + place, mask=there, other=0.0)
    g *= scale
    a = tl.load(first + place, mask=there, other=0.0)
    a += (g - a) * (1.0 - _BETA_1)
    b = tl.load(second + place, mask=there, other=0.0)
    b = b * _BETA_2 + g * (1.0 - _BETA_2) * g
    value = tl.load(parameters + place, mask=there, other=0.0)
    value -= value * rate * tl.load(decays + at, mask=there, other=0.0)
    value -= rate / tl.load(correction) * a / (tl.sqrt_rn(b) / tl.load(correction + 1) + _EPSILON)
    tl.store(first + place, a, mask=there)
    tl.store(second + place, b, mask=there)
    tl.store(parameters + place, value, mask=there)
    if AVERAGE:
        _averaged(averages, place, value, done.to(tl.float32), slowest, there)


@triton.jit
def muon(
    parameters, gradients, momentum, averages, places, strides, factors, squares, steps_done,
    numbers, blocks, last_factor, rate, decay, limit, slowest,
    LOW: tl.constexpr, HIGH: tl.constexpr, CLIP: tl.constexpr, AVERAGE: tl.constexpr, MOST_BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Muon (`engine/muon.py`) for one matrix of one member, lying: [LOW, HIGH] with LOW <= HIGH."""
    e, matrix = tl.program_id(0), tl.program_id(1)
    done = tl.load(steps_done)
    scale = _clipping(squares, e, blocks, limit, CLIP, MOST_BLOCKS)
    i, j = tl.arange(0, LOW)[:, None], tl.arange(0, HIGH)[None, :]
    along, across = tl.load(strides + 2 * matrix), tl.load(strides + 2 * matrix + 1)
    place = e * numbers + tl.load(places + matrix) + i * along + j * across
    g = tl.load(gradients + place) * scale
    past = tl.load(momentum + place)
    past += (g - past) * (1.0 - _MOMENTUM)
    tl.store(momentum + place, past)
    u = g + (past - g) * _MOMENTUM  # Nesterov's
    u = u / tl.maximum(tl.sqrt_rn(tl.sum(u * u)), _SMALLEST)
    for _ in range(_ITERATIONS):  # u <- a u + (b u u^T + c (u u^T)^2) u
        square = product(u, tl.trans(u), PRECISION)
        u = u * _A + product(square * _B + product(square, square, PRECISION) * _C, u, PRECISION)
    now = rate * tl.load(factors + tl.minimum(done - 1, last_factor))
    tall = (along == 1) & (LOW < HIGH)
    value = tl.load(parameters + place)
    value -= value * now * decay
    value -= u * now * tl.where(tall, tl.sqrt_rn(1.0 * HIGH / LOW), 1.0)
    tl.store(parameters + place, value)
    if AVERAGE:
        _averaged(averages, place, value, done.to(tl.float32), slowest, place >= 0)
