"""The part of an estimator that describes it, and reads its checkpoints."""

import copy
import html
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from keras_tpu_estimator.api.config.run_config import RunConfig, set_fields
from keras_tpu_estimator.api.model_fn.spec import EstimatorSpec
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import copied
from keras_tpu_estimator.base.common.shown import plain_name, shortened
from keras_tpu_estimator.base.common.types import Features, Labels
from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.files.formats.loading import load_checkpoint, load_variable
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.evaluation import eval_dir

# The names of the arguments for batch sizes.
_SIZES = {
    "train": ModeKeys.TRAIN,
    "eval": ModeKeys.EVAL,
    "predict": ModeKeys.PREDICT,
}


class TrainedEstimator:
    """The part of `TPUEstimator` that shows its settings and variables."""

    _context: EstimatorContext

    @property
    def model_dir(self) -> str:
        """The directory of checkpoints and event files."""
        return self._context.model_dir

    @property
    def config(self) -> RunConfig:
        """A copy of the configuration, with the directory in use."""
        return copy.deepcopy(self._context.config)

    @property
    def params(self) -> Any:
        """A copy of the hyperparameters, without the reserved keys."""
        return copied(self._context.params)

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The function `model_fn(features, labels, mode, config)` with bound params.

        Another `model_fn` can call it. It returns an `EstimatorSpec`, to which
        `spec._replace(eval_metric_ops=...)` adds metrics on one core.
        """

        def model_fn(
            features: Features, labels: Labels, mode: str, config: RunConfig
        ) -> EstimatorSpec:
            call = self.bound_model_fn(config)
            spec = call(features, labels, mode, {"use_tpu": False})
            return spec.as_estimator_spec()

        return self._context.front_end.like(self._context.model_fn, model_fn)

    def bound_model_fn(self, config: RunConfig | None = None) -> BoundModelFn:
        """Returns `model_fn` as a function of features, labels, mode and params.

        Args:
            config: The argument `config`. Defaults to the estimator's.

        Returns:
            A function of features, labels, mode and additional params.
        """
        context = self._context
        return BoundModelFn(
            context.model_fn,
            context.params,
            config or context.config,
            checks_params=False,
            embeddings=context.embeddings,
        )

    def __repr__(self) -> str:
        rows = self._described().items()
        width = max(len(name) for name, _ in rows)
        lines = [f"  {name:{width}}  {value}" for name, value in rows]
        return "\n".join([type(self).__name__, *lines])

    def _repr_html_(self) -> str:
        """Returns the description as a table, for notebooks."""
        rows = "".join(
            f"<tr><th style='text-align: left'>{html.escape(name)}</th>"
            f"<td style='text-align: left'>{html.escape(value)}</td></tr>"
            for name, value in self._described().items()
        )
        name = html.escape(type(self).__name__)
        return f"<table><caption>{name}</caption>{rows}</table>"

    def _described(self) -> dict[str, str]:
        """Returns the settings and the newest checkpoint by name, as texts."""
        context = self._context
        mode_devices = context.mode_devices
        sizes = {
            f"{called}_batch_size": mode_devices.batch_sizes[mode]
            for called, mode in _SIZES.items()
            if mode_devices.batch_sizes[mode] is not None
        }
        described = {
            "model_fn": _place_of(context.model_fn),
            "model_dir": context.model_dir,
            "checkpoint": _newest_of(context.model_dir),
            "use_tpu": mode_devices.use_tpu,
            **sizes,
            "params": context.params or None,
            "config": ", ".join(self._set_fields()) or None,
        }
        return {
            name: shortened(" ".join(str(value).split()))
            for name, value in described.items()
            if value is not None
        }

    def _set_fields(self) -> Iterator[str]:
        """Yields the changed fields of the configuration, as in a call."""
        # The directory has a separate row.
        config = self._context.config.replace(
            model_dir=None, log_step_count_steps=self._context.log_every
        )
        usual = vars(type(config.tpu_config)())
        fields = {
            name: value
            for name, value in vars(config.tpu_config).items()
            if value != usual[name]
        }
        fields |= set_fields(config)
        fields.pop("tpu_config", None)
        for name, value in fields.items():
            yield f"{name}={value!r}"

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the directory of the results of `evaluate`.

        Args:
            name: The name of the evaluation. Defaults to `None`.

        Returns:
            A path.
        """
        return eval_dir(self.model_dir, name)

    def latest_checkpoint(self) -> str | None:
        """Returns the prefix of the latest complete checkpoint, or `None`.

        Raises:
            ValueError: All checkpoints are corrupt.
        """
        return self._context.latest_checkpoint()

    def get_variable_names(self) -> list[str]:
        """Returns the paths of all variables in the latest checkpoint.

        Raises:
            ValueError: No checkpoint exists.
        """
        reader = load_checkpoint(self._existing_checkpoint())
        return [*reader.get_variable_to_shape_map()]

    def get_variable_value(self, name: str | Iterable[str]) -> Any:
        """Returns the value of a variable in the latest checkpoint.

        Args:
            name: The variable's path, or several.

        Returns:
            A NumPy array, or a list of them.

        Raises:
            ValueError: No checkpoint exists.
            KeyError: The variable does not exist.
        """
        checkpoint = self._existing_checkpoint()
        if isinstance(name, str):
            return load_variable(checkpoint, name)
        # The file is opened once for all variables.
        paths = [*map(plain_name, name)]
        values = loading.read(checkpoint, paths)
        return [values[path] for path in paths]

    def _existing_checkpoint(self) -> str:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise ValueError(
                f"No checkpoint exists in {self.model_dir!r}. Call `train` "
                "first, or set `model_dir` to a directory with a checkpoint."
            )
        return checkpoint


def _place_of(model_fn: Callable[..., Any]) -> str:
    """Returns the name, file and line of a function."""
    name = getattr(model_fn, "__qualname__", type(model_fn).__name__)
    code = getattr(inspect.unwrap(model_fn), "__code__", None)
    if code is None:
        return name
    file = os.path.basename(code.co_filename)
    return f"{name}, {file}:{code.co_firstlineno}"


def _newest_of(model_dir: str) -> str:
    """Returns the newest checkpoint according to the `checkpoint` file."""
    try:
        latest = location.latest(model_dir)
    except (OSError, ValueError):  # Reading the checkpoint raises it.
        return "unknown"
    if latest is None:
        return "none"
    return os.path.basename(latest)
