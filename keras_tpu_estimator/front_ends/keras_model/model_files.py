"""The Keras model of a `model_fn`: summary, weights and files."""

import math
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.tracing.variables import is_accumulator, is_seed
from keras_tpu_estimator.base.upstream.keras_variables import has_value
from keras_tpu_estimator.front_ends.keras_model.program_model import ProgramModel


class SavedByWeights(ProgramModel):
    """A program whose weights are saved, because the rest is Python code."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Raises an error, because `model_fn` defines the training.

        Raises:
            ValueError: Always.
        """
        del args, kwargs
        raise ValueError(
            "An EstimatorModel must not be compiled, because its optimizer, "
            "loss and metrics are those of model_fn. Received a call of "
            "`compile`. Leave it out; to change the optimizer or the loss, "
            "change model_fn, for instance through `params`."
        )

    def summary(
        self,
        *,
        print_fn: Callable[[str], object] = print,
        show_trainable: bool = False,
    ) -> None:
        """Prints the layers and variables by scope.

        Args:
            print_fn: Function that receives the text. Defaults to `print`.
            show_trainable: Whether to show which variables are trained.
                Defaults to `False`.

        Raises:
            ValueError: The model has not seen an input yet.
        """
        self._check_prepared("summary()")
        slots = self.optimizer.variables
        text = summary_text(self.name, self._model_variables, slots, show_trainable)
        print_fn(text)

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Saves the weights; see `keras.Model.save_weights`.

        For an estimator of `from_keras`, the original Keras model loads the
        file.

        Args:
            filepath: The file.
            *args: Passed to Keras.
            **kwargs: Passed to Keras.
        """
        keras_model = self._current_keras_model()
        if keras_model is None:
            super().save_weights(filepath, *args, **kwargs)
        else:
            keras_model.save_weights(filepath, *args, **kwargs)

    def load_weights(self, filepath: Any, **kwargs: Any) -> None:
        """Loads a file of `save_weights`; see `keras.Model.load_weights`.

        Args:
            filepath: The file.
            **kwargs: Passed to Keras.

        Raises:
            ValueError: The model has not seen an input yet, or the file belongs
                to another model.
        """
        self._check_prepared("load_weights(...)")
        keras_model = self._current_keras_model()
        if keras_model is None:
            super().load_weights(filepath, **kwargs)
            return
        keras_model.load_weights(filepath, **kwargs)
        variables = [*keras_model.variables, *keras_model.optimizer.variables]
        self.program.store.assign(
            {
                variable.path: variable.value
                for variable in variables
                if variable.path in self.program.store.valued
            }
        )

    def save_own_variables(self, store: Any) -> None:
        """Writes the variables into a file, by path; called by Keras."""
        write(self._model_variables, store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the variables from a file; called by Keras."""
        self.program.store.assign(read(self._model_variables, store))

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Saves the complete Keras model; see `keras.Model.save`.

        Args:
            filepath: The file.
            *args: Passed to Keras.
            **kwargs: Passed to Keras.

        Raises:
            NotImplementedError: `from_keras` did not make the `model_fn`.
        """
        keras_model = self._current_keras_model()
        if keras_model is None:
            self.get_config()
        else:
            keras_model.save(filepath, *args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Raises an error, because only estimators export.

        Raises:
            NotImplementedError: Always.
        """
        del args, kwargs
        raise NotImplementedError(
            "An EstimatorModel cannot be exported, because its receivers and "
            "its checkpoint belong to an estimator. Call "
            "`kte.TPUEstimator(model_fn, ...).export_saved_model(directory, "
            "serving_input_receiver_fn)`, or `kte.export_keras(estimator, "
            "path, features)` for a Keras file."
        )

    def get_config(self) -> dict[str, Any]:
        """Raises an error, because a `model_fn` is code, which is not saved.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "An EstimatorModel cannot be saved completely, because its "
            "model_fn is Python code. Use `kte.export_keras(estimator, path, "
            "...)`, `model.save_weights(path)`, or `ModelCheckpoint(path, "
            "save_weights_only=True)` with a path that ends in "
            "'.weights.h5'; to load the weights, make the model from "
            "model_fn again."
        )

    def _current_keras_model(self) -> keras.Model | None:
        """Returns the Keras model that `model_fn` calls, with current values."""
        if self.front_end.keras_model is None:
            return None
        self._check_prepared("save_weights(...)")
        # Keras updates the variables when callbacks read them.
        self.state_sync()
        variables = [*self._model_variables, *self.optimizer.variables]
        return self.front_end.keras_model.trained_model(
            {v.path: v.value for v in variables if has_value(v)}
        )

    def _check_prepared(self, call: str) -> None:
        """Checks that variables exist, and initializes them."""
        if not self.program.prepared:
            raise ValueError(
                f"`{call}` needs a model with variables. Received one that "
                "has seen no input. Call `model.prepare(mode, features, "
                "labels)` with a batch, or `fit`, `evaluate` or `predict`, "
                "first."
            )
        if self.program.store.holder is None:
            self.initialize()


def write(variables: Iterable[keras.Variable], file: MutableMapping[str, Any]) -> None:
    """Writes variables into a file, except those of metrics."""
    for variable in variables:
        if not is_accumulator(variable):
            file[_key(variable)] = variable


def read(
    variables: Iterable[keras.Variable], file: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the values of variables in a file, by path."""
    keys = set(file.keys())
    values, missing = {}, []
    for variable in variables:
        if is_accumulator(variable):
            continue
        if _key(variable) not in keys:
            # Random layers that the file's model lacks start with new seeds.
            missing += [] if is_seed(variable) else [variable.path]
            continue
        value = file[_key(variable)]
        if tuple(value.shape) != tuple(variable.shape):
            raise ValueError(
                f"The variable {variable.path!r} must have the shape "
                f"{tuple(variable.shape)}. Received a file in which it has "
                f"{tuple(value.shape)}. Load it into a model of the same "
                "model_fn, with the same params."
            )
        values[variable.path] = value
    if missing:
        raise ValueError(
            "The file must have all variables of the model. Received one "
            f"without {missing}, but with "
            f"{sorted(map(urllib.parse.unquote, keys))}. Load a file of "
            "`save_weights` for a model of the same model_fn; to read a file "
            "of another model, call `kte.init_from_checkpoint` in model_fn."
        )
    return values


def _key(variable: keras.Variable) -> str:
    """Returns the path without slashes, which would create groups."""
    return urllib.parse.quote(variable.path, safe="")


def summary_text(
    name: str,
    variables: Iterable[keras.Variable],
    slots: Sequence[keras.Variable] = (),
    show_trainable: bool = False,
) -> str:
    """Returns a table of variables and their layers."""
    variables = [v for v in variables if not is_accumulator(v)]
    rows = [("Layer, variable", "Shape", "Param #", "Trainable")]
    for scope, members in _by_scope(variables).items():
        if scope:
            rows.append((scope, "", f"{_count(members):,}", ""))
        for variable in members:
            name_in_scope = variable.path.removeprefix(f"{scope}/")
            indent = "  " if scope else ""
            trained = "Y" if variable.trainable else "N"
            shape = str(tuple(variable.shape))
            rows.append(
                (f"{indent}{name_in_scope}", shape, f"{_count([variable]):,}", trained)
            )
    lines = _aligned(rows, 4 if show_trainable else 3)
    rule = "─" * max(map(len, lines))
    trainable = [v for v in variables if v.trainable]
    fixed = [v for v in variables if not v.trainable]
    totals = [
        ("Total", [*variables, *slots]),
        ("Trainable", trainable),
        ("Non-trainable", fixed),
        ("Optimizer", slots),
    ]
    return "\n".join(
        [
            f'Model: "{name}"',
            rule,
            lines[0],
            rule,
            *lines[1:],
            rule,
            *(
                f" {kind} params: {_count(members):,} ({_size(members)})"
                for kind, members in totals
            ),
        ]
    )


def _by_scope(
    variables: Iterable[keras.Variable],
) -> dict[str, list[keras.Variable]]:
    """Groups variables by scope, in the order of creation."""
    scopes: dict[str, list[keras.Variable]] = {}
    for variable in variables:
        scope = variable.path.rpartition("/")[0]
        scopes.setdefault(scope, []).append(variable)
    return scopes


def _aligned(rows: Iterable[tuple[str, ...]], columns: int) -> list[str]:
    cells = [row[:columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            # Numbers are aligned at the right.
            cell.rjust(width) if number == 2 else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _count(variables: Iterable[keras.Variable]) -> int:
    return sum(math.prod(v.shape) for v in variables)


def _size(variables: Iterable[keras.Variable]) -> str:
    size = float(
        sum(math.prod(v.shape) * jnp.dtype(v.dtype).itemsize for v in variables)
    )
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TB"
