#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a user of an installation has: test_install.sh MESON SOURCE BUILD COMPILER
# Programs find their library, nothing lies outside the prefix, examples compile and run as the
# installed headers are, the model runs, and the options for folders count.
set -euo pipefail

meson=$1
source=$2
build=$3
cc=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LD_LIBRARY_PATH

fail()
{
	echo "$*"
	exit 1
}

DESTDIR=$work/root "$meson" install -C "$build" --no-rebuild --quiet >"$work/log" 2>&1 || {
	cat "$work/log"
	exit 1
}
prefix=$("$meson" introspect --buildoptions "$build" |
	python3 -c 'import json, sys; print([o["value"] for o in json.load(sys.stdin) if o["name"] == "prefix"][0])')
top=$work/root$prefix

outside=$(find "$work/root" -type f ! -path "$top/*")
[ -z "$outside" ] || fail "installed outside $prefix: $outside"
for file in bin/kvctl sbin/kvpoold lib/systemd/system/kvpoold.service lib/systemd/system/kvpoold.socket \
	lib/sysusers.d/kvpool.conf lib/tmpfiles.d/kvpool.conf share/man/man1/kvctl.1 \
	share/bash-completion/completions/kvbench share/doc/kvpool/kvpoold.yaml \
	share/doc/kvpool/README.md share/doc/kvpool/docs/operations.md \
	share/doc/kvpool/examples/put_get.c share/kvpool/demo/handbook.txt \
	share/kvpool/models/bytes-4m/model.safetensors; do
	[ -f "$top/$file" ] || fail "not installed: $file"
done
grep -q "^ExecStart=$prefix/sbin/kvpoold " "$top/lib/systemd/system/kvpoold.service" ||
	fail "the unit starts something else"

# Where it lies now is not where it was built for: programs look beside themselves.
if [ "$prefix" != /usr ]; then
	for program in kvctl kvrun kvreplay kvbench; do
		"$top/bin/$program" --version >"$work/out" 2>&1 || fail "$program: $(cat "$work/out")"
	done
	"$top/bin/kvrun" --model "$top/share/kvpool/models/bytes-4m" --kvpool off --prompt Water \
		--steps 4 --json >"$work/out" 2>&1 || fail "kvrun: $(cat "$work/out")"
	grep -q '"tokens"' "$work/out" || fail "kvrun: $(cat "$work/out")"
	"$top/bin/kvbench" estimate --model "$top/share/kvpool/models/bytes-4m" >"$work/out"
fi

pc=$(find "$work/root" -name pkgconfig -type d)
export PKG_CONFIG_LIBDIR=$pc PKG_CONFIG_SYSROOT_DIR=$work/root
examples=0
for example in "$top"/share/doc/kvpool/examples/*.c; do
	packages=kvpool
	if grep -q '<kernels/' "$example"; then
		packages="kvpool kvpool-kernels"
	fi
	# shellcheck disable=SC2046,SC2086 # words are what it prints
	$cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -pedantic -o "$work/example" "$example" \
		$(pkg-config --cflags --libs $packages)
	# Nobody listens: it runs, and says so.
	if KVPOOL_SOCKET=$work/none LD_LIBRARY_PATH=$(dirname "$pc") "$work/example" >"$work/out" 2>&1; then
		fail "$example: no error without a daemon"
	fi
	grep -q "No such file or directory" "$work/out" || fail "$(cat "$work/out")"
	examples=$((examples + 1))
done
[ $examples -gt 3 ] || fail "only $examples examples"

# Folders go where the options say, or nowhere.
unset PKG_CONFIG_LIBDIR PKG_CONFIG_SYSROOT_DIR
CC=$cc "$meson" setup "$work/other" "$source" --prefix "$work/o" -Dunitdir=/elsewhere/units \
	-Dsysusersdir= -Dtmpfilesdir=etc/tmp -Dcuda=disabled >"$work/log" 2>&1 || fail "$(cat "$work/log")"
"$meson" introspect --installed "$work/other" >"$work/installed"
grep -q '"/elsewhere/units/kvpoold.service"' "$work/installed" || fail "unitdir does not count"
grep -q "\"$work/o/etc/tmp/kvpool.conf\"" "$work/installed" || fail "tmpfilesdir does not count"
if grep -q sysusers.d "$work/installed"; then
	fail "an empty sysusersdir is not left out"
fi
echo "$examples examples"
