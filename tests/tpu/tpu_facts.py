"""What a compiled loop does, read from what the compiler prints of it."""

import collections
import dataclasses
import math
import re

import jax

from keras_tpu_estimator.base.modes import ModeKeys

_HEAD = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^ *(?:ROOT )?%([\w.\-]+) = (.*)$")
_CALLS = re.compile(r"(?:calls|to_apply|branch_computations)=\{?([^}\s]*)")
_BODY = re.compile(r" while\(.*body=%([\w.\-]+)")
_COLLECTIVE = re.compile(
    r"[})\]] (all-reduce|all-gather|reduce-scatter|all-to-all"
    r"|collective-permute|ragged-all-to-all)(?:-start)?\("
)
_NAME = re.compile(r"%([\w.\-]+)")
_COPY = re.compile(r" = \w+\[([\d,]*)\](\S*) copy\(%([\w.\-]+)\)")
# In the memory of the core itself.
_NEAR = "S(1)"
# Copies of less cost nothing.
_SMALL = 1024
# Files whose code no TPU shall run.
_OF_CPU = "keras_tpu_estimator/cpu/"


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is counted in a compiled program.

    Attributes:
        collectives: How many there are of each kind, in a step.
        inner: The same of loops inside of a step.
        donated: How many arguments are given away.
        aliased: How many of the results take the place of one.
        copies: What of a loop's variables is copied in each step.
        is_of_cpu: Whether it has what is written for CPUs.
        custom_calls: Names of what XLA is not asked to write.
    """

    collectives: dict[str, int]
    inner: dict[str, int]
    donated: int
    aliased: int
    copies: tuple[str, ...]
    is_of_cpu: bool
    custom_calls: frozenset[str]

    def check(self):
        """Checks what holds of every program."""
        assert self.aliased == self.donated
        assert not self.copies, self.copies
        assert not self.is_of_cpu
        assert not {n for n in self.custom_calls if "callback" in n}

    def check_data_parallel(self, mode):
        """Checks what holds where each core has all variables whole.

        In training all gradients are summed at once, with the loss; in
        evaluation the loss is, and a host has nobody to ask for predictions.
        """
        assert self.collectives == (
            {} if mode == ModeKeys.PREDICT else {"all-reduce": 1}
        )
        assert not self.inner


def facts_of(lowered):
    """Compiles, and counts."""
    text = lowered.compile().as_text()
    blocks = _blocks(text)
    step = _step_of(blocks)
    own, inner = [], []
    for block, depth in _reached(blocks, step):
        (inner if depth else own).extend(blocks[block].values())
    args = jax.tree.leaves(lowered.args_info)
    donated = [arg for arg in args if arg.donated]
    staged = f"{args[-1].shape[0]}," if step else ""
    return Facts(
        collectives=_collectives(own),
        inner=_collectives(inner),
        donated=len(donated),
        aliased=text.partition("\n")[0].count("-alias)"),
        copies=tuple(_copies(blocks[step], staged)) if step else (),
        is_of_cpu=_OF_CPU in lowered.as_text(debug_info=True),
        custom_calls=frozenset(re.findall(r'call_target="([^"]*)', text)),
    )


def _blocks(text):
    """The instructions of each computation by name; "" is the first's."""
    blocks, name = {}, ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name = "" if head[1] else head[2]
            blocks[name] = {}
        elif made := _LINE.match(line):
            blocks[name][made[1]] = line
    return blocks


def _step_of(blocks):
    """The computation that is a step: the longest loop's, or all."""
    bodies = [m[1] for line in blocks[""].values() if (m := _BODY.search(line))]
    return max(bodies, key=lambda name: len(blocks[name]), default="")


def _reached(blocks, name, depth=0):
    """What a computation calls, with the number of loops around it."""
    yield name, depth
    for line in blocks[name].values():
        if body := _BODY.search(line):
            yield from _reached(blocks, body[1], depth + 1)
        for called in _CALLS.findall(line):
            for other in _NAME.findall(called):
                yield from _reached(blocks, other, depth)


def _collectives(lines):
    found = (_COLLECTIVE.search(line) for line in lines)
    return dict(collections.Counter(m[1] for m in found if m))


def _copies(block, staged):
    """Copies of what a loop is given, and of what it gives back.

    Not of its input, whose shapes begin with the number of steps, nor those
    that bring it to where a core computes.
    """
    given = [n for n, line in block.items() if " parameter(" in line]
    is_given = re.compile(
        rf" get-tuple-element\(%({'|'.join(map(re.escape, given))})\)"
    )
    (last,) = [n for n, line in block.items() if line.lstrip()[0] == "R"]
    given_back = _NAME.findall(block[last].partition(" = ")[2])
    for name, line in block.items():
        copy = _COPY.search(line)
        if copy is None:
            continue
        size = math.prod(int(n) for n in copy[1].split(",") if n)
        is_input = copy[1].startswith(staged) or _NEAR in copy[2]
        of_state = is_given.search(block.get(copy[3], ""))
        if size >= _SMALL and not is_input and (of_state or name in given_back):
            yield line.strip()
