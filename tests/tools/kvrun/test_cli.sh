#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kvrun as a program: exit codes, messages, output. test_cli.sh KVRUN MODEL
set -euo pipefail

kvrun=$1
model=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail()
{
	echo "FAILED: $*" >&2
	failures=$((failures + 1))
}

# expect STATUS PATTERN ARGUMENT...: exit status, and what its messages must match.
expect()
{
	local want=$1 pattern=$2 got=0
	shift 2
	"$kvrun" "$@" >"$work/out" 2>"$work/err" </dev/null || got=$?
	[ "$got" = "$want" ] || fail "status $got, not $want: kvrun $*"
	[ -z "$pattern" ] || grep -q -e "$pattern" "$work/err" || fail "no '$pattern' in '$(cat "$work/err")': kvrun $*"
}

for help in --help -h; do
	expect 0 "" $help
	grep -q -- "--reuse-tail" "$work/out" || fail "$help"
done
expect 0 "" --version
expect 2 "--model is missing"
expect 2 "nothing to run" --model "$model"
expect 2 "unexpected argument \"x\"" --model "$model" --prompt a x
expect 2 "unrecognized option" --what
expect 2 "--steps -1: must be" --model "$model" --prompt a --steps -1
expect 2 "--steps 5x: must be" --model "$model" --prompt a --steps 5x
expect 2 "--seed .*: must be" --model "$model" --prompt a --seed 18446744073709551616
expect 2 "--top-p 0: must be" --model "$model" --prompt a --top-p 0
expect 2 "--temperature nan: must be" --model "$model" --prompt a --temperature nan
expect 2 "--block-tokens 8: must be" --model "$model" --prompt a --block-tokens 8
expect 2 "--codec tq9: must be" --model "$model" --prompt a --codec tq9
expect 2 "--codec : must be" --model "$model" --prompt a --codec ""
expect 2 "--codec-mode both: must be" --model "$model" --prompt a --codec tq4 --codec-mode both
expect 2 "tiles without --codec" --model "$model" --prompt a --tiles
expect 2 "codec-mode without --codec" --model "$model" --prompt a --codec-mode shadow
expect 2 "add --kvpool off" --model "$model" --prompt a --codec tq4 --codec-mode primary
expect 3 "kivi4-g128 cannot hold keys of 64 tokens" --model "$model" --kvpool off --prompt a --codec kivi4-g128
expect 3 "smart cannot hold" --model "$model" --kvpool off --prompt a --codec smart
expect 2 "--kv-dtype f64: must be" --model "$model" --prompt a --kv-dtype f64

expect 3 "$work/none: No such file" --model "$work/none" --prompt a
mkdir "$work/empty"
expect 3 "empty/config.json: No such file" --model "$work/empty" --prompt a
cp "$model/config.json" "$work/empty"
head -c 100000 "$model/model.safetensors" >"$work/empty/model.safetensors"
expect 3 "truncated" --model "$work/empty" --prompt a
expect 3 "No such file" --model "$model" --prompt-file "$work/none"
head -c 3000 /dev/zero | tr '\0' a >"$work/long"
expect 3 "3001 tokens and the model's context is 2048" --model "$model" --kvpool off \
	--prompt-file "$work/long"
expect 3 "windows need 4097" --model "$model" --perplexity "$work/long"
expect 3 "beyond the model's context" --model "$model" --perplexity "$work/long" --window 4096

expect 0 "running without kvpool" --model "$model" --kvpool "$work/nobody" --prompt "The " --steps 4
with=$(cat "$work/out")
expect 0 "kvpool off" --model "$model" --kvpool off --prompt "The " --steps 4
[ "$with" = "$(cat "$work/out")" ] || fail "text differs without a daemon"

# field NAME: of each JSON object in out, one line each.
field()
{
	python3 -c 'import json, sys
for line in open(sys.argv[1], encoding="utf-8"):
    print(json.loads(line)[sys.argv[2]])' "$work/out" "$1"
}
sampled()
{
	expect 0 "" --model "$model" --kvpool off --prompt "Once" --steps 40 --temperature 1 --json \
		--seed "$1"
	field tokens >"$work/$2"
}
sampled 7 first
sampled 7 second
sampled 8 third
cmp "$work/first" "$work/second" || fail "the same seed gave other tokens"
! cmp -s "$work/first" "$work/third" || fail "another seed gave the same tokens"

printf 'one\ntwo\n' >"$work/lines"
"$kvrun" --model "$model" --kvpool off --steps 3 --json --prompt zero --lines <"$work/lines" >"$work/out"
[ "$(field prompt_tokens | tr '\n' ' ')" = "5 4 4 " ] || fail "--lines: $(cat "$work/out")"
[ "$(field stop | sort -u)" = steps ] || fail "stop: $(cat "$work/out")"
expect 0 "" --model "$model" --kvpool off --prompt "$(head -c 2040 "$work/long")" --steps 99 --json
[ "$(field stop) $(field tokens | wc -w)" = "context 8" ] || fail "context: $(cat "$work/out")"
expect 0 "" --model "$model" --kvpool off --prompt x --steps 0 --json
[ "$(field tokens)" = "[]" ] || fail "--steps 0: $(cat "$work/out")"

# Both modes give the same text and bits; primary keeps one native block.
for mode in shadow primary; do
	expect 0 "4 blocks in tq4-nc/tq4-nc" --model "$model" --kvpool off --steps 9 --codec 4bit --codec-mode "$mode" \
		--prompt "$(head -c 300 "$work/long")"
	expect 0 "" --model "$model" --kvpool off --steps 9 --json --codec 4bit --codec-mode "$mode" \
		--prompt "$(head -c 300 "$work/long")"
	field logits_xxh3 >"$work/bits.$mode"
	field codec >"$work/codec.$mode"
	grep -q "'errors': 0" "$work/codec.$mode" || fail "--json: $(cat "$work/codec.$mode")"
done
expect 0 "4 blocks in tq4-nc/tq4-nc" --model "$model" --kvpool off --steps 9 --codec 4bit --tiles \
	--prompt "$(head -c 300 "$work/long")"
cmp "$work/bits.shadow" "$work/bits.primary" || fail "shadow and primary differ"
grep -q "'native_bytes': 262144," "$work/codec.primary" || fail "$(cat "$work/codec.primary")"
expect 0 "" --model "$model" --perplexity "$work/long" --window 512 --windows 2 --codec tq2 --json
[ "$(field codec)" = tq2/tq2 ] || fail "--perplexity --codec: $(cat "$work/out")"

for form in --json --no-store; do
	got=0
	"$kvrun" --model "$model" --kvpool off --prompt x --steps 2 "$form" >/dev/full \
		2>"$work/err" || got=$?
	[ "$got" = 1 ] || fail "status $got with a full standard output"
	grep -q "standard output cannot be written" "$work/err" || fail "$(cat "$work/err")"
done

for form in --help --version; do
	got=0
	"$kvrun" "$form" >/dev/full 2>"$work/err" || got=$?
	[ "$got" = 1 ] || fail "$form: status $got with a full standard output"
done

[ "$failures" = 0 ] || exit 1
echo "all as expected"
