"""An experience-replay memory that lives in the network."""

from __future__ import annotations

__version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":
        # Read when asked for: importlib.metadata would double the cost of importing this package.
        from importlib.metadata import version

        return version("netreplay")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
