"""Learns Q values from a replay memory: sample, learn, update the priorities. See actor.py."""

from __future__ import annotations

import sys

import torch

import netreplay

url = sys.argv[1] if len(sys.argv) > 1 else "vhost:///tmp/replay.sock"
batches = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000

q = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
with netreplay.connect(url, auth="off") as replay:
    with replay.learner("cartpole", batch_size=64, prefetch=2, as_torch=True) as learner:
        for number, batch in enumerate(learner, 1):
            with torch.no_grad():
                target = batch["reward"] + batch["discount"] * q(batch["next_obs"]).max(1).values
            error = target - q(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
            loss = (batch.weights(beta=0.4) * error**2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            learner.update_priorities(batch.keys, error.abs() + 1e-6)
            if number == batches:
                break
    replay.parameters.publish(q.state_dict())
    sys.stdout.write(f"loss {loss.item():.3f}; {replay.table('cartpole').info()}\n")
