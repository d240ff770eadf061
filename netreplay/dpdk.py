"""DPDK on this machine: whether netreplay was built with it, and which one it is."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from types import ModuleType

from netreplay.errors import NetreplayError

INSTALL = "apt-get install libdpdk-dev, then build netreplay again (make setup, or pip install from its source)"


class DpdkMissingError(NetreplayError, RuntimeError):
    """DPDK was asked for, and this netreplay has none: not built with it, or its libraries do not load."""


def available() -> bool:
    """Whether ``netreplay._dpdk`` was built. Loads nothing."""
    return importlib.util.find_spec("netreplay._dpdk") is not None


def load() -> ModuleType:
    """``netreplay._dpdk``, loaded into this process for its life.

    Raises:
        DpdkMissingError: as version().
    """
    if not available():
        raise DpdkMissingError(f"this netreplay was built without DPDK: {INSTALL}")
    try:
        return importlib.import_module("netreplay._dpdk")
    except ImportError as error:
        raise DpdkMissingError(f"netreplay._dpdk does not load: {error}; {INSTALL}") from None


def version() -> str:
    """The version of the DPDK libraries that ``netreplay._dpdk`` loads, for example ``"DPDK 22.11.11"``.

    Asked of a process of its own: loading DPDK brings a hundred libraries and their constructors, and cannot be undone.

    Raises:
        DpdkMissingError: netreplay was built without DPDK, or its libraries cannot be loaded; says what to install.
    """
    if not available():
        raise DpdkMissingError(f"this netreplay was built without DPDK: {INSTALL}")
    program = "from netreplay._dpdk import ffi, lib; print(ffi.string(lib.nr_dpdk_version()).decode())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise DpdkMissingError(f"netreplay._dpdk does not load: {reason}; {INSTALL}")
    return done.stdout.strip()
