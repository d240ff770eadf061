"""Specs for tests, as TOML text."""

from __future__ import annotations


def simple(
    *,
    capacity: int = 1000,
    sampler: str = "prioritized",
    exponent: float = 1.0,
    min_size: int = 1,
    n: int = 1,
    stack: int = 1,
    gamma: float = 0.99,
    observation: str = '{dtype = "float32", shape = [4]}',
    action: str = '{dtype = "int64"}',
    store: str = "",
    table: str = "",
    more: str = "",
) -> str:
    """One store "s" with columns obs and action, one table "t"; `store`, `table`, `more` are further lines."""
    return f"""
[store.s]
observation.obs = {observation}
action.action = {action}
{store}
[table.t]
store = "s"
capacity = {capacity}
sampler = "{sampler}"
exponent = {exponent}
min_size = {min_size}
window = {{n = {n}, gamma = {gamma}, stack = {stack}}}
{table}
{more}
"""
