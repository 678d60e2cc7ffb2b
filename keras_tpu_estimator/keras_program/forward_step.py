"""One step of evaluation or prediction: forward, on every core."""

from typing import Any

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.keras_program.model_call import IS_PADDING
from keras_tpu_estimator.keras_program.model_call import ModelCall
from keras_tpu_estimator.keras_program.synchronization import fold_seeds
from keras_tpu_estimator.keras_program.synchronization import seed_paths
from keras_tpu_estimator.keras_program.synchronization import synchronize
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.program.store import GLOBAL_STEP
from keras_tpu_estimator.program.store import Values
from keras_tpu_estimator.program.store import VariableStore
from keras_tpu_estimator.tracing.capture import Captured


def trace_forward_step(store: VariableStore, call: ModelCall) -> Step:
    """Traces `model_fn` in EVAL or PREDICT.

    Args:
        store: The program's variables; new ones are entered.
        call: The call of `model_fn`.

    Returns:
        A `Step` whose function returns the values that changed.
    """
    cores = call.example.cores
    args = call.example.of_one_call()
    forward = _trace_forward(store, call, args)
    store.enter(forward, *args)
    seeds = seed_paths(forward.objects)

    def per_core(values: Values, features: Any, labels: Any) -> Any:
        own = fold_seeds(values, seeds, cores, 1)
        outputs, updates = forward(own, features, labels)
        if "loss" in outputs:
            outputs["loss"] = cores.mean(outputs["loss"])
        return synchronize(updates, own, forward.objects, cores), outputs

    reads = {GLOBAL_STEP, *forward.paths, *forward.assigned}
    return call.step(per_core, reads, forward.assigned)


def _trace_forward(
    store: VariableStore, call: ModelCall, args: tuple[Any, Any]
) -> Captured:
    """Traces `model_fn`; once more if it asks which rows are padding."""
    sizes = call.example.cores.axis_sizes
    try:
        return store.capture(call, *args, axis_sizes=sizes)
    except KeyError as error:
        # Not there at first: Keras takes only plain dicts as a model's input.
        if error.args != (IS_PADDING,) or call.mode != ModeKeys.PREDICT:
            raise
    call.tells_padding = True
    return store.capture(call, *args, axis_sizes=sizes)
