# SPDX-License-Identifier: Apache-2.0
"""A tool that is ended leaves no daemon, no client and no file behind."""
import glob
import os
import signal
import subprocess
import tempfile
import time

KVREPLAY, KVBENCH = os.environ["KVREPLAY"], os.environ["KVBENCH"]


def wait_for(what, done):
    for _ in range(3000):
        if done():
            return
        time.sleep(.02)
    raise AssertionError("in vain: " + what)


def mentioning(text):
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as f:
                if text.encode() in f.read():
                    found.append(path)
        except OSError:
            pass
    return found


def defaults():
    # Whoever runs the tests may have them ignored: a shell in the background, nohup.
    for sig in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(sig, signal.SIG_DFL)


def end(tmp, sig, args):
    # The folder's name is in the command lines of all that belongs to this tool.
    tool = subprocess.Popen(args, env=dict(os.environ, TMPDIR=tmp), stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, start_new_session=True,
                            preexec_fn=defaults)
    wait_for("a daemon", lambda: glob.glob(tmp + "/kvpool-*/kvpool.sock"))
    os.kill(tool.pid, sig)
    assert tool.wait(60) == -sig, (args, tool.returncode)
    wait_for("the end of all processes", lambda: not mentioning(tmp))
    if sig != signal.SIGKILL:
        assert not glob.glob(tmp + "/kvpool-*"), args


with tempfile.TemporaryDirectory() as tmp:
    trace = tmp + "/trace"
    subprocess.run([KVREPLAY, "generate", "--requests", "20000", "--out", trace], check=True)
    for sig in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL:
        end(tmp, sig, [KVREPLAY, "run", "--trace", trace, "--format", "mooncake",
                       "--clients", "3"])
        for left in glob.glob(tmp + "/kvpool-*/*"):
            os.unlink(left)
        for left in glob.glob(tmp + "/kvpool-*"):
            os.rmdir(left)
    end(tmp, signal.SIGTERM, [KVBENCH, "put"])
