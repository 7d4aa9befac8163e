"""The networks of all members, forwards and backwards."""

import torch
from torch import Tensor

from deepbasis.engine.formulas.inputs import INPUTS, Parameters, centred
from deepbasis.gp.backbone import ResNet
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.norms import NORM_EPSILON

silu, silu_back = torch.ops.aten.silu.out, torch.ops.aten.silu_backward.grad_input


class ResidualBlock:
    """v = norm(g) W1 + b1, g <- g + silu(v) W2 + b2, with the norm's own weights in the first layer."""

    def __init__(self, p: Parameters, name: str) -> None:
        parts = ("norm.weight", "norm.bias", "widen.weight", "widen.bias", "narrow.weight", "narrow.bias")
        self.name = name
        self.gamma, self.shift, self.W, b, W2, b2 = (p[f"{name}.{part}"] for part in parts)
        self.W1t = self.W * self.gamma[:, None]
        self.b1 = (b + (self.W * self.shift[:, None]).sum(2))[:, None]
        self.W2t, self.b2 = centred(W2), centred(b2)[:, None]
        self.W1, self.W2 = self.W1t.mT.contiguous(), self.W2t.mT.contiguous()  # products with them are faster so

    def gradients(self, dW1t: Tensor, db1: Tensor, dW2t: Tensor, db2: Tensor) -> dict[str, Tensor]:
        found = {
            "norm.weight": (dW1t * self.W).sum(1),
            "norm.bias": (self.W * db1[..., None]).sum(1),
            "widen.weight": (dW1t * self.gamma[:, None]).addcmul_(db1[..., None], self.shift[:, None]),
            "widen.bias": db1,
            "narrow.weight": centred(dW2t),
            "narrow.bias": centred(db2),
        }
        return {f"{self.name}.{part}": value for part, value in found.items()}


class Buffers:
    """What b rows of every member are on their way forwards and backwards: [E, b, width]; what comes before the
    projection [E, width, b]."""

    def __init__(self, network: "Network", rows: int) -> None:
        like, input = network.b, network.input
        (_, inner, h), width = network.blocks[0].W.shape, input.projection.shape[2]
        rank, blocks, d = network.s.shape[1], len(network.blocks), width - input.made

        def place(width: int) -> Tensor:
            return like.new_empty(len(like), rows, width)

        self.F, self.dmade, self.waves, self.slopes = (
            like.new_empty(len(like), count, rows) for count in (width, input.made, input.angles, input.angles)
        )
        self.x, self.made = self.F[:, :d], self.F[:, d:]
        self.g, self.dg, self.t, self.du = (place(h) for _ in range(4))
        self.u, self.scale = ([place(width) for _ in range(blocks + 1)] for width in (h, 1))
        self.v, self.a = ([place(inner) for _ in range(blocks)] for _ in range(2))
        self.dv, self.along = place(inner), place(1)
        self.mean, self.epsilon = like.new_full((h,), 1.0 / h), like.new_full((), NORM_EPSILON)
        self.v_end, self.a_end = (place(h) for _ in range(2))
        self.z, self.a_phi, self.dz = (place(rank) for _ in range(3))
        self.Q, self.dQ = place(rank + 1), place(rank + 1)


class Network:
    """The parameters of all members as a step needs them."""

    def __init__(self, template: DeepBasisGP, p: Parameters, buffers: Parameters) -> None:
        backbone, likelihood = template.backbone, template.likelihood
        assert isinstance(backbone, ResNet)
        assert isinstance(likelihood, GaussianLikelihood)
        self.input = INPUTS[type(backbone.embedding)](p, buffers)
        self.b = centred(p["backbone.project.bias"])[:, None]
        self.blocks = [ResidualBlock(p, f"backbone.blocks.{k}") for k in range(len(backbone.blocks))]
        self.gamma, self.shift = p["backbone.norm.weight"][:, None], p["backbone.norm.bias"][:, None]
        self.W, self.e, self.s = (p[f"expansion.{name}"] for name in ("linear.weight", "linear.bias", "scale"))
        m, self.log_diagonal = p["posterior.m"], p["posterior.log_diagonal"]
        L = p["posterior.lower"].tril(-1)
        self.diagonal = self.log_diagonal.exp()
        L.diagonal(dim1=1, dim2=2).copy_(self.diagonal)
        self.q = torch.cat([L, m[..., None]], 2)  # [E, r, r + 1]
        self.A = self.q * self.s[..., None]
        self.mean, self.slope, self.exp_raw = p["mean"], buffers.get("slope"), p["likelihood.raw"].exp()
        self.noise = (self.exp_raw + likelihood.floor)[:, None]

    def forwards(self, at: Buffers) -> tuple[Tensor, Tensor]:
        """Mean and variance of f [E, b] for the rows `at.x`."""
        self.input.forwards(at)
        torch.baddbmm(self.b, at.F.mT, self.input.projection.mT, out=at.g)
        for block, u, scale, v, a in zip(self.blocks, at.u, at.scale, at.v, at.a, strict=False):
            _norm(at, u, scale)
            torch.baddbmm(block.b1, u, block.W1, out=v)
            silu(v, out=a)
            at.g.baddbmm_(a, block.W2).add_(block.b2)
        _norm(at, at.u[-1], at.scale[-1])
        torch.addcmul(self.shift, at.u[-1], self.gamma, out=at.v_end)
        silu(at.v_end, out=at.a_end)
        torch.baddbmm(self.e[:, None], at.a_end, self.W.mT, out=at.z)
        silu(at.z, out=at.a_phi)
        torch.bmm(at.a_phi, self.A, out=at.Q)
        mean = at.Q[..., -1] + self.mean[:, None]
        if self.slope is not None:
            mean += (self.slope.to(mean)[:, None] @ at.x)[:, 0]
        return mean, torch.mul(at.Q, at.Q, out=at.dQ)[..., :-1].sum(2)

    def kl(self) -> Tensor:
        """KL(q(w) || N(0, I)) [E]."""
        return 0.5 * ((self.q * self.q).sum((1, 2)) - self.s.shape[1]) - self.log_diagonal.sum(1)

    def gradients(self, at: Buffers, dmean: Tensor, dvar: Tensor, dkl: Tensor) -> dict[str, Tensor]:
        """In every parameter, from those in the moments [E, b] and in the KL [E]."""
        torch.mul(at.Q, (2.0 * dvar)[..., None], out=at.dQ)
        at.dQ[..., -1] = dmean
        dA = torch.bmm(at.a_phi.mT, at.dQ)
        dq = (dA * self.s[..., None]).addcmul_(self.q, dkl[:, None, None])
        dL = dq[..., :-1]
        dz = silu_back(torch.bmm(at.dQ, self.A.mT, out=at.dz), at.z, grad_input=at.dz)
        dv = torch.bmm(dz, self.W, out=at.du)
        silu_back(dv, at.v_end, grad_input=dv)
        found = {
            "mean": dmean.sum(1),
            "likelihood.raw": dvar.sum(1) * self.exp_raw,
            "posterior.m": dq[..., -1],
            "posterior.lower": dL.tril(-1),
            "posterior.log_diagonal": dL.diagonal(dim1=1, dim2=2) * self.diagonal - dkl[:, None],
            "expansion.scale": (dA * self.q).sum(2),
            "expansion.linear.weight": torch.bmm(dz.mT, at.a_end),
            "expansion.linear.bias": dz.sum(1),
            "backbone.norm.weight": torch.mul(dv, at.u[-1], out=at.t).sum(1),
            "backbone.norm.bias": dv.sum(1),
        }
        at.du.mul_(self.gamma)
        at.dg.zero_()
        _norm_back(at, at.u[-1], at.scale[-1])
        for block, u, scale, v, a in reversed(list(zip(self.blocks, at.u, at.scale, at.v, at.a, strict=False))):
            dW2t, db2 = torch.bmm(at.dg.mT, a), at.dg.sum(1)
            dv = silu_back(torch.bmm(at.dg, block.W2t, out=at.dv), v, grad_input=at.dv)
            found |= block.gradients(torch.bmm(dv.mT, u), dv.sum(1), dW2t, db2)
            torch.bmm(dv, block.W1t, out=at.du)
            _norm_back(at, u, scale)
        found["backbone.project.bias"] = centred(at.dg.sum(1))
        if self.input.made:
            torch.bmm(self.input.projection[..., -self.input.made :].mT, at.dg.mT, out=at.dmade)
        return found | self.input.gradients(torch.bmm(at.F, at.dg).mT, at)


def _norm(at: Buffers, u: Tensor, scale: Tensor) -> None:
    """u = g scale, where the mean of a row of g is 0."""
    torch.mul(at.g, at.g, out=at.t)
    torch.addmv(at.epsilon, at.t.flatten(0, 1), at.mean, out=scale.flatten())
    torch.mul(at.g, scale.rsqrt_(), out=u)


def _norm_back(at: Buffers, u: Tensor, scale: Tensor) -> None:
    """dg += scale (du - u mean(du u)). Of the mean of a row of dg nothing is taken off: the layers' centring does."""
    torch.mul(at.du, u, out=at.t)
    torch.mv(at.t.flatten(0, 1), at.mean, out=at.along.flatten())
    at.du.addcmul_(u, at.along, value=-1.0)
    at.dg.addcmul_(at.du, scale)
