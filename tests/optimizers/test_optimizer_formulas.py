"""Tests each optimizer against its paper's formulas in NumPy."""

import functools

import keras
import numpy as np
import pytest

import keras_tpu_estimator as kte

STEPS = 20
SHAPES = {
    "dense/kernel": (4, 3),
    "dense/bias": (3,),
    "conv/kernel": (2, 2, 3, 4),
    "LayerNorm/gamma": (3,),
    "gain": (),
}
EXCLUDED = ["LayerNorm", "bias"]
RNG = np.random.default_rng(0)
START = {path: RNG.normal(size=shape) for path, shape in SHAPES.items()}
START["dense/bias"] = np.zeros(3)
GRADIENTS = [
    {path: RNG.normal(size=shape) for path, shape in SHAPES.items()}
    for _ in range(STEPS)
]
RATES = [0.1 / (1 + step) for step in range(STEPS)]


def is_excluded(path):
    return any(part in path for part in EXCLUDED)


def ratio_of(above, below, factor=1.0):
    """A trust ratio: 1 where weights or updates are zero."""
    a, b = np.linalg.norm(above), np.linalg.norm(below)
    return factor * a / b if a > 0 and b > 0 else 1.0


def adam_weight_decay(path, w):
    """https://github.com/google-research/bert, optimization.py."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    decay = 0.0 if is_excluded(path) else 0.01
    for rate, gradients in zip(RATES, GRADIENTS, strict=True):
        g = gradients[path]
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        w = w - rate * (m / (np.sqrt(v) + 1e-6) + decay * w)
    return {"": w, "momentum": m, "velocity": v}


def lamb(path, w, corrected=True, adapted=None):
    """https://arxiv.org/abs/1904.00962v5, algorithm 2.

    With phi the identity. Without the correction, it is lamb_optimizer.py of
    https://github.com/google-research/albert.
    """
    m, v = np.zeros_like(w), np.zeros_like(w)
    decay = 0.0 if is_excluded(path) else 0.01
    adapted = not is_excluded(path) if adapted is None else adapted
    for t, gradients in enumerate(GRADIENTS, 1):
        g = gradients[path]
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        m_hat = m / (1 - 0.9**t) if corrected else m
        v_hat = v / (1 - 0.999**t) if corrected else v
        r = m_hat / (np.sqrt(v_hat) + 1e-6) + decay * w
        w = w - RATES[t - 1] * (ratio_of(w, r) if adapted else 1.0) * r
    return {"": w, "momentum": m, "velocity": v}


def lars(path, w, nesterov=False):
    """https://arxiv.org/abs/1708.03888v3, algorithm 1, with a trust of 0.02."""
    v = np.zeros_like(w)
    for rate, gradients in zip(RATES, GRADIENTS, strict=True):
        g, local, decay = gradients[path], 1.0, 0.0
        if not is_excluded(path):
            decay = 0.001
            below = np.linalg.norm(g) + decay * np.linalg.norm(w)
            local = ratio_of(w, below, 0.02)
        push = rate * local * (g + decay * w)
        v = 0.9 * v + push
        w = w - (0.9 * v + push if nesterov else v)
    return {"": w, "momentum": v}


def sm3(path, w, beta=0.9):
    """https://arxiv.org/abs/1901.11150v2, SM3-II with momentum.

    The sets of the cover are the rows of each axis. A vector's are its
    elements, as in sm3.py of https://github.com/google-research.
    """
    axes = range(w.ndim)
    mu = [np.zeros(size) for size in w.shape]
    diagonal, m = np.zeros_like(w), np.zeros_like(w)
    for rate, gradients in zip(RATES, GRADIENTS, strict=True):
        g = gradients[path]
        if w.ndim < 2:
            diagonal = nu = diagonal + g**2
        else:
            nu = np.empty_like(w)
            for place in np.ndindex(w.shape):
                bounds = [mu[i][place[i]] for i in axes]
                nu[place] = min(bounds) + g[place] ** 2
            mu = [
                np.array([nu.take(j, i).max() for j in range(w.shape[i])]) for i in axes
            ]
        m = beta * m + (1 - beta) * g / np.sqrt(nu)
        w = w - rate * m
    kept = {f"accumulator_{i}": mu[i] for i in axes}
    kept = kept if w.ndim > 1 else {"accumulator": diagonal}
    return {"": w, **kept, **({"momentum": m} if beta else {})}


class Rate(keras.optimizers.schedules.LearningRateSchedule):
    """The rates above."""

    def __call__(self, step):
        return 0.1 / (1 + keras.ops.cast(step, "float32"))


def trained(optimizer):
    """The variables by path, and the slots by their names."""
    variables = {}
    for path, value in START.items():
        scope, _, name = path.rpartition("/")
        with keras.name_scope(scope or "top"):
            made = keras.Variable(value.astype("float32"), name=name)
        variables[path] = made
    for gradients in GRADIENTS:
        optimizer.apply(
            [keras.ops.array(gradients[p], "float32") for p in variables],
            list(variables.values()),
        )
    return variables


decayed = {"weight_decay_rate": 0.01, "exclude_from_weight_decay": EXCLUDED}
CASES = {
    "adam": (
        lambda: kte.optimizers.AdamWeightDecay(Rate(), **decayed),
        adam_weight_decay,
    ),
    "lamb": (lambda: kte.optimizers.LAMB(Rate(), **decayed), lamb),
    "lamb_of_albert": (
        lambda: kte.optimizers.LAMB(Rate(), bias_correction=False, **decayed),
        lambda path, w: lamb(path, w, corrected=False),
    ),
    "lamb_adapting_all": (
        lambda: kte.optimizers.LAMB(
            Rate(), exclude_from_layer_adaptation=[], **decayed
        ),
        lambda path, w: lamb(path, w, adapted=True),
    ),
    "lars": (
        lambda: kte.optimizers.LARS(
            Rate(), weight_decay=0.001, eeta=0.02, skip_list=EXCLUDED
        ),
        lars,
    ),
    "lars_nesterov": (
        lambda: kte.optimizers.LARS(
            Rate(),
            weight_decay=0.001,
            eeta=0.02,
            skip_list=EXCLUDED,
            use_nesterov=True,
        ),
        lambda path, w: lars(path, w, nesterov=True),
    ),
    "sm3": (lambda: kte.optimizers.SM3(Rate()), sm3),
    "sm3_without_momentum": (
        lambda: kte.optimizers.SM3(Rate(), momentum=0.0),
        lambda path, w: sm3(path, w, beta=0.0),
    ),
}


@functools.cache
def trained_by(case):
    """The optimizer of a case, and the variables it has trained."""
    optimizer = CASES[case][0]()
    return optimizer, trained(optimizer)


def same_again(optimizer):
    """The result of an optimizer's serialization."""
    return keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))


@pytest.mark.parametrize("case", CASES)
def test_weights_and_slots_match_the_formulas(case):
    _, formula = CASES[case]
    optimizer, variables = trained_by(case)
    slots = {each.path: each for each in optimizer.variables}
    for path, variable in variables.items():
        expected = formula(path, START[path])
        np.testing.assert_allclose(
            variable.numpy(), expected.pop(""), rtol=2e-5, atol=2e-6
        )
        owner = f"{optimizer.name}/{variable.path.replace('/', '_')}"
        found = {
            name.removeprefix(f"{owner}_"): slot.numpy()
            for name, slot in slots.items()
            if name.startswith(f"{owner}_")
        }
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6)


@pytest.mark.rows(4)
@pytest.mark.parametrize("case", CASES)
def test_serialized_optimizers_train_the_same(case, monkeypatch):
    monkeypatch.setattr(Rate, "get_config", lambda self: {}, raising=False)
    with keras.saving.custom_object_scope({"Rate": Rate}):
        make, _ = CASES[case]
        again = same_again(make())
        assert again.get_config() == make().get_config() | {"name": again.name}
    (_, one), other = trained_by(case), trained(again)
    for path, variable in one.items():
        np.testing.assert_array_equal(variable, other[path])


def test_lamb_without_decay_matches_keras():
    ours = trained(kte.optimizers.LAMB(0.1, epsilon=1e-7))
    keras_own = trained(keras.optimizers.Lamb(0.1, epsilon=1e-7))
    for path, variable in ours.items():
        np.testing.assert_allclose(variable, keras_own[path], rtol=2e-5, atol=2e-6)


def test_keras_lamb_has_its_decay_outside_the_ratio():
    # Otherwise this package would not need its own.
    ours = trained(kte.optimizers.LAMB(0.1, weight_decay_rate=0.1))
    keras_own = trained(keras.optimizers.Lamb(0.1, weight_decay=0.1, epsilon=1e-6))
    difference = ours["dense/kernel"] - keras_own["dense/kernel"]
    assert np.abs(difference).max() > 1e-2


def test_zero_gradients_change_nothing():
    for make, _ in CASES.values():
        variable = keras.Variable(np.ones((4, 3), "float32"), name="bias")
        optimizer = make()
        optimizer.apply([keras.ops.zeros((4, 3))], [variable])
        np.testing.assert_allclose(variable, np.ones((4, 3)), atol=2e-3)


def test_bfloat16_variables_stay_bfloat16():
    for make, _ in CASES.values():
        variable = keras.Variable(np.ones((2, 3)), dtype="bfloat16", name="kernel")
        make().apply([keras.ops.ones((2, 3))], [variable])
        assert variable.dtype == "bfloat16"
        assert float(keras.ops.max(variable)) < 1


def test_exclusions_match_paths_unlike_keras():
    def gamma_after(optimizer):
        with keras.name_scope("LayerNorm"):
            gamma = keras.Variable([1.0], name="gamma")
        optimizer.exclude_from_weight_decay(var_names=["LayerNorm"])
        optimizer.apply([keras.ops.zeros(1)], [gamma])
        return float(gamma[0])

    assert gamma_after(keras.optimizers.AdamW(0.1, weight_decay=0.5)) < 1
    optimizer = kte.optimizers.AdamWeightDecay(0.1, weight_decay_rate=0.5)
    assert gamma_after(optimizer) == 1


def test_variables_are_excluded_one_by_one():
    variables = [keras.Variable([1.0], name=name) for name in ("a", "a_b")]
    optimizer = kte.optimizers.LAMB(0.1, weight_decay_rate=0.5)
    optimizer.exclude_from_weight_decay(var_list=variables[:1])
    assert same_again(optimizer).not_decayed == ["^a$"]
    optimizer.apply([keras.ops.zeros(1)] * 2, variables)
    assert [float(each[0]) < 1 for each in variables] == [False, True]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: kte.optimizers.LARS(0.1, skip_list="bias"),
            TypeError,
            r"`skip_list` must be a list .* Write \['bias'\]",
        ),
        (
            lambda: kte.optimizers.LAMB(
                0.1, exclude_from_layer_adaptation=[keras.Variable(1.0)]
            ),
            TypeError,
            "`exclude_from_layer_adaptation` must contain .* its `path`",
        ),
        (
            lambda: kte.optimizers.AdamWeightDecay(
                0.1, exclude_from_weight_decay=["bias("]
            ),
            ValueError,
            r"Received: 'bias\(', which is invalid: .* re.escape",
        ),
        (
            lambda: kte.optimizers.LAMB(0.1, weight_decay=0.1),
            ValueError,
            "LAMB has `weight_decay_rate`.* Pass weight_decay_rate=",
        ),
    ],
)
def test_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
