#!/usr/bin/env bash
# scripts/setup.sh with a stand-in for the environment's Python: which torch it asks pip for, and what it says when there is none.
set -euo pipefail
setup=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/scripts/setup.sh
folder=$(mktemp -d "${TMPDIR:-/tmp}/trireme setup XXXXXX")
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir -p .venv/bin
cat >.venv/bin/python <<'PYTHON'
#!/usr/bin/env bash
case $* in
  '-m pip --version') exit 0 ;;
  -m\ pip\ install*) echo "$*" >>calls; [[ $* =~ $PIP_HAS ]] && exit 0; echo "ERROR: No matching distribution found" >&2; exit 1 ;;
  *) exit 1 ;; # torch is not there yet
esac
PYTHON
chmod +x .venv/bin/python
unset TRIREME_PIP_ARGS TRIREME_TORCH_INDEX CMAKE_PREFIX_PATH

failures=0
check() { # check WHAT EXPECTED GOT
  [ "$2" = "$3" ] || { printf '%s\n  expected: %s\n  got:      %s\n' "$1" "$2" "$3"; failures=$((failures + 1)); }
}
# ask CARD WHAT-PIP-HAS [VARIABLE=VALUE]: status in $status, what was said in $said, what pip was asked for in $asked
ask() {
  rm -f calls
  status=0
  said=$(env PIP_HAS="$2" "${@:3}" bash -c "set -euo pipefail; source '$setup'; has_card() { $1; }; install_torch" 2>&1) || status=$?
  asked=$(grep -oE 'torch==.*' calls 2>/dev/null | tr '\n' ';' || true)
}
cpu='torch==2.13.0+cpu' own="--extra-index-url $(source "$setup"; echo "$torch_index") --retries 1"

ask false 'cpu$'
check "pip has torch for the CPU" "0 $cpu;" "$status $asked"
ask false 'extra-index-url'
check "PyTorch's index has it" "0 $cpu;$cpu $own;" "$status $asked"
ask false 'torch==2.13.0$'
check "there is only the one with CUDA" "0 $cpu;$cpu $own;torch==2.13.0;" "$status $asked"
check "its complaints are not shown where the next attempt works" "" "$(grep -i error <<<"$said" || true)"
ask true 'torch'
check "with a card" "0 torch==2.13.0;" "$status $asked"
ask false 'torch==2.13.0$' TRIREME_PIP_ARGS='--index-url file:///mine'
check "an index of one's own is the only one" "0 $cpu;torch==2.13.0;" "$status $asked"
ask false 'torch==2.13.0$' TRIREME_TORCH_INDEX=
check "no other index is wanted" "0 $cpu;torch==2.13.0;" "$status $asked"
ask false 'torch' CMAKE_PREFIX_PATH=/my/libtorch
check "a libtorch of one's own" "0 " "$status $asked"
check "that is not there" "== there is no libtorch in CMAKE_PREFIX_PATH=/my/libtorch: CMake takes another where there is one" "$said"
mkdir -p "my libtorch/lib" "my libtorch/share/cmake"
touch "my libtorch/lib/libtorch_cpu.so"
for place in "my libtorch" "/none;my libtorch/share/cmake"; do
  ask false 'torch' CMAKE_PREFIX_PATH="$place"
  check "a libtorch of one's own in $place" "0  " "$status $asked $said"
done
ask false 'nothing'
check "there is none" "1 $cpu;$cpu $own;torch==2.13.0;" "$status $asked"
check "then pip's words are shown" "ERROR: No matching distribution found" "$(grep ERROR <<<"$said")"
check "and what to do" "1" "$(grep -c "TRIREME_PIP_ARGS='--index-url" <<<"$said")"

# The CUDA toolkit that pip installs gets its links, once.
toolkit=.venv/lib/python3.11/site-packages/nvidia/cu13
mkdir -p "$toolkit/bin" "$toolkit/lib"
touch "$toolkit/lib/libcudart.so.13" "$toolkit/lib/libnvrtc.so.13" "$toolkit/bin/nvcc"
chmod +x "$toolkit/bin/nvcc"
for time in first second; do
  bash -c "set -euo pipefail; source '$setup'; link_cuda_toolkit"
  check "links, $time time" "lib libcudart.so.13 libnvrtc.so.13" \
    "$(readlink "$toolkit/lib64") $(readlink "$toolkit/lib/libcudart.so") $(readlink "$toolkit/lib/libnvrtc.so")"
done

# Packages with ? are asked for where apt's lists have them, and nothing is installed where no other is missing.
mkdir apt
printf '#!/bin/sh\necho 0\n' >apt/id
printf '#!/bin/sh\nexit 1\n' >apt/dpkg-query
printf '#!/bin/sh\n[ "$2" = known ]\n' >apt/apt-cache
printf '#!/bin/sh\necho "$*" >>"%s/calls"\n' "$PWD" >apt/apt-get
chmod +x apt/*
optional() { # optional PACKAGES...: what is asked for
  rm -f calls
  said=$(PATH=$PWD/apt:$PATH TRIREME_PACKAGES='' bash -c "set -euo pipefail; source '$setup'; install_system_packages $*" 2>&1)
  sed -n 's/^install .*recommends //p' calls 2>/dev/null
}
check "packages that are to be had" "missing known" "$(optional missing "'?known'" "'?strange'")"
check "alone" "known" "$(optional "'?known'" "'?strange'")"
check "none" "" "$(optional "'?strange'")"
check "says so" "== strange is not to be had here: the tests that need it are skipped" "$(optional "'?strange'"; echo "$said")"

# Without root and sudo it says what to type; a closed input does not matter.
mkdir programs
for program in bash dpkg-query grep apt-get; do ln -s "$(command -v $program || echo /bin/true)" programs/; done
printf '#!/bin/sh\necho 1000\n' >programs/id
chmod +x programs/id
status=0
said=$(PATH=$PWD/programs bash -c "set -euo pipefail; source '$setup'; install_system_packages no-such-package-of-trireme" 2>&1 <&-) || status=$?
check "without root" 1 "$status"
check "says what to type" "trireme: Type as root: apt-get update && apt-get install no-such-package-of-trireme" "$(grep as\ root: <<<"$said")"

# Without apt-get it names what it would have installed, and how to go on where that is there.
rm programs/apt-get
install() { (export "$@" PATH=$PWD/programs; bash -c "set -euo pipefail; source '$setup'; install_system_packages no-such-package-of-trireme" 2>&1); }
check "another distribution" "  Then type: TRIREME_PACKAGES=no bash" "$(install TRIREME_PACKAGES= | tail -n 1 | sed 's/^trireme: /  /' || true)"
check "packages that are there in another way" "" "$(install TRIREME_PACKAGES=no)"
exit $((failures > 0))
