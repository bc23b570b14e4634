#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Beside a daemon: engines of one codec share blocks, of different ones do not.
# test_codec_spaces.sh KVRUN MODEL
set -euo pipefail

kvrun=$1
model=$2
prompt=$(printf 'It was a long evening, and nobody had said a word of it. %.0s' 1 2 3 4 5)

# reused CODEC...: tokens of the prompt that came from the cache.
reused()
{
	"$kvrun" --model "$model" --prompt "$prompt" --steps 3 --json "$@" | python3 -c 'import json, sys
r = json.loads(sys.stdin.read())
assert r["kvpool"] == "attached", r
print(r["reused_tokens"])'
}

got="$(reused --codec tq4) $(reused --codec tq2) $(reused) $(reused --codec tq4/tq2)"
[ "$got" = "0 0 0 0" ] || {
	echo "reused across codecs: $got"
	exit 1
}
got="$(reused --codec tq4) $(reused --codec tq2/tq2) $(reused) $(reused --codec tq4/tq2)"
[ "$got" = "256 256 256 256" ] || {
	echo "not reused by the same codec: $got"
	exit 1
}
