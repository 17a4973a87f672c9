"""Muon: momentum whose step is orthogonalized by Newton-Schulz, for matrices and stacks of matrices."""

import torch


def orthogonalize(g, steps=5):
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            same_shape = {}
            for p in group["params"]:
                if p.grad is not None:
                    same_shape.setdefault(tuple(p.shape), []).append(p)
            for shape, parameters in same_shape.items():
                updates = []
                for p in parameters:
                    buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(buffer, group["momentum"]))
                stacked = torch.stack(updates)
                stacked = orthogonalize(stacked.reshape(-1, *shape[-2:])).view_as(stacked)
                scale = group["lr"] * max(1, shape[-2] / shape[-1]) ** 0.5
                for p, update in zip(parameters, stacked):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)
