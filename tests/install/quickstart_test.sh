#!/usr/bin/env bash
# ./quickstart with stand-ins for the set-up and for trireme: what becomes of the earlier run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d "${TMPDIR:-/tmp}/trireme quickstart XXXXXX")
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir -p scripts build/release/bin
cp "$root/quickstart" .
{ cat "$root/scripts/setup.sh"; echo 'install_system_packages() { :; }; install_torch() { :; }; build() { :; }'; } >scripts/setup.sh
cat >build/release/bin/trireme <<'TRIREME'
#!/usr/bin/env bash
[ "$1" = train ] || exit 0
mkdir -p runs/austen/logs && touch runs/austen/logs/lock
[ "$STATUS" != 0 ] || echo "$NAME" >runs/austen/metrics.jsonl
echo "$NAME" >runs/austen/logs/rank0.log
exit "$STATUS"
TRIREME
chmod +x build/release/bin/trireme
unset TRIREME_PRESET

failures=0
check() { # check WHAT EXPECTED GOT
  [ "$2" = "$3" ] || { printf '%s\n  expected: %s\n  got:      %s\n' "$1" "$2" "$3"; failures=$((failures + 1)); }
}
quickstart() { # quickstart NAME STATUS: prints its exit status
  local status=0
  NAME=$1 STATUS=$2 ./quickstart </dev/null >said 2>&1 || status=$?
  echo "$status"
}
logs() { (cd runs && for run in *; do echo "$run $(cat "$run/logs/rank0.log")"; done | tr '\n' ';'); }

check "the first run" 0 "$(quickstart first 0)"
check "a second one" 0 "$(quickstart second 0)"
check "keeps the first" "austen second;austen-1 first;" "$(logs)"
check "wrong input" 2 "$(quickstart slip 2)"
check "gives the earlier run back" "austen second;austen-1 first;" "$(logs)"
check "a failure before the first step" 1 "$(quickstart failed 1)"
check "leaves its logs" "austen failed;austen-1 first;austen-2 second;" "$(logs)"
hold='mkdir -p runs/austen/logs; (flock 9; exec sleep 60) 9>>runs/austen/logs/lock & echo $! >holder; sleep 0.3'
sed -i "2i [ \"\$1\" != train ] || { $hold; }" build/release/bin/trireme
check "wrong input while another training writes there" 2 "$(quickstart other 2)"
kill "$(cat holder)"
check "touches nothing" "austen other;austen-1 first;austen-2 second;austen-3 failed;" "$(logs)"
exit $((failures > 0))
