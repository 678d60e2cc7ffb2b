"""What an estimator knows of itself, and of what it has trained."""

import copy
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn
from keras_tpu_estimator.files import checkpoints
from keras_tpu_estimator.ground.base.params import copied
from keras_tpu_estimator.ground.base.plain_names import plain_name
from keras_tpu_estimator.ground.base.types import Features
from keras_tpu_estimator.ground.base.types import Labels
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.evaluation import eval_dir
from keras_tpu_estimator.spec.config.run_config import RunConfig
from keras_tpu_estimator.spec.model_fn.spec import EstimatorSpec


class TrainedEstimator:
    """The part of `TPUEstimator` that shows what there is."""

    _context: EstimatorContext

    @property
    def model_dir(self) -> str:
        """The directory of checkpoints and event files."""
        return self._context.model_dir

    @property
    def config(self) -> RunConfig:
        """A copy of the configuration, with the directory that is used."""
        return copy.deepcopy(self._context.config)

    @property
    def params(self) -> Any:
        """A copy of the hyperparameters, without the reserved keys."""
        return copied(self._context.params)

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """`model_fn(features, labels, mode, config)` with its params bound.

        For a `model_fn` around it. It returns an `EstimatorSpec`: with metrics
        added by `spec._replace(eval_metric_ops=...)`, that is for one core.
        """

        def model_fn(
            features: Features, labels: Labels, mode: str, config: RunConfig
        ) -> EstimatorSpec:
            call = self.bound_model_fn(config)
            spec = call(features, labels, mode, {"use_tpu": False})
            return spec.as_estimator_spec()

        return self._context.front_end.like(self._context.model_fn, model_fn)

    def bound_model_fn(self, config: RunConfig | None = None) -> BoundModelFn:
        """The `model_fn` with its params bound, which returns its own specs.

        Args:
            config: What it gets as `config`. Defaults to the estimator's.

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

    def eval_dir(self, name: str | None = None) -> str:
        """The directory that `evaluate` writes its results to.

        Args:
            name: The name of the evaluation. Defaults to `None`.

        Returns:
            A path.
        """
        return eval_dir(self.model_dir, name)

    def latest_checkpoint(self) -> str | None:
        """The prefix of the latest checkpoint that is whole, or `None`.

        Raises:
            ValueError: There are checkpoints, but all are damaged.
        """
        return self._context.latest_checkpoint()

    def get_variable_names(self) -> list[str]:
        """The paths of all variables in the latest checkpoint.

        Raises:
            ValueError: There is no checkpoint.
        """
        return checkpoints.names(self._existing_checkpoint())

    def get_variable_value(self, name: str | Iterable[str]) -> Any:
        """The value of a variable in the latest checkpoint.

        Args:
            name: The variable's path, or several.

        Returns:
            A NumPy array, or a list of them.

        Raises:
            ValueError: There is no checkpoint.
            KeyError: There is no such variable.
        """
        checkpoint = self._existing_checkpoint()
        if isinstance(name, str):
            return checkpoints.value(checkpoint, name)
        # One opening of the file for all of them.
        paths = [*map(plain_name, name)]
        values = checkpoints.read(checkpoint, paths)
        return [values[path] for path in paths]

    def _existing_checkpoint(self) -> str:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise ValueError(
                f"There is no checkpoint in {self.model_dir!r}. Call `train` "
                "first, or set `model_dir` to where one is."
            )
        return checkpoint
