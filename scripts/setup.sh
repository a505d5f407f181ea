# Sourced by ./quickstart and ./test: everything a fresh Debian or Ubuntu machine needs.
# TRIREME_PIP_ARGS    more arguments for pip, such as another index for torch
# TRIREME_PRESET      CMake preset to build (default release)
# CMAKE_PREFIX_PATH   your own libtorch; then no torch is installed

preset=${TRIREME_PRESET:-release}
torch_version=2.13.0
system_packages=(g++ cmake ninja-build ccache nlohmann-json3-dev libcli11-dev libxxhash-dev zlib1g-dev libssl-dev
                 libgtest-dev libgmock-dev python3 python3-venv)
# What only tests use: several hosts on one machine, and an MPI (its tests are skipped, visibly, without one).
test_packages=(iproute2 openmpi-bin libopenmpi-dev)

say() { printf '\033[1m== %s\033[0m\n' "$*" | if [ -n "${NO_COLOR:-}" ] || [ ! -t 1 ]; then sed 's/\x1b\[[0-9;]*m//g'; else cat; fi; }
stop() { printf 'trireme: %s\n' "$@" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    stop "need root to install packages." "Type as root: apt-get install ${missing[*]}"
  fi
}

install_system_packages() {
  missing=()
  local package
  for package in "$@"; do
    # A compiler, CMake or Python from elsewhere is as good as the package.
    case $package in
      g++ | cmake | ccache | python3) command -v "$package" >/dev/null && continue ;;
      ninja-build) command -v ninja >/dev/null && continue ;;
      python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null && continue ;;
    esac
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  say "installing packages: ${missing[*]}"
  command -v apt-get >/dev/null || stop "this is not Debian or Ubuntu." "Install these (or what they are called here): ${missing[*]}"
  as_root apt-get update -qq || say "apt-get update failed, trying with the lists at hand"
  local log
  log=$(mktemp)
  if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    for package in "${missing[@]}"; do
      apt-cache show "$package" >/dev/null 2>&1 || stop "the package $package is not to be had from your sources." \
        "Add a source that has it (Debian 12 and Ubuntu 24.04 do), then run this again."
    done
    stop "apt-get could not install: ${missing[*]}" "See the lines above; the whole output is in $log."
  fi
  rm -f "$log"
}

python_packages() { # python_packages "import check" pip arguments...
  local check=$1
  shift
  .venv/bin/python -c "$check" >/dev/null 2>&1 && return
  say "installing Python packages: $*"
  # shellcheck disable=SC2086
  .venv/bin/pip install --quiet --disable-pip-version-check ${TRIREME_PIP_ARGS:-} "$@" || stop "pip could not install: $*" \
    "Without access to the default index, pass another: TRIREME_PIP_ARGS='--index-url ...' $0"
}

install_torch() {
  [ -x .venv/bin/python ] || python3 -m venv .venv || stop "python3 -m venv .venv failed"
  [ -n "${CMAKE_PREFIX_PATH:-}" ] || python_packages "import torch; assert torch.__version__.split('+')[0] == '$torch_version'" "torch==$torch_version" numpy
}

build() { # build [targets...]
  say "building (preset $preset)"
  cmake --preset "$preset" >build-configure.log 2>&1 || { cat build-configure.log >&2; stop "configuring failed"; }
  rm -f build-configure.log
  if [ $# = 0 ]; then cmake --build --preset "$preset"; else cmake --build --preset "$preset" --target "$@"; fi
}
