"""TorchRL's DQN loss learns CartPole from a netreplay memory: python examples/torchrl_cartpole.py [seed [URL]].

3-step returns, prioritized draws with importance weights. With a URL (vhost:///tmp/replay.sock) the transitions lie in
a server instead of in this process; docs/adapters.md has its config. Seed 1 ends at a return of
500; about two minutes of one core.
"""

from __future__ import annotations

import sys
import time

import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate

from netreplay.clients.torchrl import NetreplayBuffer

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
url = sys.argv[2] if len(sys.argv) > 2 else "local:"
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 16_384

torch.set_num_threads(1)
torch.manual_seed(seed)
begin = time.monotonic()
env = GymEnv("CartPole-v1", categorical_action_encoding=True)
env.set_seed(seed)
policy = QValueActor(MLP(in_features=4, out_features=2, num_cells=[256, 256]), spec=env.action_spec)
exploration = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.04, annealing_num_steps=steps // 4)
loss = DQNLoss(policy, action_space=env.action_spec, delay_value=True)
loss.make_value_estimator(gamma=0.99)
target = HardUpdate(loss, value_network_update_interval=128)
optimizer = torch.optim.Adam(loss.parameters(), lr=2.3e-3)
collector = Collector(
    env,
    TensorDictSequential(policy, exploration),
    frames_per_batch=256,
    total_frames=steps,
    init_random_frames=1024,
    auto_register_policy_transforms=False,
)
buffer = NetreplayBuffer(
    url,
    auth="off",
    capacity=100_000,
    batch_size=64,
    n_steps=3,
    gamma=0.99,
    prioritized=True,
    exponent=0.3,  # the loss writes squares of errors
    hold=True,
)
for collected in collector:
    buffer.extend(collected)
    exploration.step(collected.numel())
    if len(buffer) < 1000:
        continue
    for _ in range(128):
        batch = buffer.sample()
        optimizer.zero_grad()
        loss(batch)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 10.0)
        optimizer.step()
        target.step()
        buffer.update_tensordict_priority(batch)
collector.shutdown()

env.set_seed(1000 + seed)
with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
    returns = torch.tensor([float(env.rollout(500, policy)["next", "reward"].sum()) for _ in range(10)])
seconds = time.monotonic() - begin
sys.stdout.write(f"seed {seed}: return {returns.mean():.1f} +- {returns.std():.1f} of 500 after {seconds:.0f} s\n")
buffer.close()
