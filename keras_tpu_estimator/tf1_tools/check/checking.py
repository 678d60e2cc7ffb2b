"""Reading a program, and what is said about it."""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator

from keras_tpu_estimator.ground.base.sources import Source, read_program
from keras_tpu_estimator.tf1.names import porting
from keras_tpu_estimator.tf1_tools.check.libraries import absent_in
from keras_tpu_estimator.tf1_tools.check.python_2 import prints_to_file, python_2_in
from keras_tpu_estimator.tf1_tools.check.reached import Grade
from keras_tpu_estimator.tf1_tools.check.running_code import RunningCode
from keras_tpu_estimator.tf1_tools.check.scopes import Scope, scopes_of
from keras_tpu_estimator.tf1_tools.check.uses import Unfollowed, Use, uses_in
from keras_tpu_estimator.tf1_tools.check.verdicts import Judge, Judgement, Verdict

# The verdicts that stop a program which needs the name.
STOPPING = (Verdict.MISSING, Verdict.REFUSED, Verdict.ABSENT)
# Those with which a program does without the name where it can.
_DISMISSED = (Verdict.MISSING, Verdict.ABSENT)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A name, and all places where it has the same verdict.

    Attributes:
        name: Such as "tf.layers.dense", or the name of a library.
        verdict: What becomes of it.
        grade: Whether the program comes to one of the places.
        places: Where it is used.
        advice: What to do, if it does not run, or not without what is to be
            installed; else "".
        counterpart: What replaces it in a port to Keras, if that is known.
    """

    name: str
    verdict: Verdict
    grade: Grade
    places: tuple[Use, ...]
    advice: str
    counterpart: porting.Counterpart | None


@dataclasses.dataclass(frozen=True)
class Report:
    """What is said about a program.

    Attributes:
        files: Its files.
        findings: By verdict and name.
        unfollowed: What may use TensorFlow, and could not be followed.
        unreadable: What is no Python 3.
    """

    files: tuple[pathlib.Path, ...]
    findings: tuple[Finding, ...]
    unfollowed: tuple[Unfollowed, ...]
    unreadable: tuple[Unfollowed, ...]

    @property
    def runs(self) -> bool:
        """Whether no name or argument that was checked stops the program."""
        return not self.unreadable and not self.needed

    @property
    def needed(self) -> list[Finding]:
        """What does not run, and is needed."""
        return [
            each
            for each in self.findings
            if each.verdict in STOPPING and each.grade is Grade.NEEDED
        ]

    def with_verdict(
        self, verdict: Verdict, grade: Grade | None = None
    ) -> list[Finding]:
        """The findings with one verdict, and one grade if there is one."""
        return [
            each
            for each in self.findings
            if each.verdict is verdict and grade in (None, each.grade)
        ]


def check(path: pathlib.Path) -> Report:
    """Reads a program, without running it, and looks up what it uses.

    Args:
        path: A file, with which those are read that it imports from its
            folder, or a folder.

    Returns:
        A `Report`.

    Raises:
        ValueError: There is no Python file.
    """
    sources = read_program(path)
    program = scopes_of(sources)
    uses: list[Use] = []
    unfollowed: list[Unfollowed] = []
    for module in program.values():
        for each in uses_in(module):
            if isinstance(each, Use):
                uses.append(each)
            else:
                unfollowed.append(each)
        uses += absent_in(module, program)
    starts = [each for each in program.values() if each.source.path == path]
    code = RunningCode.of(program, starts[0] if starts else None)
    judged, dismissed = _judged(uses, program, code)
    return Report(
        tuple(source.path for source in sources),
        tuple(judged),
        tuple([*unfollowed, *dismissed]),
        tuple(each for source in sources for each in _unreadable(source)),
    )


def _unreadable(source: Source) -> Iterator[Unfollowed]:
    """Why a file is no Python 3: the syntax of Python 2, or the error."""
    if not source.error and not prints_to_file(source.tree):
        return
    text = source.path.read_text("utf-8", errors="replace")
    found = [*python_2_in(text)] or [(source.line, source.error)]
    for line, what in found:
        yield Unfollowed(source.path, line, what)


def _judged(
    uses: Iterable[Use], program: dict[str, Scope], code: RunningCode
) -> tuple[list[Finding], list[Unfollowed]]:
    """Findings, and uses that the program may do without."""
    uses = [*uses]
    judge = Judge.of(uses, program, code)
    places: dict[tuple[Judgement, str], list[Use]] = {}
    dismissed: list[Unfollowed] = []
    for use in uses:
        judgement = judge.judge(use)
        if judgement.verdict in _DISMISSED and use.is_guarded:
            state = judgement.verdict.value
            what = f"{use.name}, which is {state}, where it may be"
            dismissed.append(Unfollowed(use.path, use.line, what))
        else:
            places.setdefault((judgement, use.name), []).append(use)
    owners = {use.name.rpartition(".")[0] for use in uses}
    findings = [
        Finding(
            name,
            judgement.verdict,
            judgement.grade,
            tuple(found),
            judgement.advice,
            porting.find(name),
        )
        for (judgement, name), found in places.items()
        # Of a module that is there, what is used of it says enough.
        if judgement.verdict is not Verdict.RUNS or name not in owners
    ]
    return sorted(findings, key=lambda f: (f.verdict.value, f.name)), dismissed
