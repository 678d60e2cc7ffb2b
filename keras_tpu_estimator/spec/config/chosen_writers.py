"""Which metric writers a configuration chooses."""

from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.suggestions import did_you_mean

NAMES = ("tensorboard", "jsonl", "wandb", "mlflow")


class ChosenWriters(tuple[Any, ...]):
    """Names of writers, and writers, which copies of a configuration share."""

    def __deepcopy__(self, memo: object) -> "ChosenWriters":
        return self

    @classmethod
    def of(cls, chosen: Any) -> "ChosenWriters":
        """Checks what was chosen.

        Args:
            chosen: Names and writers, or one of these.

        Raises:
            ValueError: There is no writer of that name.
            TypeError: Something else is among them.

        Example:

        >>> ChosenWriters.of("tensorboard")
        ('tensorboard',)
        """
        is_one = isinstance(chosen, str) or _is_writer(chosen)
        if not is_one and not isinstance(chosen, Iterable):
            raise _refused(chosen)
        writers = cls((chosen,) if is_one else chosen)
        for each in writers:
            if isinstance(each, str) and each not in NAMES:
                raise ValueError(
                    f"`metric_writers` should be some of {[*NAMES]}, or "
                    f"writers. Received: {each!r}.{did_you_mean(each, NAMES)}"
                )
            if not isinstance(each, str) and not _is_writer(each):
                raise _refused(each)
        return writers


def _is_writer(chosen: Any) -> bool:
    is_class = isinstance(chosen, type)
    return not is_class and hasattr(chosen, "write_scalars")


def _refused(chosen: Any) -> TypeError:
    return TypeError(
        f"`metric_writers` should be some of {[*NAMES]}, or objects with a "
        f"method `write_scalars(step, scalars)`. Received: {shown(chosen)}."
    )
