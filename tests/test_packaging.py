"""The package as it installs: its version, its wheel, and DPDK being optional."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import netreplay
import netreplay.dpdk
from netreplay._core import ffi, lib

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    # meson and ninja are found as make finds them
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | {"PATH": tools},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_version_has_one_source() -> None:
    declared = re.search(r"version: '([0-9.]+)'", (ROOT / "meson.build").read_text())
    assert declared is not None
    assert importlib.metadata.version("netreplay") == declared[1]
    assert netreplay.__version__ == declared[1]
    assert ffi.string(lib.nr_version()).decode() == declared[1]


def test_dpdk_reports_its_version_or_what_to_install() -> None:
    if netreplay.dpdk.available():
        assert re.fullmatch(r"DPDK \d\d\.\d\d(\.\d+)?.*", netreplay.dpdk.version())
    else:
        with pytest.raises(netreplay.dpdk.DpdkMissingError, match="apt-get install libdpdk-dev"):
            netreplay.dpdk.version()


def test_importing_netreplay_loads_neither_dpdk_nor_extras() -> None:
    program = (
        "import netreplay, netreplay.clients, netreplay.appliance, sys;"
        "print([m for m in ('torch', 'gymnasium', 'matplotlib', 'rich', 'scapy') if m in sys.modules]);"
        "print('librte_' in open('/proc/self/maps').read())"
    )
    assert run(sys.executable, "-c", program, cwd=ROOT.parent).split() == ["[]", "False"]


SPEC = """
[store.s]
observation.obs = {dtype = "float32", shape = [4]}
action.action = {dtype = "int32", shape = []}
[table.t]
store = "s"
capacity = 1000
sampler = "prioritized"
window = {kind = "nstep", n = 1, gamma = 0.9}
"""
# Says: keys acknowledged, rows drawn, updates that were applied or repeated one.
USE = """
import sys, netreplay
auth = {"auth": "off"} if sys.argv[1].startswith("udp:") else {}
with netreplay.connect(sys.argv[1], timeout=20, **auth) as replay:
    with replay.actor("s") as actor:
        for i in range(41):
            actor.append(obs=[i] * 4, action=i, reward=1.0, terminated=False, truncated=False)
        print(len(actor.flush()))
    with replay.learner("t", batch_size=16) as learner:
        batch = learner.sample()
        print(len(batch["obs"]))
        result = learner.update_priorities(batch.keys, [2.0] * 16)
        print(result.applied + result.superseded)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel without DPDK, built as `make wheel` does."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps")
    run(*pip, "--config-settings=setup-args=-Ddpdk=disabled", "-w", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_is_abi3_and_holds_the_package_once(wheel: Path) -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-abi3"
    assert tag in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    assert {"netreplay/__init__.py", "netreplay/py.typed", "netreplay/_core.abi3.so"} <= set(names)
    assert {"netreplay/clients/__init__.py", "netreplay/appliance/__init__.py"} <= set(names)
    assert not [name for name in names if "_dpdk.abi3" in name or "__pycache__" in name]
    for folder, prefix in (("netreplay", ""), ("clients", "netreplay/"), ("appliance", "netreplay/")):
        tracked = run("git", "ls-files", folder, cwd=ROOT).split()
        assert {prefix + name for name in tracked} <= set(names)


def test_the_wheel_works_with_only_what_it_requires(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", wheel, cwd=tmp_path)
    listed = run(*pip, "list", "--format=freeze", cwd=tmp_path).split()
    assert {line.partition("==")[0] for line in listed} - {"pycparser"} == {"netreplay", "numpy", "cffi", "click"}
    program = (
        "import netreplay, netreplay.clients, netreplay.appliance, netreplay._core, netreplay.dpdk\n"
        "try: netreplay.dpdk.version()\n"
        "except netreplay.dpdk.DpdkMissingError as error: print(error)"
    )
    assert "apt-get install libdpdk-dev" in run(python, "-c", program, cwd=tmp_path)
    command = tmp_path / "env" / "bin" / "netreplay"
    assert netreplay.__version__ in run(command, "--version", cwd=tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    assert run(python, "-c", USE, "local:spec.toml", cwd=tmp_path).split() == ["40", "16", "16"]
    serve = (command, "serve", "-c", "spec.toml", "--listen", "127.0.0.1:0", "--auth", "off", "--ready-file", "ready")
    with subprocess.Popen(serve, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert "ready" in server.stdout.readline()
            url = (tmp_path / "ready").read_text().strip()
            assert run(python, "-c", USE, url, cwd=tmp_path).split() == ["40", "16", "16"]
        finally:
            server.terminate()
    shutil.rmtree(tmp_path / "env")
