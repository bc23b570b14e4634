#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a user of the installed libraries has: test_install.sh MESON BUILD COMPILER EXAMPLE...
set -euo pipefail

meson=$1
build=$2
cc=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

DESTDIR=$work/root "$meson" install -C "$build" --no-rebuild --quiet >"$work/log" 2>&1 || {
	cat "$work/log"
	exit 1
}
pc=$(find "$work/root" -name pkgconfig -type d)
export PKG_CONFIG_LIBDIR=$pc PKG_CONFIG_SYSROOT_DIR=$work/root
for source in "$@"; do
	packages=kvpool
	if grep -q '<kernels/' "$source"; then
		packages="kvpool kvpool-kernels"
	fi
	# shellcheck disable=SC2046,SC2086 # words are what it prints
	$cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -pedantic -o "$work/example" "$source" \
		$(pkg-config --cflags --libs $packages)
	# Nobody listens: it runs, and says so.
	if KVPOOL_SOCKET=$work/none LD_LIBRARY_PATH=$(dirname "$pc") "$work/example" >"$work/out" 2>&1; then
		echo "$source: no error without a daemon"
		exit 1
	fi
	grep -q "No such file or directory" "$work/out" || {
		cat "$work/out"
		exit 1
	}
done
echo "$# examples"
