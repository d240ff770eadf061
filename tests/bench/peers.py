"""Virtual environments of the peers, each its own, made when a benchmark first wants it: build/peers/NAME."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINS = {
    "cpprb": ("cpprb==11.0.0", "numpy==2.4.6"),
    "torchrl": (
        "torch==2.13.0",
        "torchrl==0.14.0",
        "tensordict==0.14.3",
        "numpy==2.4.6",
        "ninja==1.13.2",
        "setuptools",
    ),
}
# The wheel's C++ trees are built for another torch and do not load with this one: built again from the sources in it.
_TREES = """
import os, pathlib, shutil, tempfile
import torchrl
from torch.utils import cpp_extension
package = pathlib.Path(torchrl.__file__).parent
sources = package / "csrc"
with tempfile.TemporaryDirectory() as folder:
    cpp_extension.load(
        "_torchrl", [str(sources / "pybind.cpp"), str(sources / "utils.cpp")], extra_include_paths=[str(sources)],
        extra_cflags=["-O3", "-std=c++20"], build_directory=folder,
    )
    shutil.copy(os.path.join(folder, "_torchrl.so"), next(package.glob("_torchrl*.so")))
"""


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment; the first call makes it (minutes). CalledProcessError says why not."""
    folder = ROOT / "build/peers" / name
    python, stamp = folder / "bin/python", folder / ".ready"
    wanted = hashlib.sha256(repr((PINS[name], _TREES)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"\n{name}: making its environment in {folder.relative_to(ROOT)}", flush=True)
    run = lambda *command: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: E731
    run(sys.executable, "-m", "venv", "--clear", folder)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINS[name])
    if name == "torchrl":
        path = f"{folder / 'bin'}:/usr/bin:/bin"
        subprocess.run(
            [python, "-c", _TREES], check=True, stdout=subprocess.DEVNULL, env={"PATH": path, "HOME": str(folder)}
        )
    stamp.write_text(wanted)
    return python
