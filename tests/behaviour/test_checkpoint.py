"""Checkpoints: what a restarted server still has, what survives a crash or a full disk. Cases 17, 18, 22."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import threading
import time
import warnings

import numpy as np
import pytest
from click.testing import CliRunner
from feeding import feed, see_all
from serving import PATIENCE, wait_until
from specs import simple

import netreplay
from netreplay import Spec, SpecError
from netreplay._checkpoint import inspect
from netreplay.appliance.config import load
from netreplay.appliance.server import Server
from netreplay.cli import cli
from netreplay.errors import BadConfigError, CheckpointError, Closed, SystemRefusedError

ROW = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}


def server_part(path, **options) -> str:
    more = "".join(f", {key} = {json.dumps(value)}" for key, value in options.items())
    return f'\n[server]\ncheckpoint = {{path = "{path}"{more}}}\n'


def connect(resources, server) -> netreplay.Replay:
    return resources.enter_context(netreplay.connect(server.url, auth="off", timeout=PATIENCE))


@pytest.fixture
def local(resources):
    """local(toml, **options) -> a replay in this process."""

    def open_(toml: str, **options) -> netreplay.Replay:
        return resources.enter_context(
            netreplay.connect("local:", spec=Spec.from_toml(toml), timeout=PATIENCE, **options)
        )

    return open_


# ---- A server that starts again ----


def test_a_stopped_server_starts_again_with_everything(start_server, resources, tmp_path):
    path = tmp_path / "a.ckpt"
    server = start_server(simple() + server_part(path))
    replay = connect(resources, server)
    with replay.actor("s") as actor:
        keys = feed(actor, 40, priority=[float(i + 1) for i in range(40)])
        before = replay.table("t").info()
        begin = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert time.monotonic() - begin < 5
        assert "checkpoint" in server.log()
        assert inspect(path).items == {"t": 40}
        server.restart()
        assert "restored from" in server.log()
        assert replay.table("t").info()._replace(steps=before.steps, step_bytes_held=before.step_bytes_held) == before
        later = feed(actor, 10, first=40)
        assert replay.losses() == []
        assert actor.counters().lost == 0
        assert set(later.tolist()).isdisjoint(keys.tolist())
    with replay.learner("t", batch_size=256, timeout=PATIENCE) as learner:
        seen = see_all(learner, 50)
        assert sorted(int(row["action"]) for row in seen.values()) == list(range(50))
        for i, key in enumerate(keys.tolist()):
            assert int(seen[key]["action"]) == i
        result = learner.update_priorities(keys, np.ones(40))
        assert (result.applied, result.stale) == (40, 0)


def test_after_a_crash_exactly_what_came_after_the_checkpoint_is_lost_and_named(start_server, resources, tmp_path):
    path = tmp_path / "a.ckpt"
    server = start_server(simple() + server_part(path, every=0.05))
    replay = connect(resources, server)
    with replay.actor("s") as actor, warnings.catch_warnings():
        warnings.simplefilter("ignore", netreplay.DataLossWarning)
        keys = feed(actor, 30)
        wait_until(lambda: path.exists() and inspect(path).items["t"] == 30, "a checkpoint of 30 items")
        keys = np.concatenate([keys, feed(actor, 50, first=30)])
        server.kill()
        held = inspect(path).items["t"]
        assert 30 <= held <= 80
        for i in range(5):  # not acknowledged: sent again
            actor.append(
                obs=np.full(4, 80 + i, np.float32), action=80 + i, reward=0.0, terminated=True, truncated=False
            )
            actor.end(obs=np.full(4, 80 + i, np.float32))
        server.restart()
        assert len(actor.flush()) == 5
        assert sum(loss.items for loss in replay.losses()) == 80 - held
        assert all(loss.first_item == held for loss in replay.losses())
        info = replay.table("t").info()
        assert (info.size, info.inserted) == (held + 5, held + 5)
    with replay.learner("t", batch_size=256, timeout=PATIENCE) as learner:
        actions = sorted(int(row["action"]) for row in see_all(learner, held + 5).values())
        assert actions == [*range(held), *range(80, 85)]
        result = learner.update_priorities(keys, np.ones(80))
        assert (result.applied, result.stale) == (held, 80 - held)


def test_a_crash_at_any_moment_leaves_a_whole_file(start_server, resources, tmp_path, rng):
    path = tmp_path / "a.ckpt"
    observation = '{dtype = "uint8", shape = [84, 84]}'
    server = start_server(simple(capacity=2000, observation=observation) + server_part(path, every=0.001))
    replay = connect(resources, server)
    frame = rng.integers(0, 255, (84, 84), np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", netreplay.DataLossWarning)
        with replay.actor("s") as actor:
            for _ in range(500):
                actor.append(obs=frame, **ROW)
            actor.flush()
            wait_until(lambda: path.exists() and inspect(path).items["t"] > 400, "a checkpoint")
            for _ in range(8):
                time.sleep(float(rng.uniform(0, 0.03)))
                server.kill()
                assert inspect(path).items["t"] >= 400
                server.restart()
                actor.append(obs=frame, **ROW)
                actor.flush()


def test_a_server_that_cannot_restore_does_not_start(tmp_path):
    path = tmp_path / "a.ckpt"
    path.write_bytes(b"NRCKPT\r\n and no more")
    spec, config = load(simple() + server_part(path) + 'auth = "off"\nlisten = "udp://127.0.0.1:0"\n')
    with pytest.raises(CheckpointError, match="the file's head is damaged") as refused:
        Server(spec, config)
    assert refused.value.path == str(path)
    assert path.read_bytes() == b"NRCKPT\r\n and no more"


def test_a_path_that_no_checkpoint_could_be_written_to_is_refused_at_the_start(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name, complaint in (("folder", "regular file"), ("fifo", "regular file"), ("none/a.ckpt", "not a folder")):
        spec, config = load(simple() + server_part(tmp_path / name) + 'auth = "off"\nlisten = "udp://127.0.0.1:0"\n')
        with pytest.raises(BadConfigError, match=rf"server\.checkpoint\.path: .*{complaint}"):
            Server(spec, config)


def test_a_server_writes_on_request_and_says_how_far_it_is(tmp_path, resources):
    path = tmp_path / "a.ckpt"
    spec, config = load(simple() + server_part(path, on_stop=False) + 'auth = "off"\nlisten = "udp://127.0.0.1:0"\n')
    with Server(spec, config) as server:
        server.start()
        replay = connect(resources, server)
        with replay.actor("s") as actor:
            feed(actor, 20)
        done = server.checkpoint(timeout=PATIENCE)
        assert (done.running, done.items, done.bytes) == (False, 20, path.stat().st_size)
        assert 0 < done.longest_quantum < 0.1
        path.unlink()
        path.mkdir()
        with pytest.raises(SystemRefusedError) as refused:
            server.checkpoint(timeout=PATIENCE)
        assert refused.value.errno == errno.EISDIR
        assert refused.value.path == str(path)
        assert replay.table("t").info().size == 20
        replay.close()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("checkpoint = 3", "server.checkpoint"),
        ("checkpoint = {}", "server.checkpoint.path"),
        ('checkpoint = {path = ""}', "server.checkpoint.path"),
        ('checkpoint = {path = "a", every = 0}', "server.checkpoint.every"),
        ('checkpoint = {path = "a", every = true}', "server.checkpoint.every"),
        ('checkpoint = {path = "a", on_stop = 1}', "server.checkpoint.on_stop"),
        ('checkpoint = {path = "a", often = 1}', "often"),
    ],
)
def test_wrong_configuration_is_refused_by_name(text, complaint):
    with pytest.raises(SpecError, match=complaint):
        load(simple() + "[server]\n" + text)


# ---- In this process ----


def test_draws_go_on_as_if_nothing_had_happened(local, tmp_path):
    for sampler in ("prioritized", "uniform", "fifo"):
        path = tmp_path / f"{sampler}.ckpt"
        toml = simple(sampler=sampler, capacity=100)
        first = local(toml)
        with first.actor("s") as actor:
            feed(actor, 150, priority=[float(i % 7 + 1) for i in range(150)])
        assert first.checkpoint(path) == path.stat().st_size
        batches = []
        for replay in (first, local(toml, restore=path), local(toml, restore=path)):
            with replay.learner("t", batch_size=64, timeout=PATIENCE) as learner:
                drawn = [learner.sample() for _ in range(3)]
                batches.append(
                    [(batch.keys.tolist(), batch.probabilities.tolist(), batch["action"].tolist()) for batch in drawn]
                )
        assert batches[0] == batches[1] == batches[2]


def test_priorities_counters_and_keys_come_back(local, tmp_path):
    path = tmp_path / "a.ckpt"
    toml = simple(capacity=50)
    first = local(toml)
    with first.actor("s") as actor:
        keys = feed(actor, 60, priority=[float(i) for i in range(60)])
    with first.learner("t", batch_size=8, timeout=PATIENCE) as learner:
        learner.sample()
        learner.update_priorities(keys[20:30], np.full(10, 1000.0))
    first.checkpoint(path)
    before = first.table("t").info()
    again = local(toml, restore=path)
    after = again.table("t").info()
    assert after._replace(steps=before.steps, step_bytes_held=before.step_bytes_held) == before
    assert after.max_priority == 1000.0
    assert again.restored is not None
    assert (again.restored.items, again.restored.differences) == ({"t": 50}, [])
    with again.learner("t", batch_size=8, timeout=PATIENCE) as learner:
        result = learner.update_priorities(keys, np.ones(60))
        assert (result.applied, result.stale) == (50, 10)


def test_todays_configuration_holds_and_what_differs_is_said(local, tmp_path):
    path = tmp_path / "a.ckpt"
    first = local(simple(capacity=50))
    with first.actor("s") as actor:
        feed(actor, 50)
    first.checkpoint(path)
    other = '[table.u]\nstore = "s"\ncapacity = 10\nsampler = "uniform"'
    second = local(simple(capacity=20, exponent=0.5, gamma=0.9, min_size=3, more=other), restore=path)
    assert second.restored is not None
    lines = "\n".join(second.restored.differences)
    assert "table.t.capacity: 50 then, 20 today" in lines
    assert "table.t.exponent: 1.0 then, 0.5 today" in lines
    assert "table.t.min_size: 1 then, 3 today" in lines
    assert "table.t.window.gamma: 0.99 then, 0.9 today" in lines
    assert "table.u: not in the checkpoint: starts empty" in lines
    assert "table.t: the newest 20 of 50 items have a place" in lines
    assert second.restored.left_out == {"t": 30}
    with second.learner("t", batch_size=64, timeout=PATIENCE) as learner:
        actions = sorted(int(row["action"]) for row in see_all(learner, 20).values())
        assert actions == list(range(30, 50))
    third = local(simple(capacity=500), restore=path)
    assert third.table("t").info().size == 50


@pytest.mark.parametrize(
    ("today", "field"),
    [
        (simple(observation='{dtype = "float32", shape = [5]}'), "store.s.observation"),
        (simple(observation='{dtype = "int32", shape = [4]}'), "store.s.observation"),
        (simple(action='{dtype = "int32"}'), "store.s.action"),
        (simple(n=2), "table.t.window.n"),
        (simple(stack=2), "table.t.window.stack"),
    ],
)
def test_items_that_could_not_be_read_are_refused_by_name(local, tmp_path, today, field):
    path = tmp_path / "a.ckpt"
    first = local(simple())
    with first.actor("s") as actor:
        feed(actor, 5)
    first.checkpoint(path)
    with pytest.raises(CheckpointError, match=field.replace(".", r"\.")) as refused:
        local(today, restore=path)
    assert refused.value.field == field
    assert refused.value.path == str(path)


def test_a_damaged_file_is_refused_with_the_place(local, tmp_path, rng):
    path = tmp_path / "a.ckpt"
    first = local(simple())
    with first.actor("s") as actor:
        feed(actor, 30)
    first.checkpoint(path)
    whole = path.read_bytes()
    for _ in range(100):
        place = int(rng.integers(0, len(whole)))
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged if rng.integers(2) else whole[:place])
        with pytest.raises(CheckpointError, match=r"byte|no checkpoint|version") as refused:
            local(simple(), restore=path)
        assert refused.value.offset <= place
    with pytest.raises(SystemRefusedError) as missing:
        local(simple(), restore=tmp_path / "nowhere")
    assert missing.value.errno == errno.ENOENT


def test_writing_goes_on_beside_other_threads(local, tmp_path):
    replay = local(simple(capacity=3000))
    path, ends, errors = tmp_path / "a.ckpt", threading.Event(), []

    def work() -> None:
        try:
            with replay.actor("s") as actor, replay.learner("t", batch_size=32, timeout=PATIENCE) as learner:
                i = 0
                while not ends.is_set():
                    feed(actor, 20, first=i)
                    batch = learner.sample()
                    learner.update_priorities(batch.keys, np.ones(32))
                    i += 20
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            before = replay.table("t").info().size
            replay.checkpoint(path)
            assert inspect(path).items["t"] >= min(before, 2000)
    finally:
        ends.set()
        thread.join()
    assert errors == []


def test_a_full_or_read_only_disk_is_said_and_the_old_file_stays(local, tmp_path):
    """By the limits that any user can meet; on a disk of its own below."""
    replay = local(simple())
    with replay.actor("s") as actor:
        feed(actor, 5)
    for where, number in ((tmp_path / "no" / "folder", errno.ENOENT), (tmp_path / ("x" * 300), errno.ENAMETOOLONG)):
        with pytest.raises(SystemRefusedError) as refused:
            replay.checkpoint(where)
        assert refused.value.errno == number
        assert refused.value.path == str(where)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.root
def test_a_full_disk_and_a_read_only_one(local, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=True)
    try:
        path = disk / "a.ckpt"
        replay = local(simple(capacity=10_000))
        with replay.actor("s") as actor:
            feed(actor, 20)
            replay.checkpoint(path)
            old = path.read_bytes()
            feed(actor, 3000)
            with pytest.raises(SystemRefusedError, match="No space left on device") as refused:
                replay.checkpoint(path)
            assert refused.value.errno == errno.ENOSPC
            assert refused.value.path == str(path)
            assert [file.name for file in disk.iterdir()] == ["a.ckpt"]
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            with pytest.raises(SystemRefusedError) as refused:
                replay.checkpoint(path)
            assert refused.value.errno == errno.EROFS
            assert path.read_bytes() == old
            feed(actor, 10)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_what_has_no_checkpoint_says_so(start_server, resources, local, tmp_path):
    server = start_server(simple())
    replay = connect(resources, server)
    with pytest.raises(CheckpointError, match=r"server\.checkpoint in its config"):
        replay.checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(BadConfigError, match=r"server\.checkpoint in its config"):
        netreplay.connect(server.url, auth="off", restore=tmp_path / "a.ckpt")
    closed = local(simple())
    closed.close()
    with pytest.raises(Closed):
        closed.checkpoint(tmp_path / "a.ckpt")


def test_the_command_shows_what_a_file_holds(local, tmp_path):
    path = tmp_path / "a.ckpt"
    replay = local(simple(capacity=20))
    with replay.actor("s") as actor:
        feed(actor, 15)
    replay.checkpoint(path)
    shown = CliRunner().invoke(cli, ["checkpoint", str(path)])
    assert shown.exit_code == 0
    assert "whole" in shown.output
    assert "table t: 15 of 20 items" in shown.output
    document = json.loads(CliRunner().invoke(cli, ["checkpoint", "--json", str(path)]).output)
    assert document["items"] == {"t": 15}
    path.write_bytes(path.read_bytes()[:-1])
    refused = CliRunner().invoke(cli, ["checkpoint", str(path)])
    assert refused.exit_code != 0
