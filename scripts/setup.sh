# Sourced by ./quickstart and ./test: everything a fresh Debian or Ubuntu machine needs.
# TRIREME_PIP_ARGS     more arguments for pip, such as another index; torch is then looked for nowhere else
# TRIREME_TORCH_INDEX  where torch for the CPU is looked for if pip's own index has none (default: PyTorch's; empty: nowhere)
# TRIREME_PRESET       CMake preset to build (default release)
# CMAKE_PREFIX_PATH    your own libtorch; then no torch is installed (but ./test compares with Python's)
# TRIREME_PACKAGES=no  the packages of the system are there in some other way; CMake says what it does not find

preset=${TRIREME_PRESET:-release}
torch_version=2.13.0
torch_index=${TRIREME_TORCH_INDEX-https://download.pytorch.org/whl/cpu}
system_packages=(g++ cmake ninja-build ccache nlohmann-json3-dev libcli11-dev libxxhash-dev zlib1g-dev libssl-dev libpcre2-dev libutf8proc-dev liburing-dev
                 libgtest-dev libgmock-dev python3 python3-venv)
# What only tests use: several hosts on one machine, calls to the system that fail, file systems, an MPI, gRPC and certificates for it, a Slurm, OpenSSH, a browser, a fresh Debian
# (tests of all but the first are skipped, visibly, without them). Those with ? are left out where the sources of apt have none: Ubuntu has no package chromium.
test_packages=(iproute2 procps strace e2fsprogs mount openmpi-bin libopenmpi-dev libgrpc++-dev openssl slurmctld slurmd slurm-client xfsprogs
               openssh-client '?chromium' '?debootstrap')
[ -d /run/systemd/system ] || test_packages+=(openssh-server) # in a container; on a machine it would open port 22

[ -e /proc/self/fd/0 ] || exec </dev/null # closed: the first file that a program opens would be its input

say() { if [ -n "${NO_COLOR:-}" ] || [ ! -t 1 ]; then printf '== %s\n' "$*"; else printf '\033[1m== %s\033[0m\n' "$*"; fi; }
stop() { printf 'trireme: %s\n' "$@" >&2; exit 1; }
duration() { if [ "$1" -lt 60 ]; then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi; }

# step WHAT HOW-LONG: announces what comes next, after saying how long the step before took.
step_name='' step_start=0
step() {
  finish_step
  step_name=$1 step_start=$SECONDS
  say "$1 ($2)"
}
finish_step() {
  [ -z "$step_name" ] || say "$step_name: took $(duration $((SECONDS - step_start)))"
  step_name=''
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    stop "some packages are missing, and installing them takes root or sudo." "Type as root: apt-get update && apt-get install ${missing[*]}" \
      "Where they are there in some other way: TRIREME_PACKAGES=no $0"
  fi
}

add_optional() { # to `missing`, those of `optional` that the lists of apt have
  local package
  if [ ${#optional[@]} != 0 ] && [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    say "without root or sudo ${optional[*]} cannot be installed: the tests that need them are skipped"
    optional=()
  fi
  for package in ${optional[@]+"${optional[@]}"}; do
    if apt-cache show "$package" >/dev/null 2>&1; then missing+=("$package"); else say "$package is not to be had here: the tests that need it are skipped"; fi
  done
  optional=()
}

install_system_packages() { # those that begin with ? if they are to be had
  [ "${TRIREME_PACKAGES:-}" != no ] || return 0
  missing=()
  local package log optional=()
  for package in "$@"; do
    # A compiler, CMake or Python from elsewhere is as good as the package.
    case $package in
      g++ | cmake | ccache | python3) command -v "$package" >/dev/null && continue ;;
      ninja-build) command -v ninja >/dev/null && continue ;;
      python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null && continue ;;
      '?chromium') { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null && continue ;;
    esac
    if [[ $package == '?'* ]]; then
      dpkg-query -W -f='${Status}' "${package#\?}" 2>/dev/null | grep -q 'ok installed' || optional+=("${package#\?}")
      continue
    fi
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  local required=${#missing[@]}
  [ "$required" != 0 ] || add_optional
  [ ${#missing[@]} = 0 ] && return
  command -v apt-get >/dev/null || stop "this is not Debian or Ubuntu." "Install these (or what they are called here): ${missing[*]}" \
    "Then type: TRIREME_PACKAGES=no $0"
  step "installing packages" "1 to 3 minutes: ${missing[*]}"
  as_root apt-get update -qq || say "apt-get update failed, trying with the lists at hand"
  add_optional
  log=$(mktemp)
  if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
    if [ "$required" = 0 ]; then
      say "apt-get could not install ${missing[*]}: the tests that need them are skipped"
      return 0
    fi
    tail -n 5 "$log" >&2
    for package in "${missing[@]}"; do
      apt-cache show "$package" >/dev/null 2>&1 || stop "the package $package is not to be had from your sources." \
        "Add a source that has it (Debian 12 and Ubuntu 24.04 do), then run this again."
    done
    stop "apt-get could not install: ${missing[*]}" "See the lines above; the whole output is in $log."
  fi
  rm -f "$log"
}

make_environment() {
  .venv/bin/python -m pip --version >/dev/null 2>&1 || python3 -m venv .venv || stop "python3 -m venv .venv failed, see above."
}

# Shows pip's progress. Its complaints are kept: an attempt that fails may be followed by one that does not.
pip_install() {
  # shellcheck disable=SC2086
  .venv/bin/python -m pip install --disable-pip-version-check ${TRIREME_PIP_ARGS:-} "$@" 2>"$pip_log"
}
pip_failed() { # pip_failed WHAT
  tail -n 8 "$pip_log" >&2
  stop "pip could not install $1, see above (all of it: $pip_log)." \
    "Where another index is needed: TRIREME_PIP_ARGS='--index-url ...' $0" \
    "With a libtorch of your own: CMAKE_PREFIX_PATH=/path/to/libtorch $0"
}

python_packages() { # python_packages "import check" pip arguments...
  local check=$1 pip_log
  shift
  make_environment
  .venv/bin/python -c "$check" >/dev/null 2>&1 && return
  step "installing Python packages" "some seconds: $*"
  pip_log=$(mktemp)
  pip_install "$@" || pip_failed "$*"
  rm -f "$pip_log"
}

has_card() { [ -e /dev/nvidia0 ] || nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

# Without a card the build with CUDA would only be larger.
find_torch() {
  if ! has_card; then
    step "installing torch $torch_version for the CPU" "200 MB to download, 1 GB on disk, 1 to 3 minutes"
    pip_install "torch==$torch_version+cpu" && return
    if [ -n "$torch_index" ] && [ -z "${TRIREME_PIP_ARGS:-}" ]; then
      say "no torch for the CPU from pip's index, looking in PyTorch's own"
      pip_install "torch==$torch_version+cpu" --extra-index-url "$torch_index" --retries 1 && return
    fi
    say "no torch for the CPU could be installed"
  fi
  step "installing torch $torch_version as it is in pip's index" "with CUDA 2.6 GB to download, 5 GB on disk, 3 to 15 minutes"
  pip_install "torch==$torch_version" || pip_failed "torch $torch_version"
}

install_torch() {
  local pip_log
  if [ -n "${CMAKE_PREFIX_PATH:-}" ]; then
    local prefixes prefix library
    IFS=':;' read -ra prefixes <<<"$CMAKE_PREFIX_PATH"
    for prefix in "${prefixes[@]}"; do # a folder, or Python's torch.utils.cmake_prefix_path in it
      for library in "$prefix"/lib*/libtorch_cpu.so "$prefix"/lib/*/libtorch_cpu.so "$prefix"/../../lib/libtorch_cpu.so; do
        [ ! -e "$library" ] || return 0
      done
    done
    say "there is no libtorch in CMAKE_PREFIX_PATH=$CMAKE_PREFIX_PATH: CMake takes another where there is one"
    return 0
  fi
  make_environment
  if ! .venv/bin/python -c "import torch; assert torch.__version__.split('+')[0] == '$torch_version'" >/dev/null 2>&1; then
    pip_log=$(mktemp)
    find_torch
    rm -f "$pip_log"
  elif has_card && ! .venv/bin/python -c "import torch; assert torch.version.cuda" 2>/dev/null; then
    say "the torch in .venv is for the CPU, and this machine has a GPU: to train on it, rm -r .venv build and run this again"
  fi
  link_cuda_toolkit
}

# The CUDA toolkit that pip installs (cuda-toolkit[nvcc,cccl]) lacks what nvcc and CMake look for.
link_cuda_toolkit() { # link_cuda_toolkit [environment]
  local toolkit library
  for toolkit in "${1:-.venv}"/lib/python3*/site-packages/nvidia/cu[0-9]*; do
    [ -x "$toolkit/bin/nvcc" ] || continue
    [ -e "$toolkit/lib64" ] || ln -s lib "$toolkit/lib64"
    for library in "$toolkit"/lib/libcudart.so.* "$toolkit"/lib/libnvrtc.so.*; do
      [ ! -e "$library" ] || [ -e "${library%.so.*}.so" ] || ln -s "${library##*/}" "${library%.so.*}.so"
    done
  done
}

build() { # build HOW-LONG [targets...]
  local log memory long=$1
  shift
  log=$(mktemp)
  step "building Trireme" "preset $preset, $long; only what has changed"
  cmake --preset "$preset" >"$log" 2>&1 || { cat "$log" >&2; stop "configuring failed, see above."; }
  rm -f "$log"
  # A compiler that runs out of memory is killed with few words.
  memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo)
  if [ -z "${CMAKE_BUILD_PARALLEL_LEVEL:-}" ] && [ "$memory" -lt "$(nproc)" ]; then
    export CMAKE_BUILD_PARALLEL_LEVEL=$((memory > 0 ? memory : 1))
    say "compiling $CMAKE_BUILD_PARALLEL_LEVEL at a time, for want of memory"
  fi
  if [ $# = 0 ]; then cmake --build --preset "$preset"; else cmake --build --preset "$preset" --target "$@"; fi ||
    stop "building failed, see above."
}
