"""The runs of a device loop, with hooks around each."""

from collections.abc import Callable

from keras_tpu_estimator.engine.inputs.infeed import Infeed
from keras_tpu_estimator.runs.staging import StagedSteps
from keras_tpu_estimator.spec.hooks.hook_list import HookList


def run_hooked(
    hooks: HookList,
    first: StagedSteps,
    infeed: Infeed[StagedSteps],
    run: Callable[[StagedSteps, tuple[str, ...]], bool],
    agree: Callable[[bool], bool],
    runs_ahead: bool = False,
) -> None:
    """Runs the device loop until the input, `run` or a hook ends it.

    As in the original, hooks hear of a run that the end of the input prevents:
    their `before_run` is called.

    Args:
        hooks: The hooks, begun.
        first: The first steps.
        infeed: The others.
        run: Makes one run, which begins with some steps; is given the names
            that hooks fetch. Returns whether it was the last one.
        agree: Whether to stop, as some hook of any host wants to; told what
            the hooks here want.
        runs_ahead: Whether a run may begin before hooks are told that the one
            before is made; `run` has to tell them then. Defaults to `False`.
    """
    staged: StagedSteps | None = first
    while True:
        hooked = hooks.before_run()
        if staged is None:
            break
        hooked.start()
        is_last = run(staged, hooked.fetches)
        if agree(hooked.after_run()) or is_last:
            break
        staged = infeed.take_ready() if runs_ahead else None
        if staged is None:
            hooks.run_is_made()  # Before input that may be long in coming.
            staged = next(infeed, None)
    hooks.run_is_made()
