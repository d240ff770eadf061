"""`netreplay demo`: its parts, and whole runs in which processes are killed. Needs neither root nor hugepages."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from rich.console import Console
from serving import wait_until

import netreplay
from netreplay.clients.demo import messages, throughput
from netreplay.clients.demo.agent import QNetwork, double_dqn_loss, follow
from netreplay.clients.demo.atari import Frames, Resize
from netreplay.clients.demo.chart import running_mean
from netreplay.clients.demo.config import Config
from netreplay.clients.demo.environment import Stack, configure
from netreplay.clients.demo.latency import Histogram, Stopwatch, human
from netreplay.clients.demo.messages import ActorProgress, Evaluation, LearnerProgress
from netreplay.clients.demo.pace import Allowance
from netreplay.clients.demo.policy import epsilons, evaluate, explore
from netreplay.clients.demo.process import Process, how_ended
from netreplay.clients.demo.record import Meter, ProcessState, Record
from netreplay.clients.demo.run import all_well
from netreplay.clients.demo.supervisor import ProcessFailedError, Supervisor
from netreplay.clients.demo.view import clock, panel, progress_line, sparkline
from netreplay.clients.losses import Loss
from netreplay.errors import BadConfigError
from netreplay.spec import Spec

# ---- pace ----


def test_an_allowance_is_earned_by_the_other_sides_work_and_never_above_its_limit():
    allowance = Allowance(0.5, limit=3)
    allowance.observe(100)
    allowance.spend(3)
    assert allowance.exhausted
    allowance.observe(102)
    assert not allowance.exhausted
    allowance.spend(1)
    assert allowance.exhausted
    allowance.observe(1000)
    allowance.spend(2)
    assert not allowance.exhausted
    allowance.spend(1)
    assert allowance.exhausted


def test_a_counter_that_began_again_earns_nothing_until_it_grows():
    allowance = Allowance(1, limit=10)
    allowance.observe(50)
    allowance.spend(10)
    allowance.observe(5)
    assert allowance.exhausted
    allowance.observe(6)
    assert not allowance.exhausted


def test_a_debt_is_limited_and_a_refill_ends_it():
    allowance = Allowance(1, limit=4)
    allowance.observe(0)
    allowance.spend(1000)
    allowance.observe(4)
    assert allowance.exhausted
    allowance.observe(5)
    assert not allowance.exhausted
    allowance.spend(1000)
    allowance.refill()
    assert not allowance.exhausted


# ---- agent ----


def batch_of(count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "obs": torch.randn(count, 4),
        "action": torch.randint(2, (count,), dtype=torch.int32),
        "reward": torch.rand(count),
        "discount": torch.full((count,), 0.995**3),
        "next_obs": torch.randn(count, 4),
        "weights": torch.rand(count),
    }


def test_the_loss_is_a_scalar_with_a_gradient_and_one_error_per_item():
    online, target = QNetwork(16, 20.0), QNetwork(16, 20.0)
    loss, td_error = double_dqn_loss(online, target, **batch_of(7), reward_scale=0.1)
    assert loss.shape == ()
    assert td_error.shape == (7,)
    loss.backward()
    assert all(parameter.grad is not None for parameter in online.parameters())
    assert all(parameter.grad is None for parameter in target.parameters())


def test_the_online_network_chooses_and_the_target_network_values():
    batch = batch_of(5)
    online, target = QNetwork(8, 1.0), QNetwork(8, 2.0)
    _, td_error = double_dqn_loss(online, target, **batch, reward_scale=0.1)
    with torch.no_grad():
        for i in range(5):
            chosen = online(batch["next_obs"])[i].argmax()
            goal = 0.1 * batch["reward"][i] + batch["discount"][i] * target(batch["next_obs"])[i, chosen]
            assert td_error[i] == pytest.approx(float(goal - online(batch["obs"])[i, batch["action"][i]]), abs=1e-5)


def test_a_terminated_item_does_not_look_at_its_next_observation():
    batch = batch_of(3)
    batch["discount"] = torch.zeros(3)
    online = QNetwork(8, 1.0)
    _, first = double_dqn_loss(online, online, **batch, reward_scale=1.0)
    batch["next_obs"] = batch["next_obs"] * 100
    _, second = double_dqn_loss(online, online, **batch, reward_scale=1.0)
    np.testing.assert_array_equal(first, second)


def test_items_weigh_in_the_loss_as_their_importance_weights_say():
    batch = batch_of(4)
    batch["weights"] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    online = QNetwork(8, 0.0)
    loss, td_error = double_dqn_loss(online, online, **batch, reward_scale=1.0)
    error = abs(float(td_error[2]))
    assert loss.item() == pytest.approx((error - 0.5 if error > 1 else error**2 / 2) / 4, rel=1e-5)


def test_the_target_follows_by_a_fraction():
    online, target = QNetwork(8, 4.0), QNetwork(8, 0.0)
    follow(target, online, 0.25)
    torch.testing.assert_close(target.layers[-1].bias, torch.full((2,), 1.0))


def test_exploration_is_spread_over_all_environments(rng):
    rates = epsilons(32, 0.4, 7.0)
    assert rates.shape == (32,)
    assert rates[0] == pytest.approx(0.4)
    assert rates[-1] == pytest.approx(0.4**8)
    assert (np.diff(rates) < 0).all()
    policy = QNetwork(8, 0.0).policy()
    observations = rng.standard_normal((1000, 4)).astype(np.float32)
    greedy = explore(policy, observations, np.zeros(1000, np.float32), 2, rng)
    np.testing.assert_array_equal(greedy, policy.greedy(observations))
    for random in (
        explore(policy, observations, np.ones(1000, np.float32), 2, rng),
        explore(None, observations, np.zeros(1000, np.float32), 2, rng),
    ):
        assert 0.4 < (random != greedy).mean() < 0.6


def test_actors_see_the_values_that_the_network_learned(rng):
    network = QNetwork(32, 20.0)
    observations = rng.standard_normal((100, 4)).astype(np.float32)
    with torch.no_grad():
        expected = network(torch.from_numpy(observations)).numpy()
    np.testing.assert_allclose(network.policy().values(observations), expected, rtol=1e-5, atol=1e-5)


def test_an_evaluation_is_the_same_for_the_same_seed():
    policy = QNetwork(8, 0.0).policy()
    first = evaluate(policy, "CartPole-v1", 5, seed=3)
    assert first.shape == (5,)
    assert (first >= 1).all()
    np.testing.assert_array_equal(first, evaluate(policy, "CartPole-v1", 5, seed=3))


# ---- what is kept and shown ----


def test_percentiles_are_right_to_a_bucket(rng):
    seconds = rng.lognormal(-9, 1, 10_000)
    whole, parts = Histogram(), Histogram()
    for value in seconds:
        whole.add(value)
    for half in np.split(seconds, 2):
        part = Histogram()
        for value in half:
            part.add(value)
        parts.merge(part)
    assert whole.counts == parts.counts
    for fraction in (0.5, 0.9, 0.99):
        assert whole.percentile(fraction) == pytest.approx(np.quantile(seconds, fraction), rel=0.05)
    assert math.isnan(Histogram().percentile(0.5))


def test_a_stopwatch_forgets_what_was_taken_and_what_failed():
    watch = Stopwatch()
    with watch.time("call"):
        pass
    with pytest.raises(KeyError), watch.time("call"):
        raise KeyError
    assert watch.take()["call"].total == 1
    assert watch.take() == {}


def test_messages_come_back_as_they_were():
    histogram = Histogram()
    histogram.add(1e-4)
    loss = Loss("ab" * 16, 3, 4, 5)
    progress = messages.decode(messages.encode(ActorProgress(7, [1.0, 2.0], 1, {"append": histogram}, [loss])))
    assert isinstance(progress, ActorProgress)
    assert (progress.steps, progress.returns, progress.losses) == (7, [1.0, 2.0], [loss])
    assert progress.latencies["append"].counts == histogram.counts
    assert isinstance(messages.decode(messages.encode(LearnerProgress(1, 2, 0.5, 0, 0, 0))), LearnerProgress)
    assert messages.decode(messages.encode(Evaluation(250, 480.0, 490.0, True))) == Evaluation(250, 480.0, 490.0, True)


def test_a_rate_is_that_of_the_last_seconds_and_survives_a_new_server():
    meter = Meter()
    for second in range(20):
        meter.observe(float(second), 100.0 * second)
    assert meter.rate(19.0) == pytest.approx(100)
    assert 0 < meter.rate(22.0) < 80
    assert meter.rate(30.0) == 0
    meter.observe(20.0, 3.0)
    assert meter.rate(20.0) == 0
    meter.observe(21.0, 53.0)
    assert meter.rate(21.0) == pytest.approx(50)


def test_small_words():
    assert clock(247.4) == "4:07"
    assert sparkline([0.0, 250.0, 500.0], 500.0) == "▁▅█"
    assert human(84.1e-6) == "84.1 us"
    assert human(1.2e-3) == "1.20 ms"
    assert human(math.nan) == "-"
    assert how_ended(-9) == "killed by SIGKILL"
    assert how_ended(1) == "ended with code 1"
    np.testing.assert_allclose(running_mean([1.0, 2.0, 3.0, 4.0], 2), [1.0, 1.5, 2.5, 3.5])


@pytest.mark.parametrize("environment", ["CartPole-v1", "ALE/Pong-v5"])
def test_the_panel_fits_80_columns_at_every_moment(environment):
    record = Record(configure(environment), 300.0)
    for name in ("server", "learner", "actor 0", "actor 1"):
        record.processes[name] = ProcessState(name)
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(panel(record))
    record.processes["server"].pid = 4_194_303
    record.take("actor 0", ActorProgress(10**8, [500.0] * 100, 3, {"append": Histogram({400: 10**9})}))
    for updates in range(100):
        record.take("learner", Evaluation(updates, 499.5, None, False))
    record.say("x" * 200)
    console.print(panel(record))
    lines = console.export_text().splitlines()
    assert {len(line) for line in lines} == {80}
    assert len(lines) < 60
    assert len(progress_line(record)) < 100


def test_the_tables_are_a_spec_of_three_steps():
    for table, stack in (("cartpole", 1), ("atari", 4)):
        window = Spec.from_toml(Config(table=table).tables).tables[table].window
        assert (window.n, window.stack) == (3, stack)
    assert Config(reward_scale=0.1).endless_value(0.995) == pytest.approx(20)


# ---- one process ----


def test_a_process_tells_ends_and_starts_again(tmp_path):
    script = (
        "import os, sys, time; from netreplay.clients.demo import messages as m; "
        "os.write(int(sys.argv[1]), m.encode(m.Evaluation(os.getpid(), 1.0, None, False)) + b'half'); "
        "sys.stderr.write('last words\\n'); time.sleep(60)"
    )
    process = Process("p", lambda pipe: ["-c", script, str(pipe)], tmp_path / "log")
    told: list[Any] = []

    def has_told() -> bool:
        told.extend(process.messages())
        return bool(told)

    pids = []
    for _ in range(2):
        pids.append(process.start())
        assert process.code is None
        wait_until(has_told, "it tells something")
        assert told.pop().updates == pids[-1]
        wait_until(lambda: process.last_words() == "last words", "it prints something")
        process.kill()
        assert process.wait(10)
        assert process.code == -signal.SIGKILL
        assert process.messages() == []
    process.close()
    assert pids[0] != pids[1]


# ---- Atari ----


def area_mean(screen: np.ndarray, size: int) -> np.ndarray:
    """The mean of the area under each of size x size pixels, one by one."""
    height, width = screen.shape
    out = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            top, bottom, left, right = (
                edge / size for edge in (i * height, (i + 1) * height, j * width, (j + 1) * width)
            )
            for y in range(int(top), min(height, math.ceil(bottom))):
                for x in range(int(left), min(width, math.ceil(right))):
                    area = (min(bottom, y + 1) - max(top, y)) * (min(right, x + 1) - max(left, x))
                    out[i, j] += area * screen[y, x]
    return out * size * size / (height * width)


@pytest.mark.parametrize("height", [210, 250])
def test_a_screen_is_resized_to_the_means_of_areas(rng, height):
    screen = rng.integers(256, size=(height, 160), dtype=np.uint8)
    resized = Resize(height, 160)(screen)
    assert (resized.shape, resized.dtype) == ((84, 84), np.uint8)
    assert np.abs(resized - area_mean(screen, 84)).max() <= 0.5 + 1e-3
    np.testing.assert_array_equal(Resize(height, 160)(np.full_like(screen, 255)), 255)


class Scripted(gym.Env):
    """Screens given one after the other, a reward of 2 each; over with the last."""

    observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, screens: np.ndarray) -> None:
        self.screens, self.at = screens, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return self.screens[0], {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self.screens[self.at], 2.0, self.at == len(self.screens) - 1, False, {}


def test_a_step_is_four_frames_seen_as_the_maximum_of_the_last_two(rng):
    screens = rng.integers(256, size=(7, 84, 84), dtype=np.uint8)
    game = Frames(Scripted(screens))
    np.testing.assert_array_equal(game.reset()[0], screens[0])
    frame, reward, terminated, *_ = game.step(0)
    np.testing.assert_array_equal(frame, np.maximum(screens[3], screens[4]))
    assert (reward, terminated) == (8.0, False)
    frame, reward, terminated, *_ = game.step(0)
    np.testing.assert_array_equal(frame, np.maximum(screens[5], screens[6]))
    assert (reward, terminated) == (4.0, True)


@pytest.mark.parametrize("terminated", [True, False])
def test_stacks_of_the_table_and_of_the_actor_are_those_of_a_deque(rng, terminated):
    """Episodes of 1, 2, 3 and 9 steps, ended both ways; the second of two environments is only a bystander."""
    spec = Spec.from_toml(Config(table="atari").tables)
    tables = {"atari": replace(spec.tables["atari"], capacity=100, min_size=1, sampler="fifo")}
    expected, drawn = [], []
    with netreplay.connect("local:", spec=replace(spec, tables=tables)) as replay:
        with replay.actor("atari", num_envs=2, autoreset="next_step") as actor:
            stack, begins = Stack(4), np.ones(2, np.bool_)
            for length in (1, 2, 3, 9):
                frames = rng.integers(256, size=(length + 1, 84, 84), dtype=np.uint8)
                seen: deque[np.ndarray] = deque([frames[0]] * 4, maxlen=4)
                stacks = []
                for t, frame in enumerate(frames):
                    if t:
                        seen.append(frame)
                    stacks.append(np.stack(seen))
                    both = np.stack([frame, np.zeros_like(frame)])
                    np.testing.assert_array_equal(stack.push(both, begins)[0], stacks[-1])
                    last = t == length - 1
                    actor.append(
                        obs=both,
                        action=np.full(2, t, np.int32),
                        reward=np.zeros(2, np.float32),
                        terminated=np.array([last and terminated, False]),
                        truncated=np.array([last and not terminated, False]),
                    )
                    begins = np.array([t == length, False])
                for t in range(length):
                    steps = min(3, length - t)
                    if terminated or steps == 3:
                        over = terminated and t + steps == length
                        expected.append((stacks[t], None if over else stacks[t + steps]))
            actor.flush()
        with replay.learner("atari", batch_size=replay.table("atari").info().size) as learner:
            batch = learner.sample(timeout=5)
            for row in range(len(batch)):
                if batch["obs"][row].any():
                    usable = batch["discount"][row] > 0
                    drawn.append((batch["obs"][row], batch["next_obs"][row] if usable else None))
    assert len(drawn) == len(expected)
    for (obs, next_obs), (wanted, wanted_next) in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(obs, wanted)
        assert (next_obs is None) == (wanted_next is None)
        if next_obs is not None:
            np.testing.assert_array_equal(next_obs, wanted_next)


def test_a_missing_ale_py_is_told_with_the_way_out(monkeypatch):
    monkeypatch.setattr("netreplay.clients.demo.environment.find_spec", lambda name: name != "ale_py" or None)
    with pytest.raises(BadConfigError, match=r"demo: ale_py cannot be imported; pip install 'netreplay\[demo\]'"):
        configure("ALE/Pong-v5")
    assert configure("CartPole-v1", seed=3) == Config(seed=3)


def test_an_atari_run_without_data_is_not_well():
    record = Record(configure("ALE/Pong-v5"), 60.0)
    record.processes["server"] = ProcessState("server", working=True)
    record.end()
    assert not all_well(record)
    assert "no episode ended yet" in throughput.lines(record)[-1]


# ---- whole runs ----


class Demo:
    """A `netreplay demo` in a process of its own, and the lines it prints."""

    def __init__(self, out: Path, *arguments: str) -> None:
        self.out = out
        command = [sys.executable, "-m", "netreplay.cli", "demo", "--out", str(out), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, seconds: float = 30.0) -> re.Match[str]:
        """Waits for a printed line."""
        ended = lambda: self.process.poll() is not None and not self._reader.is_alive()  # noqa: E731
        wait_until(lambda: re.search(pattern, self.text) or ended(), f"{pattern!r} in {self.text}", seconds)
        found = re.search(pattern, self.text)
        assert found, f"{pattern!r} in {self.text}"
        return found

    def pid_of(self, who: str, times: int = 1) -> int:
        """Waits until `who` works, the `times`th time; its pid then."""
        return int(self.wait_for(rf"(?s)(?:{who} \(pid (\d+)\) works.*?){{{times}}}")[1])

    def children(self) -> set[int]:
        """The processes it has started and that run."""
        found = set()
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        return found

    def wait(self, seconds: float = 60.0) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def server_counters(self) -> dict[str, int]:
        """What the present server has counted, as far as it has told."""
        try:
            return json.loads((self.out / "processes" / "server.stats.json").read_text())["server"]
        except FileNotFoundError:
            return {}

    def report(self) -> dict[str, Any]:
        return json.loads((self.out / "report.json").read_text())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    demos: list[Demo] = []

    def start_(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path / f"out{len(demos)}", *arguments))
        return demos[-1]

    yield start_
    for demo in demos:
        if demo.process.poll() is None:
            demo.process.kill()
        demo.process.wait()


def gone(pid: int) -> bool:
    """Whether it runs no more (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds, what


def test_kill_9_of_actor_learner_and_server_is_survived_and_reported_and_ctrl_c_ends_it(start):
    demo = start("--seconds", "300", "--seed", "2")
    killed = []
    for who in ("actor 1", "learner", "server"):
        for other in ("actor 0", "actor 1", "learner"):
            demo.pid_of(other)
        killed.append((who, demo.pid_of(who)))
        os.kill(killed[-1][1], signal.SIGKILL)
        demo.pid_of(who, times=2)
    wait_until(lambda: demo.server_counters().get("batches", 0) > 10, "learning goes on with the second server", 60)
    wait_until(lambda: "lost with the server" in demo.text, "the losses are named")
    assert demo.server_counters()["publishes"] > 0, "the learner's client published again"

    children = demo.children()
    assert len(children) == 4
    demo.process.send_signal(signal.SIGINT)
    with within(4, "everything ends"):
        wait_until(lambda: all(gone(pid) for pid in children), "its processes are gone")
    assert demo.wait() == 130, demo.text
    assert "Traceback" not in demo.text

    report = demo.report()
    assert report["outcome"] == "interrupted"
    assert [(r["who"], r["pid"], r["code"], r["how"]) for r in report["restarts"]] == [
        (who, pid, -9, "killed by SIGKILL") for who, pid in killed
    ]
    assert all(0 < r["recovered_seconds"] < 30 for r in report["restarts"])
    assert {loss["named_by"] for loss in report["losses"]} == {"actor 0", "actor 1"}
    assert sum(loss["items"] for loss in report["losses"]) > 100
    assert report["server_counted"]["servers"] == len(report["server_counted"]["lives"]) == 2
    assert (demo.out / "learning-curve.png").exists()


def test_a_run_of_so_many_seconds_ends_then_with_a_whole_report(start):
    demo = start("--seconds", "7", "--seed", "5", "--actors", "1")
    assert demo.wait() == 0, demo.text
    report = demo.report()
    assert report["outcome"] == "time passed"
    assert report["seed"] == 5
    assert 7 <= report["seconds"] < 7.5
    assert report["restarts"] == report["losses"] == []
    assert report["server_counted"]["table"]["inserted"] > 0
    assert report["server_counted"]["servers"] == 1
    assert report["server_counted"]["batches"] >= report["learner_counted"]["batches"]
    assert report["environment_steps"] > 0
    assert {"append", "fetch"} <= set(report["latencies"])
    assert report["machine"]["cores"] >= 1
    assert set(report["versions"]) >= {"python", "netreplay", "torch", "gymnasium"}
    assert (demo.out / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    assert "| actor: append" in (demo.out / "latency.md").read_text()


def test_atari_frames_flow_from_actors_to_learner_and_the_report_says_how_fast(start):
    demo = start("--env", "ALE/Pong-v5", "--seconds", "120", "--actors", "1", "--batch-size", "8")
    wait_until(lambda: demo.server_counters().get("batches", 0) > 20, "the learner learns", 90)
    demo.wait_for(r"[1-9][\d,.]* batches/s; return \S+, [1-9][\d,]* frames/s")
    demo.process.send_signal(signal.SIGINT)
    assert demo.wait() == 130, demo.text
    assert re.search(r"append .* of an environment step", demo.text)
    report = demo.report()
    assert report["restarts"] == []
    rates = report["rates"]
    assert rates["environment_frames"] == pytest.approx(4 * rates["environment_steps"], rel=0.01)
    assert list(rates["actors"]) == ["actor 0"]
    for name in ("environment_steps", "items_inserted", "inserted_megabytes", "batches", "sampled_megabytes"):
        assert rates[name] > 0, name
    assert rates["learner_steps"] > 0
    assert rates["priorities_updated"] > 0
    assert rates["batch_size"] == 8
    assert rates["parameter_versions"] >= 1
    assert 6_700_000 < rates["parameter_bytes"] < 6_800_000
    assert 0 < rates["append_share_of_step"] < 1
    assert {"append", "flush", "sample", "learn", "publish"} <= set(report["latencies"])
    assert (demo.out / "throughput.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_outlives_a_demo_that_is_killed(start):
    demo = start("--seconds", "60")
    demo.wait_for("server .* works")
    wait_until(lambda: len(demo.children()) == 4, "all are started")
    children = demo.children()
    demo.process.kill()
    wait_until(lambda: all(gone(pid) for pid in children), "its processes are gone", 5)


def test_a_process_that_cannot_work_is_given_up_with_its_last_words(tmp_path):
    config = Config(actors=1, environments=0)
    supervisor = Supervisor(config, tmp_path, Record(config, 60.0))

    pids: set[int] = set()

    def watch() -> bool:
        supervisor.watch(0.05)
        return False

    def run() -> None:
        with supervisor:
            pids.update(state.pid for state in supervisor.record.processes.values())
            wait_until(watch, "it gives up")

    with pytest.raises(ProcessFailedError, match=r"the actor 0 died 3 times .* ended with code 1: \S+"):
        run()
    assert len(pids) == 3
    assert all(gone(pid) for pid in pids)
    assert [restart.who for restart in supervisor.record.restarts] == ["actor 0", "actor 0"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--env", "Pong-v5"], "--env: there is no 'Pong-v5'; CartPole-v1 and Atari games work, such as ALE/Pong-v5"),
        (
            ["--env", "ALE/Pogn-v5"],
            "--env: there is no 'ALE/Pogn-v5'; CartPole-v1 and Atari games work",
        ),
        (["--out", "/dev/null/x"], "--out: /dev/null/x: "),
        (["--seconds", "0"], "Invalid value for '--seconds'"),
        (["--actors", "0"], "Invalid value for '--actors'"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
    ],
)
def test_a_wrong_option_is_told_in_a_line(tmp_path, arguments, complaint):
    command = [sys.executable, "-m", "netreplay.cli", "demo", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
