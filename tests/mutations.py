"""Descriptions of packed nets, changed at random: what hostile files hold. For tests and for fuzz/model_file.py."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

from onebit.checking import multiply_adds, padded
from onebit.container import KEY
from onebit.modelfile import Model

ODD = (
    0,
    -1,
    1,
    2,
    255,
    1024,
    65537,
    2**31,
    2**63,
    2**200,
    0.5,
    -0.0,
    1e308,
    True,
    None,
    "",
    "input",
    [],
    {},
    [1, 1],
)


def description_of(content: bytes) -> bytes:
    """The JSON of a file's graph."""
    size = struct.unpack("<Q", content[:8])[0]
    text: str = json.loads(content[8 : 8 + size])["__metadata__"][KEY]
    return text.encode()


def is_small(model: Model) -> bool:
    """Whether running it takes little time and memory: the limits of the file allow much more."""
    work = sum(multiply_adds(node, model.values) for node in model.graph.nodes)
    read = sum(padded(node, model.values).size for node in model.graph.nodes)
    return work + read + sum(value.size for value in model.values.values()) < 1 << 20


def change_something(tree: Any, rng: random.Random) -> None:
    """Something in the tree is left out, doubled, moved, or made odd."""
    places = [(tree, key) for key in _keys(tree)]
    for holder, key in places:  # grows while it goes: the whole tree
        places += [(holder[key], inner) for inner in _keys(holder[key])]
    if not places:
        return
    holder, key = rng.choice(places)
    other, where = rng.choice(places)
    what = rng.random()
    if what < 0.15:
        del holder[key]
    elif what < 0.3 and isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), json.loads(json.dumps(holder[key])))
    elif what < 0.6:
        holder[key] = json.loads(json.dumps(other[where]))
    else:
        holder[key] = copy.deepcopy(rng.choice(ODD))  # itself, changed later, could come to hold itself


def _keys(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
