"""The functions, settings and objects that all calls of an estimator share."""

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import keras

from keras_tpu_estimator.api.config.options import ChosenWriters
from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.api.config.tpu_config import IterationsPerLoop
from keras_tpu_estimator.api.hooks.progress import shows_progress
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.model_fn.spec import Spec
from keras_tpu_estimator.base.common import ledger, registry
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.pickling import check_can_be_found, fields_of
from keras_tpu_estimator.base.common.types import Features, InputFn, Labels
from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.base.tracing.variables import fitting
from keras_tpu_estimator.base.upstream import keras_state, keras_variables
from keras_tpu_estimator.base.upstream.private_names import installed_version
from keras_tpu_estimator.engine.device import compilation_cache
from keras_tpu_estimator.engine.device.distributed_program import (
    DistributedProgram,
)
from keras_tpu_estimator.engine.device.executables import Executables
from keras_tpu_estimator.engine.device.mode_devices import ModeDevices
from keras_tpu_estimator.engine.device.runtime import Runtime
from keras_tpu_estimator.engine.inputs.batch import Hosted, PairOf
from keras_tpu_estimator.engine.inputs.input_shapes import InputShapes
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.position import Position
from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn, TraceOptions
from keras_tpu_estimator.engine.program.steps import ReadAgainError
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory.stale_files import check_listed
from keras_tpu_estimator.files.formats import latest_checkpoints
from keras_tpu_estimator.files.formats import registry as formats
from keras_tpu_estimator.files.summary import metric_writers
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters
from keras_tpu_estimator.files.warm_start.settings import WarmStartSettings
from keras_tpu_estimator.front_ends.front_end import FrontEnd, front_end_of
from keras_tpu_estimator.runs.agreed_steps import AgreedSteps
from keras_tpu_estimator.runs.plan import LoopSpeed

# The name of an action that may take longer on one host than on others.
_READS = "reads a checkpoint"

_logger = logging.getLogger("keras_tpu_estimator")

T = TypeVar("T")


class _MadeOnce(Generic[T]):
    """A cached property that several threads may read first.

    `functools.cached_property` lets each of them make an object, or before Python 3.12
    makes threads with other objects wait.
    """

    def __init__(self, make: Callable[[Any], T]):
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        values = vars(instance)
        with values.setdefault("_making", threading.RLock()):
            if self._name not in values:
                values[self._name] = self._make(instance)
            value: T = values[self._name]
            return value


@dataclasses.dataclass(frozen=True)
class EstimatorContext:
    """A user's functions and settings, and the objects that are made from them once.

    Attributes:
        iterations: The length of training loops; `None` if it follows from hooks.
        log_every: The number of steps between logged metrics, or `None`.
        seed: The seed of initial values and random layers; may be `None` on a
            single host.
        embeddings: The `EmbeddingConfigSpec`, or `None`.
    """

    model_fn: Callable[..., Spec]
    params: Any
    config: RunConfig
    model_dir: str
    mode_devices: ModeDevices
    warm_start: WarmStartSettings | None = None
    iterations: IterationsPerLoop | None = None
    log_every: int | None = None
    seed: int | None = None
    embeddings: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns the user's settings, without the objects made from them."""
        check_can_be_found("model_fn", self.model_fn)
        return fields_of(self)

    @property
    def steps_between_hooks(self) -> int:
        """The number of steps between calls of a hook with unknown period.

        It is used if no length of loops is set. As in TensorFlow, it is the original's
        `iterations_per_loop` by default, which is 2, on a TPU, and one elsewhere.
        """
        return 2 if self.mode_devices.use_tpu else 1

    @functools.cached_property
    def loop_speed(self) -> LoopSpeed:
        """The speed of loops in the calls of `train` so far."""
        return LoopSpeed()

    @functools.cached_property
    def prediction_numbers(self) -> Iterator[int]:
        """The numbers of the calls of `predict`."""
        return itertools.count()

    @functools.cached_property
    def front_end(self) -> FrontEnd:
        """The front end for the form of `model_fn`."""
        return front_end_of(self.model_fn)

    @_MadeOnce
    def runtime(self) -> Runtime:
        """The program on the devices, created when it is first needed."""
        directory = self.config.compilation_cache_dir
        if directory is not None:
            compilation_cache.use(os.fsdecode(directory))
        compilation_cache.follow_compiling()
        call = BoundModelFn(
            self.model_fn,
            self.params,
            self.config,
            embeddings=self.embeddings,
        )
        options = TraceOptions.of(self.config)
        modes = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
        layouts = {mode: self.mode_devices.layout(mode) for mode in modes}
        cores = self.mode_devices.cores
        with self._variables_off_devices():
            program = self.front_end.make_program(call, self.seed, options, cores)
            distributed = DistributedProgram(program, layouts)
        folder = self.config.executables
        return Runtime.from_program(
            distributed,
            self.config.debug_nans,
            self.warm_start,
            shows_progress(self.config.progress),
            None if folder is None else Executables(os.fsdecode(folder)),
        )

    @_MadeOnce
    def model(self) -> keras.Model:
        """The program as a Keras model, created when it is first needed."""
        make = registry.part("keras_model")
        with self._variables_off_devices():
            model: keras.Model = make(self.runtime.program, self.front_end)
        return model

    def _variables_off_devices(self) -> contextlib.AbstractContextManager[None]:
        """Keeps Keras's variables off devices that this process may lack."""
        if self.mode_devices.machine is None:
            return contextlib.nullcontext()
        return keras_state.without_distribution()

    def metric_writer(
        self, directory: str | None = None, prefix: str = ""
    ) -> SeveralWriters:
        """Returns the writers for one directory, by default those of training."""
        writers = self.config.metric_writers
        if self.config.fast_dev_run:  # Other services must not receive its metrics.
            writers = ChosenWriters(("tensorboard", "jsonl"))
        directory = directory or self.model_dir
        return metric_writers.opened(writers, directory, prefix)

    @functools.cached_property
    def hosts(self) -> Hosts:
        """The processes that run the same calls, including this one."""
        return Hosts.of_this_process(self.config.host_timeout_secs)

    @property
    def checkpoint_format(self) -> str:
        """The name of the format of written checkpoints."""
        name = self.config.checkpoint_format
        return name or self.front_end.checkpoint_format

    def check_together(self, call: HostExchange, **arguments: Any) -> None:
        """Checks that all hosts make the same call, with equal arguments."""
        if not self.hosts.are_several:
            return
        self.check_uses_all(self.hosts.count)
        names = (__package__.partition(".")[0], "keras", "jax")
        call.check_same(
            {
                **{f"version of {n}": installed_version(n) for n in names},
                "model_dir": self.model_dir,
                "number of cores": self.mode_devices.cores.topology.num_replicas,
                **arguments,
            }
        )

    def check_uses_all(self, hosts: int) -> None:
        """Raises an error if each of several hosts would train a separate model."""
        if self.mode_devices.cores.are_on_hosts:
            return
        raise ValueError(
            f"On {hosts} hosts, an estimator must use the cores of all hosts. "
            "Received settings with which each host would train separately: "
            "use_tpu=False, num_shards=1, debug_nans=True, or a "
            "keras.distribution of one host's devices. Omit them. use_tpu=True "
            "uses the cores of any kind."
        )

    def latest_checkpoint(self) -> str | None:
        """Returns the prefix of the latest complete checkpoint, or `None`."""
        with ledger.restoring, self.hosts.busy(_READS):
            latest = latest_checkpoints.latest_intact(self.model_dir)
            if latest is None:
                check_listed(self.model_dir)
            return latest

    def latest_of_all(self, call: HostExchange) -> str | None:
        """Returns the latest checkpoint, which must be the same one on all hosts."""
        if not self.hosts.are_several:
            return self.latest_checkpoint()

        def is_intact(prefix: str) -> bool:
            index, count = self.hosts.index, self.hosts.count
            with ledger.restoring, self.hosts.busy(_READS):
                is_intact_here = formats.is_intact(prefix, index, count)
            facts_here = {
                "checkpoint": os.path.basename(prefix),
                "is intact": is_intact_here,
            }
            facts = call.gather(facts_here)
            call.raise_if_unlike(facts, ["checkpoint"])
            are_intact = all(host_facts["is intact"] for host_facts in facts)
            if are_intact:
                formats.trust(prefix)
            return are_intact

        latest = latest_checkpoints.latest_intact(self.model_dir, is_intact)
        if latest is None:
            check_listed(self.model_dir)
        return latest

    def is_done(self, checkpoint: str | None, step: int, max_steps: int | None) -> bool:
        """Returns whether a checkpoint, of this step, has reached `max_steps`."""
        if checkpoint is None or max_steps is None or step < max_steps:
            return False
        _logger.warning(
            "Training ends without a step: %s has reached step %d, and "
            "max_steps=%d counts the steps of all calls. Increase max_steps to "
            "continue.",
            checkpoint,
            step,
            max_steps,
        )
        return True

    def checkpoint_to_read(self, path: Any) -> str | None:
        """Returns the checkpoint for an evaluation or a prediction."""
        if path is not None:
            return location.resolve(path)
        latest = self.latest_checkpoint()
        if latest is None:
            # These settings are for runs without training.
            if self.warm_start is not None or self.config.fast_dev_run:
                _logger.info(
                    "No checkpoint exists in %s: running with initial values.",
                    self.model_dir,
                )
            else:
                _warn_without_training(self.model_dir)
        return latest

    @contextlib.contextmanager
    def reading(self, values: contextlib.AbstractContextManager[T]) -> Iterator[T]:
        """Enters a context that reads a checkpoint, while other hosts wait."""
        with contextlib.ExitStack() as block:
            with ledger.restoring, self.hosts.busy(_READS):
                read = block.enter_context(values)
            yield read

    def pipeline(
        self,
        mode: str,
        input_fn: InputFn,
        steps: int | None,
        chunk: int,
        capacity: int = 1,
        start: Position | None = None,
        hooks: Sequence[Hook] = (),
    ) -> Pipeline:
        """Returns the input of one call, of all steps or of `steps`.

        `chunk` is the number of steps to read at once, and `capacity` the number of
        steps that a device program has room for. The input continues at the position
        `start`. `hooks` are those of the call.
        """
        repeat = mode == ModeKeys.TRAIN or steps is not None
        request = self.mode_devices.request(
            mode, self.params, repeat, min(chunk, steps or chunk)
        )
        source_of = functools.partial(
            self.front_end.source_of, seed=self.seed, hooks=hooks
        )
        request = dataclasses.replace(
            request,
            capacity=capacity,
            shapes=self._input_shapes[mode],
            source_of=source_of,
            pair_of=self._reading_of(mode, request.plan.is_per_core),
            may_stack=not self.runtime.program.reads_all,
        )
        # A call of one loop cannot resume in its middle.
        is_kept = (
            mode == ModeKeys.TRAIN
            and self.config.resume_input
            and (steps is None or steps > chunk)
        )
        return Pipeline(input_fn, request, start, is_kept)

    def _reading_of(self, mode: str, is_per_core: bool) -> PairOf:
        """Returns the function that makes the devices' tensors of a batch."""
        program, pair_of = self.runtime.program, self.front_end.pair_of
        if not program.reads_batches:
            return pair_of
        is_padded = mode == ModeKeys.PREDICT
        size = self.mode_devices.input_size(mode) if is_padded else None

        def read(value: Any) -> tuple[Features, Labels]:
            features, labels = program.read(mode, *pair_of(value), size)
            if is_per_core and isinstance(features, Hosted):
                raise ValueError(
                    "`input_fn` must return numbers in dense tensors if it makes "
                    "the batch of each core. Received strings or sparse tensors. "
                    "Use PER_HOST_V1 in TPUConfig.per_host_input_for_training."
                )
            return features, labels

        return read

    def reading_again(self, run: Callable[[], T]) -> T:
        """Returns the result of a call, which starts again after `ReadAgainError`.

        Values that callbacks and hooks assign must fit their variables.
        """
        with keras_variables.assignment_checked(fitting):
            try:
                return run()
            except ReadAgainError:
                if self.hosts.are_several:
                    raise
            return run()

    def steps(self, mode: str, pipeline: Pipeline) -> AgreedSteps:
        """Returns the steps of an input, of which each host takes the same number."""
        return AgreedSteps(
            mode,
            pipeline,
            self.hosts,
            self.mode_devices.cores.topology,
        )

    @functools.cached_property
    def _input_shapes(self) -> dict[str, InputShapes]:
        """The shapes of batches by mode, over all calls."""
        most = self.config.max_input_shapes
        return {
            mode: InputShapes(mode, most)
            for mode in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
        }


@functools.cache
def _warn_without_training(model_dir: str) -> None:
    """Warns once that results are those of initial values, often by mistake."""
    near = location.similar_directory(model_dir)
    _logger.warning(
        "model_dir=%r has no checkpoint, so the results are those of initial "
        "values, without training. %s",
        model_dir,
        f"Set it to {near!r}, a directory of a similar name with checkpoints, if you "
        "mean that one."
        if near
        else "Correct it, or call `train` first.",
    )
