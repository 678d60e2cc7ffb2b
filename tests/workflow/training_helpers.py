"""Estimators and exporters that record evaluations."""

from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

import keras_tpu_estimator as kte

DATA = regression_data()
TRAIN = repeated(*DATA)
HELD_OUT = batches_of(*regression_data(examples=37, seed=1))


class Recorder(kte.Exporter):
    """Records its arguments, and exports the step."""

    name = "recorder"

    def __init__(self, name="recorder"):
        self.name = name
        self.calls = []

    def export(
        self,
        estimator,
        export_path,
        checkpoint_path,
        eval_result,
        is_the_final_export,
    ):
        step = int(eval_result["global_step"])
        self.calls.append((step, export_path, checkpoint_path, is_the_final_export))
        return f"export of {step}"

    @property
    def steps(self):
        """The evaluated steps."""
        return [step for step, *_ in self.calls]


def linear_estimator(model_dir, save_every=2, **settings):
    """A linear model with a checkpoint every other step."""
    config = {"save_checkpoints_steps": save_every}
    return estimator_of(
        model_fn_of(linear),
        model_dir,
        iterations=1,
        config=config | settings.pop("config", {}),
        **settings,
    )
