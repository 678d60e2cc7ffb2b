"""What a `model_fn` shows and saves of itself as a Keras model."""

from collections.abc import Callable
from typing import Any

import keras

from keras_tpu_estimator.ground.tracing.keras_internals import has_value
from keras_tpu_estimator.keras_model import model_weights
from keras_tpu_estimator.keras_model.model_summary import summary_text
from keras_tpu_estimator.keras_model.program_model import ProgramModel


class SavedByWeights(ProgramModel):
    """A program whose weights are saved; the rest of it is Python code."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Raises an error: `model_fn` says how the model is trained.

        Raises:
            ValueError: Always.
        """
        del args, kwargs
        raise ValueError(
            "An EstimatorModel should not be compiled: its optimizer, loss and "
            "metrics are those that model_fn returns. Received a call of "
            "`compile`. Leave it out; for another optimizer or another loss, "
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
            print_fn: Is given the text. Defaults to `print`.
            show_trainable: Whether to say what is trained. Defaults to `False`.

        Raises:
            ValueError: Nothing is known of the inputs yet.
        """
        self._check_prepared("summary()")
        slots = self.optimizer.variables
        text = summary_text(
            self.name, self._model_variables, slots, show_trainable
        )
        print_fn(text)

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Saves the weights; see `keras.Model.save_weights`.

        Of an estimator that `from_keras` made, the Keras model that it was
        made of loads the file.

        Args:
            filepath: The file.
            *args: As Keras takes them.
            **kwargs: As Keras takes them.
        """
        whole = self._whole()
        if whole is None:
            super().save_weights(filepath, *args, **kwargs)
        else:
            whole.save_weights(filepath, *args, **kwargs)

    def load_weights(self, filepath: Any, **kwargs: Any) -> None:
        """Loads what `save_weights` wrote; see `keras.Model.load_weights`.

        Args:
            filepath: The file.
            **kwargs: As Keras takes them.

        Raises:
            ValueError: Nothing is known of the inputs yet, or the file is of
                another model.
        """
        self._check_prepared("load_weights(...)")
        whole = self._whole()
        if whole is None:
            super().load_weights(filepath, **kwargs)
            return
        whole.load_weights(filepath, **kwargs)
        variables = [*whole.variables, *whole.optimizer.variables]
        self.program.store.assign(
            {
                variable.path: variable.value
                for variable in variables
                if variable.path in self.program.store.valued
            }
        )

    def save_own_variables(self, store: Any) -> None:
        """Puts the variables into a file, by path; Keras calls it."""
        model_weights.write(self._model_variables, store)

    def load_own_variables(self, store: Any) -> None:
        """Takes the variables from a file; Keras calls it."""
        self.program.store.assign(
            model_weights.read(self._model_variables, store)
        )

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Saves the whole Keras model; see `keras.Model.save`.

        Args:
            filepath: The file.
            *args: As Keras takes them.
            **kwargs: As Keras takes them.

        Raises:
            NotImplementedError: `from_keras` did not make the `model_fn`.
        """
        whole = self._whole()
        if whole is None:
            self.get_config()
        else:
            whole.save(filepath, *args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Raises an error: exports are made by an estimator.

        Raises:
            NotImplementedError: Always.
        """
        del args, kwargs
        raise NotImplementedError(
            "An EstimatorModel cannot be exported, since its receivers and its "
            "checkpoint are those of an estimator. Expected "
            "`kte.TPUEstimator(model_fn, ...).export_saved_model(directory, "
            "serving_input_receiver_fn)`, or `kte.export_keras(estimator, "
            "path, features)` for a file of Keras."
        )

    def get_config(self) -> dict[str, Any]:
        """Raises an error: a `model_fn` is code, which is not saved.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "An EstimatorModel cannot be saved as a whole, since its model_fn "
            "is Python code. Expected `kte.export_keras(estimator, path, ...)`,"
            " `model.save_weights(path)`, or "
            "`ModelCheckpoint(path, save_weights_only=True)` with a path that "
            "ends in '.weights.h5'; make the model from model_fn again and "
            "load them there."
        )

    def _whole(self) -> keras.Model | None:
        """The Keras model that `model_fn` calls, with the current values."""
        if self.front_end.keras_model is None:
            return None
        self._check_prepared("save_weights(...)")
        # Keras gives the variables their values when callbacks ask for them.
        self.jax_state_sync()
        variables = [*self._model_variables, *self.optimizer.variables]
        return self.front_end.keras_model.trained_model(
            {v.path: v.value for v in variables if has_value(v)}
        )

    def _check_prepared(self, call: str) -> None:
        """Checks that there are variables, and gives them values."""
        if not self.program.prepared:
            raise ValueError(
                f"`{call}` needs a model that knows its variables. Received "
                "one that has seen no input. Call `model.prepare(mode, "
                "features, labels)` with a batch, or `fit`, `evaluate` or "
                "`predict`, first."
            )
        if self.program.store.lender is None:
            self.initialize()
