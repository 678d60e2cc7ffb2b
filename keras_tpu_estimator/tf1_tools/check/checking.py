"""The entry point of the checker, and its report about a script."""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator

from keras_tpu_estimator.base.common.sources import Source, read_program
from keras_tpu_estimator.tf1.names import porting
from keras_tpu_estimator.tf1_tools.check.python_2 import prints_to_file, python_2_in
from keras_tpu_estimator.tf1_tools.check.reached import Grade, RunningCode
from keras_tpu_estimator.tf1_tools.check.scopes import Scope, scopes_of
from keras_tpu_estimator.tf1_tools.check.uses import Unfollowed, Use, absent_in, uses_in
from keras_tpu_estimator.tf1_tools.check.verdicts import Judge, Judgement, Verdict

# The verdicts that stop a script if it needs the name.
STOPPING = (Verdict.MISSING, Verdict.REFUSED, Verdict.ABSENT)
# The verdicts of names that a script can do without where it guards their use.
_DISMISSED = (Verdict.MISSING, Verdict.ABSENT)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A name and all places where it has the same verdict.

    Attributes:
        name: A name such as "tf.layers.dense", or the name of a library.
        verdict: The verdict.
        grade: Whether the script needs the code at these places.
        places: The uses.
        advice: The change or installation that the script needs, or "".
        counterpart: The name that replaces it in a port to Keras, if known.
    """

    name: str
    verdict: Verdict
    grade: Grade
    places: tuple[Use, ...]
    advice: str
    counterpart: porting.Counterpart | None


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of checking a script.

    Attributes:
        files: The files of the script.
        findings: The findings, sorted by verdict and name.
        unfollowed: Code that may use TensorFlow, but cannot be followed.
        unreadable: Code that is not Python 3.
    """

    files: tuple[pathlib.Path, ...]
    findings: tuple[Finding, ...]
    unfollowed: tuple[Unfollowed, ...]
    unreadable: tuple[Unfollowed, ...]

    @property
    def runs(self) -> bool:
        """Whether the script has no name or argument that stops it."""
        return not self.unreadable and not self.needed

    @property
    def needed(self) -> list[Finding]:
        """The findings that stop the script."""
        return [
            each
            for each in self.findings
            if each.verdict in STOPPING and each.grade is Grade.NEEDED
        ]

    def with_verdict(
        self, verdict: Verdict, grade: Grade | None = None
    ) -> list[Finding]:
        """Returns the findings with one verdict, and with one grade if it is given."""
        return [
            each
            for each in self.findings
            if each.verdict is verdict and grade in (None, each.grade)
        ]


def check(path: pathlib.Path) -> Report:
    """Checks a script without running it.

    Args:
        path: A folder, or a file, which is read together with the modules that it
            imports from its own folder.

    Returns:
        A `Report`.

    Raises:
        ValueError: `path` has no Python file.
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
    """Yields the Python 2 syntax of a file that is not Python 3, or its error."""
    if not source.error and not prints_to_file(source.tree):
        return
    text = source.path.read_text("utf-8", errors="replace")
    found = [*python_2_in(text)] or [(source.line, source.error)]
    for line, what in found:
        yield Unfollowed(source.path, line, what)


def _judged(
    uses: Iterable[Use], program: dict[str, Scope], code: RunningCode
) -> tuple[list[Finding], list[Unfollowed]]:
    """Returns the findings, and the uses that the script guards."""
    uses = [*uses]
    judge = Judge.of(uses, program, code)
    places: dict[tuple[Judgement, str], list[Use]] = {}
    dismissed: list[Unfollowed] = []
    for use in uses:
        judgement = judge.judge(use)
        if judgement.verdict in _DISMISSED and use.is_guarded:
            state = judgement.verdict.value
            what = f"{use.name} is {state}, but its use is guarded"
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
        # A name that is used below an existing module is listed instead of the module.
        if judgement.verdict is not Verdict.RUNS or name not in owners
    ]
    return sorted(findings, key=lambda f: (f.verdict.value, f.name)), dismissed
