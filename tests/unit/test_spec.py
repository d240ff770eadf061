"""Specs: what is refused and where, what is canonical, what is compared."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from specs import simple

from netreplay import ColumnSpec, Spec, SpecError, StoreSpec, TableSpec, Window
from netreplay.errors import BadVersionError, MalformedError, NoMemoryError
from netreplay.layout import step_layout
from netreplay.memory import arithmetic, held_steps, require, resolve, step_stride
from netreplay.spec_json import compare_specs

PONG = """
[store.pong]
observation.frame = {dtype = "uint8", shape = [84, 84]}
action.action = {dtype = "int32", shape = []}
[table.pong]
store = "pong"
capacity = 100_000
sampler = "prioritized"
remover = "fifo"
exponent = 0.6
min_size = 1000
window = {kind = "nstep", n = 3, gamma = 0.99, stack = 4}
[parameters.default]
max_bytes = "16 MiB"
"""


def test_the_example_of_the_semantics_reads():
    spec = Spec.from_toml(PONG)
    assert spec.stores["pong"].observation == {"frame": ColumnSpec("uint8", (84, 84))}
    assert spec.tables["pong"].window == Window(n=3, gamma=0.99, stack=4)
    assert spec.tables["pong"].min_size == 1000
    assert spec.parameters["default"].max_bytes == 16 * 2**20


def test_a_file_reads_as_its_text_does(tmp_path):
    path = tmp_path / "pong.toml"
    path.write_text(PONG)
    assert Spec.from_toml(path) == Spec.from_toml(str(path)) == Spec.from_toml(PONG)


def windowed(keys: str) -> str:
    return simple().replace("{n = 1, gamma = 0.99, stack = 1}", f"{{{keys}}}")


REFUSED = [
    ('[table.t]\nstore = "s"\ncapacity = 1', "store", "is missing"),
    (simple().replace("capacity = 1000", ""), "table.t.capacity", "is missing"),
    (simple(sampler="best"), "table.t.sampler", "'best' is not one of prioritized, uniform, fifo"),
    (simple(table='remover = "lifo"'), "table.t.remover", "'lifo' is not one of fifo"),
    (simple().replace('store = "s"', 'store = "q"'), "table.t.store", "'q' is no store; there are: s"),
    (simple(capacity=0), "table.t.capacity", "0 is not between 1"),
    (simple(capacity=-5), "table.t.capacity", "-5 is not between 1"),
    (simple(capacity=10**12), "table.t.capacity", "1000000000000 is not between"),
    (simple().replace("capacity = 1000", "capacity = 1.5"), "table.t.capacity", "1.5 is not a whole number"),
    (simple().replace("capacity = 1000", "capacity = true"), "table.t.capacity", "True is not a whole number"),
    (simple(exponent=-1), "table.t.exponent", "-1 is not between 0"),
    (simple().replace("exponent = 1.0", "exponent = nan"), "table.t.exponent", "nan is not between 0"),
    (simple(min_size=1001), "table.t.min_size", "1001 is above the capacity"),
    (simple(n=0), "table.t.window.n", "0 is not between 1"),
    (simple(stack=0), "table.t.window.stack", "0 is not between 1"),
    (simple(gamma=1.5), "table.t.window.gamma", "1.5 is not between 0 and 1"),
    (simple(n=3000, stack=3000), "table.t.window.stack", "above 4096 steps"),
    (windowed("kind = 'tree'"), "table.t.window.kind", "'tree' is not one of nstep, sequence, episode"),
    (windowed("kind = 'sequence'"), "table.t.window.length", 'is missing; kind = "sequence" needs it'),
    (windowed("kind = 'episode'"), "table.t.window.length", 'is missing; kind = "episode" needs it'),
    (
        windowed("length = 8"),
        "table.t.window.length",
        '8 is for kind = "sequence" or "episode", and this window is "nstep"',
    ),
    (windowed("stride = 8"), "table.t.window.stride", '8 is for kind = "sequence", and this window is "nstep"'),
    (windowed("pad = 'head'"), "table.t.window.pad", "'head' is for kind"),
    (windowed("kind = 'episode', length = 8, stride = 8"), "table.t.window.stride", "8 is for kind"),
    (windowed("kind = 'episode', length = 8, burn_in = 2"), "table.t.window.burn_in", "2 is for kind"),
    (windowed("kind = 'episode', length = 8, start = 2"), "table.t.window.start", "2 is for kind"),
    (windowed("kind = 'episode', length = 8, end = 'drop'"), "table.t.window.end", "'drop' is for kind"),
    (windowed("kind = 'sequence', length = 0"), "table.t.window.length", "0 is not between 1 and 4095"),
    (windowed("kind = 'sequence', length = 4096"), "table.t.window.length", "4096 is not between 1 and 4095"),
    (windowed("kind = 'sequence', length = 2.0"), "table.t.window.length", "2.0 is not a whole number"),
    (
        windowed("kind = 'sequence', length = 4095, stack = 2"),
        "table.t.window.stack",
        "2 and length = 4095 make a window",
    ),
    (windowed("kind = 'sequence', length = 8, stride = 0"), "table.t.window.stride", "0 is not between 1"),
    (windowed("kind = 'sequence', length = 8, stride = true"), "table.t.window.stride", "True is not a whole number"),
    (windowed("kind = 'sequence', length = 8, start = -1"), "table.t.window.start", "-1 is not between 0"),
    (windowed("kind = 'sequence', length = 8, burn_in = 8"), "table.t.window.burn_in", "8 leaves none of the 8 steps"),
    (windowed("kind = 'sequence', length = 8, burn_in = -1"), "table.t.window.burn_in", "-1 is not between 0"),
    (windowed("kind = 'sequence', length = 8, n = 9"), "table.t.window.n", "9 is above the length of 8 steps"),
    (windowed("kind = 'sequence', length = 8, n = 0"), "table.t.window.n", "0 is not between 1"),
    (windowed("kind = 'sequence', length = 8, gamma = -1"), "table.t.window.gamma", "-1 is not between 0 and 1"),
    (windowed("kind = 'sequence', length = 8, pad = 'both'"), "table.t.window.pad", "'both' is not one of tail, head"),
    (windowed("kind = 'sequence', length = 8, end = 1"), "table.t.window.end", "1 is not one of pad, drop, shift"),
    (windowed("kind = 'sequence', length = 8, overlap = 4"), "table.t.window.overlap", "at a key that is not known"),
    (windowed("columns = 'obs'"), "table.t.window.columns", "'obs' is not a list of column names"),
    (windowed("columns = [1]"), "table.t.window.columns", "[1] is not a list of column names"),
    (windowed("columns = []"), "table.t.window.columns", "[] names no column"),
    (windowed("columns = ['obs', 'obs']"), "table.t.window.columns", "names a column twice"),
    (
        windowed("columns = ['obs', 'depth']"),
        "table.t.window.columns",
        "'depth' is none that rows can show; those are: obs, action",
    ),
    (
        windowed("columns = ['reward']"),
        "table.t.window.columns",
        "'reward' is none that rows can show; those are: obs, action",
    ),
    (windowed("kind = 'sequence', length = 8, columns = ['next_obs']"), "table.t.window.columns", "'next_obs' is none"),
    (simple(table="colour = 3"), "table.t.colour", "stands at a key that is not known"),
    (simple(observation='{dtype = "str"}'), "store.s.observation.obs.dtype", "'str' is not a number"),
    (simple(observation='{dtype = "object"}'), "store.s.observation.obs.dtype", "'object' is not a number"),
    (simple(observation='{dtype = ">f4"}'), "store.s.observation.obs.dtype", "big-endian"),
    (simple(observation='{dtype = "float33"}'), "store.s.observation.obs.dtype", "is not a dtype that numpy knows"),
    (simple(observation='{dtype = "longdouble"}'), "store.s.observation.obs.dtype", "other bytes on other machines"),
    (simple(observation='{dtype = "uint8", shape = [-1]}'), "store.s.observation.obs.shape", "-1 is not between 0"),
    (simple(observation='{dtype = "uint8", shape = 3}'), "store.s.observation.obs.shape", "3 is not a list"),
    (simple(observation="{shape = [3]}"), "store.s.observation.obs.dtype", "is missing"),
    (simple(observation='{dtype = "uint8", size = 1}'), "store.s.observation.obs.size", "is not known"),
    (simple(store='action.obs = {dtype = "int8"}'), "store.s.action.obs", "names must differ"),
    (simple(store='action.reward = {dtype = "int8"}'), "store.s.action", "cannot name a column"),
    (simple(store="in_flight = 3"), "store.s.in_flight", "3 is not between 4"),
    (simple(more="[parameters.x]\nmax_bytes = '4 GiB'"), "parameters.x.max_bytes", "is not between 1 and 4294967247"),
    (simple(store="steps = 1"), "store.s.steps", "not one item would fit"),
    (simple(more="[parameters.x]\nmax_bytes = '5 parsecs'"), "parameters.x.max_bytes", "is not a size"),
    (simple(more='[store."a b"]\nobservation.x = {dtype = "int8"}'), "store", "'a b' is not a name"),
    (simple(more="[stores.x]"), "stores", "is not known"),
    ("[store.s]\n[table.t]\nstore = 's'\ncapacity = 1", "store.s.observation", "is missing"),
    ("[store.s\n", "TOML text", "is not TOML"),
]


@pytest.mark.parametrize(("toml", "path", "complaint"), REFUSED, ids=[f"{p}: {c}"[:60] for _, p, c in REFUSED])
def test_what_is_wrong_is_named_with_its_place(toml, path, complaint):
    with pytest.raises(SpecError) as caught:
        resolve(Spec.from_toml(toml))
    assert caught.value.path == path
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_file_is_named():
    with pytest.raises(SpecError, match=r"nowhere\.toml: cannot be read: No such file"):
        Spec.from_toml("nowhere.toml")


@pytest.mark.parametrize(
    "toml",
    [
        PONG,
        simple(),
        simple(stack=4, n=2, store="steps = 5000\nstreams = 3"),
        windowed("kind = 'sequence', length = 80, stride = 40, burn_in = 40, columns = ['obs', 'reward']"),
        windowed("kind = 'episode', length = 8, pad = 'head', stack = 2"),
    ],
)
def test_the_json_is_canonical_and_comes_back_whole(toml):
    spec = Spec.from_toml(toml)
    text = spec.to_json()
    assert Spec.from_json(text) == resolve(spec)
    assert Spec.from_json(text).to_json() == text


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"format": 1}', '{"format": 1, "spec": {}}', "\x00", '{"format":1,"spec":[]}']
)
def test_what_is_no_spec_is_refused(text):
    with pytest.raises(MalformedError):
        Spec.from_json(text)


def test_another_format_is_refused_by_its_number():
    text = Spec.from_toml(PONG).to_json().replace('"format":1', '"format":7')
    with pytest.raises(BadVersionError, match="format 7"):
        Spec.from_json(text)


def test_a_layout_that_this_client_would_not_make_is_refused():
    document = json.loads(Spec.from_toml(PONG).to_json())
    document["layout"]["tables"]["pong"]["row_bytes"] += 8
    with pytest.raises(BadVersionError, match=r"layout\.tables\.pong\.row_bytes"):
        Spec.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("capacity = 1000", "capacity = 999"), "tables.t.capacity: 1000 and 999"),
        (("gamma = 0.99", "gamma = 0.9"), "tables.t.window.gamma: 0.99 and 0.9"),
        (("float32", "float64"), "stores.s.observation.obs.dtype: 'float32' and 'float64'"),
        (("shape = [4]", "shape = [5]"), "stores.s.observation.obs.shape[0]: 4 and 5"),
        (("[table.t]", "[table.u]"), "tables.t is only here"),
    ],
)
def test_the_first_difference_of_two_specs_is_named(change, named):
    toml = simple(store="steps = 4000\nstreams = 3")
    ours, theirs = Spec.from_toml(toml), Spec.from_toml(toml.replace(*change))
    assert compare_specs(ours, theirs) == named
    assert compare_specs(ours, ours) is None


def test_specs_are_values():
    spec = Spec.from_toml(PONG)
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pytest.raises(AttributeError):
        spec.tables["pong"].capacity = 3


def test_specs_can_be_written_in_python():
    store = StoreSpec(observation={"obs": ColumnSpec("float32", (4,))}, action={"action": ColumnSpec("int64")})
    spec = Spec(stores={"s": store}, tables={"t": TableSpec("s", 1000, exponent=1.0)})
    assert spec == Spec.from_toml(simple())


def test_defaults_of_sizes_stay_in_proportion():
    """Stream tails never take more than an eighth of the capacity, but where 64 streams do."""
    resolved = resolve(Spec.from_toml(PONG)).stores["pong"]
    tail = 7 - 1 + 64
    assert resolved.in_flight == 64
    assert resolved.streams == 100_000 // 8 // tail
    assert resolved.steps == 100_000 + 12_500 + resolved.streams * tail + 12_500


@pytest.mark.parametrize(
    ("window", "held"),
    [
        ("kind = 'sequence', length = 80, stride = 40", 1000 * 40),
        ("kind = 'sequence', length = 80", 1000 * 80),
        ("kind = 'sequence', length = 8, stride = 100, stack = 4", 1000 * 12),
        ("kind = 'episode', length = 500", 1000 * 500),
        ("n = 5", 1000),
    ],
)
def test_a_store_keeps_the_steps_that_strided_windows_hold(window, held):
    spec = resolve(Spec.from_toml(windowed(window)))
    store, steps = spec.stores["s"], spec.tables["t"].window.steps
    pinned = min(8192 * steps, max(held // 8, 1024))
    assert store.steps == held + held // 8 + store.streams * (steps - 1 + 64) + pinned
    alone = replace(spec.tables["t"], remover="uniform")
    assert held_steps(alone) == 1000 * steps


def test_what_a_sequence_has_without_being_told():
    window = Window(kind="sequence", length=80)
    assert (window.stride, window.advance, window.reach, window.steps) == (80, 80, 80, 81)
    assert Window(kind="sequence", length=80, stride=80) == window
    assert Window(kind="episode", length=80).advance == 80
    assert (Window(n=3, stack=4).advance, Window(n=3, stack=4).reach) == (1, 3)


def test_too_much_memory_is_refused_with_the_arithmetic():
    spec = Spec.from_toml(PONG.replace("100_000", "1_000_000_000"))
    with pytest.raises(
        NoMemoryError, match=r"10.0 TB is wanted .* 10.0 GB: .* x 7072 B = .* TB.*Lower capacity"
    ) as caught:
        require(spec, 10**13, limit=10**10)
    assert (caught.value.wanted, caught.value.allowed) == (10**13, 10**10)
    require(spec, 10**10, limit=10**10)
    assert any("2 x 16.8 MB" in line for line in arithmetic(spec))


def test_a_store_can_be_sized_in_bytes():
    """As much memory as was said, in whole steps, whatever the steps' size."""
    for extent in (3, 40, 7056):
        column = ColumnSpec("uint8", (extent,))
        table = TableSpec(store="s", capacity=10**6)
        spec = resolve(Spec({"s": StoreSpec({"x": column}, bytes=10_000_000, streams=64)}, {"t": table}))
        stride = step_stride(step_layout(spec.stores["s"]).step_bytes)
        assert spec.stores["s"].steps == 10_000_000 // stride
        assert resolve(spec) == spec
    with pytest.raises(SpecError, match=r"bytes: 5 and steps = 7 both say"):
        StoreSpec({"x": column}, steps=7, bytes=5)
    with pytest.raises(SpecError, match=r"store\.s\.bytes: .* not one item would fit"):
        resolve(Spec({"s": StoreSpec({"x": column}, bytes=8000)}, {"t": table}))
    text = '[store.s]\nobservation.x = {dtype = "uint8"}\nbytes = "1 MB"\n[table.t]\nstore = "s"\ncapacity = 9\n'
    assert Spec.from_toml(text).stores["s"].bytes == 10**6
