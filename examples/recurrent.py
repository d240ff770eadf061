"""R2D2 in small, in one process: sequences that overlap, burn-in, n-step returns, a priority for each sequence.

The agent sees CartPole's positions without their velocities, so that it has to remember. It shows the calls: the 150
episodes that it plays by default, in a minute or two, are too few to learn from. No server is needed; with a
URL it uses one that was started with `netreplay serve -c examples/sequences.toml --listen ... --auth off`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import torch

import netreplay

url = sys.argv[1] if len(sys.argv) > 1 else f"local:{Path(__file__).with_name('sequences.toml')}"
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 150


class Memory(torch.nn.Module):
    """Q values of each step of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = torch.nn.GRU(4, 64, batch_first=True), torch.nn.Linear(64, 2)

    def forward(self, obs: torch.Tensor, state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """obs [B, T, 4] -> Q [B, T, 2], and the state behind them."""
        hidden, state = self.gru(obs * torch.tensor([1.0, 0.0, 1.0, 0.0]), state)
        return self.head(hidden), state


torch.set_num_threads(1)
q, target = Memory(), Memory()
optimizer = torch.optim.Adam(q.parameters(), lr=2e-3)
env = gymnasium.make("CartPole-v1")
rng = np.random.default_rng(1)
returns: list[float] = []


def play(actor: netreplay.Actor, epsilon: float) -> float:
    """One episode; its return."""
    (obs, _), state, total = env.reset(seed=int(rng.integers(2**31))), None, 0.0
    while True:
        with torch.no_grad():
            values, state = q(torch.from_numpy(obs)[None, None], state)
        action = int(rng.integers(2)) if rng.random() < epsilon else int(values[0, 0].argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        actor.append(obs=obs, action=action, reward=reward, terminated=terminated, truncated=truncated)
        obs, total = following, total + float(reward)
        if terminated or truncated:
            actor.end(obs=obs)
            return total


def learn(learner: netreplay.Learner) -> None:
    """One batch, unrolled from a zero state; what only warmed that up is not learnt from."""
    batch = learner.sample()
    step, places = netreplay.nstep_returns(batch), torch.arange(batch["mask"].shape[1])
    learnt = batch["mask"] & ((places >= batch.burn_in) | (batch["timestep"][:, None] == 0))
    frames = torch.cat([batch["obs"][:, :1], batch["next_obs"]], dim=1)
    values, _ = q(frames)
    with torch.no_grad():
        best = values[:, 1:].argmax(2, keepdim=True)
        ahead = target(frames)[0][:, 1:].gather(2, best)[..., 0]
        # The observation to bootstrap from is `length` steps on: less than n at a sequence's end.
        wanted = step.reward + step.discount * ahead.gather(1, (places + step.length.long() - 1).clamp(min=0))
    error = wanted - values[:, :-1].gather(2, batch["action"][..., None])[..., 0]
    loss = (batch.weights(beta=0.6)[:, None] * torch.where(learnt, error, 0.0) ** 2).sum() / learnt.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    learner.update_priorities(batch.keys, netreplay.sequence_priority(error, learnt) + 1e-6)


with (
    netreplay.connect(url, auth="off") as replay,
    replay.actor("cartpole") as actor,
    replay.learner("sequences", batch_size=32, as_torch=True, timeout=60) as learner,
):
    while replay.table("sequences").info().size < 200:
        play(actor, 1.0)
        actor.flush()
    for number in range(rounds):
        returns.append(play(actor, max(0.05, 1.0 - number / (rounds / 3))))
        for _ in range(12):
            learn(learner)
        if number % 2 == 0:
            target.load_state_dict(q.state_dict())
    thirds = [float(np.mean(part)) for part in np.array_split(returns, 3)]
    sys.stdout.write(f"mean return of each third of {rounds} episodes: {', '.join(f'{t:.0f}' for t in thirds)}\n")
    sys.stdout.write(f"{replay.table('sequences').info()}\n")
