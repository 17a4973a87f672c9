"""The held-out split: an item belongs to it by the hash of what it asks, so training never sees that item."""

import hashlib

HELD_OUT_PER_256 = 18


def is_held_out(key: str) -> bool:
    return hashlib.sha1(key.encode()).digest()[0] < HELD_OUT_PER_256


def draw(split: str, make):
    """Calls `make() -> (key, item)` until the key lies in the wanted split ("train" or "heldout")."""
    while True:
        key, item = make()
        if is_held_out(key) == (split == "heldout"):
            return item
