"""Feeds a replay memory from CartPole: `netreplay serve -c examples/cartpole.toml`, then this, then learner.py."""

from __future__ import annotations

import sys

import gymnasium

import netreplay

url = sys.argv[1] if len(sys.argv) > 1 else "vhost:///tmp/replay.sock"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000

env = gymnasium.make("CartPole-v1")
with netreplay.connect(url, auth="off") as replay, replay.actor("cartpole") as actor:
    obs, _ = env.reset(seed=1)
    for _ in range(steps):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        actor.append(obs=obs, action=action, reward=reward, terminated=terminated, truncated=truncated)
        obs = following
        if terminated or truncated:
            actor.end(obs=obs)
            obs, _ = env.reset()
    sys.stdout.write(f"{actor.counters()}\n")
