"""What `netreplay serve` says when DPDK, or a port of it, cannot be had: one line with the way out, exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from serving import PATIENCE
from specs import simple


def run(path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "netreplay.cli", "serve", "-c", str(path), "--auth", "off", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize(
    ("device", "eal", "line"),
    [
        ("net_xyz0", "", "port.device: net_xyz0 is no device that DPDK knows"),
        ("net_af_packet0,iface=nope", "", "port.p: net_af_packet0,iface=nope: there is no such interface"),
        ("0000:ff:1f.7", "", "port.p: 0000:ff:1f.7: there is no such PCI device: `lspci -D`"),
        ("net_null0", 'arguments = ["--bogus"]', "eal.arguments: --bogus is refused by EAL"),
        ("net_null0", 'memory = "1024 GiB"\nhugepages = true', "too few hugepages are free"),
        ("net_af_xdp0,iface=lo", "", "port.p: net_af_xdp0,iface=lo: "),
    ],
)
def test_what_is_wrong_is_one_line_with_the_way_out(tmp_path, device, eal, line):
    path = tmp_path / "server.toml"
    mtu = "\nmtu = 9000" if "xdp" in device else ""
    path.write_text(simple(more=f'[port.p]\ndevice = "{device}"\nip4 = "10.0.0.7"{mtu}\n[eal]\n{eal}\n'))
    done = run(path)
    assert done.returncode == 2, done
    errors = [text for text in done.stderr.splitlines() if text.startswith("netreplay: ")]
    assert len(errors) == 1, done.stderr
    assert line in errors[0]
    assert "Traceback" not in done.stderr


def test_the_arguments_of_eal_are_shown_without_starting_it(tmp_path):
    path = tmp_path / "server.toml"
    path.write_text(simple(more='[port.p]\ndevice = "net_null0"\nip4 = "10.0.0.7"\n'))
    done = run(path, "--print-eal")
    assert done.returncode == 0, done.stderr
    assert "--vdev net_null0" in done.stdout
    assert "--no-huge" in done.stdout
