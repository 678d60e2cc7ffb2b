"""The way of data from a user's `input_fn` to the devices.

In the order of the data: the `request` (with `datasets` and `other_libraries`), the
`batch`, its `checks`, the `input_reader`, `stacking`, the `pipeline` with its thread,
and the `position` for resuming.
"""
