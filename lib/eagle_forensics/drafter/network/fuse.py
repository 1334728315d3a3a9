"""Step 0's hidden state of any choice and order of planes, at the price of one product a (plane, fc block).

fc reads the planes side by side, so fc(concat(x_0..x_n-1)) = sum_i x_i W_i^T: the products of every plane with every block
are computed once and shared by all orders. The norms before fc keep that form. With u the weight of input_norm (norm over the
whole concatenation, norm_before_fc) and w_i that of fc_norm.i, per token

    s   = rsqrt(mean over all planes x^2 + eps)                or 1 without norm_before_fc
    c_i = s * rsqrt(s^2 * mean((x_i u_i)^2) + eps)             or s without fc_norm
    h0  = sum_i c_i * ((x_i u_i w_i) W_i^T) + bias
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from eagle_forensics.drafter.network.arithmetic import linear
from eagle_forensics.drafter.network.model import Drafter
from eagle_forensics.drafter.recorded import ZERO


class Projections:
    """The products plane x fc block of one batch of tokens, computed on first use and kept while the object lives."""

    def __init__(self, drafter: Drafter, planes: Mapping[str, torch.Tensor]) -> None:
        """`planes`: name -> [N, Ht]; the plane `zero` need not be among them. `drafter` supplies fc and its norms; its flags are not used."""
        self._drafter = drafter
        self._planes = planes
        self._length = len(next(iter(planes.values())))
        self._inputs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._products: dict[tuple[str, int, bool, bool], tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def products(self) -> int:
        """How many matrix products were computed so far."""
        return len(self._products)

    def hidden(self, names: Sequence[str], *, norm_before_fc: bool = False, fc_norm: bool = False) -> torch.Tensor:
        """h0 [N, H] of the planes `names` in fc order."""
        drafter = self._drafter
        if len(names) != drafter.n_aux:
            raise ValueError(f"fc reads {drafter.n_aux} planes, the wiring names {len(names)}: {', '.join(names)}")
        unknown = [n for n in names if n != ZERO and n not in self._planes]
        if unknown:
            raise ValueError(f"no plane {unknown[0]!r}; at hand: {', '.join(self._planes)}, {ZERO}")
        bias = drafter.fc_bias if drafter.fc_bias is not None else 0
        total = torch.zeros(self._length, drafter.hidden, dtype=drafter.dtype, device=drafter.device)
        used = [(i, n) for i, n in enumerate(names) if n != ZERO]
        scale = None
        if norm_before_fc and used:
            power = torch.stack([self._input(n)[1] for _, n in used]).sum(0) / drafter.n_aux
            scale = torch.rsqrt(power + drafter.eps)
        for block, name in used:
            product, power = self._product(name, block, norm_before_fc, fc_norm)
            factor = scale
            if fc_norm:
                s = 1.0 if scale is None else scale
                factor = s * torch.rsqrt(s * s * power + drafter.eps)
            total += product if factor is None else factor[:, None] * product
        return total + bias

    def _input(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        if name not in self._inputs:
            x = self._planes[name].to(self._drafter.device, self._drafter.dtype)
            self._inputs[name] = (x, x.square().mean(-1))
        return self._inputs[name]

    def _product(self, name: str, block: int, before_fc: bool, per_plane: bool) -> tuple[torch.Tensor, torch.Tensor]:
        key = (name, block, before_fc, per_plane)
        if key not in self._products:
            drafter = self._drafter
            x, power = self._input(name)
            columns = slice(block * drafter.target_hidden, (block + 1) * drafter.target_hidden)
            if before_fc:
                x = x * drafter.input_norm[columns]
                power = x.square().mean(-1)
            if per_plane:
                x = x * drafter.fc_norm[block]
            self._products[key] = (linear(x, drafter.fc[:, columns]), power)
        return self._products[key]
