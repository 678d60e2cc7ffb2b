"""Checks two folders with the distributions of `python -m build`."""

import hashlib
import pathlib
import sys
import zipfile

first, second = (
    {path.name: path for path in pathlib.Path(folder).iterdir()}
    for folder in sys.argv[1:]
)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


other = [
    name
    for name in first.keys() | second.keys()
    if name not in first
    or name not in second
    or digest(first[name]) != digest(second[name])
]
if other:
    raise SystemExit(f"Expected equal files of both builds. Different: {other}")

(wheel,) = (path for name, path in first.items() if name.endswith(".whl"))
names = zipfile.ZipFile(wheel).namelist()
for name in ("py.typed", "tf1/names/names.toml"):
    if f"keras_tpu_estimator/{name}" not in names:
        raise SystemExit(f"Expected {name} in {wheel.name}.")
roots = {name.split("/")[0] for name in names}
roots -= {name for name in roots if name.endswith(".dist-info")}
if roots != {"keras_tpu_estimator"}:
    raise SystemExit(f"Expected only the package. Received: {sorted(roots)}")
