"""Where a compiled program calls Python on the host."""

from collections.abc import Iterable

from keras_tpu_estimator.planning import operations
from keras_tpu_estimator.planning.hlo import Instruction
from keras_tpu_estimator.planning.loops import Run


def of(runs: Iterable[Run]) -> tuple[str, ...]:
    """The operations that call it, by name, each once.

    Args:
        runs: What is run.

    Example:

    >>> from keras_tpu_estimator.planning import callbacks, hlo, loops
    >>> module = hlo.parse('''ENTRY %main (x: f32[2]) -> token[] {
    ...   %x = f32[2]{0} parameter(0)
    ...   %t = token[] after-all()
    ...   ROOT %s = (f32[2], u32[], token[]) send(%x, %t), \
is_host_transfer=true, metadata={op_name="jit(f)/dense/debug_print"}
    ... }''')
    >>> callbacks.of(loops.split(module, 1).step)
    ('debug_print of dense',)
    """
    return tuple(
        dict.fromkeys(
            str(operations.of(run.instruction))
            for run in runs
            if _is_callback(run.instruction)
        )
    )


def _is_callback(each: Instruction) -> bool:
    # A TPU exchanges tensors with its host; other devices call a library.
    if each.opcode in ("send", "recv"):
        return each.attribute("is_host_transfer") == "true"
    return "python" in each.target and each.target.endswith("callback")
