# SPDX-License-Identifier: Apache-2.0
"""dist/kvpool.bash: what bash would offer. $COMPLETION, and the programs' paths in $KVCTL and others."""
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fake_admin import FakeAdmin  # noqa: E402

SCRIPT = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvpool; ' \
         'printf "%s\\n" "${COMPREPLY[@]}"'
if not shutil.which("bash"):
    print("skipped: there is no bash")
    sys.exit(77)


def offered(program, *words, cwd=None):
    done = subprocess.run(["bash", "-c", SCRIPT, "bash", os.environ["COMPLETION"],
                           os.environ[program], *words], capture_output=True, text=True, timeout=60,
                          cwd=cwd, env=dict(os.environ, KVPOOL_SOCKET="/nonexistent/kvpool.sock"))
    assert done.returncode == 0 and not done.stderr, (words, done.stderr)
    return [x for x in done.stdout.split("\n") if x]


def same(got, *want):
    assert sorted(got) == sorted(want), (got, want)


# Commands and options, as each program's own help has them.
same(offered("KVCTL", "sta"), "status")
assert {"status", "blocks", "doctor"} <= set(offered("KVCTL", ""))
same(offered("KVCTL", "--so"), "--socket")
same(offered("KVCTL", "blocks", "--s"), "--socket", "--sort", "--space", "--state")
same(offered("KVCTL", "--json", "blocks", "--p"), "--pinned")
same(offered("KVCTL", "--socket", "/x/y.sock", "clients", "--t"), "--tenant", "--timeout")
assert "--pinned" not in offered("KVCTL", "clients", "--")
same(offered("KVBENCH", "est"), "estimate")
same(offered("KVBENCH", "estimate", "--d"), "--dim", "--dtype")
same(offered("KVBENCH", "put", "--bl"), "--block-kib", "--blocks")
same(offered("KVREPLAY", "sim"), "simulate")
same(offered("KVREPLAY", "simulate", "--in"), "--ingest")
same(offered("KVRUN", "--codec"), "--codec", "--codec-mode")
same(offered("KVPOOLD", "--c"), "--check-config", "--config")
assert offered("KVPOOLD", "") == offered("KVPOOLD", "--")

# Words that an option takes.
same(offered("KVCTL", "blocks", "--sort", ""), "serial", "hits", "touched", "depth", "tokens")
same(offered("KVCTL", "blocks", "--state", "r"), "recipe")
same(offered("KVCTL", "blocks", "--sort", "=", "to"), "touched", "tokens")
same(offered("KVCTL", "blocks", "--limit", ""))
same(offered("KVCTL", "status", "--watch", "--c"), "--count")
same(offered("KVBENCH", "attention", "--isa", "a"), "avx2", "avx512", "amx", "amx-bf16")
same(offered("KVBENCH", "estimate", "--dtype", ""), "f32", "f16", "bf16", "f8")
same(offered("KVREPLAY", "simulate", "--format", "o"), "oracle")
same(offered("KVREPLAY", "run", "--format", ""), "mooncake", "agent")
same(offered("KVREPLAY", "generate", "--kind", "r"), "rag")
same(offered("KVRUN", "--codec-mode", ""), "shadow", "primary")
same(offered("KVRUN", "--kv-dtype", "b"), "bf16")

with tempfile.TemporaryDirectory() as tmp, FakeAdmin({
        "devices": {"devices": [{"name": "spare"}, {"name": "fast"}]},
        "tenants": {"tenants": [{"name": "research"}, {"name": "box"}, {"name": "uid-7"}]},
        "blocks": lambda r: {"blocks": [{"key": "abcd" * 8}] + [{"key": "ab12" * 8}] * (
            not r.get("pinned"))}}) as fake:
    # Tenants and blocks, asked from the daemon that the line names.
    for command in (["tenants"], ["evict", "--all"], ["blocks"]):
        same(offered("KVCTL", "--socket", fake.socket, *command, "--tenant", ""),
             "research", "box", "uid-7")
    same(offered("KVCTL", "--socket", fake.socket, "spaces", "--tenant", "r"), "research")
    same(offered("KVCTL", "--socket", fake.socket, "inspect", "abc"), "abcd" * 8)
    same(offered("KVCTL", "--socket", fake.socket, "pin", "ab"), "abcd" * 8, "ab12" * 8)
    same(offered("KVCTL", "--socket", fake.socket, "unpin", ""), "abcd" * 8)
    same(offered("KVCTL", "tenants", "--tenant", ""))
    same(offered("KVCTL", "device", "d"), "drain", "detach")
    same(offered("KVCTL", "--socket", fake.socket, "device", "drain", ""), "spare", "fast")
    same(offered("KVCTL", "--socket", fake.socket, "device", "list", ""))
    # Sockets where one is wanted, files where a file is.
    open(os.path.join(tmp, "model.json"), "w").close()
    os.mkdir(os.path.join(tmp, "more"))
    where = os.path.dirname(fake.socket)
    same(offered("KVCTL", "--socket", where + "/"), fake.socket)
    same(offered("KVREPLAY", "run", "--socket", fake.socket[:-3]), fake.socket)
    assert fake.socket in offered("KVRUN", "--kvpool", fake.socket[:-3])
    same(offered("KVRUN", "--kvpool", "of", cwd=tmp), "off")
    same(offered("KVCTL", "--socket", "mo", cwd=tmp), "more")
    same(offered("KVBENCH", "estimate", "--model", "mo", cwd=tmp), "model.json", "more")
    same(offered("KVPOOLD", "--config", "mo", cwd=tmp), "model.json", "more")
print("what bash offers is what the programs take")
