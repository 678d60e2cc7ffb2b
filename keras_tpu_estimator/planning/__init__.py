"""What a run would need on a topology, by the topology's own compiler, without one.

A topology's name becomes a `DeviceTopology`, whose devices are a `Machine`; a lowered
loop is compiled for it; what the compiler has made says what a step needs.
`TPUEstimator.plan` does it for a call, and `python -m keras_tpu_estimator plan`
for each call of a script.
"""
