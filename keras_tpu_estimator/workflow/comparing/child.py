"""The process of one script of the command `compare`."""

import json
import pathlib
import sys
from collections.abc import Callable, Sequence

from keras_tpu_estimator.base.common import registry, sources
from keras_tpu_estimator.runs.call_receiver import receiving_calls
from keras_tpu_estimator.workflow.comparing.programs import values_of
from keras_tpu_estimator.workflow.comparing.script_runs import (
    EnoughError,
    NewRecording,
    OldRecording,
    ScriptRecord,
    is_tensorflow_script,
    record_path,
)
from keras_tpu_estimator.workflow.comparing.waiting import (
    WaitingError,
    without_waiting,
)


def main(arguments: Sequence[str]) -> int:
    """Runs a script with recorded calls, and writes the record."""
    directory, role, settings_text, script, *script_arguments = arguments
    settings = json.loads(settings_text)
    steps = settings["steps"]
    recording: OldRecording | NewRecording
    if role == "old":
        recording = OldRecording(directory, steps, values_of(settings["checkpoint"]))
    else:
        old = ScriptRecord.load(record_path(directory, "old"))
        mapping = settings["mapping"] and json.loads(
            pathlib.Path(settings["mapping"]).read_text(encoding="utf-8")
        )
        recording = NewRecording(directory, steps, old, mapping)
    is_of_graphs = is_tensorflow_script(script)
    run = registry.part("graph_script") if is_of_graphs else sources.run
    error = _error_of(lambda: run(script, script_arguments, False), recording)
    record = recording.record
    if record.training is None and error is None:
        sys.stderr.write(f"{script} must call `train`. Received: no such call.\n")
        return 2
    if error is not None:
        if record.training is None or not recording.may_end_by_error:
            raise error
        record.ends_by_error = True
        record.notes += (
            f"What follows in the {role} script is not compared, because it raises "
            f"{type(error).__name__}: {error}",
        )
    record.save(record_path(directory, role))
    return 0


def _error_of(
    run: Callable[[], object], recording: OldRecording | NewRecording
) -> BaseException | None:
    """Runs a script with recorded calls, and returns the error that ends it.

    Scripts may read files that the recorded calls do not write.
    """
    try:
        with receiving_calls(recording), without_waiting(recording):
            run()
    except EnoughError:
        pass
    except SystemExit as end:
        return end if end.code else None
    except (Exception, WaitingError) as error:
        return error
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
