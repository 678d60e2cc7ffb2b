"""Without the TPU's compiler, which is for Linux alone, nothing is tested."""

import importlib.util
import os

# Else libtpu asks the network where it is, and lets one process have it.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
# It complains on standard error where it does not know them.
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")

if importlib.util.find_spec("libtpu") is None:
    collect_ignore_glob = ["test_*.py"]
