"""The conversion of a TF1 graph to a pure function: a StableHLO module of a step."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.base.storage import trusted
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import (
    Body,
    Library,
    Node,
    definition_of,
    reachable,
)
from keras_tpu_estimator.tf1.graph.source_lines import line_of, source_line_of
from keras_tpu_estimator.tf1.lift import jax_internals
from keras_tpu_estimator.tf1.lift.branches import as_run
from keras_tpu_estimator.tf1.lift.effects import Effects, counts_once, effects_of
from keras_tpu_estimator.tf1.lift.random_ops import KEY
from keras_tpu_estimator.tf1.lift.refusals import check_can_run, explained
from keras_tpu_estimator.tf1.lift.rewriting import needs_key, rewritten
from keras_tpu_estimator.tf1.lift.varying import Varying


@dataclasses.dataclass(frozen=True)
class Module:
    """A StableHLO module, and the names of the variables that it takes."""

    code: bytes
    variables: tuple[str, ...]


def cached(parts: Sequence[bytes | str], lift: Callable[[], Module]) -> Module:
    """Returns a module from the cache, or makes it; it depends only on `parts`."""
    directory = jax.config.values["jax_compilation_cache_dir"]
    if not directory or is_url(directory) or not _is_trusted(directory):
        return lift()
    form = f"form {jax_internals.FORM}"
    path = os.path.join(directory, f"tf1-{_digest([form, *parts])}")
    module = _read(path)
    if module is not None:
        return module
    module = lift()
    # A process without write permission does not use the cache.
    with contextlib.suppress(OSError):
        _write(path, module)
    return module


def _is_trusted(directory: str) -> bool:
    """Returns whether only this user can write to a directory, or warns."""
    try:
        trusted.check_cache(directory)
    except FileNotFoundError:
        pass  # It is made when a module is written.
    except OSError as error:
        warn_once(f"Converted graphs are not cached. {error}")
        return False
    return True


def _digest(parts: Sequence[bytes | str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        # Lengths keep the parts distinct.
        digest.update(f"{len(content)}:".encode() + content)
    return digest.hexdigest()


def _read(path: str) -> Module | None:
    """Reads a module, unless its file is missing, corrupt or not readable."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.readline())
            code = file.read()
        if header["digest"] != _digest([code]):
            return None
        return Module(code, tuple(header["variables"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _write(path: str, module: Module) -> None:
    """Writes a file that other users of the directory can read."""
    header = {"variables": module.variables, "digest": _digest([module.code])}
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with (
        commit.replacing(path) as partial,
        open(partial, "wb") as file,
    ):
        file.write(json.dumps(header).encode() + b"\n")
        file.write(module.code)


@dataclasses.dataclass(frozen=True, eq=False)
class Lifted:
    """A step as a StableHLO module that takes a key, inputs and the variables `reads`.

    Attributes:
        avals: The shapes and dtypes of its results: the fetches, followed by the new
            values of `changes`.
        wide: The names of results that JAX represents in fewer bits, by position.
    """

    module: bytes = dataclasses.field(repr=False)
    avals: tuple[jax.core.ShapedArray, ...]
    reads: tuple[str, ...]
    changes: tuple[str, ...]
    wide: Mapping[int, str]


@dataclasses.dataclass(frozen=True, eq=False)
class Pruned:
    """The part of a graph that a step needs, which devices can run.

    Attributes:
        ops: The operations, in the order of creation.
        body: The nodes of the same operations.
        versions: The versions of the `GraphDef`.
        targets: Operations or tensors that the step runs without returning them.
        more: The names of operations that only the fetches `more` need.
    """

    ops: Sequence[Any]
    body: Body
    library: Library
    versions: Any
    inputs: Sequence[Any]
    fetches: Sequence[Any]
    targets: Sequence[Any]
    more: Collection[str]
    effects: Effects

    @classmethod
    def from_graph(
        cls,
        graph: Any,
        inputs: Sequence[Any],
        fetches: Sequence[Any],
        targets: Sequence[Any] = (),
        more: Sequence[Any] = (),
    ) -> "Pruned":
        """Prunes a graph, and raises an error if no device can run an operation.

        With and without the fetches `more`, the other fetches draw the same random
        numbers.
        """
        first = {op.name for op in reachable(graph, [*fetches, *targets])}
        ops = reachable(graph, [*fetches, *targets, *more])
        definition = definition_of(graph)
        nodes = definition.nodes
        fed = [tensor.op.name for tensor in inputs]
        variables = [op.name for op in ops if op.type == "VarHandleOp"]
        sources = {*fed, *variables}
        body, library = as_run(
            {op.name: op for op in ops},
            Body(
                [nodes[op.name] for op in ops if op.name not in sources],
                fed,
                variables,
            ),
            definition.library,
            {tensor.op.name for tensor in [*fetches, *more]},
            {getattr(target, "op", target).name for target in targets},
        )
        run = {node.name: node for node in body.nodes}
        remaining = [
            op for op in ops if op.name in sources or _remains(op, run.get(op.name))
        ]
        check_can_run(remaining, {**nodes, **run}, library)
        return cls(
            ops,
            body,
            library,
            definition.graph_def.versions,
            inputs,
            [*fetches, *more],
            targets,
            {op.name for op in ops} - first,
            effects_of(body, library),
        )

    def varying(self, is_split: bool) -> Varying:
        """Returns the tensors and variables whose values differ between devices."""
        return Varying.from_body(self.body, self.library, is_split)

    def line_of(self, name: str) -> SourceLine | None:
        """Returns the user's line of an operation, or `None` for those in functions."""
        op = self._ops_by_name.get(name)
        return None if op is None else source_line_of(op)

    @functools.cached_property
    def _ops_by_name(self) -> dict[str, Any]:
        """The operations of the graph whose names no function uses."""
        functions = self.library.values()
        inside = {node.name for f in functions for node in f.node_def}
        return {op.name: op for op in self.ops if op.name not in inside}

    def counts_once(self) -> bool:
        """Returns whether each run adds one to the global step."""
        return counts_once(self.body, self.library, self.effects)

    def compiled(self) -> Lifted:
        """Returns the step as a module. Its tensors must have fixed shapes."""
        import tensorflow as tf

        step = _Step(
            rewritten(self.body, self.library, self.versions, self.more),
            is_keyed=any(needs_key(n, self.library) for n in self.body.nodes),
            inputs=self.inputs,
            fetches=self.fetches,
            targets=[getattr(target, "op", target).name for target in self.targets],
            effects=self.effects,
        )
        variables = {
            op.name: (_shape_of(op), op.get_attr("dtype"))
            for op in self.ops
            if op.type == "VarHandleOp"
        }
        try:
            module = cached(
                step.depends_on(variables), lambda: step.compiled(variables)
            )
        except (
            ValueError,
            tf.errors.OpError,
            jax_internals.MLIRError,
        ) as error:
            raise explained(error, self.ops, self.body, self.library) from error
        _, results = jax_internals.signature_of(module.code)
        changes = tuple(self.effects.last_writes)
        names = [*(t.name for t in self.fetches), *changes]
        count = len(names)
        wide = jax_internals.cut_by_jax(results[:count])
        return Lifted(
            module.code,
            _avals(results[:count], self.fetches),
            module.variables,
            changes,
            {number: names[number] for number in wide},
        )


def _remains(op: Any, node: Node | None) -> bool:
    """Returns whether the node of an operation still computes something."""
    return node is not None and (node.op != "NoOp" or op.type == "NoOp")


@dataclasses.dataclass(frozen=True)
class _Step:
    """A step as a pure function: it returns its fetches and the changed variables."""

    definition: Any
    is_keyed: bool
    inputs: Sequence[Any]
    fetches: Sequence[Any]
    targets: Sequence[str]
    effects: Effects

    def depends_on(self, variables: Mapping[str, Any]) -> list[bytes | str]:
        """Returns all that the module depends on, for variables of some shapes."""
        import tensorflow as tf

        return [
            jax.__version__,
            tf.__version__,
            self.definition.SerializeToString(deterministic=True),
            repr([(t.name, t.shape, t.dtype) for t in self.inputs]),
            repr([t.name for t in self.fetches]),
            repr((self.targets, self.effects.last_writes, self.is_keyed)),
            repr(variables),
        ]

    def compiled(self, variables: Mapping[str, Any]) -> Module:
        """Returns the module for variables of these shapes and dtypes."""
        functions = self.definition.library.function
        with internals.eagerly(), internals.functions_known(functions):
            eager_variables = {n: _untouched(*spec) for n, spec in variables.items()}
            hlo, captured = self._hlo(eager_variables)
        return Module(jax_internals.stablehlo_of(hlo), tuple(captured))

    def _hlo(self, variables: Mapping[str, Any]) -> tuple[bytes, list[str]]:
        import tensorflow as tf

        step = tf.function(
            lambda key, *inputs: self._imported(key, inputs, variables),
            autograph=False,
            jit_compile=True,
        )
        specs = [tf.TensorSpec([2], tf.uint32)]
        specs += [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.inputs]
        captured = step.get_concrete_function(*specs).captured_inputs
        names = {id(v.handle): name for name, v in variables.items()}
        compiler = step.experimental_get_compiler_ir(*specs)
        # The HLO is for a CPU, because this TensorFlow may lack the other platform.
        hlo = compiler(stage="hlo_serialized", platform_name="CPU")
        return hlo, [names[id(handle)] for handle in captured]

    def _imported(
        self, key: Any, inputs: Sequence[Any], variables: Mapping[str, Any]
    ) -> list[Any]:
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        values = {
            tensor.name: value
            for tensor, value in zip(self.inputs, inputs, strict=True)
        }
        handles = {n: graph.capture(v.handle) for n, v in variables.items()}
        used = {i for node in self.definition.node for i in node.input}
        mapping = {
            name: value
            for name, value in values.items()
            if name.removesuffix(":0") in used
        }
        mapping |= {f"{n}:0": handle for n, handle in handles.items() if n in used}
        if self.is_keyed:
            mapping[f"{KEY}:0"] = tf.reshape(tf.bitcast(key, tf.uint64), [1])
        imported_names = [t.name for t in self.fetches if t.name not in values]
        imported = tf.graph_util.import_graph_def(
            self.definition, mapping, imported_names, name=""
        )
        values |= dict(zip(imported_names, imported or (), strict=True))
        last = [*self.targets, *self.effects.last_writes.values()]
        waited = [tensor.op for tensor in imported or ()]
        waited += [graph.get_operation_by_name(name) for name in last]
        with tf.control_dependencies(waited):
            new = [
                tf.raw_ops.ReadVariableOp(
                    resource=handles[name], dtype=variables[name].dtype
                )
                for name in self.effects.last_writes
            ]
        return [tf.identity(values[t.name]) for t in self.fetches] + new


def _shape_of(op: Any) -> list[int]:
    """Returns the shape of a variable."""
    import tensorflow as tf

    shape = tf.TensorShape(op.get_attr("shape"))
    if not shape.is_fully_defined():
        raise ValueError(
            "A variable must have a fixed shape. Received: "
            f"{op.name} of shape {shape}, made at {line_of(op)}"
        )
    sizes: list[int] = shape.as_list()
    return sizes


def _untouched(shape: Sequence[int], dtype: Any) -> Any:
    """Makes a variable without a value, whose memory is never touched."""
    import tensorflow as tf

    return tf.Variable(tf.raw_ops.Empty(shape=shape, dtype=dtype))


def _avals(
    types: Sequence[str], fetches: Sequence[Any]
) -> tuple[jax.core.ShapedArray, ...]:
    avals = []
    for number, kind in enumerate(types):
        try:
            avals.append(jax_internals.aval_of(kind))
        except ValueError as error:
            op = fetches[number].op
            raise ValueError(
                "The tensors that model_fn returns must have fixed shapes. "
                f"Received: {op.name} ({op.type}) of shape "
                f"{fetches[number].shape}, made at {line_of(op)}"
            ) from error
    return tuple(avals)
