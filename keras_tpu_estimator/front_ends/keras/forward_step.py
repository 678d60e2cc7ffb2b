"""The step of evaluation and prediction."""

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels
from keras_tpu_estimator.base.mesh.replica_context import (
    gathered_variables,
    own_of,
    specs_of,
)
from keras_tpu_estimator.base.tracing.capture import Captured
from keras_tpu_estimator.base.tracing.variables import ArraysByPath
from keras_tpu_estimator.engine.program.capturing import capture_over, enter
from keras_tpu_estimator.engine.program.steps import (
    LOSS,
    NAMED,
    Outputs,
    Step,
    of_all_cores,
)
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.front_ends.keras.forward_checks import (
    check_can_be_sharded,
    warn_of_label_shapes,
)
from keras_tpu_estimator.front_ends.keras.synchronization import (
    fold_seeds,
    seed_paths,
    synchronize,
)
from keras_tpu_estimator.front_ends.keras.traced_model_fn import TracedModelFn


def trace_forward_step(store: VariableStore, call: TracedModelFn) -> Step:
    """Traces `model_fn` in EVAL or PREDICT, and adds new variables to the store."""
    cores = call.example.cores
    args = call.example.of_one_call()
    forward = _trace_forward(store, call, args)
    enter(store, forward, *args)
    check_can_be_sharded(call, forward)
    if call.mode != ModeKeys.PREDICT:
        warn_of_label_shapes(store.warned, forward, *args)
    seeds = seed_paths(forward.objects)
    shards = cores.shards(forward.objects)
    forward = forward.gathering(shards, None, cores.axis_sizes)
    differ, differing = forward.varying(seeds, cores.axes)

    def per_core(
        values: ArraysByPath, features: Features, labels: Labels
    ) -> tuple[ArraysByPath, Outputs]:
        current = fold_seeds(values, seeds, cores, 1)
        current |= gathered_variables(shards, current, forward.assigned)
        outputs, updates = forward(current, features, labels)
        if LOSS in outputs:
            outputs[LOSS] = cores.mean(outputs[LOSS])
        outputs[NAMED] = of_all_cores(cores, outputs[NAMED], differ[NAMED])
        shared = synchronize(updates, current, forward.objects, cores, differing)
        return own_of(shards, shared), outputs

    reads = {GLOBAL_STEP, *forward.paths, *forward.assigned}
    specs, changes = specs_of(shards, reads), specs_of(shards, forward.assigned)
    function = call.on_cores(per_core, reads=specs, changes=changes)
    return call.step(function, reads, forward.assigned)


def _trace_forward(
    store: VariableStore, call: TracedModelFn, args: tuple[Features, Labels]
) -> Captured:
    """Traces `model_fn`, again without padding if that may disturb it, because
    functions of several pytrees do not treat a dict with padding like a plain one.
    """
    sizes = call.example.cores.axis_sizes
    try:
        return capture_over(store, call, *args, axis_sizes=sizes)
    except Exception:
        if call.padded is None or call.padded.is_asked:
            raise
    call.tells_padding = False
    return capture_over(store, call, *args, axis_sizes=sizes)
