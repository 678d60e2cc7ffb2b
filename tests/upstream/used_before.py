"""A pytest plugin that uses this package before the tests of another project run.

pytest -p tests.upstream.used_before
"""

import tempfile


def pytest_configure():
    """Imports this package, trains, evaluates, predicts, exports, uses `from_keras`."""
    import keras_tpu_estimator as kte
    from tests.upstream.plain_keras_program import use

    with tempfile.TemporaryDirectory() as folder:
        list(use(kte, folder))
