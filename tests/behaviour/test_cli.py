"""The command line: what it prints, and that errors are one line with a way out and exit code 2."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from feeding import feed
from serving import PATIENCE
from specs import simple

import netreplay

SERVER = '[server]\nlisten = "127.0.0.1:0"\nauth = "off"\n'


def run(*arguments, timeout=PATIENCE):
    command = [sys.executable, "-m", "netreplay.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "server.toml"
        path.write_text(text)
        return path

    return write


def test_help_names_every_command():
    done = run("--help")
    assert done.returncode == 0
    for command in ("serve", "tables", "ping", "forward", "demo", "version"):
        assert f"  {command} " in done.stdout


@pytest.mark.parametrize("command", ["serve", "tables", "ping", "forward"])
def test_every_command_has_help(command):
    done = run(command, "--help")
    assert done.returncode == 0
    assert "Usage: netreplay" in done.stdout


def test_version_is_that_of_the_package():
    assert run("version").stdout.startswith(f"netreplay {netreplay.__version__}\n")
    assert netreplay.__version__ in run("--version").stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("poll", ["adaptive", "busy"])
def test_serve_says_that_it_is_ready_and_ends_within_a_second(config, number, poll):
    path = config(simple(more=SERVER))
    command = [sys.executable, "-m", "netreplay.cli", "serve", "-c", str(path), "--poll", poll, "-v"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("netreplay: listening on udp://127.0.0.1:")
            assert line.endswith(f"auth off, polling {poll}: ready\n")
            begin = time.monotonic()
            process.send_signal(number)
            rest = process.stdout.read()
            assert process.wait(PATIENCE) == 0
            assert time.monotonic() - begin < 1.0
            assert rest.endswith("netreplay: stopped\n")
        finally:
            process.kill()


def test_tables_shows_what_is_in_them(start_server):
    server = start_server(simple())
    with netreplay.connect(server.url, auth="off") as replay, replay.actor("s") as actor:
        feed(actor, 12)
    done = run("tables", server.url)
    assert done.returncode == 0, done.stderr
    header, row = done.stdout.splitlines()
    assert header.split()[:3] == ["table", "items", "capacity"]
    assert row.split()[:3] == ["t", "12", "1000"]
    numbers = json.loads(run("tables", server.url, "--json").stdout)
    assert numbers["t"]["size"] == numbers["t"]["inserted"] == 12


def test_ping_prints_round_trips(start_server):
    server = start_server(simple())
    done = run("ping", server.url, "-n", "5")
    assert done.returncode == 0, done.stderr
    assert "5 round trips of 64 B: least" in done.stdout


def refused(*arguments):
    done = run(*arguments)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr + done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("netreplay: ")
    return lines[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (simple(), "server.auth: is missing"),
        (simple(sampler="best", more=SERVER), "table.t.sampler: 'best' is not one of prioritized, uniform, fifo"),
        (simple(more=SERVER.replace("127.0.0.1:0", "nonsense:port")), "server.listen: address 'nonsense:port'"),
        (simple(more=SERVER.replace('"off"', '"on"')), "server.auth: 'on' is not \"off\""),
        (simple(more=SERVER + 'key = "k"'), "server.key: authentication is not there yet"),
        (
            simple(capacity=4 * 10**9, observation='{dtype = "uint8", shape = [84, 84]}', more=SERVER),
            "above 4294967294",
        ),
        (
            simple(capacity=10**9, observation='{dtype = "uint8", shape = [84, 84]}', more=SERVER),
            "is wanted and the memory available is",
        ),
        (simple(more=SERVER + 'memory = "1 MB"'), "is wanted and the configured limit is 1.0 MB"),
        ("[store", "is not TOML"),
    ],
)
def test_a_bad_config_is_one_line(config, text, complaint):
    assert complaint in refused("serve", "-c", config(text))


def test_a_missing_config_is_one_line():
    assert "nowhere.toml: cannot be read: No such file or directory" in refused("serve", "-c", "nowhere.toml")


def test_a_port_in_use_is_one_line_with_the_way_out(config):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        line = refused("serve", "-c", config(simple(more=SERVER)), "--listen", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}: cannot listen: Address already in use; another process listens there" in line


def test_forward_says_as_serve_does_that_a_port_is_in_use():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused("forward", "udp://127.0.0.1:9", "--listen", where)
    assert (
        f"{where}: cannot forward to udp://127.0.0.1:9: Address already in use; another process listens there" in line
    )
    assert "this machine has no such address" in refused("forward", "udp://127.0.0.1:9", "--listen", "192.0.2.1:0")
    assert "no such address or name" in refused("forward", "udp://no-such-host.invalid:9")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("nowhere/ready", "No such file or directory"), ("server.toml/ready", "Not a directory")],
)
def test_a_ready_file_that_cannot_be_is_refused_before_ready_is_said(config, tmp_path, name, complaint):
    path = config(simple(more=SERVER))
    line = refused("serve", "-c", path, "--ready-file", tmp_path / name)
    assert "ready-file" in line.lower()
    assert complaint.lower() in line.lower()
    assert [entry.name for entry in tmp_path.iterdir()] == ["server.toml"]


def test_a_ready_descriptor_that_cannot_be_is_refused_before_ready_is_said(config):
    path = config(simple(more=SERVER))
    for number in ("977", "-1", "99999999999"):
        assert f"--ready-fd: {number}: " in refused("serve", "-c", path, f"--ready-fd={number}")


def test_a_ready_descriptor_is_told_the_address_before_ready_is_said(config):
    read, write = os.pipe()
    command = [sys.executable, "-m", "netreplay.cli", "serve", "-c", str(config(simple(more=SERVER)))]
    with subprocess.Popen(
        [*command, "--ready-fd", str(write)], stdout=subprocess.PIPE, text=True, pass_fds=[write]
    ) as it:
        try:
            os.close(write)
            line = it.stdout.readline()
            assert line.endswith(": ready\n")
            with os.fdopen(read) as told:
                assert f"listening on {told.readline().strip()}, " in line
        finally:
            it.terminate()


def test_an_address_of_another_machine_is_one_line(config):
    line = refused("serve", "-c", config(simple(more=SERVER)), "--listen", "192.0.2.1:0")
    assert "192.0.2.1:0: cannot listen: Cannot assign requested address; this machine has no such address" in line


def test_a_name_that_does_not_resolve_is_one_line(config):
    assert "no such address or name" in refused(
        "serve", "-c", config(simple(more=SERVER)), "--listen", "no-such-host.invalid:0"
    )


def test_a_dead_server_is_one_line():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = refused("tables", f"udp://127.0.0.1:{port}", "--timeout", "0.3")
    assert f"no answer from 127.0.0.1:{port}" in line
    assert line.endswith("(connection refused): is `netreplay serve` running there?")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("tables", "nonsense"), "address 'nonsense'"),
        (("tables", "vhost://x"), "a socket's absolute path"),
        (("forward", "local:x"), "only a udp:// server"),
        (("ping", "udp://127.0.0.1:9", "--timeout", "nan"), "timeout: nan is not a number of seconds >= 0"),
        (("tables", "udp://127.0.0.1:9", "--timeout", "-1"), "timeout: -1.0 is not a number of seconds >= 0"),
    ],
)
def test_bad_arguments_are_one_line(arguments, complaint):
    assert complaint in refused(*arguments)


def test_usage_errors_exit_with_2_and_no_traceback():
    for arguments in (
        ("bogus",),
        ("serve",),
        ("serve", "-c", "x", "--poll", "lazy"),
        ("tables",),
        ("ping", "u", "-n", "0"),
    ):
        done = run(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
