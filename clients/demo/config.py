"""Everything of the demo that can be tuned, but for its tables (the TOML files); travels to every process as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

ENVIRONMENT = "CartPole-v1"


@dataclass(frozen=True)
class Config:
    """Hyperparameters of the distributed double DQN, and where its replay memory is. The defaults are CartPole's."""

    url: str = ""
    seed: int = 1
    environment: str = ENVIRONMENT
    transport: str = "vhost"  # or udp, on loopback
    table: str = "cartpole"  # of the server and of its only store; its spec is in the TOML file of this name
    actions: int = 2
    seconds: float = 300.0  # longest run, unless told
    patience: float = 30.0  # seconds that a call waits for the server, which may be starting again

    # Actors
    actors: int = 2  # processes
    environments: int = 16  # per actor process
    epsilon: float = 0.4  # environment i of N explores with epsilon ** (1 + epsilon_alpha * i / (N - 1))
    epsilon_alpha: float = 7.0
    reward_limit: float | None = None  # what is stored is clipped to plus or minus this
    frame_skip: int = 1  # frames of the game per environment step
    fetch_interval: int = 10  # vector steps between two looks for newer parameters
    flush_interval: int = 50  # vector steps between two waits until everything is acknowledged

    # Learner
    hidden: int = 128  # units in each of the two hidden layers
    batch_size: int = 128
    prefetch: int = 2  # batches
    learning_rate: float = 2e-3  # Adam, at the first update
    final_learning_rate: float = 1e-4
    adam_epsilon: float = 1e-5
    max_gradient_norm: float = 10.0
    reward_scale: float = 0.1
    target_rate: float = 0.05  # the target moves by this fraction of the way at each update
    beta: float = 0.4  # importance-sampling exponent at the first update
    anneal_updates: int = 10_000  # updates until beta is 1 and the learning rate final
    publish_interval: int = 20  # updates

    # Pace
    items_per_update: float = 8.0  # the learner never does with fewer
    actor_headroom: float = 1.25  # the actors may supply this many times as many
    slack_items: int = 800  # how far either side may run ahead
    throttle_seconds: float = 0.2  # longest wait of an actor that is ahead, per vector step
    look_interval: int = 10  # updates between two looks at what the table has taken in

    # Evaluation
    evaluation_interval: int = 250  # updates; 0: nothing is evaluated, and the run is for its rates
    evaluation_episodes: int = 20
    solved_return: float = 475.0

    @property
    def tables(self) -> Path:
        """The spec of the replay memory, without a server's part."""
        return Path(__file__).with_name(f"{self.table}.toml")

    @property
    def evaluated(self) -> bool:
        """Whether there is something to solve."""
        return self.evaluation_interval > 0

    def endless_value(self, gamma: float) -> float:
        """Scaled value of an episode that never ends, at a reward of 1 per step discounted by `gamma`."""
        return self.reward_scale / (1.0 - gamma)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Config:
        return cls(**json.loads(text))
