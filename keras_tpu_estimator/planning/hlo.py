"""Parses the text of a compiled XLA program."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence

from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.planning.source_lines import SourceLines

_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
# An attribute with several lines, such as the metadata of a Pallas kernel.
_MULTILINE = re.compile(r"=\{\n(.*?)\n\}", re.DOTALL)
_NAMED = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (.*)")
_OPCODE = re.compile(r" *([\w\-]+)\(")
_CALLED = re.compile(
    r"\b(calls|body|condition|to_apply|true_computation|false_computation)="
    r"%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
# XLA writes the largest 64-bit number for a missing estimate. Sums of estimates
# stay below this.
_NO_ESTIMATE = 2**60
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d+),")
_NO_LINES = SourceLines({}, {})


_BITS = {
    "pred": 8,
    "s2": 2,
    "u2": 2,
    "s4": 4,
    "u4": 4,
    "f16": 16,
    "bf16": 16,
    "s16": 16,
    "u16": 16,
    "s32": 32,
    "u32": 32,
    "f32": 32,
    "s64": 64,
    "u64": 64,
    "f64": 64,
    "c64": 64,
    "c128": 128,
}
_WORDS = {"s": "int", "u": "uint", "f": "float", "c": "complex"}
# Dtypes of eight bits have many names, such as f8e4m3fn.
_NARROW = re.compile(r"[suf](8)(?:e\d+m\d+\w*)?|[f](4)e2m1fn")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=?]*)\](?:\{([^{}]*)\})?")


@dataclasses.dataclass(frozen=True)
class ArrayType:
    """An array and its layout in a memory.

    Attributes:
        dtype: Its dtype in XLA's notation, such as "bf16".
        minor_to_major: Its dimensions, starting with the one whose elements are
            adjacent. Defaults to the last one first.
        tile: The sizes that its minor dimensions are padded to multiples of.
        space: The number of its memory; 0 is a chip's main memory.
    """

    dtype: str
    shape: tuple[int, ...]
    minor_to_major: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """The bytes of its elements."""
        return -(-self.size * _bits(self.dtype) // 8)

    @property
    def padded_bytes(self) -> int:
        """The bytes of its elements and padding."""
        order = self.minor_to_major or tuple(reversed(range(len(self.shape))))
        sizes = [self.shape[axis] for axis in reversed(order)] or [1]
        count = min(len(sizes), len(self.tile))
        for axis in range(-count, 0):
            tile = self.tile[axis]
            sizes[axis] = -(-sizes[axis] // tile) * tile
        return -(-math.prod(sizes) * _bits(self.dtype) // 8)


@functools.lru_cache(maxsize=4096)
def parse_types(text: str) -> tuple[ArrayType, ...]:
    """Parses a type into arrays, several for a tuple, and omits others, such as tokens.

    >>> [array.shape for array in parse_types("(f32[2,3]{1,0}, s32[])")]
    [(2, 3), ()]
    """
    return tuple(
        ArrayType(
            dtype,
            tuple(map(int, re.findall(r"\d+", shape))),
            *_layout(layout),
        )
        for dtype, shape, layout in _ARRAY.findall(text)
        if _bits(dtype)
    )


def dtype_name(dtype: str) -> str:
    """Returns JAX's name of a dtype in XLA's notation, such as "int32" for "s32"."""
    if dtype == "pred":
        return "bool"
    return re.sub(
        r"^(b?)(s|u|f|c)(\d+)",
        lambda m: m[1] + _WORDS[m[2]] + m[3],
        dtype,
    )


def _layout(text: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    order, _, annotations = text.partition(":")
    tile = re.search(r"T\(([\d,]+)\)", annotations)
    space = re.search(r"S\((\d+)\)", annotations)
    return (
        tuple(int(axis) for axis in order.split(",") if axis),
        tuple(map(int, tile[1].split(","))) if tile else (),
        int(space[1]) if space else 0,
    )


def _bits(dtype: str) -> int:
    """Returns the bits of an element, or 0 for types that are no arrays."""
    narrow = _NARROW.fullmatch(dtype)
    return int(narrow[1] or narrow[2]) if narrow else _BITS.get(dtype, 0)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a compiled program.

    Attributes:
        operands: The names of the instructions whose results it takes.
        text: The text after its operands.
        literal: The text in place of operands.
        is_root: Whether its computation returns its result.
        source: The stack frames of the program.
    """

    name: str
    type: tuple[ArrayType, ...]
    opcode: str
    operands: tuple[str, ...]
    text: str
    literal: str
    is_root: bool
    source: SourceLines = dataclasses.field(
        default=_NO_LINES, repr=False, compare=False
    )

    @property
    def line(self) -> SourceLine | None:
        """The user's line that it comes from, or `None` if it is unknown."""
        return self.source.user_line(self.text)

    @functools.cached_property
    def called(self) -> dict[str, str]:
        """The names of the computations that it runs, by their use."""
        called = dict(_CALLED.findall(self.text))
        for branches in _BRANCHES.findall(self.text):
            for name in re.findall(r"[\w.\-]+", branches):
                called[f"branch {name}"] = name
        return called

    @property
    def op_name(self) -> str:
        """The nested names of its layer and operation."""
        match = re.search(r'op_name="([^"]*)"', self.text)
        return match[1] if match else ""

    @property
    def target(self) -> str:
        """The external function that it calls, or ""."""
        match = re.search(r'custom_call_target="([^"]*)"', self.text)
        return match[1] if match else ""

    @property
    def is_between_slices(self) -> bool:
        """Whether it exchanges tensors with another TPU slice."""
        return self.opcode in ("send", "recv") and "xla_megascale" in self.text

    @property
    def cycles(self) -> float | None:
        """The compiler's estimate: infinite if XLA marks it as missing; `None` for
        instructions without one, which take no time.
        """
        match = _CYCLES.search(self.text)
        if match is None:
            return None
        cycles = int(match[1])
        return math.inf if cycles >= _NO_ESTIMATE else cycles

    def attribute(self, name: str) -> str | None:
        """Returns the text of an attribute, such as "dim_labels"."""
        match = re.search(rf"\b{name}=(\{{[^{{}}]*\}}|[^\s,]+)", self.text)
        return match[1] if match else None


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions in the order in which they run."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @property
    def root(self) -> Instruction | None:
        """The instruction whose result the computation returns."""
        return next((i for i in self.instructions if i.is_root), None)


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program, with all computations by name, of which `entry` runs first.

    Attributes:
        parameters: The arguments in their layout on a core; `None` if the text omits
            it.
        aliased: The numbers of the arguments whose memory results reuse.
    """

    entry: Computation | None
    computations: dict[str, Computation]
    parameters: tuple[ArrayType, ...] | None
    aliased: frozenset[int]

    @functools.cached_property
    def computation_of(self) -> dict[str, Computation]:
        """The computation of each instruction, by the instruction's name."""
        return {
            instruction.name: computation
            for computation in self.computations.values()
            for instruction in computation.instructions
        }

    @functools.cached_property
    def loops(self) -> dict[str, Instruction]:
        """The loops by the names of their bodies."""
        return {
            instruction.called["body"]: instruction
            for computation in self.computations.values()
            for instruction in computation.instructions
            if "body" in instruction.called
        }


def parse(
    text: str, in_graph: Callable[[str], SourceLine | None] | None = None
) -> Module:
    """Parses the text of `jax.stages.Compiled.as_text`, without lines in an unknown
    notation; `in_graph` is as in `SourceLines`.
    """
    header, computations, entry = "", {}, None
    source = SourceLines.parse(text, in_graph)
    lines: list[Instruction] = []
    name, is_entry = "", False
    for line in _MULTILINE.sub(r"={\1}", text).splitlines():
        if line.startswith("HloModule"):
            header = line
        elif line.startswith("}"):
            computations[name] = Computation(name, tuple(lines))
            entry = computations[name] if is_entry else entry
        elif head := _HEAD.match(line):
            name, is_entry, lines = head[2], bool(head[1]), []
        elif instruction := _instruction(line, source):
            lines += _elements(instruction, lines)
            lines.append(instruction)
    return Module(entry, computations, _parameters(header), _aliased(header))


def _instruction(line: str, source: SourceLines) -> Instruction | None:
    named = _NAMED.match(line)
    if not named:
        return None
    definition = named[3]
    end = _closing(definition) if definition.startswith("(") else definition.find(" ")
    opcode = _OPCODE.match(definition, end)
    if end < 0 or not opcode:
        return None
    close = _closing(definition, opcode.end() - 1)
    inside = definition[opcode.end() : close - 1]
    return Instruction(
        named[2],
        parse_types(definition[:end]),
        opcode[1],
        tuple(_operands(inside)),
        definition[close:],
        inside,
        bool(named[1]),
        source,
    )


def _operands(text: str) -> Iterator[str]:
    """Yields the names of operands, with or without a type before them."""
    if "%" in text:
        yield from re.findall(r"%([\w.\-#]+)", text)
        return
    for part in text.split(", "):
        if re.fullmatch(r"[A-Za-z_][\w.\-#]*", part):
            yield part


def _elements(
    instruction: Instruction, before: Sequence[Instruction]
) -> Iterator[Instruction]:
    """Yields the `get-tuple-element`s that newer compilers write as "name#index"."""
    by_name = {earlier.name: earlier for earlier in before}
    for name in dict.fromkeys(instruction.operands):
        tuple_name, _, index = name.partition("#")
        if not index.isdigit() or name in by_name or tuple_name not in by_name:
            continue
        yield Instruction(
            name,
            by_name[tuple_name].type[int(index) :][:1],
            "get-tuple-element",
            (tuple_name,),
            f", index={index}",
            tuple_name,
            is_root=False,
        )


def _closing(text: str, start: int = 0) -> int:
    """Returns the position after the closing parenthesis of that at `start`, or -1."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] == "(":
            depth += 1
        elif text[position] == ")":
            depth -= 1
            if not depth:
                return position + 1
    return -1


def _parameters(header: str) -> tuple[ArrayType, ...] | None:
    mark = "entry_computation_layout={"
    start = header.find(mark) + len(mark)
    if start < len(mark):
        return None
    return parse_types(header[start : _closing(header, start)])


def _aliased(header: str) -> frozenset[int]:
    _, _, aliases = header.partition("input_output_alias={")
    return frozenset(map(int, _ALIAS.findall(aliases.partition(" }")[0])))
