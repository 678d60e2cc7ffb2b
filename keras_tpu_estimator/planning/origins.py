"""The values that unnamed copies are made of.

XLA adds copies and gives them no names. What they copy has one: an argument of
the program, or the operation that made the value.
"""

from keras_tpu_estimator.planning.hlo import Computation, Instruction, Module

# They have the value of their first operand.
_SAME = frozenset(
    "bitcast copy copy-done copy-start opt-barrier transpose while".split()
)
# No program nests values as deeply.
_MOST_STEPS = 1000


def of(module: Module, instruction: Instruction) -> Instruction:
    """Returns what a copy is made of.

    Args:
        module: The program.
        instruction: One of its instructions.

    Returns:
        A named instruction, or the given one if it is no copy, has a name, or
        copies something that has none.

    Example:

    >>> from keras_tpu_estimator.planning import hlo, origins
    >>> module = hlo.parse('''ENTRY %main (w: f32[2]) -> f32[2] {
    ...   %w = f32[2]{0} parameter(0), metadata={op_name="w"}
    ...   ROOT %copy = f32[2]{0} copy(%w)
    ... }
    ... ''')
    >>> origins.of(module, module.entry.root).op_name
    'w'
    """
    if instruction.op_name or not instruction.opcode.startswith("copy"):
        return instruction
    return _named(module, _Place(instruction, ())) or instruction


def of_handed_on(module: Module, body: Computation, name: str) -> Instruction | None:
    """Returns what the first round of a loop has in place of a result.

    Args:
        module: The program.
        body: What the loop repeats.
        name: The instruction with the result.

    Returns:
        A named instruction, or `None` if the result is not handed on to the
        next round, or if there is no name.
    """
    given = next((i for i in body.instructions if i.opcode == "parameter"), None)
    if body.root is None or given is None or name not in body.root.operands:
        return None
    return _named(module, _Place(given, (body.root.operands.index(name),)))


def _named(module: Module, place: "_Place") -> Instruction | None:
    """Returns the first instruction with a name that had a value."""
    for _ in range(_MOST_STEPS):
        if place.instruction.op_name and not place.elements:
            return place.instruction
        before = _before(module, place)
        if before is None:
            return None
        place = before
    return None


class _Place:
    """A value: the result of an instruction, or an element of a tuple.

    Attributes:
        elements: The indices of the element, the outermost one last.
    """

    def __init__(self, instruction: Instruction, elements: tuple[int, ...]):
        self.instruction = instruction
        self.elements = elements


def _before(module: Module, place: _Place) -> _Place | None:
    """Returns where a value was before its instruction, if that is known."""
    each, elements = place.instruction, place.elements
    home = module.homes.get(each.name)
    if home is None:
        return None
    if each.opcode == "parameter":
        loop = module.loops.get(home.name)
        return None if loop is None else _operand(module, loop, 0, elements)
    if each.opcode == "get-tuple-element":
        index = int(each.attribute("index") or 0)
        made = home.by_name.get(each.operands[0])
        if made is not None and made.opcode == "copy-start":
            return _Place(made, elements)
        return _operand(module, each, 0, (*elements, index))
    if each.opcode == "tuple" and elements:
        *inner, index = elements
        return _operand(module, each, index, tuple(inner))
    if each.opcode in _SAME:
        return _operand(module, each, 0, elements)
    return None


def _operand(
    module: Module,
    instruction: Instruction,
    number: int,
    elements: tuple[int, ...],
) -> _Place | None:
    home: Computation | None = module.homes.get(instruction.name)
    if home is None or number >= len(instruction.operands):
        return None
    made = home.by_name.get(instruction.operands[number])
    return None if made is None else _Place(made, elements)
