"""Bayesian linear regression: predict y at x, in bins, from the pairs read so far.

features x_1, y_1, x_2, y_2, ... x_K, one a position: D numbers and a last one for y, zero where they do not apply
tokens   0 where an x stands, 1 where a y stands
scored   at every x: the bin of its y
exact    y = w.x + noise, w ~ N(0, I), x ~ N(0, I), noise ~ N(0, s^2) with s known: the predictive of y given x and the
         pairs before it is normal, with
             A = I + sum x x^T / s^2,   mean = x.A^-1 sum x y / s^2,   variance = x.A^-1 x + s^2,
         and the mass of a bin is a difference of two values of its distribution function

pool=M   w is one of M weights w_m, and the mass of a bin is their mixture, each weighed by the likelihood of the pairs
         before; see tasks/pool.py

Bins have equal mass under N(0, D + s^2); the outer two are open. Source: the in-context regression of Garg et al. 2022
(arXiv:2208.01066), with the predictive distribution asked for instead of its mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from tasks.base import LARGEST, TASKS, Batch, Shape, Variant, require, shuffle
from tasks.pool import choose, laws, pieces, pool_variants, require_pool

NEGLIGIBLE = 1e-18  # a weight that changes no mass by more than the rounding of a double


@TASKS.add("regression", version=1)
@dataclass(frozen=True)
class Regression:
    dims: int = 4
    noise: float = 0.5
    bins: int = 20
    horizon: int = 20
    pool: int | None = None  # training weights; None: every sequence has fresh ones

    def __post_init__(self) -> None:
        require(1 <= self.dims <= LARGEST, f"dims must be 1 to {LARGEST}, not {self.dims}")
        require(0.001 <= self.noise <= 1000, f"noise must be 0.001 to 1000, not {self.noise}")
        require(2 <= self.bins <= LARGEST, f"bins must be 2 to {LARGEST}, not {self.bins}")
        require(self.horizon >= 1, f"horizon must be at least 1, not {self.horizon}")
        require_pool(self.pool)

    @property
    def shape(self) -> Shape:
        return Shape(vocab=2, features=self.dims + 1, classes=self.bins, header=0, stride=2, horizon=self.horizon)

    def max_horizon(self) -> int | None:
        return None

    def edges(self, device: torch.device) -> Tensor:
        """The bins - 1 inner borders."""
        shares = torch.arange(1, self.bins, dtype=torch.float64, device=device) / self.bins
        return torch.special.ndtri(shares) * (self.dims + self.noise**2) ** 0.5

    def draw_laws(self, n: int, rng: torch.Generator) -> Tensor:
        return torch.randn(n, self.dims, generator=rng, device=rng.device, dtype=torch.float64)

    def sample(self, n: int, horizon: int, rng: torch.Generator) -> Batch:
        require(horizon >= 1, f"horizon must be at least 1, not {horizon}")

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=rng, device=rng.device, dtype=torch.float64)

        w_BD = choose(self.pooled(rng.device), n, rng) if self.pool else self.draw_laws(n, rng)
        x_BKD = normal(n, horizon, self.dims)
        y_BK = (x_BKD * w_BD[:, None]).sum(-1) + self.noise * normal(n, horizon)
        steps_BK2F = torch.stack([pad(x_BKD, (0, 1)), pad(y_BK[..., None], (self.dims, 0))], dim=2)
        features_BTF = steps_BK2F.flatten(1, 2)[:, :-1]  # nothing follows the last x
        length = features_BTF.shape[1]
        tokens_BT = torch.arange(length, device=rng.device).remainder(2).expand(n, -1).contiguous()
        targets_BK = torch.bucketize(y_BK, self.edges(rng.device))
        return Batch(tokens_BT, features_BTF, targets_BK, torch.arange(0, length, 2, device=rng.device))

    def reorder(self, batch: Batch, rng: torch.Generator) -> Batch:
        """All pairs; the last x is asked about."""
        pairs_BK2F = shuffle(batch.features[:, :-1].unflatten(1, (-1, 2)), rng)
        return batch._replace(features=torch.cat([pairs_BK2F.flatten(1, 2), batch.features[:, -1:]], dim=1))

    def posterior(self, batch: Batch) -> Tensor:
        if self.pool:
            w_MD = self.pooled(batch.tokens.device)
            numbers = batch.targets.shape[1] * len(w_MD) * self.bins
            return torch.cat([self._mix(part.features, w_MD) for part in pieces(batch, numbers)])
        x_BKD = batch.features[:, 0::2, :-1]
        y_BK = pad(batch.features[:, 1::2, -1], (0, 1))  # the last x has no y
        outer = (x_BKD[..., :, None] * x_BKD[..., None, :] / self.noise**2).cumsum(1)
        moment = (x_BKD * y_BK[..., None] / self.noise**2).cumsum(1)
        before_BKDD, before_BKD = pad(outer, (0, 0, 0, 0, 1, 0))[:, :-1], pad(moment, (0, 0, 1, 0))[:, :-1]
        precision_BKDD = before_BKDD + torch.eye(self.dims, dtype=torch.float64, device=x_BKD.device)
        # solve would have the host wait, to look for failures
        gain_BKD = torch.linalg.solve_ex(precision_BKDD, x_BKD)[0]
        mean_BK1 = (gain_BKD * before_BKD).sum(-1, keepdim=True)
        spread_BK1 = ((gain_BKD * x_BKD).sum(-1, keepdim=True) + self.noise**2).sqrt()
        below = torch.special.ndtr((self.edges(x_BKD.device) - mean_BK1) / spread_BK1)
        return pad(below, (0, 1), value=1.0) - pad(below, (1, 0))

    def _mix(self, features_BTF: Tensor, w_MD: Tensor) -> Tensor:
        """The predictions of the pool's weights, each weighed by how well it has foretold the pairs before."""
        x_BKD = features_BTF[:, 0::2, :-1]
        y_BK1 = pad(features_BTF[:, 1::2, -1], (0, 1))[..., None]
        mean_BKM = x_BKD @ w_MD.T
        fit_BKM = (-0.5 * ((y_BK1 - mean_BKM) / self.noise) ** 2).cumsum(1)
        weight_BKM = pad(fit_BKM, (0, 0, 1, 0))[:, :-1].softmax(-1)
        mix = mix_some if w_MD.device.type == "cpu" else mix_all
        return mix(self.edges(w_MD.device) / self.noise, mean_BKM / self.noise, weight_BKM)

    def pooled(self, device: torch.device) -> Tensor:
        """The pool's weights [M, D]."""
        assert self.pool is not None
        return laws(self._full(), self.pool, device)

    def _full(self) -> Regression:
        return replace(self, pool=None)

    def variants(self) -> dict[str, Variant]:
        return pool_variants(self, self._full()) if self.pool else {}

    def references(self, batch: Batch) -> dict[str, Tensor]:
        named = {"pool prior": self, "full prior": self._full()} if self.pool else {}
        return {name: task.posterior(batch) for name, task in named.items()}


def mix_all(edges_C: Tensor, mean_BKM: Tensor, weight_BKM: Tensor) -> Tensor:
    """The mixture of the masses of N(mean, 1) between the edges, [B, K, bins]."""
    return (weight_BKM[:, :, None] @ masses(edges_C - mean_BKM[..., None])).squeeze(2)


def mix_some(edges_C: Tensor, mean_BKM: Tensor, weight_BKM: Tensor) -> Tensor:
    """The same without negligible weights: after a few pairs, nearly all. How many depends on the data, so a host
    would have to wait for a GPU."""
    B, K, M = weight_BKM.shape
    kept_N = (weight_BKM > NEGLIGIBLE).flatten().nonzero().squeeze(1)
    masses_NC = masses(edges_C - mean_BKM.flatten()[kept_N, None])
    parts_NC = masses_NC * weight_BKM.flatten()[kept_N, None]
    return parts_NC.new_zeros(B * K, parts_NC.shape[1]).index_add_(0, kept_N // M, parts_NC).view(B, K, -1)


def masses(z: Tensor) -> Tensor:
    """The masses of N(0, 1) between ascending borders [..., C-1], [..., C].

    From the tail beyond each border, so that a bin far out has a small mass and not a rounded zero. Tails on the right
    count as negative: a mass is then a difference, plus 1 in the one bin that has 0 inside.
    """
    tail = z.abs().mul_(0.5**0.5).erfc_().mul_(0.5).copysign_(z).neg_()  # several times as fast as ndtr
    found = z.new_empty(*z.shape[:-1], z.shape[-1] + 1)
    found[..., 0], found[..., -1] = tail[..., 0], -tail[..., -1]
    torch.sub(tail[..., 1:], tail[..., :-1], out=found[..., 1:-1])
    bin_of_zero = torch.signbit(z).sum(-1, keepdim=True)
    return found.scatter_add_(-1, bin_of_zero, torch.ones_like(found[..., :1]))
