"""Plans: the cost of a run on a topology, without its devices.

A topology's name becomes a `DeviceTopology`, whose devices are a `Machine`. The
topology's compiler compiles the lowered loop, and the compiled program contains the
cost of a step. `TPUEstimator.plan` plans one call, and `python -m keras_tpu_estimator
plan` plans each call of a script.
"""
