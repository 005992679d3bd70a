"""H1, H2, H5: which pod holds which device, in each window, and how many of its slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chargeback.tables import Ints, find, groups, order_of

SLOT = 720_720
"""One slot; divisible by 1 to 16, so that a request spread over devices stays whole."""


@dataclass(frozen=True)
class Held:
    """Rows sorted by (key, pod): a pod holds `slots` (in parts of `SLOT`) of a device in a window."""

    key: Ints
    pod: Ints
    slots: Ints


@dataclass(frozen=True)
class Asked:
    """Requests in force: pod, node, class of device and quantity, by column."""

    pod: Ints
    node: Ints
    kind: Ints
    quantity: Ints
    column: Ints


@dataclass(frozen=True)
class Field:
    """The devices of a day: by device its node; of each key that was reported (sorted) the device's class and slots
    then, since an instance id may come back with another profile.
    """

    node: Ints
    width: int
    reported: Ints
    kind: Ints
    slots: Ints

    def kind_at(self, key: Ints) -> Ints:
        """The class of a device in a window, by key."""
        return self.kind[find(self.reported, key)] if key.size else key


def held(field: Field, key: Ints, pod: Ints, slots: Ints, asked: Asked, uses_key: Ints, uses_pod: Ints) -> Held:
    """H1, H2, H5 together.

    `key`, `pod`, `slots`: pods that device rows name, with the slots that they name (0: none). `uses_key`,
    `uses_pod`: processes. All sorted by (key, pod).
    """
    column = key % field.width
    kinds = int(max(field.kind.max(initial=0), asked.kind.max(initial=0))) + 1

    def pod_key(p: Ints, kind: Ints, at: Ints) -> Ints:
        return (p * kinds + kind) * field.width + at

    named = pod_key(pod, field.kind_at(key), column)
    wanted = pod_key(asked.pod, asked.kind, asked.column)
    want_row, _ = groups(wanted)
    wanted = wanted[want_row]
    quantity = asked.quantity[want_row] * SLOT
    by_label = np.zeros(wanted.size, np.int64)
    at = find(wanted, named)
    np.add.at(by_label, at[at >= 0], np.maximum(slots, 1)[at >= 0] * SLOT)
    short = np.flatnonzero(by_label < quantity)
    more = _from_requests(field, asked, want_row[short], key, pod, slots, uses_key, uses_pod)
    all_key, all_pod = np.concatenate([key, more[0]]), np.concatenate([pod, more[1]])
    all_slots = np.concatenate([slots * SLOT, np.zeros(more[0].size, np.int64)])
    order = order_of(all_key, all_pod)
    all_key, all_pod, all_slots = all_key[order], all_pod[order], all_slots[order]
    spread = pod_key(all_pod, field.kind_at(all_key), all_key % field.width)
    lead, inverse = groups(spread)
    number = np.bincount(inverse, minlength=lead.size)
    place = find(wanted, spread[lead])
    each = np.where(place >= 0, (quantity[place] if quantity.size else 0) // number, SLOT)
    return Held(all_key, all_pod, np.where(all_slots > 0, all_slots, np.maximum(each, 1)[inverse]))


def _from_requests(
    field: Field, asked: Asked, short: Ints, key: Ints, pod: Ints, slots: Ints, uses_key: Ints, uses_pod: Ints
) -> tuple[Ints, Ints]:
    """H2 for the (node, column)s with a request that labels do not cover: rows (key, pod) that pods hold besides.

    What decides is the same over long stretches, so each distinct situation is settled once.
    """
    if not short.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    width = field.width
    scene = asked.node[short] * width + asked.column[short]
    scene = scene[groups(scene)[0]]
    parts = [
        _facts(1, scene, asked.node * width + asked.column, (asked.pod, asked.kind, asked.quantity)),
        _facts(2, scene, _located(field, key), (key // width, pod, slots)),
        _facts(3, scene, _located(field, uses_key), (uses_key // width, uses_pod)),
        _facts(4, scene, _located(field, field.reported), (field.reported // width, field.kind, field.slots)),
    ]
    digest = np.zeros(scene.size, np.uint64)
    for at, hashed, _ in parts:
        np.add.at(digest, at, hashed)
    _, situation = np.unique(digest, return_inverse=True)
    first, inverse = groups(scene // width, situation)
    keys, pods = [], []
    for i, place in enumerate(first.tolist()):
        rows = [columns[:, at == place] for at, _, columns in parts]
        extra = settle(
            [(int(d), int(k), int(s)) for d, k, s in rows[3].T],
            [(int(d), int(p), int(s)) for d, p, s in rows[1].T],
            [(int(d), int(p)) for d, p in rows[2].T],
            [(int(p), int(k), int(q)) for p, k, q in rows[0].T],
        )
        same = scene[inverse == i] % width
        for d, p in extra:
            keys.append(d * width + same)
            pods.append(np.full(same.size, p, np.int64))
    if not keys:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(keys), np.concatenate(pods)


def _located(field: Field, key: Ints) -> Ints:
    return field.node[key // field.width] * field.width + key % field.width


def _facts(kind: int, scene: Ints, where: Ints, columns: tuple[Ints, ...]) -> tuple[Ints, np.ndarray, np.ndarray]:
    """Rows that lie in a scene: (which scene, a hash of the row, its columns)."""
    at = find(scene, where)
    inside = at >= 0
    kept = np.stack([c[inside] for c in columns])
    with np.errstate(over="ignore"):
        hashed = np.full(kept.shape[1], kind * 0x9E3779B97F4A7C15 & (2**64 - 1), np.uint64)
        for column in kept:
            hashed ^= column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            hashed *= np.uint64(0xBF58476D1CE4E5B9)
            hashed ^= hashed >> np.uint64(29)
            hashed *= np.uint64(0x94D049BB133111EB)
            hashed ^= hashed >> np.uint64(32)
    return at[inside], hashed, kept


def settle(
    devices: Sequence[tuple[int, int, int]],
    named: Sequence[tuple[int, int, int]],
    uses: Sequence[tuple[int, int]],
    asked: Sequence[tuple[int, int, int]],
) -> list[tuple[int, int]]:
    """H2 on one node at one time: (device, pod) pairs that requests add to what labels name.

    `devices`: (device, class, slots) in UUID order is by number; `named`: (device, pod, slots named or 0); `uses`:
    (device, pod) with a process; `asked`: (pod, class, quantity). Pods are numbered by (namespace, name, uid).
    """
    kind_of = {d: k for d, k, _ in devices}
    slots_of = {d: s for d, _, s in devices}
    taken = dict.fromkeys(kind_of, 0)
    holds = set()
    left = {(p, k): 0 for p, k, _ in asked}
    for p, k, q in asked:
        left[p, k] += q
    for d, p, s in named:
        taken[d] += max(s, 1)
        holds.add((d, p))
        if (p, kind_of[d]) in left:
            left[p, kind_of[d]] -= max(s, 1)
    added: list[tuple[int, int]] = []

    def take(d: int, p: int) -> None:
        taken[d] += 1
        left[p, kind_of[d]] -= 1
        if (d, p) not in holds:
            holds.add((d, p))
            added.append((d, p))

    for p, k in sorted(left):
        for d in sorted({d for d, user in uses if user == p and kind_of.get(d) == k}):
            if left[p, k] > 0 and (d, p) not in holds:
                take(d, p)
    for p, k in sorted(left):
        while left[p, k] > 0:
            # fewest slots left come last; where nothing is shared, UUID order alone decides
            free = [(taken[d] - slots_of[d], d) for d in kind_of if kind_of[d] == k and taken[d] < slots_of[d]]
            if not free:
                break
            take(min(free)[1], p)
    return added
