"""Nexmark's events: people who open auctions, and bids on these.

Of 50 events one is a person, three are auctions and 46 are bids. Ids begin at 1,000 and count up.
Half of the bids go to the newest auction whose number is a multiple of 100. Three of four go to a
bidder of that kind, and three of four auctions have such a seller. Some bids and auctions name an
id that only comes a little later.

Source: Tucker, Tufte, Papadimos and Maier, "NEXMark: A Benchmark for Queries over Data Streams",
2008, with the proportions of the generator of Apache Beam.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints: TypeAlias = npt.NDArray[np.int64]

PERSONS, AUCTIONS, BIDS = 1, 3, 46
"""The events of each kind in a turn."""
TURN = PERSONS + AUCTIONS + BIDS
FIRST_ID = 1_000
"""The id of the first person and of the first auction."""
FIRST_CATEGORY, CATEGORIES = 10, 5
STEP_US = 100
"""The time between two events: 10,000 events a second."""
START_US = 1_436_918_400_000_000
"""The time of the first event, 2015-07-15."""

_HOT_EVERY = 100
"""One person and one auction of so many are popular."""
_ACTIVE_PERSONS, _OPEN_AUCTIONS = 1_000, 100
_AHEAD = 10
"""The number of ids that do not exist yet and may be named."""
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond"),
    *("Seattle", "Kent", "Cheyenne"),
)
_FIRST_NAMES = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter"),
    "Walter",
)
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


def events(first: int, count: int, *, seed: int = 7) -> dict[str, pa.Table]:
    """Return the tables ``persons``, ``auctions`` and ``bids`` of events ``first`` to
    ``first + count - 1``, in the order of their times.

    The events depend on ``first``, ``count`` and ``seed`` alone.
    """
    random = np.random.default_rng((seed, first))
    event = np.arange(first, first + count)
    turn, offset = np.divmod(event, TURN)
    person = offset < PERSONS
    bid = offset >= PERSONS + AUCTIONS
    auction = ~person & ~bid
    return {
        "persons": _persons(random, event[person], turn[person]),
        "auctions": _auctions(random, event[auction], turn[auction], offset[auction]),
        "bids": _bids(random, event[bid], turn[bid]),
    }


def _persons(random: np.random.Generator, event: Ints, turn: Ints) -> pa.Table:
    """Return the people of these events. ``turn``: int64[n], the turn of each event."""
    count = len(event)
    names = zip(_any(random, _FIRST_NAMES, count), _any(random, _LAST_NAMES, count), strict=True)
    return pa.table(
        {
            "id": FIRST_ID + turn,
            "name": [" ".join(name) for name in names],
            "city": _any(random, _CITIES, count),
            "state": _any(random, _STATES, count),
            "time": _time(event),
        }
    )


def _auctions(random: np.random.Generator, event: Ints, turn: Ints, offset: Ints) -> pa.Table:
    """Return the auctions of these events. ``offset``: int64[n], the place in the turn."""
    count = len(event)
    open_us = _OPEN_AUCTIONS * TURN // AUCTIONS * STEP_US
    return pa.table(
        {
            "id": FIRST_ID + AUCTIONS * turn + offset - PERSONS,
            "item": random.integers(0, 1_000_000, count),
            "seller": _person(random, turn, popular=0),
            "category": FIRST_CATEGORY + random.integers(0, CATEGORIES, count),
            "opens": _time(event),
            "expires": _time(event, random.integers(1, 2 * open_us, count)),
            "time": _time(event),
        }
    )


def _bids(random: np.random.Generator, event: Ints, turn: Ints) -> pa.Table:
    """Return the bids of these events."""
    count = len(event)
    last = AUCTIONS * turn + AUCTIONS - 1
    oldest = np.maximum(last - _OPEN_AUCTIONS, 0)
    any_open = random.integers(oldest, last + 1 + _AHEAD)
    popular = last // _HOT_EVERY * _HOT_EVERY
    return pa.table(
        {
            "bid": event,
            "auction": FIRST_ID + np.where(random.random(count) < 1 / 2, popular, any_open),
            "bidder": _person(random, turn, popular=1),
            "price": np.round(10 ** (6 * random.random(count)) * 100).astype(np.int64),
            "channel": _any(random, _CHANNELS, count),
            "time": _time(event),
        }
    )


def _person(random: np.random.Generator, turn: Ints, *, popular: int) -> Ints:
    """Return ids of people, three of four popular ones.

    ``popular``: the number to add to the ids of popular ones, so that sellers and bidders differ.
    """
    active = np.minimum(turn + 1, _ACTIVE_PERSONS)
    anyone = turn + 1 - active + random.integers(0, active + _AHEAD)
    hot = turn // _HOT_EVERY * _HOT_EVERY + popular
    return FIRST_ID + np.where(random.random(len(turn)) < 3 / 4, hot, anyone)


def _any(random: np.random.Generator, words: Sequence[str], count: int) -> list[str]:
    """Return words drawn at random."""
    return pa.array(words).take(pa.array(random.integers(0, len(words), count))).to_pylist()


def _time(event: Ints, later_us: Ints | int = 0) -> pa.Array:
    """Return the times of events, or times ``later_us`` microseconds later."""
    return pa.array(START_US + STEP_US * event + later_us, pa.timestamp("us", "UTC"))
