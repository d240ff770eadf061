"""An actor process: N environments in one vector, epsilon-greedy, feeding the replay table at the learner's pace."""

from __future__ import annotations

from typing import Any

import numpy as np

import netreplay
from netreplay import Replay
from netreplay.clients.demo.child import Child, Every
from netreplay.clients.demo.config import Config
from netreplay.clients.demo.environment import Environment, Stack, environment_of
from netreplay.clients.demo.latency import Stopwatch
from netreplay.clients.demo.messages import ActorProgress
from netreplay.clients.demo.pace import Allowance
from netreplay.clients.demo.policy import Policy, epsilons, explore

_THROTTLE_POLL_SECONDS = 0.02
_REPORT_SECONDS = 0.5


class Guidance:
    """What comes from the learner: the policy, kept up to date, and with it the allowance."""

    def __init__(self, environment: Environment, replay: Replay, config: Config, watch: Stopwatch) -> None:
        self.policy: Policy | None = None
        self.version = 0
        self.allowance = Allowance(
            config.actor_headroom * config.items_per_update / config.actors,
            (replay.spec.tables[config.table].min_size + config.slack_items) / config.actors,
        )
        self._environment, self._parameters = environment, replay.parameters
        self._watch = watch

    def refresh(self) -> None:
        """Loads the newest published parameters, if they are newer, and earns from the updates they stand for."""
        with self._watch.time("fetch"):
            newer = self._parameters.fetch(newer_than=self.version)
        if newer is None:
            return
        version, tensors = newer
        if self.version and version >> 32 != self.version >> 32:
            self.allowance.refill()  # another server, whose table is empty
        self.version = version
        self.allowance.observe(int(tensors.pop("updates")))
        self.policy = self._environment.policy(tensors)

    def throttle(self, seconds: float, child: Child) -> None:
        """Waits while ahead of the learner, but not longer than this: data trickles on without a learner."""
        for _ in range(round(seconds / _THROTTLE_POLL_SECONDS)):
            if not self.allowance.exhausted or child.sleep(_THROTTLE_POLL_SECONDS):
                return
            self.refresh()


class Progress:
    """What the actor has done since it last told the supervisor."""

    def __init__(self, environments: int) -> None:
        self.steps = 0
        self.returns: list[float] = []
        self.lost = 0  # losses already told
        self._running = np.zeros(environments, dtype=np.float32)
        self._resets = np.zeros(environments, dtype=np.bool_)

    def count(self, rewards: Any, done: Any) -> int:
        """Takes the outcome of one vector step, rewards and done [N]; how many environments stepped, not reset."""
        stepped = len(self._resets) - int(self._resets.sum())
        self.steps += stepped
        self._running += rewards
        self.returns.extend(self._running[done].tolist())
        self._running[done] = 0.0
        self._resets = done
        return stepped

    def tell(self, child: Child, replay: Replay, watch: Stopwatch) -> None:
        """Sends it."""
        losses = replay.losses()
        child.tell(
            ActorProgress(self.steps, self.returns, replay.counters().reconnects, watch.take(), losses[self.lost :])
        )
        self.steps, self.returns, self.lost = 0, [], len(losses)


def act(child: Child, replay: Replay, index: int) -> None:
    """Acts until told to stop. `index` counts the actor processes from 0 and picks this one's epsilons."""
    config, count, watch = child.config, child.config.environments, Stopwatch()
    rng = np.random.default_rng([config.seed, index])
    rates = epsilons(config.actors * count, config.epsilon, config.epsilon_alpha)[index :: config.actors]
    environment = environment_of(config.environment)
    environments = environment.make_vector(config, count)
    guidance = Guidance(environment, replay, config, watch)
    progress, report = Progress(count), Every(_REPORT_SECONDS)
    stack, limit = Stack(replay.spec.tables[config.table].window.stack), config.reward_limit
    observations, _ = environments.reset(seed=int(rng.integers(2**31)))
    seen = stack.push(observations, np.ones(count, np.bool_))
    done = np.zeros(count, np.bool_)
    vector_steps = 0
    with replay.actor(config.table, num_envs=count, autoreset="next_step") as actor:
        while not child.stopping:
            if vector_steps % config.fetch_interval == 0:
                guidance.refresh()
            guidance.throttle(config.throttle_seconds, child)

            with watch.time("act"):
                actions = explore(guidance.policy, seen, rates, config.actions, rng)
            with watch.time("step"):
                next_observations, rewards, terminated, truncated, _ = environments.step(actions)
            with watch.time("append"):
                actor.append(
                    obs=observations,
                    action=actions.astype(np.int32),
                    reward=rewards if limit is None else np.clip(rewards, -limit, limit),
                    terminated=terminated,
                    truncated=truncated,
                )
            observations, seen = next_observations, stack.push(next_observations, done)
            vector_steps += 1
            done = terminated | truncated
            guidance.allowance.spend(progress.count(rewards, done))

            if vector_steps % config.flush_interval == 0:
                with watch.time("flush"):
                    actor.flush()
            if report:
                progress.tell(child, replay, watch)
        progress.tell(child, replay, watch)
    environments.close()


def main(arguments: list[str]) -> None:
    """`PIPE CONFIG INDEX`, as the supervisor calls it."""
    child = Child(arguments)
    config = child.config
    with netreplay.connect(config.url, auth="off", timeout=config.patience) as replay:
        act(child, replay, int(arguments[2]))
