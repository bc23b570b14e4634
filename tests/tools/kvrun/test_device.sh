#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Beside a daemon with a device of host memory: an engine that reads there computes the very same.
# test_device.sh KVRUN MODEL
set -euo pipefail

kvrun=$1
model=$2
prompt=$(printf 'It was a long evening, and nobody had said a word of it. %.0s' 1 2 3 4 5)

said=$(mktemp)
trap 'rm -f "$said"' EXIT

# run ARG...: tokens reused, blocks read, those read on the device, the logits.
run()
{
	"$kvrun" --model "$model" --prompt "$prompt" --steps 8 --json "$@" | python3 -c 'import json, sys
r = json.loads(sys.stdin.read())
assert r["kvpool"] == "attached", r
b = r["blocks"]
print(r["reused_tokens"], b["read"], b["device"], r["logits_xxh3"])'
}

cold=$(run)
here=$(run)
there=$(run --device host)
again=$(run --device 0)
none=$(run --device 3 2>"$said")
grep -q -e '--device 3: the daemon has no such device that is up; cached blocks are read in DRAM' "$said"
logits=${here##* }
printf '%s\n' "cold $cold" "DRAM $here" "device $there"
[ "${cold%% *}" = 0 ]
[ "$here" = "256 4 0 $logits" ]
[ "$there" = "256 4 4 $logits" ]
[ "$again" = "$there" ]
[ "$none" = "$here" ]
