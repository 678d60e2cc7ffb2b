"""The parts of this package that its core finds by name; see `registry.py`."""

_PACKAGE = __name__.rpartition(".")[0]

# The modules of the commands, each with a function `main`, by the command.
_MODULES = {
    "plan": "planning.command",
    "info": "files.inspection",
    "verify": "files.inspection",
    "launch": "base.hosts.launching",
    "supervise": "base.hosts.supervising",
    "tf1": "tf1.command",
    "check": "tf1_tools.check.command",
    "compare": "workflow.comparing.command",
    "port": "tf1_tools.port.command",
}
# The purposes of the commands.
COMMANDS = {
    "plan": "reports the cost of a script on a TPU, without needing one",
    "info": "shows the checkpoints, variables and last results of a directory",
    "verify": "reads each checkpoint completely, and reports corrupt ones",
    "launch": "starts a script in several processes of this machine, as one cluster",
    "supervise": "starts a script on this host, and restarts it with those of others",
    "tf1": "runs a TensorFlow 1 script without changes",
    "check": "reports the TensorFlow 1 calls of a script, without running it",
    "compare": "shows whether two scripts train the same model, or where they differ",
    "port": "writes a TensorFlow 1 program as a Keras program",
}
# These only start processes, which import Keras themselves.
COMMANDS_WITHOUT_KERAS = ("launch", "supervise")
# The addresses of all parts by name.
PARTS = {
    **{f"command {name}": f"{_PACKAGE}.{module}" for name, module in _MODULES.items()},
    "checkpoint format hdf5": f"{_PACKAGE}.files.formats.hdf5.format:Hdf5Format",
    "checkpoint format orbax": f"{_PACKAGE}.files.formats.orbax.format:OrbaxFormat",
    "checkpoint format tensorflow": (
        f"{_PACKAGE}.files.formats.tensorflow_format:TensorFlowFormat"
    ),
    "cpu": f"{_PACKAGE}.base.cpu.tuning",
    "export": f"{_PACKAGE}.export.exporting",
    "foreign_calls": f"{_PACKAGE}.tf1.foreign_calls",
    "front_end": f"{_PACKAGE}.front_ends.keras.front_end:KERAS",
    "graph_script": f"{_PACKAGE}.tf1.command:run",
    "hook_adapter": f"{_PACKAGE}.tf1.host.tensorflow_hook",
    "host_metrics": f"{_PACKAGE}.engine.device.traced_metrics:TracedMetrics",
    "keras_model": f"{_PACKAGE}.front_ends.keras_model.estimator_model:EstimatorModel",
    "keras files": f"{_PACKAGE}.files.formats.keras_format",
    "orbax files": f"{_PACKAGE}.files.formats.orbax.reader",
    "planner": f"{_PACKAGE}.planning.planner",
    "safetensors files": f"{_PACKAGE}.files.formats.safetensors_format",
    "tables": f"{_PACKAGE}.front_ends.tables.config_spec",
    "tensorflow files": f"{_PACKAGE}.files.formats.tensorflow_format",
}
