"""`TPUEstimator`, the facade over the rooms below."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from keras_tpu_estimator.api.config import validation as checks
from keras_tpu_estimator.api.config.run_config import RunConfig, in_cluster
from keras_tpu_estimator.api.config.tpu_config import IterationsPerLoop
from keras_tpu_estimator.api.config.validation import check_signature
from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverListener,
)
from keras_tpu_estimator.api.hooks.hook_list import validate_hooks, validate_listeners
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.hooks.stall import watched
from keras_tpu_estimator.api.model_fn.spec import Spec
from keras_tpu_estimator.base.common import registry
from keras_tpu_estimator.base.common.field_checks import check_int, suggesting
from keras_tpu_estimator.base.common.logs import follow_tensorflow
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import copied
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import CheckpointLike, InputFn, PathLike
from keras_tpu_estimator.base.common.user_code import UserFrames
from keras_tpu_estimator.base.hosts import starting
from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.engine.device.mode_devices import ModeDevices
from keras_tpu_estimator.estimator.exporting_estimator import (
    ExportingEstimator,
    ExportTargets,
)
from keras_tpu_estimator.estimator.planning_estimator import PlanningEstimator
from keras_tpu_estimator.files.formats.loading import step_of
from keras_tpu_estimator.files.warm_start.settings import WarmStartSettings
from keras_tpu_estimator.front_ends.front_end import front_end_of
from keras_tpu_estimator.runs import call_receiver, run_ledger
from keras_tpu_estimator.runs.agreed_steps import agreed
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.evaluation import Evaluation
from keras_tpu_estimator.runs.prediction import Prediction
from keras_tpu_estimator.runs.prediction_batches import Predicted
from keras_tpu_estimator.runs.sampling import SamplingSeed
from keras_tpu_estimator.runs.training import Training
from keras_tpu_estimator.runs.training_hooks import Evaluator

_logger = logging.getLogger("keras_tpu_estimator")


@suggesting
class TPUEstimator(ExportingEstimator, PlanningEstimator):
    """Trains, evaluates and predicts with a `model_fn`.

    The counterpart of `tf.compat.v1.estimator.tpu.TPUEstimator`, on Keras 3 and
    JAX: on CPU, GPU or TPU, on one device or all. Programs, compiled loops and
    values in memory are kept between calls, so that a second `train`,
    `evaluate` or `predict` starts immediately.

    Args:
        model_fn: Function of `features` and any of `labels`, `mode`, `params`
            and `config`, which returns a `TPUEstimatorSpec` or an
            `EstimatorSpec`. It can use `keras.layers`, `keras.ops` and all code
            that JAX can trace.
        model_dir: Directory of checkpoints and event files, or its URL, such as
            'gs://bucket/run'. A relative path is resolved immediately. Defaults
            to that of `config`, or else to a temporary directory.
        config: A `RunConfig`.
        params: Dict of hyperparameters for `input_fn` and `model_fn`. The
            keys `batch_size` and `context` are reserved. Defaults to none.
        use_tpu: Whether to use all devices, of any kind. With `False` one
            device receives the undivided batch. Defaults to `True`.
        train_batch_size: Number of examples in a training step, over all
            devices. Required with `use_tpu`.
        eval_batch_size: Number of examples in an evaluation step, over all
            devices.
        predict_batch_size: Number of examples in a prediction step, over all
            devices.
        batch_axis: The batch axis of each input tensor, if it is not the
            first. Features come first, in the order of their keys, then
            labels. Defaults to `None`.
        eval_on_tpu: Whether `evaluate` uses all devices; otherwise it uses one.
            Defaults to `True`.
        export_to_tpu: Whether exports have a metagraph with the tags 'serve'
            and 'tpu'. Defaults to `True`.
        export_to_cpu: Whether exports have a metagraph with only the tag
            'serve'. Defaults to `True`.
        warm_start_from: The initial values if `model_dir` has no checkpoint:
            anything that `load_checkpoint` reads, such as a dict of arrays, for
            all trainable variables, or a `WarmStartSettings`. Defaults to
            `None`.
        embedding_config_spec: An `experimental.EmbeddingConfigSpec`: embedding
            tables sharded over all devices. The features of `model_fn` contain
            their activations in place of ids. Defaults to `None`.
        export_saved_model_api_version: 1, with the same model in both
            metagraphs, or 2, which calls `model_fn` for each of them, for the
            TPU with `params["use_tpu"]`. Defaults to 1.

    Raises:
        ValueError: Arguments are missing or contradict each other.
        TypeError: An argument has a wrong type.
        ImportError: `model_dir` is a URL, and fsspec or its driver is not
            installed.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras, numpy as np
    >>> def model_fn(features, labels, mode, params):
    ...     y = keras.layers.Dense(1)(features["x"])
    ...     if mode == kte.ModeKeys.PREDICT:
    ...         return kte.TPUEstimatorSpec(mode, predictions={"y": y})
    ...     loss = keras.ops.mean((y - labels) ** 2)
    ...     if mode == kte.ModeKeys.EVAL:
    ...         return kte.TPUEstimatorSpec(mode, loss=loss)
    ...     optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    ...     return kte.TPUEstimatorSpec(
    ...         mode, loss=loss, train_op=optimizer.minimize(loss))
    >>> def input_fn(params):
    ...     x = np.ones((params["batch_size"], 2), "float32")
    ...     return {"x": x}, 3 * x[:, :1]
    >>> estimator = kte.TPUEstimator(
    ...     model_fn, config=kte.RunConfig(), train_batch_size=8,
    ...     eval_batch_size=8, predict_batch_size=8)
    >>> result = estimator.train(input_fn, steps=100).evaluate(input_fn)
    >>> bool(result["loss"] < 1e-6), int(result["global_step"])
    (True, 100)
    """

    def __init__(  # noqa: PLR0913 - the original's arguments
        self,
        model_fn: Callable[..., Spec] | None = None,
        model_dir: PathLike | None = None,
        config: RunConfig | None = None,
        params: Any = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: list[int] | None = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: CheckpointLike | WarmStartSettings | None = None,
        embedding_config_spec: Any = None,
        export_saved_model_api_version: int = 1,
    ):
        follow_tensorflow()
        config = checks.check_config(config)
        checks.check_params(params)
        checks.check_batch_axis(batch_axis)
        if use_tpu:
            checks.check_batch_sizes(
                train_batch_size,
                eval_batch_size,
                predict_batch_size,
                config.tpu_config,
            )
        model_fn = check_signature(model_fn, has_params=params is not None)
        checks.check_not_overridden(self, TPUEstimator)
        directory = checks.resolve_model_dir(model_dir, config)
        checks.warm_start_settings(warm_start_from)
        version = checks.check_api_version(export_saved_model_api_version)
        self._export_targets = ExportTargets(
            bool(export_to_cpu), bool(export_to_tpu), version
        )
        if config.fast_dev_run:
            directory = None
            _logger.info("Dry run: one step or batch of each call.")
        config = in_cluster(config, starting.ensure_started())
        hosts = Hosts.of_this_process(config.host_timeout_secs)
        if embedding_config_spec is not None:
            registry.part("tables").check_usable(
                embedding_config_spec,
                front_end_of(model_fn).why_no_tables,
                config,
                batch_axis=batch_axis,
            )
        directory, seed = agreed(hosts, directory, config.tf_random_seed)
        own_config = config.replace(model_dir=directory, log_step_count_steps=None)
        mode_devices = ModeDevices(
            own_config,
            use_tpu=bool(use_tpu),
            eval_on_tpu=bool(eval_on_tpu),
            batch_sizes={
                ModeKeys.TRAIN: train_batch_size,
                ModeKeys.EVAL: eval_batch_size,
                ModeKeys.PREDICT: predict_batch_size,
            },
            batch_axis=batch_axis,
        )
        self._context = EstimatorContext(
            model_fn,
            {} if params is None else copied(params),
            own_config,
            directory,
            mode_devices,
            checks.warm_start_settings(warm_start_from),
            iterations=self._loop_length(config, bool(use_tpu)),
            log_every=config.log_step_count_steps,
            seed=seed,
            embeddings=embedding_config_spec,
        )

    @UserFrames()
    def train(
        self,
        input_fn: InputFn,
        hooks: Iterable[Hook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Iterable[CheckpointSaverListener] | None = None,
        validation: InputFn | None = None,
        validation_steps: int | None = None,
    ) -> "TPUEstimator":
        """Trains from the latest checkpoint, or from initial values.

        Args:
            input_fn: Function of `params` that returns a `tf.data.Dataset`,
                arrays, or an iterable of batches. A batch is a pair of features
                and labels, or only features.
            hooks: `SessionRunHook`s and Keras callbacks, called around every
                run of the device loop. Defaults to none.
            steps: Number of steps; without `use_tpu` a fraction is rounded up. By
                default training continues to `max_steps` or to the end of the
                input.
            max_steps: The global step to stop at; nothing happens if a
                checkpoint has reached it. Defaults to `None`.
            saving_listeners: `CheckpointSaverListener`s, called around every
                checkpoint. Defaults to none.
            validation: An `input_fn` for an evaluation at the end of each epoch
                of Keras callbacks, which receive the results as `val_loss` and
                so on. By default a run of the device loop is an epoch; see
                `hooks.CallbackHook`. Needs an `eval_batch_size`. Defaults to
                none.
            validation_steps: Number of batches of that evaluation. Defaults to
                all.

        Returns:
            This estimator.

        Raises:
            ValueError: Arguments contradict each other, or the model does not
                fit the input, the devices or the checkpoint.
            TypeError: An argument has a wrong type.
            NanLossDuringTrainingError: The loss became NaN.
            SystemExit: The process received SIGTERM or SIGINT. Before, the
                current loop is completed and a checkpoint is saved. The code is
                128 plus the number of the signal.
        """
        config = self._context.config
        checks.check_role(config)
        use_tpu = self._context.mode_devices.use_tpu
        steps, max_steps = checks.train_steps(steps, max_steps, use_tpu)
        if (receiver := call_receiver.receiver()) is not None:
            receiver.train(
                self._context,
                input_fn,
                steps or max_steps,
                validation,
                validation_steps,
            )
            return self
        if config.fast_dev_run:
            steps, max_steps = 1, None
        with run_ledger.training(self._context.model_dir):
            if max_steps is not None and not self._context.hosts.are_several:
                latest = self._context.latest_checkpoint()
                step = 0 if latest is None else step_of(latest)
                if self._context.is_done(latest, step, max_steps):
                    return self
            user_hooks = validate_hooks(hooks)
            self._context.mode_devices.check(ModeKeys.TRAIN)
            if use_tpu:
                checks.check_some_steps(steps, max_steps)
            Training(
                self._context,
                input_fn,
                user_hooks,
                validate_listeners(saving_listeners),
                steps,
                max_steps,
                self._evaluator(validation, validation_steps),
            ).run()
        return self

    @UserFrames()
    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Iterable[Hook] | None = None,
        checkpoint_path: PathLike | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates each example of the input once.

        Args:
            input_fn: As in `train`.
            steps: Number of batches; without `use_tpu` a fraction is rounded up.
                Defaults to all, up to the end of the input; the last one may be
                smaller.
            hooks: `SessionRunHook`s and Keras callbacks, called around every
                run of the device loop. Defaults to none.
            checkpoint_path: The checkpoint to evaluate. Defaults to the
                latest one, or else to initial values.
            name: Name of the evaluation, for several data sets; results are
                written to separate directories. Defaults to `None`.

        Returns:
            The metrics by name, `loss` as its mean over examples (over batches if
            `model_fn` builds a graph, as in the original), and `global_step`, as
            NumPy values.

        Raises:
            ValueError: An argument is wrong, the input is empty, or the model
                does not fit the input, the devices or the checkpoint.
            TypeError: An argument has a wrong type.
        """
        if (receiver := call_receiver.receiver()) is not None:
            return receiver.evaluate(self._context, input_fn, steps)
        evaluation = self._evaluation(input_fn, steps, hooks, name)
        checkpoint = self._context.checkpoint_to_read(checkpoint_path)
        values = self._context.runtime.values
        return evaluation.run(
            lambda step, slots: values.borrowed(step, checkpoint, slots)
        )

    @staticmethod
    def _loop_length(config: RunConfig, use_tpu: bool) -> IterationsPerLoop | None:
        """Returns the length of training loops; `None` if it follows from hooks."""
        del use_tpu  # Other front ends may need it.
        return config.tpu_config.iterations

    def _evaluation(self, input_fn: InputFn, *arguments: Any) -> Evaluation:
        """Returns an evaluation, with checked arguments."""
        return Evaluation.from_arguments(self._context, input_fn, *arguments)

    def _evaluator(self, validation: InputFn | None, steps: int | None) -> Evaluator:
        """Returns the evaluation during training, with checked arguments."""
        checks.check_validation(validation, steps)
        evaluation = None
        if validation is not None:
            evaluation = self._evaluation(validation, steps, None, None)
        return Evaluator(self, self._evaluation, evaluation)

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Iterable[str] | str | None = None,
        hooks: Iterable[Hook] | None = None,
        checkpoint_path: PathLike | None = None,
        yield_single_examples: bool = True,
        seed: int | None = None,
    ) -> Iterator[Any]:
        """Yields predictions, one for each example of the input.

        If all predictions have the same number of rows for each example, such
        as one for each token, it yields these rows one by one.

        A generator: it starts with the first `next`, can be left at any point,
        and can run beside other generators.

        Args:
            input_fn: As in `train`; labels are ignored.
            predict_keys: Names of the predictions to yield. Defaults to all.
            hooks: `SessionRunHook`s and Keras callbacks, called around every
                batch, unless they have `due_steps`. Defaults to none.
            checkpoint_path: The checkpoint to predict with. Defaults to the
                latest one, or else to initial values.
            yield_single_examples: Whether to yield single rows, not batches.
                Defaults to `True`.
            seed: The seed of random layers and of `keras.random.SeedGenerator`s
                in `model_fn`. Calls with one seed and the same input draw the
                same numbers. Defaults to the seeds of the checkpoint, combined
                with the number of earlier calls of this estimator.

        Yields:
            Predictions in the structure that `model_fn` returned.

        Raises:
            ValueError: An argument is wrong, or the model does not fit the
                input, the devices or the checkpoint.
            TypeError: An argument has a wrong type.
        """
        user_hooks = validate_hooks(hooks)
        if predict_keys is not None and not isinstance(predict_keys, str):
            predict_keys = list(predict_keys)
        if seed is not None:
            check_int("seed", seed, 0)
        batches = self._predicted(input_fn, user_hooks, checkpoint_path, seed)
        last = 1 if self._context.config.fast_dev_run else None
        with UserFrames(), contextlib.closing(batches):
            for batch in itertools.islice(batches, last):
                chosen = batch.select(predict_keys)
                if yield_single_examples:
                    yield from self._rows(chosen)
                else:
                    yield chosen.without_padding

    @staticmethod
    def _rows(batch: Predicted) -> Iterator[Any]:
        """Yields the predictions of single examples."""
        return batch.rows()

    def _predicted(
        self,
        input_fn: InputFn,
        hooks: tuple[Hook, ...],
        checkpoint_path: PathLike | None,
        seed: int | None,
    ) -> Generator[Predicted, None, None]:
        """Yields the predictions of each batch."""
        if (receiver := call_receiver.receiver()) is not None:
            return receiver.predict(self._context, input_fn)
        context = self._context
        context.mode_devices.check(ModeKeys.PREDICT)
        sampling = SamplingSeed(
            None if seed is None else int(seed),
            next(context.prediction_numbers),
            context.hosts.index,
        )
        prediction = Prediction(context, input_fn, hooks, checkpoint_path, sampling)
        return watched(prediction.run(), context.config.stall_timeout_secs)


def check_estimator(estimator: Any) -> None:
    """Checks that an argument is a `TPUEstimator`."""
    if not isinstance(estimator, TPUEstimator):
        raise TypeError(
            "`estimator` must be a TPUEstimator. Received: "
            f"{shown(estimator)}. Make one with "
            "keras_tpu_estimator.TPUEstimator."
        )
