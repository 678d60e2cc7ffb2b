"""What a run would need on a TPU, by the TPU's own compiler, without one.

A topology's name becomes a `Board`, whose devices are a `Machine`; a lowered
loop is compiled for it; what the compiler has made says what a step needs.
"""
