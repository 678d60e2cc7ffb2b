"""Trials with jobs that are interrupted at random moments, and restart themselves."""

import functools
import json
import os
import pathlib
import random
from collections.abc import Callable

import keras_tpu_estimator as kte
from tests.many_hosts.launching import Ended, launch
from tests.torture import supervised
from tests.torture.figures import expect
from tests.torture.interrupted import INTERRUPTED, Job
from tests.torture.killing import check_equal

CAUSES = ("SIGKILL", "SIGTERM", "SIGSTOP", "full disk")
_PROCESSES = (2, 3, 4)
_STEPS_BETWEEN = 6
# More than a job does until its last interruption.
_LAST_STEPS = 30
_GRACE_SECS = 3
_LIMIT_SECS = 600
# The last step of a job that loses a host, and the time after which the host returns:
# a leader waits 30 s for it.
_SHRUNK_STEPS = 48
_AWAY_SECS = 40


def interrupt(
    directory: str,
    jobs: int,
    processes: tuple[int, ...] = _PROCESSES,
    causes: tuple[str, ...] = CAUSES,
    most: int = 3,
    run: Callable[[Job, int], Ended] | None = None,
) -> dict[str, object]:
    """Interrupts jobs that restart themselves, until each has reached its last step.

    Args:
        directory: An empty directory.
        jobs: The number of jobs.
        processes: The numbers of processes, in turn. Defaults to 2, 3 and 4.
        causes: The causes of interruptions, in turn.
        most: The maximum number of interruptions of a job. Defaults to 3.
        run: Runs a job in a number of processes. By default, the command `launch`
            starts and restarts it.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: A job did not end by itself, or with other weights than
            uninterrupted processes.
    """
    run = run or _launched
    rng = random.Random(0)
    steps = _STEPS_BETWEEN * most + _LAST_STEPS
    next_cause = (causes[number % len(causes)] for number in range(jobs * most))

    @functools.cache
    def undisturbed(count: int) -> str:
        job = Job(os.path.join(directory, f"undisturbed-{count}"), steps)
        _check_end(run(job, count), job)
        return job.model_dir

    interruptions = 0
    for number in range(jobs):
        count = processes[number % len(processes)]
        job = Job(
            os.path.join(directory, f"job-{number}"),
            steps,
            tuple(
                (rng.randrange(count), next(next_cause), _STEPS_BETWEEN * start)
                for start in range(1, rng.randint(1, most) + 1)
            ),
        )
        ended = run(job, count)
        _check_end(ended, job)
        check_equal(job.model_dir, undisturbed(count))
        counted = ended.text.count(INTERRUPTED)
        _check_counts(job.model_dir, counted)
        interruptions += counted
    return {
        "jobs that ended by themselves, with weights equal to the bit": jobs,
        "interruptions of their processes": interruptions,
    }


def shrink(
    directory: str, jobs: int, processes: tuple[int, ...] = _PROCESSES
) -> dict[str, object]:
    """Loses a host of each job, which continues without it until the next restart.

    Args:
        directory: An empty directory.
        jobs: The number of jobs.
        processes: The numbers of processes, in turn. Defaults to 2, 3 and 4.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: A job did not end by itself, did not continue with one process
            fewer, or ended with other weights than uninterrupted processes.
    """

    @functools.cache
    def undisturbed(count: int) -> str:
        path = os.path.join(directory, f"undisturbed-{count}")
        job = Job(path, _SHRUNK_STEPS, has_dropout=False)
        _check_end(supervised.run(job, count), job)
        return job.model_dir

    for number in range(jobs):
        count = processes[number % len(processes)]
        lost = 1 + number % (count - 1)
        job = Job(
            os.path.join(directory, f"shrunk-{number}"),
            _SHRUNK_STEPS,
            ((lost, "lost host", _STEPS_BETWEEN), (0, "SIGKILL", 2 * _STEPS_BETWEEN)),
            has_dropout=False,
        )
        ended = supervised.run(job, count, "--min-processes", "1", away_secs=_AWAY_SECS)
        _check_end(ended, job)
        starts = ended.text.count(f"Start with {count - 1} of {count} processes.")
        expect(starts == 1, f"{job} must start once without a host: {ended.text}")
        check_equal(job.model_dir, undisturbed(count), tolerance=1e-5)
    return {"jobs that continued without a host, with weights within 1e-5": jobs}


def _launched(job: Job, processes: int) -> Ended:
    return launch(
        *("--max-restarts", "20", "--grace", str(_GRACE_SECS)),
        *("-m", "tests.torture.interrupted", job.as_json()),
        processes=processes,
        cores=1,
        limit_secs=_LIMIT_SECS,
    )


def _check_end(ended: Ended, job: Job) -> None:
    expect(ended.code == 0, f"The job {job} must end by itself: {ended.text}")
    latest = kte.latest_checkpoint(job.model_dir) or ""
    expect(latest.endswith(f"-{job.steps}"), f"{job} must end with step {job.steps}.")


def _check_counts(model_dir: str, interruptions: int) -> None:
    """Checks that the metrics show the restarts, each in the first line of a start."""
    path = pathlib.Path(model_dir, "metrics.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    counts = [line["restarts"] for line in lines if "restarts" in line]
    expect(
        counts == sorted(counts) and max(counts, default=0) >= min(interruptions, 1),
        f"{path} must count {interruptions} restarts: {counts}.",
    )
