"""Stable-Baselines3's DQN learns CartPole from a netreplay memory: python examples/sb3_cartpole.py [seed [URL]].

3-step returns and uniform draws. With a URL (vhost:///tmp/replay.sock) the transitions lie in a server instead of in
this process; docs/adapters.md has its config. Seed 1 ends at a return of 500; one core, about a minute.
"""

from __future__ import annotations

import sys
import time

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from netreplay.clients.stable_baselines3 import NetreplayBuffer

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
url = sys.argv[2] if len(sys.argv) > 2 else "local:"
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 20_000

torch.set_num_threads(1)
begin = time.monotonic()
model = DQN(
    "MlpPolicy",
    make_vec_env("CartPole-v1", n_envs=4, seed=seed),
    replay_buffer_class=NetreplayBuffer,
    replay_buffer_kwargs={"url": url, "auth": "off", "n_steps": 3, "gamma": 0.99},
    gamma=0.99,
    buffer_size=100_000,
    learning_rate=2.3e-3,
    batch_size=64,
    learning_starts=1000,
    train_freq=64,
    gradient_steps=128,
    target_update_interval=10,
    exploration_fraction=0.16,
    exploration_final_eps=0.04,
    policy_kwargs={"net_arch": [128, 128]},
    seed=seed,
)
model.learn(steps)
mean, spread = evaluate_policy(model, make_vec_env("CartPole-v1", seed=1000 + seed), n_eval_episodes=20)
sys.stdout.write(f"seed {seed}: return {mean:.1f} +- {spread:.1f} of 500 after {time.monotonic() - begin:.0f} s\n")
model.replay_buffer.close()
