"""`netreplay latency` as a command: what it reports, where it writes, and that what fails is told in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from serving import PATIENCE, wait_until
from specs import simple

import netreplay

SPEC = simple(table='[table.second]\nstore = "s"\ncapacity = 500\nwindow = {n = 1, gamma = 0.99}')
FEW = ("--rounds", "5", "--blocks", "5", "--fill", "100", "--update-batch", "16")
LONG = ("--rounds", "1000000", "--blocks", "100000", "--fill", "100", "--ops", "insert")
COMMAND = [sys.executable, "-m", "netreplay.cli", "latency"]


def latency(*arguments, **options):
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE, check=False, **options)


def refused(done, *texts):
    """One line on stderr, nothing on stdout, exit code 2."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for text in texts:
        assert text in done.stderr


def test_reports_in_text_in_json_and_as_a_drawing(serve, tmp_path):
    pytest.importorskip("matplotlib")
    urls = [serve(SPEC, network).url for network in ("vhost", "udp")]
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    core = min(os.sched_getaffinity(0))
    done = latency(*urls, *FEW, "--json", out, "--plot", plot, "--core", core)
    assert done.returncode == 0, done.stderr
    for text in ("ping (1 datagram), microseconds", "against vhost", "client", "wire", "server", f"core {core}"):
        assert text in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    report = json.loads(out.read_text())
    assert (report["schema"], report["unit"], report["complete"]) == (1, "us", True)
    assert report["environment"]["core"] == core
    assert [memory["url"] for memory in report["memories"]] == urls
    assert [operation["name"] for operation in report["operations"]] == ["ping", "insert", "sample", "update"]
    for operation in report["operations"]:
        first, second = operation["results"]
        assert first["against_first"] is None
        assert set(second["against_first"]) == {"ratio", "change_percent", "spreads_overlap"}
        for result in (first, second):
            assert result["count"] == 5
            assert 0 < result["min"] <= result["percentiles"]["p50"] <= result["max"]
            assert result["percentiles"]["p99"] is None
            assert len(result["blocks"]) == 5
            assert set(result["shares"]) == {"client", "wire", "server"}


def test_json_to_stdout_of_the_table_named_while_spinning(serve):
    done = latency(
        serve(SPEC, "udp").url, *FEW, "--json", "-", "--table", "second", "--poll", "busy", "--ops", "insert"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["memories"][0]["table"] == "second"
    assert report["settings"]["poll"] == "busy"
    assert [operation["name"] for operation in report["operations"]] == ["insert"]


def test_a_used_table_is_spoilt_only_when_told(serve):
    url = serve(SPEC, "udp").url
    assert latency(url, *FEW, "--ops", "ping").returncode == 0
    refused(latency(url, *FEW), "--into-used", url)
    assert latency(url, *FEW, "--ops", "ping", "--into-used").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["udp://127.0.0.1:9", "--ops", "ping,jump"], "'jump' is not one of ping, insert"),
        (["nonsense://x"], "nonsense"),
        (["udp://127.0.0.1:9", "--timeout", "0.2"], "127.0.0.1:9"),
        (["udp://127.0.0.1:9", "--core", "4000"], "--core: 4000"),
        (["udp://127.0.0.1:9", "--plot", "x.gif"], ".png, .svg or .pdf"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, text):
    refused(latency(*arguments), text)


def test_missing_matplotlib_is_told_before_measuring(tmp_path):
    program = (
        "import sys; sys.modules['matplotlib'] = None; import importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda name, *rest: None if name == 'matplotlib' else find(name, *rest); "
        "from netreplay.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, "latency", "udp://127.0.0.1:9", "--plot", str(tmp_path / "x.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    refused(done, "matplotlib cannot be imported", "netreplay[plot]")


def test_a_memory_in_the_same_process_has_no_shares(tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    done = latency(f"local:{tmp_path / 'spec.toml'}", *FEW, "--json", "-")
    assert done.returncode == 0, done.stderr
    results = [operation["results"][0] for operation in json.loads(done.stdout)["operations"]]
    assert [(result["count"], result["shares"]) for result in results] == [(5, None)] * 4


@pytest.fixture
def measuring(serve, tmp_path):
    """(server, process, its stderr so far) of a run that would last for long, once calls are measured."""
    server = serve(SPEC, "udp")
    report = tmp_path / "report.json"
    with (tmp_path / "errors").open("w") as errors, (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            [*COMMAND, server.url, *LONG, "--timeout", "0.5", "--json", str(report)], stdout=output, stderr=errors
        )
    yield server, process, tmp_path
    process.kill()
    process.wait()


def wait_for_blocks(server):
    """Waits until some blocks are whole: each is ten steps behind ten that are not counted."""
    with netreplay.connect(server.url, auth="off") as replay:
        table = replay.table("t")
        wait_until(lambda: table.info().inserted >= 200, "some blocks are measured")


@pytest.mark.parametrize("how", ["interrupt", "kill the server"])
def test_what_was_measured_is_reported_when_it_ends_early(measuring, how):
    server, process, folder = measuring
    wait_for_blocks(server)
    if how == "interrupt":
        process.send_signal(signal.SIGINT)
    else:
        server.kill()
    code = process.wait(PATIENCE)
    errors = (folder / "errors").read_text().splitlines()
    assert code == (130 if how == "interrupt" else 2), errors
    assert "netreplay: not complete: what was measured until then follows" in errors
    assert not any("Traceback" in line for line in errors)
    assert json.loads((folder / "report.json").read_text())["complete"] is False
    assert "insert (append" in (folder / "output").read_text()
