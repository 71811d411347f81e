"""Reads the pickles that CIFAR is published as, and runs nothing of what they say.

A pickle is a program for a machine with a stack. Python's own reader calls what the program names, hashes what is
nested as deep as the file likes, and sets memory aside that a few bytes ask for. So this is a machine of our own.
It has the instructions that arrays and plain containers need and no others, never calls itself, takes no more
bytes than the file has, and does no more than MOST_STEPS steps.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onebit.data.pickled import ENCODE, NAMES, Name, PickledArray, PickledDType
from onebit.errors import UserError
from onebit.paths import open_regular

LARGEST = 1 << 28  # bytes; CIFAR's files have at most 155,000,000, half as many again in protocols that spell bytes
MOST_STEPS = 1 << 21  # CIFAR's files have at most 350,000
# What a step may look at anew each time, since the file refers to it again and again.
LONGEST_KEY, MOST_ARGUMENTS = 1000, 10  # CIFAR's have 16 and 4
# A string of Python 2 in protocol 0: as its repr, in quotes.
QUOTED = re.compile(rb"""(['"])((?:[^\\]++|\\(?:x[0-9a-f]{2}|[\\'"nrt]))*+)""")


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in the file, with text keys; arrays are of bytes or whole numbers."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise UserError(f"{path}: too large for a batch of CIFAR")
            content = file.read()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    try:
        found = _Machine(content).run()
        if isinstance(found, dict):
            return _with_text(found)
    except _ForbiddenError as error:
        raise UserError(f"{path}: refused, for its pickle names {error}, which is no array") from None
    except LookupError:  # of a stack that is empty, of something that was never kept
        raise UserError(f"{path}: not a batch of CIFAR (its pickle is damaged)") from None
    except (ValueError, MemoryError) as error:
        raise UserError(f"{path}: not a batch of CIFAR ({str(error) or 'out of memory'})") from None
    raise UserError(f"{path}: not a batch of CIFAR (it holds a {type(found).__name__})")


class _ForbiddenError(Exception):
    pass


class _Machine:
    """A stack, the stacks below the marks, what is kept by number, and a place in the file."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.kept: dict[int, Any] = {}
        self.encoded = 0  # bytes that were made of text, over again perhaps

    def run(self) -> Any:
        """What is on the stack when the program stops."""
        for _ in range(MOST_STEPS):
            code = self.take(1)
            if code == b".":
                return self.stack.pop()
            if code not in INSTRUCTIONS:
                raise ValueError(f"an instruction that arrays do not need, {code!r}")
            INSTRUCTIONS[code](self)
        raise ValueError(f"more than {MOST_STEPS} instructions")

    def take(self, count: int) -> bytes:
        """The next bytes of the file."""
        end = self.at + count
        if end > len(self.content):
            raise ValueError("it is cut off")
        taken, self.at = self.content[self.at : end], end
        return taken

    def number(self, size: int, *, signed: bool = False) -> int:
        """The next bytes as a whole number."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def counted(self, size: int) -> bytes:
        """Bytes that follow their number, which has `size` bytes."""
        return self.take(self.number(size))

    def line(self) -> bytes:
        """To the end of the line."""
        end = self.content.find(b"\n", self.at)
        if end < 0:
            raise ValueError("it is cut off")
        taken = self.content[self.at : end]
        self.at = end + 1
        return taken

    def decimal(self) -> int:
        """A line with a number."""
        line = self.line()
        if not re.fullmatch(rb"-?[0-9]{1,20}L?", line):
            raise ValueError("a number that is none")
        return int(line.rstrip(b"L"))

    def push(self, value: Any) -> None:
        """Onto the stack."""
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        """All above the last mark, which goes."""
        above, self.stack = self.stack, self.below.pop()
        return above

    def mark(self) -> None:
        """What comes is for one instruction."""
        self.below.append(self.stack)
        self.stack = []

    def pop(self) -> None:
        """Drop what is on top, a mark perhaps."""
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()

    def tuple_of(self, count: int) -> None:
        """The topmost values become a tuple."""
        if len(self.stack) < count:
            raise LookupError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def append(self, values: list[Any]) -> None:
        """To the list on top."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise ValueError("something is appended to what is no list")
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Keys and values in turn, into the dictionary on top. Keys are text: nothing nested is ever hashed."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise ValueError("an item of what is no dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise ValueError("a key that is no text")
            if len(key) > LONGEST_KEY:  # it is compared with its equal
                raise ValueError("a key that is too long")
            target[key] = value

    def dictionary(self) -> None:
        """Keys and values in turn become one."""
        values = self.since_mark()
        self.push({})
        self.set_items(values)

    def keep(self, number: int) -> None:
        """What is on top, under a number."""
        self.kept[number] = self.stack[-1]

    def integer(self) -> None:
        """A line; 00 and 01 were the first way to write false and true."""
        number = self.decimal()
        is_bool = self.content[self.at - 4 : self.at] in {b"I00\n", b"I01\n"}
        self.push(bool(number) if is_bool else number)

    def string(self) -> None:
        """Bytes, as Python 2 spelt them."""
        line = self.line().strip()
        found = QUOTED.fullmatch(line[:-1])
        if not found or len(line) < 2 or line[-1:] != found[1]:
            raise ValueError("a string that is none")
        self.push(codecs.escape_decode(found[2])[0])

    def name(self, module: Any, name: Any) -> None:
        """A function or class, if it is one of the few."""
        said = f"{_text(module)}.{_text(name)}"
        if said not in NAMES:
            raise _ForbiddenError(said[:100])
        self.push(NAMES[said])

    def name_on_stack(self) -> None:
        """The same, from the stack."""
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("a name that is no text")
        self.name(module, name)

    def call(self) -> None:
        """What stands for the function is called with the arguments on top."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Name) or function.make is None or not isinstance(arguments, tuple):
            raise ValueError("a call of what is no function")
        if len(arguments) > MOST_ARGUMENTS:
            raise ValueError("a call with too many arguments")
        made = function.make(*arguments)
        if function is ENCODE:
            self.encoded += len(made)
            if self.encoded > LARGEST:
                raise ValueError("more bytes than a batch of CIFAR has")
        self.push(made)

    def build(self) -> None:
        """An array or a dtype takes its state; nothing else has one."""
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, PickledArray | PickledDType):
            raise ValueError("a state for what has none")
        target.build(state)


# By protocol: 0 writes lines; 1 and 2 bytes; 3 to 5 bytes and text of any length.
INSTRUCTIONS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": lambda m: void(m.take(1)),  # the protocol
    b"\x95": lambda m: void(m.take(8)),  # a frame, which says how much to read at once
    b"(": _Machine.mark,
    b"0": _Machine.pop,
    b"1": lambda m: void(m.since_mark()),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(value=True),
    b"\x89": lambda m: m.push(value=False),
    b"I": _Machine.integer,
    b"L": lambda m: m.push(m.decimal()),
    b"J": lambda m: m.push(m.number(4, signed=True)),
    b"K": lambda m: m.push(m.number(1)),
    b"M": lambda m: m.push(m.number(2)),
    b"\x8a": lambda m: m.push(int.from_bytes(m.counted(1), "little", signed=True)),
    b"S": _Machine.string,
    b"T": lambda m: m.push(m.counted(4)),
    b"U": lambda m: m.push(m.counted(1)),
    b"B": lambda m: m.push(m.counted(4)),
    b"C": lambda m: m.push(m.counted(1)),
    b"\x8e": lambda m: m.push(m.counted(8)),
    b"\x96": lambda m: m.push(m.counted(8)),  # a bytearray, which here nobody changes
    b"V": lambda m: m.push(m.line().decode("raw-unicode-escape")),
    b"X": lambda m: m.push(m.counted(4).decode()),
    b"\x8c": lambda m: m.push(m.counted(1).decode()),
    b"\x8d": lambda m: m.push(m.counted(8).decode()),
    b"]": lambda m: m.push([]),
    b"a": lambda m: m.append([m.stack.pop()]),
    b"e": lambda m: m.append(m.since_mark()),
    b"l": lambda m: m.push(m.since_mark()),
    b")": lambda m: m.push(()),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"}": lambda m: m.push({}),
    b"d": _Machine.dictionary,
    b"s": lambda m: m.set_items([m.stack.pop(), m.stack.pop()][::-1]),
    b"u": lambda m: m.set_items(m.since_mark()),
    b"g": lambda m: m.push(m.kept[m.decimal()]),
    b"h": lambda m: m.push(m.kept[m.number(1)]),
    b"j": lambda m: m.push(m.kept[m.number(4)]),
    b"p": lambda m: m.keep(m.decimal()),
    b"q": lambda m: m.keep(m.number(1)),
    b"r": lambda m: m.keep(m.number(4)),
    b"\x94": lambda m: m.keep(len(m.kept)),
    b"c": lambda m: m.name(m.line(), m.line()),
    b"\x93": _Machine.name_on_stack,
    b"R": _Machine.call,
    b"b": _Machine.build,
}


def void(_: object) -> None:
    """What was read is of no account."""


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _with_text(found: dict[Any, Any]) -> dict[str, Any]:
    """The same, with text for bytes; what the pickle refers to many times is made once, and shared here, too."""
    made: dict[int, Any] = {}  # by id, while `found` keeps it all alive

    def text(value: Any) -> Any:
        if not isinstance(value, bytes):
            return value
        if id(value) not in made:
            made[id(value)] = _text(value)
        return made[id(value)]

    def plain(value: Any) -> Any:
        if isinstance(value, PickledArray):
            return value.array
        if not isinstance(value, list):
            return text(value)
        if id(value) not in made:
            made[id(value)] = [text(item) for item in value]
        return made[id(value)]

    return {text(key): plain(value) for key, value in found.items()}
