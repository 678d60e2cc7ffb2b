"""Functions of libraries that are replaced in blocks only."""

import contextlib
import inspect
import sys
import threading
import types

import pytest

from keras_tpu_estimator.base import upstream
from keras_tpu_estimator.base.upstream.private_names import PrivateName
from keras_tpu_estimator.base.upstream.replacements import (
    ModuleReplacement,
    Replacement,
)
from keras_tpu_estimator.errors import UnsupportedVersionError


class Base:
    def greet(self, name="you"):
        return f"hello {name}"


class Library(Base):
    pass


@pytest.fixture
def module(monkeypatch):
    """A library with a function, a class and an imported module."""
    library = types.ModuleType("a_library")
    library.greet = lambda name: f"hello {name}"
    library.Library = Library
    library.math = types.ModuleType("math", "Numbers.")
    library.math.one = 1
    monkeypatch.setitem(sys.modules, "a_library", library)
    return library


def replacement(path, reached_by=None, cls=Replacement):
    return cls(PrivateName("greets", (path,)), reached_by)


def louder(greet, *args, **kwargs):
    return greet(*args, **kwargs) + "!"


def test_function_is_the_librarys_own_before_beside_and_after(module):
    greet = module.greet
    name = replacement("a_library.greet")
    with name.block(louder):
        assert module.greet("you") == "hello you!"
        beside = []
        thread = threading.Thread(target=lambda: beside.append(module.greet("you")))
        thread.start()
        thread.join()
    assert beside == ["hello you"]
    assert module.greet is greet


def test_innermost_block_decides(module):
    name = replacement("a_library.greet")
    with name.block(louder):
        with name.block(lambda greet, name: name):
            assert module.greet("you") == "you"
        assert module.greet("you") == "hello you!"


def test_blocks_of_several_threads_are_separate(module):
    greet, name = module.greet, replacement("a_library.greet")
    is_open, may_close, results = threading.Event(), threading.Event(), []

    def run():
        with name.block(lambda greet, name: "other"):
            is_open.set()
            may_close.wait()
            results.append(module.greet("you"))

    thread = threading.Thread(target=run)
    thread.start()
    is_open.wait()
    with name.block(louder):
        results.append(module.greet("you"))
    results.append(module.greet("you"))
    may_close.set()
    thread.join()
    assert results == ["hello you!", "hello you", "other"]
    assert module.greet is greet


def test_block_ends_after_an_error(module):
    greet, name = module.greet, replacement("a_library.greet")
    with contextlib.suppress(ZeroDivisionError), name.block(louder):
        raise ZeroDivisionError
    assert module.greet is greet


@pytest.mark.usefixtures("module")
def test_inherited_method_is_inherited_again():
    name = replacement("a_library.Library.greet")
    signature = inspect.signature(Library.greet)
    with name.block(louder):
        assert Library().greet("me") == "hello me!"
        assert Base().greet("me") == "hello me"
        assert inspect.signature(Library.greet) == signature
    assert "greet" not in vars(Library)


def test_wrapper_of_another_library_stays(module):
    name = replacement("a_library.greet")
    with name.block(louder):
        dispatcher = module.greet
        module.greet = lambda name: dispatcher(name).upper()
    wrapper = module.greet
    assert module.greet("you") == "HELLO YOU"
    with name.block(louder):
        assert module.greet("you") == "HELLO YOU!"
    assert module.greet is wrapper


@pytest.mark.parametrize(
    ("name", "reached_by"),
    [
        ("greet", lambda: "not called"),
        ("missing", lambda: "not called"),
        ("missing", None),
    ],
    ids=["not called", "missing", "missing, without a check"],
)
def test_function_without_effect_is_an_error_of_each_block(module, name, reached_by):
    other = replacement(f"a_library.{name}", reached_by)
    for _ in range(3):
        with pytest.raises(UnsupportedVersionError, match="a_library"):
            with other.block(louder):
                raise AssertionError("The block must not run.")
    assert not hasattr(module, "missing")


@pytest.fixture(autouse=True)
def versions(monkeypatch, module):
    module.__version__ = "2.0"
    monkeypatch.setitem(upstream.private_names.LAST_TRIED, "a_library", "1.0")


def test_public_call_is_made_once(module):
    calls = []

    def call():
        calls.append(1)
        module.greet("you")

    name = replacement("a_library.greet", call)
    for _ in range(2):
        with name.block(louder):
            assert module.greet("me") == "hello me!"
    assert calls == [1]


def test_imported_module_is_replaced_in_its_importer(module):
    math = module.math
    name = replacement("a_library.math", cls=ModuleReplacement)
    with name.block(lambda math: types.SimpleNamespace(one=math.one + 1)):
        assert module.math.one == 2
        assert inspect.ismodule(module.math)
        assert (module.math.__name__, module.math.__doc__) == ("math", "Numbers.")
        assert dir(module.math) == dir(math)
        beside = []
        thread = threading.Thread(target=lambda: beside.append(module.math.one))
        thread.start()
        thread.join()
    assert beside == [1]
    assert module.math is math
