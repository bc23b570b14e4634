# SPDX-License-Identifier: Apache-2.0
# Sourced by tools/check and tools/demo: installs the Debian packages that are missing.
# shellcheck shell=bash disable=SC2034

kvpool_packages_build="build-essential meson ninja-build pkg-config python3 libnuma-dev libjemalloc-dev
libsystemd-dev libcyaml-dev libyaml-dev libjansson-dev libsqlite3-dev libxxhash-dev libopenblas-dev libseccomp-dev
libcmocka-dev"
kvpool_packages_check="clang clang-format libclang-rt-14-dev g++ systemd mandoc shellcheck valgrind
redis-server memcached git python3-cffi python3-dev python3-numpy"

# need_packages LIST: installs what dpkg does not have, as root or through sudo.
need_packages()
{
	local missing=() package as_root=()

	for package in $1; do
		dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
			missing+=("$package")
	done
	[ ${#missing[@]} -eq 0 ] && return 0
	if ! command -v apt-get >/dev/null; then
		echo "These Debian packages are missing and there is no apt-get: ${missing[*]}" >&2
		return 1
	fi
	if [ "$(id -u)" -ne 0 ]; then
		if ! command -v sudo >/dev/null; then
			echo "Run as root once: apt-get install ${missing[*]}" >&2
			return 1
		fi
		as_root=(sudo)
	fi
	echo "Installing: ${missing[*]}" >&2
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 &&
		"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
			--no-install-recommends "${missing[@]}" >/dev/null
}

# configure DIR OPTIONS...: sets a build folder up, or brings a used one up to date.
configure()
{
	local dir=$1
	shift
	if [ -f "$dir/build.ninja" ]; then
		meson configure "$dir" "$@" >/dev/null
	else
		meson setup "$dir" "$@" >"$dir.log" 2>&1 || {
			cat "$dir.log" >&2
			return 1
		}
		rm -f "$dir.log"
	fi
}
