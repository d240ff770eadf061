"""Errors mirror the C's statuses and survive what exceptions go through."""

from __future__ import annotations

import pickle

import pytest

from netreplay import errors
from netreplay._binding import check, ffi
from netreplay.errors import EXCEPTION_MAP, NetreplayError, Status


def test_the_mirror_of_the_status_enum_is_exact():
    in_c = {name.removeprefix("NR_"): value for value, name in ffi.typeof("enum nr_status").elements.items()}
    assert in_c == {status.name: status.value for status in Status}


def test_every_status_but_ok_has_its_exception():
    assert set(EXCEPTION_MAP) == set(Status) - {Status.OK}
    shared = [kind for kind in EXCEPTION_MAP.values() if list(EXCEPTION_MAP.values()).count(kind) > 1]
    assert set(shared) == {errors.InternalError, errors.LimiterTimeout}  # one class, three counts


@pytest.mark.parametrize("status", [s for s in Status if s != Status.OK])
def test_check_raises_the_class_of_the_status(status):
    with pytest.raises(EXCEPTION_MAP[status], match="while testing") as caught:
        check(status, "while testing", extra=7)
    assert caught.value.status is status
    assert caught.value.extra == 7
    assert isinstance(caught.value, NetreplayError)


def test_check_lets_ok_pass():
    check(Status.OK)


def test_an_unknown_status_is_an_error_too():
    with pytest.raises(errors.InternalError, match="unknown status 999"):
        check(999)


def test_errors_keep_their_fields_when_pickled():
    error = errors.LimiterTimeout("limiter: 1 of 2 items", have=1, need=2)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.have, copy.need) == (errors.LimiterTimeout, str(error), 1, 2)
    assert copy.reason == "limiter"
    assert isinstance(copy, TimeoutError)
