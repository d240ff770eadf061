"""Replay buffers for other libraries: what comes out is what a plain list holds, and agents learn from it."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer as PlainBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize
from tensordict import TensorDict

import netreplay
from netreplay import ColumnSpec, Spec, StoreSpec, TableSpec
from netreplay.clients.stable_baselines3 import NetreplayBuffer, PrioritizedSamples
from netreplay.clients.torchrl import NetreplayBuffer as TorchRLBuffer
from netreplay.clients.transitions import Transitions, TransitionWriter, differing

GAMMA = 0.9
OBS, ACTION = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(5)


class Play:
    """Environments that end as `rng` likes; `steps` is the list-based reference, [(env, transition), ...] in order."""

    def __init__(self, rng: np.random.Generator, num_envs: int, over: float = 0.2) -> None:
        self.rng, self.num_envs, self.over = rng, num_envs, over
        self.obs = self._fresh()
        self.steps: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]

    def _fresh(self) -> np.ndarray:
        return self.rng.standard_normal((self.num_envs, 3)).astype(np.float32)

    def reset(self, env: int) -> None:
        """As from outside, in the middle of an episode."""
        self.obs[env] = self.rng.standard_normal(3)
        self.steps[env][-1]["cut"] = True

    def step(self) -> dict[str, np.ndarray]:
        n, rng = self.num_envs, self.rng
        over, kind = rng.random(n) < self.over, rng.random(n) < 0.5
        new = {
            "obs": self.obs.copy(),
            "next_obs": self._fresh(),
            "action": rng.integers(5, size=n),
            "reward": rng.standard_normal(n).astype(np.float32),
            "terminated": over & kind,
            "truncated": over & ~kind,
        }
        for env in range(n):
            self.steps[env].append({name: value[env].copy() for name, value in new.items()} | {"cut": False})
        self.obs = np.where(over[:, None], self._fresh(), new["next_obs"])
        return new

    def items(self, n_steps: int, gamma: float = GAMMA) -> list[tuple[Any, ...]]:
        """What a buffer of n-step returns must hold when everything is drawable."""
        items = []
        for steps in self.steps:
            for t, first in enumerate(steps):
                reward, k = 0.0, 0
                for last in steps[t : t + n_steps]:
                    reward += gamma**k * float(last["reward"])
                    k += 1
                    if last["terminated"] or last["truncated"] or last["cut"]:
                        break
                # After a termination within fewer steps next_obs has no meaning; see docs/semantics.md 2.
                following = last["next_obs"] if k == n_steps or not last["terminated"] else None
                discount = 0.0 if last["terminated"] else gamma**k
                items.append((first["obs"], int(first["action"]), reward, discount, k, following))
        return items


def matches(items: list[tuple[Any, ...]], rows: dict[bytes, tuple[Any, ...]]) -> None:
    """All items came out, each as it should, and nothing else; observations are all different."""
    assert len(rows) == len(items)
    for obs, action, reward, discount, k, following in items:
        row = rows[obs.tobytes()]
        assert row[0] == action
        assert row[1] == pytest.approx(reward, abs=1e-5)
        assert row[2] == pytest.approx(discount, abs=1e-6)
        assert row[3] in (None, k)
        if following is not None:
            np.testing.assert_array_equal(row[4], following)


def draw(sample: Callable[[], list[tuple[Any, ...]]], count: int) -> dict[bytes, tuple[Any, ...]]:
    """Rows (obs, action, reward, discount, length, next_obs) by observation, until `count` were seen and some more."""
    rows: dict[bytes, tuple[Any, ...]] = {}
    for i in range(400):
        for obs, *rest in sample():
            rows[np.asarray(obs).tobytes()] = tuple(rest)
        if len(rows) >= count and i > 20:
            return rows
    raise AssertionError(f"only {len(rows)} of {count} were ever drawn")


# ---- Stable-Baselines3 ----


def sb3(resources: ExitStack, n_envs: int = 1, **options: Any) -> NetreplayBuffer:
    buffer = NetreplayBuffer(options.pop("buffer_size", 1000), OBS, ACTION, "cpu", n_envs, seed=1, **options)
    resources.callback(buffer.close)
    return buffer


def add(buffer: PlainBuffer, new: dict[str, np.ndarray]) -> None:
    infos = [{"TimeLimit.truncated": bool(value)} for value in new["truncated"]]
    done = new["terminated"] | new["truncated"]
    buffer.add(new["obs"], new["next_obs"], new["action"], new["reward"], done, infos)


def sb3_rows(buffer: PlainBuffer, gamma: float = GAMMA) -> list[tuple[Any, ...]]:
    s = buffer.sample(64)
    assert s.actions.shape == s.rewards.shape == s.dones.shape == (64, 1)
    discounts = torch.full((64, 1), gamma) if s.discounts is None else s.discounts
    k = (discounts.log() / np.log(gamma)).round().int()
    values = (s.observations, s.actions, s.rewards, discounts * (1 - s.dones), k, s.next_observations)
    obs, *rest, following = (value.numpy() for value in values)
    return list(zip(obs, *(value[:, 0] for value in rest), following, strict=True))


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_sb3_holds_what_a_list_holds(rng, resources, n_envs, n_steps):
    buffer = sb3(resources, n_envs, n_steps=n_steps, gamma=GAMMA)
    play = Play(rng, n_envs)
    for _ in range(60):
        add(buffer, play.step())
    for steps in play.steps:
        steps[-1]["cut"] = True
    buffer.cut()
    assert buffer.size() == 60 * n_envs
    matches(play.items(n_steps), draw(lambda: sb3_rows(buffer), 60 * n_envs))


@pytest.mark.parametrize("n_envs", [1, 4])
def test_sb3_samples_are_those_of_stable_baselines3s_own_buffer(rng, resources, n_envs):
    ours = sb3(resources, n_envs)
    theirs = PlainBuffer(1000, OBS, ACTION, "cpu", n_envs)
    play = Play(rng, n_envs)
    for _ in range(50):
        new = play.step()
        add(ours, new)
        add(theirs, new)
    ours.cut()
    left, right = (draw(lambda b=b: sb3_rows(b), 50 * n_envs) for b in (ours, theirs))
    assert left.keys() == right.keys()
    for key, row in left.items():
        np.testing.assert_array_equal(row[4], right[key][4])
        assert row[:3] == pytest.approx(right[key][:3])


def test_sb3_n_step_returns_are_those_of_stable_baselines3s_own_buffer(rng, resources):
    ours = sb3(resources, 2, n_steps=3, gamma=GAMMA)
    theirs = NStepReplayBuffer(1000, OBS, ACTION, "cpu", 2, n_steps=3, gamma=GAMMA)
    play = Play(rng, 2)
    for _ in range(50):
        new = play.step()
        add(ours, new)
        add(theirs, new)
    ours.cut()
    left, right = (draw(lambda b=b: sb3_rows(b), 100) for b in (ours, theirs))
    assert left.keys() == right.keys()
    for key, row in left.items():
        assert row[:4] == pytest.approx(right[key][:4], abs=1e-5)


def test_sb3_without_timeout_handling_takes_truncation_for_termination(rng, resources):
    buffer = sb3(resources, handle_timeout_termination=False)
    play = Play(rng, 1, over=1.0)
    for _ in range(20):
        add(buffer, play.step())
    buffer.cut()
    assert (buffer.sample(64).dones == 1).all()


def test_the_newest_two_transitions_wait_for_what_follows(rng, resources):
    buffer = sb3(resources)
    play = Play(rng, 1, over=0.0)
    sizes = []
    for _ in range(5):
        add(buffer, play.step())
        sizes.append(buffer.size())
    assert sizes == [0, 0, 1, 2, 3]
    buffer.cut()
    assert buffer.size() == 5


@pytest.mark.parametrize("n_envs", [1, 4])
def test_a_reset_from_outside_ends_the_episode_as_truncated_and_loses_nothing(rng, resources, n_envs):
    buffer = sb3(resources, n_envs, n_steps=3, gamma=GAMMA)
    play = Play(rng, n_envs, over=0.05)
    for i in range(40):
        add(buffer, play.step())
        if i % 7 == 6:
            play.reset(i % n_envs)
    for steps in play.steps:
        steps[-1]["cut"] = True
    buffer.cut()
    matches(play.items(3), draw(lambda: sb3_rows(buffer), 40 * n_envs))


def test_each_observation_is_stored_once(rng, resources):
    buffer = sb3(resources, buffer_size=2000)
    play = Play(rng, 1, over=0.0)
    for _ in range(1000):
        add(buffer, play.step())
    buffer.cut()
    assert buffer._memory.info().steps == 1001


def test_capacity_evicts_the_oldest(rng, resources):
    buffer = sb3(resources, buffer_size=50)
    play = Play(rng, 1)
    for _ in range(200):
        add(buffer, play.step())
    buffer.cut()
    matches(play.items(1)[-50:], draw(lambda: sb3_rows(buffer), 50))


@pytest.mark.parametrize("n_steps", [1, 3])
def test_sb3_honours_vecnormalize(rng, resources, n_steps):
    env = VecNormalize(make_vec_env("CartPole-v1", 1), gamma=GAMMA, clip_reward=100.0)
    resources.callback(env.close)
    env.observation_space = OBS
    env.obs_rms.mean, env.obs_rms.var = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    env.ret_rms.var = np.array(9.0)
    buffer = sb3(resources, n_steps=n_steps, gamma=GAMMA)
    play = Play(rng, 1)
    for _ in range(40):
        add(buffer, play.step())
    play.steps[0][-1]["cut"] = True
    buffer.cut()
    sample = buffer.sample(256, env)
    expected = {
        env.normalize_obs(obs).astype(np.float32).tobytes(): (reward / np.sqrt(9.0 + env.epsilon), following)
        for obs, _, reward, _, _, following in play.items(n_steps)
    }
    for obs, reward, following in zip(
        sample.observations.numpy().astype(np.float32),
        sample.rewards[:, 0].tolist(),
        sample.next_observations.numpy(),
        strict=True,
    ):
        wanted, then = expected[obs.tobytes()]
        assert reward == pytest.approx(wanted, abs=1e-5)
        if then is not None:
            np.testing.assert_allclose(following, env.normalize_obs(then), rtol=1e-6)


def test_sb3_priorities_draw_by_weight_and_late_keys_are_stale(rng, resources):
    buffer = sb3(resources, buffer_size=10, prioritized=True, exponent=1.0, beta=1.0)
    play = Play(rng, 1)
    for _ in range(10):
        add(buffer, play.step())
    buffer.cut()
    sample = buffer.sample(200)
    assert isinstance(sample, PrioritizedSamples)
    assert (sample.weights == 1).all()
    chosen = int(sample.keys[0])
    keys = np.unique(sample.keys)
    assert len(keys) == 10
    assert buffer.update_priorities(keys, np.where(keys == chosen, 9.0, 1.0)).applied == 10
    sample = buffer.sample(2000)
    mine = sample.keys == chosen
    assert mine.mean() == pytest.approx(0.5, abs=0.06)  # five standard deviations
    np.testing.assert_allclose(sample.weights[mine, 0], 1 / 9, rtol=1e-5)
    for _ in range(12):
        add(buffer, play.step())
    buffer.cut()
    assert buffer.update_priorities(keys, np.ones(10)).stale == 10


def test_spaces_of_images_and_discrete_observations(resources):
    for space, obs in (
        (spaces.Box(0, 255, (3, 4, 2), np.uint8), np.arange(48, dtype=np.uint8).reshape(2, 3, 4, 2)),
        (spaces.Discrete(9), np.array([3, 4])),
        (spaces.MultiBinary(5), np.eye(5, dtype=np.int8)[:2]),
    ):
        action = spaces.Box(-1, 1, (2,), np.float64)
        buffer = NetreplayBuffer(10, space, action, "cpu", 2)
        resources.callback(buffer.close)
        buffer.add(obs, obs, np.ones((2, 2)), np.zeros(2), np.array([True, True]), [{}, {}])
        buffer.cut()
        sample = buffer.sample(8)
        assert sample.observations.shape == (8, *buffer.obs_shape)
        assert sample.actions.dtype == torch.float32
        assert {o.numpy().tobytes() for o in sample.observations} <= {o.tobytes() for o in obs}


def test_what_sb3s_buffer_cannot_be_is_refused(resources):
    with pytest.raises(netreplay.BadConfigError, match="optimize_memory_usage"):
        sb3(resources, optimize_memory_usage=True)
    with pytest.raises(netreplay.BadConfigError, match="observation_space: Dict"):
        NetreplayBuffer(10, spaces.Dict({"a": OBS}), ACTION)
    with pytest.raises(netreplay.SpecError, match="n: 0 is not between"):
        sb3(resources, n_steps=0)
    buffer = sb3(resources)
    with pytest.raises(netreplay.errors.NotPicklableError, match="memory keeps it"):
        copy.deepcopy(buffer)
    buffer.close()
    buffer.close()
    with pytest.raises(netreplay.Closed, match="transitions"):
        buffer.sample(1)


# ---- memories elsewhere ----

SERVED = """
[store.s]
observation.seen = {dtype = "float32", shape = [3]}
action.done_then = {dtype = "int64", shape = [1]}
[table.t]
store = "s"
capacity = 1000
sampler = "uniform"
window = {n = 3, gamma = 0.9}
"""


@pytest.mark.parametrize("network", ["vhost", "udp"])
@pytest.mark.parametrize("n_envs", [1, 4])
def test_sb3_over_a_server_holds_what_a_list_holds(rng, resources, serve, network, n_envs):
    url = serve(SERVED, network).url
    buffer = NetreplayBuffer(1, OBS, ACTION, "cpu", n_envs, url=url, auth="off", n_steps=3)
    resources.callback(buffer.close)
    play = Play(rng, n_envs)
    for _ in range(40):
        add(buffer, play.step())
    for steps in play.steps:
        steps[-1]["cut"] = True
    buffer.cut()
    matches(play.items(3), draw(lambda: sb3_rows(buffer), 40 * n_envs))


def test_what_contradicts_the_server_is_refused_with_its_name(resources):
    replay = resources.enter_context(netreplay.connect("local:", spec=Spec.from_toml(SERVED)))

    def refused(match: str, **options: Any) -> None:
        with pytest.raises(netreplay.SpecError, match=match):
            NetreplayBuffer(1, options.pop("obs", OBS), options.pop("action", ACTION), url=replay, **options)

    refused("table.t.window.n: is 3 at the server, and 1 is wanted", n_steps=1)
    refused("table.t.window.gamma", gamma=0.99)
    refused("table.t.sampler: is uniform", prioritized=True)
    refused(r"store.s.observation.seen", obs=spaces.Box(0, 1, (4,), np.float32))
    refused(r"store.s.action.done_then", action=spaces.Box(0, 1, (1,), np.float32))
    with pytest.raises(netreplay.BadConfigError, match="seed"):
        NetreplayBuffer(1, OBS, ACTION, url=replay, seed=1)


def test_a_table_must_be_named_where_there_are_several(resources):
    store, table = StoreSpec({"obs": ColumnSpec("float32", (3,))}, {"a": ColumnSpec("int64", (1,))}), TableSpec("s", 10)
    replay = resources.enter_context(netreplay.connect("local:", spec=Spec({"s": store}, {"x": table, "y": table})))
    with pytest.raises(netreplay.errors.NoTableError, match="x, y"):
        NetreplayBuffer(1, OBS, ACTION, url=replay)
    resources.callback(NetreplayBuffer(1, OBS, ACTION, url=replay, table="y").close)


# ---- TorchRL ----


def torchrl(resources: ExitStack, **options: Any) -> TorchRLBuffer:
    return resources.enter_context(TorchRLBuffer(**{"seed": 1, "capacity": 1000, "gamma": GAMMA, **options}))


def collected(play: Play, frames: int) -> TensorDict:
    """[num_envs, frames], as collectors give them."""
    steps = [play.step() for _ in range(frames)]
    data = {name: torch.from_numpy(np.stack([s[name] for s in steps], axis=1)) for name in steps[0]}
    ends = {name: data[name].unsqueeze(-1) for name in ("reward", "terminated", "truncated")}
    ends["done"] = ends["terminated"] | ends["truncated"]
    after = {"observation": data["next_obs"], **ends}
    shape = [play.num_envs, frames]
    return TensorDict({"observation": data["obs"], "action": data["action"], "next": after}, batch_size=shape)


def torchrl_rows(buffer: TorchRLBuffer, gamma: float = GAMMA) -> list[tuple[Any, ...]]:
    td = buffer.sample(64)
    assert td.batch_size == (64,)
    assert td["next", "reward"].shape == td["next", "terminated"].shape == (64, 1)
    k = td.get("steps_to_next_obs", torch.ones(64, 1))
    discount = gamma ** k.float() * ~td["next", "terminated"]
    assert (td["next", "done"] == td["next", "terminated"]).all()
    values = (td["observation"], td["action"], td["next", "reward"][:, 0], discount[:, 0], k[:, 0])
    return list(zip(*(value.numpy() for value in values), td["next", "observation"].numpy(), strict=True))


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("hold", [False, True])
def test_torchrl_holds_what_a_list_holds(rng, resources, num_envs, n_steps, hold):
    buffer = torchrl(resources, num_envs=num_envs, n_steps=n_steps, hold=hold)
    play = Play(rng, num_envs)
    indices = []
    for _ in range(6):
        indices.append(buffer.extend(collected(play, 10)))
        if not hold:
            for steps in play.steps:
                steps[-1]["cut"] = True
            assert len(buffer) == buffer.write_count == len(torch.cat(indices))
    for steps in play.steps:
        steps[-1]["cut"] = True
    buffer.cut()
    assert len(buffer) == 60 * num_envs
    matches(play.items(n_steps), draw(lambda: torchrl_rows(buffer), 60 * num_envs))


def test_torchrl_takes_environments_laid_one_after_the_other_and_shuffled_transitions(rng, resources):
    for shuffled in (False, True):
        buffer = torchrl(resources)
        play = Play(rng, 4)
        data = collected(play, 20).reshape(-1)
        index = buffer.extend(data[torch.randperm(80)] if shuffled else data)
        assert len(index) == len(buffer) == 80
        matches(play.items(1), draw(lambda b=buffer: torchrl_rows(b), 80))


def test_torchrl_adds_one_at_a_time(rng, resources):
    buffer = torchrl(resources)
    play = Play(rng, 1)
    assert len(buffer) == 0
    with pytest.raises(netreplay.BadConfigError, match="nothing was added"):
        buffer.sample(1)
    for step in collected(play, 20)[0]:
        buffer.add(step)
    buffer.cut()
    matches(play.items(1), draw(lambda: torchrl_rows(buffer), 20))
    buffer.empty()
    assert len(buffer) == 0


def test_torchrl_priorities(rng, resources):
    buffer = torchrl(resources, prioritized=True, exponent=1.0, beta=1.0, eps=0.0, batch_size=500)
    index = buffer.extend(collected(Play(rng, 1), 10)[0])
    td = buffer.sample()
    td["td_error"] = torch.where(td["index"] == index[0], 9.0, 1.0).unsqueeze(-1)
    result = buffer.update_tensordict_priority(td)
    assert (result.applied, result.stale, result.refused) == (10, 0, 0)
    td, info = buffer.sample(2000, return_info=True)
    mine = td["index"] == index[0]
    assert mine.float().mean() == pytest.approx(0.5, abs=0.06)  # five standard deviations
    assert td["priority_weight"].shape == (2000,)
    np.testing.assert_allclose(info["priority_weight"][mine], 1 / 9, rtol=1e-5)
    assert buffer.update_priority(index, torch.full((10,), -1.0)).refused == 10
    with pytest.raises(netreplay.ColumnError, match="td_error"):
        buffer.update_tensordict_priority(buffer.sample())


def test_torchrl_over_a_server_with_several_columns(rng, resources, serve):
    toml = """
    [store.s]
    observation.pixels = {dtype = "uint8", shape = [2, 2]}
    observation.state = {dtype = "float32", shape = [3]}
    action.action = {dtype = "int64"}
    [table.t]
    store = "s"
    capacity = 100
    """
    url = serve(toml, "vhost").url
    options = {"observation": ("pixels", "state"), "seed": None, "gamma": None, "auth": "off", "url": url}
    writer, reader = torchrl(resources, **options), torchrl(resources, **options)
    data = collected(Play(rng, 1), 10)[0]
    for part in (data, data["next"]):
        part["state"] = part["observation"]
        part["pixels"] = torch.arange(40, dtype=torch.uint8).reshape(10, 2, 2)
    writer.extend(data)
    td = reader.sample(50)
    for row in td:
        (i,) = (data["state"] == row["state"]).all(1).nonzero()[0]
        assert (row["pixels"] == data["pixels"][i]).all()
        assert (row["next", "state"] == data["next", "state"][i]).all()
    with pytest.raises(netreplay.SpecError, match=r"store\.s\.observation"):
        torchrl(resources, **{**options, "observation": ("state",)})


def test_torchrl_refuses_shapes_that_are_not_of_its_environments(rng, resources):
    buffer = torchrl(resources, num_envs=4)
    with pytest.raises(netreplay.errors.BadCountError, match=r"shape \(3, 5\) is not \[4, T\]"):
        buffer.extend(collected(Play(rng, 3), 5))
    with pytest.raises(netreplay.errors.BadCountError, match=r"add: shape \(5,\)"):
        torchrl(resources).add(collected(Play(rng, 1), 5)[0])
    with pytest.raises(netreplay.ColumnError, match="'reward'"):
        buffer.extend(collected(Play(rng, 4), 5).exclude(("next", "reward")))


# ---- both ----


def test_rows_are_compared_bit_for_bit():
    one = {"a": np.array([[0.0, np.nan], [0.0, 1.0], [1.0, 2.0]]), "b": np.zeros((3, 0))}
    other = {"a": np.array([[0.0, np.nan], [-0.0, 1.0], [1.0, 2.0]]), "b": np.zeros((3, 0))}
    assert differing(one, other).tolist() == [False, True, False]


def test_a_call_that_timed_out_can_be_made_again(rng):
    """The step is in, its final observation found no credits: the repeat sends only that."""

    class Actor:
        num_envs = 1

        def __init__(self) -> None:
            self.calls: list[str] = []
            self.fail = True

        def append(self, **columns: Any) -> None:
            self.calls.append("append")

        def end(self, **columns: Any) -> None:
            self.calls.append("end")
            if self.fail:
                self.fail = False
                raise netreplay.Timeout("no credits")

    actor = Actor()
    writer = TransitionWriter(actor)  # type: ignore[arg-type]
    row, flag = {"obs": np.zeros((1, 3))}, np.array([True])
    new = Transitions(row, {"action": np.zeros(1)}, np.zeros(1), flag, ~flag, row)
    writer.add(new)
    with pytest.raises(netreplay.Timeout):
        writer.add(new)
    writer.add(new)
    assert actor.calls == ["append", "end", "end"]
    assert writer.held == 1


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("torch", "import netreplay.clients.stable_baselines3"),
        ("tensordict", "from netreplay.clients.torchrl import NetreplayBuffer; NetreplayBuffer()"),
    ],
)
def test_a_missing_package_is_named_with_what_to_install(package, use):
    code = f"""
import sys
sys.modules[{package!r}] = None
from netreplay.errors import MissingPackageError
try:
    {use}
except MissingPackageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'netreplay[" in done.stdout


# ---- learning ----


def dqn(seed: int, **options: Any) -> DQN:
    return DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=4, seed=seed),
        replay_buffer_class=NetreplayBuffer,
        replay_buffer_kwargs={"n_steps": 3, "gamma": 0.99},
        learning_rate=2.3e-3,
        learning_starts=500,
        train_freq=64,
        gradient_steps=64,
        target_update_interval=10,
        exploration_fraction=0.3,
        exploration_final_eps=0.04,
        batch_size=64,
        policy_kwargs={"net_arch": [64, 64]},
        seed=seed,
        device="cpu",
        **options,
    )


@pytest.fixture
def one_thread():
    """Results of torch that depend on nothing but the seed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_sb3_dqn_learns_cartpole(resources, one_thread):
    model = dqn(1)
    model.learn(12_000)
    resources.callback(model.replay_buffer.close)
    mean, _ = evaluate_policy(model, make_vec_env("CartPole-v1", seed=1001), n_eval_episodes=10)
    assert mean > 150  # a policy at random gets 22


def test_sb3_with_one_seed_learns_the_same_twice(resources, one_thread):
    weights = []
    for _ in range(2):
        model = dqn(3)
        model.learn(2_000)
        resources.callback(model.replay_buffer.close)
        weights.append(torch.cat([p.detach().reshape(-1) for p in model.policy.parameters()]))
    assert torch.equal(*weights)


def test_sb3_sac_trains_with_vecnormalize_and_goes_on_after_a_new_reset(resources, one_thread):
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=1))
    model = SAC("MlpPolicy", env, replay_buffer_class=NetreplayBuffer, learning_starts=50, batch_size=32, seed=1)
    model.learn(300)
    resources.callback(model.replay_buffer.close)
    model.learn(300)  # resets the environments
    assert model._n_updates > 200
    model.replay_buffer.cut()
    assert model.replay_buffer.size() == 600


def test_torchrl_dqn_loss_learns_the_values_of_a_chain(resources, one_thread):
    """Five states, the right action leads on and is paid at the end: the values are powers of gamma."""
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, HardUpdate

    torch.manual_seed(1)
    chain = gym.make("FrozenLake-v1", is_slippery=False, desc=["SFFFG"])
    eye = np.eye(5, dtype=np.float32)
    rows = []
    chain.action_space.seed(1)
    state, _ = chain.reset(seed=1)
    for _ in range(1500):
        action = chain.action_space.sample()
        new, reward, terminated, truncated, _ = chain.step(action)
        ends = {
            "reward": [reward],
            "terminated": [terminated],
            "truncated": [truncated],
            "done": [terminated or truncated],
        }
        rows.append((eye[state], action, eye[new], ends))
        state = chain.reset()[0] if terminated or truncated else new
    obs, actions, after, ends = zip(*rows, strict=True)
    following = {name: torch.tensor([e[name] for e in ends]) for name in ends[0]}
    following["reward"] = following["reward"].float()
    following["observation"] = torch.tensor(np.array(after))
    data = TensorDict(
        {"observation": torch.tensor(np.array(obs)), "action": torch.tensor(actions), "next": following}, [1500]
    )
    buffer = torchrl(resources, capacity=2000, batch_size=128, prioritized=True)
    buffer.extend(data)
    q = torch.nn.Linear(5, 4, bias=False)
    actor = QValueActor(q, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(actor, action_space="categorical", delay_value=True)
    loss.make_value_estimator(gamma=GAMMA)
    update = HardUpdate(loss, value_network_update_interval=20)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)
    for _ in range(800):
        batch = buffer.sample()
        optimizer.zero_grad()
        loss(batch)["loss"].backward()
        optimizer.step()
        update.step()
        buffer.update_tensordict_priority(batch)
    best = next(iter(loss.value_network_params.values(True, True))).max(0).values[:4]
    np.testing.assert_allclose(best.detach(), GAMMA ** np.array([3.0, 2.0, 1.0, 0.0]), atol=0.03)
