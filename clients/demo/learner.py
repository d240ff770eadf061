"""The learner process: draws batches, updates the network, sends priorities and parameters back, evaluates.

The target network is what is evaluated: an average over recent updates, and so a steadier policy than the online one.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator

import numpy as np
import torch

import netreplay
from netreplay import Batch, Learner, Replay, Timeout
from netreplay.clients.demo.agent import double_dqn_loss, follow
from netreplay.clients.demo.child import Child, Every
from netreplay.clients.demo.config import Config
from netreplay.clients.demo.environment import environment_of
from netreplay.clients.demo.latency import Stopwatch
from netreplay.clients.demo.messages import Evaluation, LearnerProgress
from netreplay.clients.demo.pace import Allowance
from netreplay.clients.demo.policy import FloatArray, evaluate

_PACE_POLL_SECONDS = 0.005
_STOP_POLL_SECONDS = 0.25
_REPORT_SECONDS = 0.5


class Networks:
    """The online network, the target that follows it, and the optimizer between them."""

    def __init__(self, replay: Replay, config: Config) -> None:
        """Goes on from the parameters in the server, if there are any; `updates` is how many made them."""
        self._config = config
        gamma = replay.spec.tables[config.table].window.gamma
        self.online = environment_of(config.environment).network(config, gamma)
        self.updates = 0
        self.published_bytes = 0
        published = replay.parameters.fetch(as_torch=True)
        if published is not None:
            _, tensors = published
            self.updates = int(tensors.pop("updates"))
            self.online.load_state_dict(tensors)
        self.target = copy.deepcopy(self.online)
        self._optimizer = torch.optim.Adam(
            self.online.parameters(), lr=config.learning_rate, eps=config.adam_epsilon, fused=True
        )

    def learn(self, batch: Batch) -> tuple[float, FloatArray]:
        """One update from a batch of tensors; its loss, and the size of its temporal-difference errors, [B]."""
        config = self._config
        annealed = min(1.0, self.updates / config.anneal_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = config.learning_rate + annealed * (config.final_learning_rate - config.learning_rate)
        loss, td_error = double_dqn_loss(
            self.online,
            self.target,
            obs=batch["obs"],
            action=batch["action"],
            reward=batch["reward"],
            discount=batch["discount"],
            next_obs=batch["next_obs"],
            weights=batch.weights(config.beta + annealed * (1.0 - config.beta)),
            reward_scale=config.reward_scale,
        )
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.online.parameters(), config.max_gradient_norm)
        self._optimizer.step()
        follow(self.target, self.online, config.target_rate)
        self.updates += 1
        return loss.item(), np.abs(td_error)

    def publish(self, replay: Replay) -> None:
        """Publishes the online network's tensors and, beside them, the update count that paces the actors."""
        tensors = {**self.online.state_dict(), "updates": torch.tensor(self.updates)}
        replay.parameters.publish(tensors)
        self.published_bytes = sum(tensor.nbytes for tensor in tensors.values())


class Pace:
    """Keeps the learner behind what the table has taken in."""

    def __init__(self, child: Child, replay: Replay, watch: Stopwatch) -> None:
        config = child.config
        self._child, self._table, self._watch = child, replay.table(config.table), watch
        self._interval = config.look_interval
        self._allowance = Allowance(1.0 / config.items_per_update, config.slack_items / config.items_per_update)
        self._until_look = 0

    def wait(self) -> None:
        """Before each update: waits until it has been earned, or the process is to stop."""
        if self._until_look == 0 or self._allowance.exhausted:
            self._look()
        while self._allowance.exhausted and not self._child.sleep(_PACE_POLL_SECONDS):
            self._look()
        self._until_look -= 1
        self._allowance.spend(1.0)

    def _look(self) -> None:
        with self._watch.time("table info"):
            self._allowance.observe(self._table.info().inserted)
        self._until_look = self._interval


def batches(child: Child, learner: Learner, watch: Stopwatch) -> Iterator[Batch]:
    """The learner's batches until told to stop. Waits for the table to fill, or for a server that starts again."""
    begin = time.perf_counter()
    while not child.stopping:
        try:
            batch = learner.sample(timeout=_STOP_POLL_SECONDS)
        except Timeout:
            continue
        watch.add("sample", time.perf_counter() - begin)
        yield batch
        begin = time.perf_counter()


def learn(child: Child, replay: Replay) -> None:
    """Learns until told to stop."""
    config, watch = child.config, Stopwatch()
    networks, pace = Networks(replay, config), Pace(child, replay, watch)
    report = Every(_REPORT_SECONDS)
    seeds = np.random.default_rng([config.seed, networks.updates])
    networks.publish(replay)
    learned, stale, loss = 0, 0, math.nan

    def tell() -> None:
        nonlocal learned, stale
        reconnects = replay.counters().reconnects
        published = networks.published_bytes
        child.tell(LearnerProgress(learned, networks.updates, loss, stale, published, reconnects, watch.take()))
        learned = stale = 0

    with replay.learner(config.table, batch_size=config.batch_size, prefetch=config.prefetch, as_torch=True) as learner:
        for batch in batches(child, learner, watch):
            pace.wait()
            with watch.time("learn"):
                loss, td_error = networks.learn(batch)
            with watch.time("update"):
                stale += learner.update_priorities(batch.keys, td_error + 1e-6).stale
            learned += 1

            if networks.updates % config.publish_interval == 0:
                with watch.time("publish"):
                    networks.publish(replay)
            if config.evaluated and networks.updates % config.evaluation_interval == 0:
                child.tell(evaluate_greedily(networks, config, seeds))
            if report:
                tell()
        tell()


def evaluate_greedily(networks: Networks, config: Config, seeds: np.random.Generator) -> Evaluation:
    """Evaluates the target network and, where it reaches the threshold, once more with fresh seeds."""

    policy = networks.target.policy()

    def mean_return() -> float:
        seed = int(seeds.integers(2**31))
        return float(evaluate(policy, config.environment, config.evaluation_episodes, seed).mean())

    first = mean_return()
    confirmed = mean_return() if first >= config.solved_return else None
    solved = confirmed is not None and confirmed >= config.solved_return
    return Evaluation(networks.updates, first, confirmed, solved)


def main(arguments: list[str]) -> None:
    """`PIPE CONFIG`, as the supervisor calls it."""
    child = Child(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(child.config.seed)
    with netreplay.connect(child.config.url, auth="off", timeout=child.config.patience) as replay:
        learn(child, replay)
