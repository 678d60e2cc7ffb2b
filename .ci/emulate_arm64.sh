#!/usr/bin/env bash
# Makes FOLDER/usr/bin/python, which is Python 3.11 on emulated 64-bit ARM Linux
# with this project's dependencies: emulate_arm64.sh FOLDER. The script needs Debian 12
# on another processor, root, Debian's package mirror, a package index, and uv.
set -euo pipefail
root=$(realpath -m "$1")
project=$(dirname "$(dirname "$(realpath "$0")")")

if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ] ||
  ! grep -q '^VERSION_CODENAME=bookworm$' /etc/os-release; then
  echo "The emulator is installed by apt-get, with Python from Debian 12." \
    "Run this as root on Debian 12, for example in the container" \
    "debian:bookworm." >&2
  exit 1
fi
if [ -e "$root/ready" ]; then exit; fi
mkdir -p "$root"/apt/{lists/partial,archives}

apt-get update -qq
apt-get install -qq --no-install-recommends qemu-user-static >/dev/null

# Debian's Python and its libraries, separate from the packages of this machine.
debian=(
  python3.11 python3.11-minimal libpython3.11-stdlib libpython3.11-minimal
  libc6 libgcc-s1 libstdc++6 libgomp1 zlib1g libbz2-1.0 liblzma5 libexpat1
  libffi8 libssl3 libsqlite3-0 libreadline8 libncursesw6 libtinfo6 libuuid1
  libcrypt1 libdb5.3 media-types
)
arm64=(
  -o APT::Architecture=arm64 -o APT::Architectures=arm64
  -o Dir::State::Lists="$root/apt/lists" -o APT::Sandbox::User=root
)
apt-get "${arm64[@]}" update -qq
(cd "$root/apt/archives" && apt-get "${arm64[@]}" download -qq "${debian[@]}")
for package in "$root"/apt/archives/*.deb; do
  dpkg --extract "$package" "$root"
done

# Programs that start Python start this script, because `sys.executable` is its path.
cat >"$root/usr/bin/python" <<END
#!/bin/sh
exec qemu-aarch64-static -cpu max -L "$root" -0 "\$0" "$root/usr/bin/python3.11" "\$@"
END
chmod +x "$root/usr/bin/python"

# Debian's Python imports packages from this folder. Bytecode is equal on all
# processors, and compiling it without emulation saves a minute at each start.
packages="$root/usr/local/lib/python3.11/dist-packages"
uv pip install --quiet --python 3.11 --python-platform aarch64-unknown-linux-gnu \
  --only-binary :all: --compile-bytecode --target "$packages" \
  --requirements "$project/pyproject.toml" --extra examples --extra test
touch "$root/ready"
