# SPDX-License-Identifier: Apache-2.0
"""What tests of connectors share: the interpreter that has the engine, and engines as processes that
answer one JSON line for each line they are given."""
import importlib.util
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import SKIP  # pylint: disable=wrong-import-position

ROOT = os.environ["KVPOOL_SOURCE"]
MODEL = os.path.join(ROOT, "share/models/bytes-4m")
T = 64  # tokens in a block


def needs(*modules):
    """Goes on in $KVPOOL_ENGINES_PYTHON if it is set; ends the test as skipped without the modules."""
    other = os.environ.pop("KVPOOL_ENGINES_PYTHON", None)
    if other:
        os.execv(other, [other] + sys.argv)
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing:
        print("skipped: %s has no %s; tools/check --engines installs it" %
              (sys.executable, ", ".join(missing)))
        sys.exit(SKIP)
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TQDM_DISABLE="1")


def prompt(number, tokens=1900):
    """Token ids of a prompt of the model of bytes: no two of different numbers begin alike."""
    text = b""
    for name in ("handbook.txt", "letter-a.txt", "letter-b.txt"):
        with open(os.path.join(ROOT, "share/demo", name), "rb") as f:
            text += f.read()
    at = number * 97 % len(text)
    return [256] + list((b"%d. " % number + text[at:] + text)[:tokens - 1])


def hit(tokens, block=T):
    """What another process finds of so many tokens: whole blocks, and never all."""
    return (tokens - 1) // block * block


class Worker:
    """The same test program as an engine, in a process of its own."""

    def __init__(self, *args):
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen([sys.executable, sys.argv[0], "worker", *args],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.send(**request)
        return self.answer()

    def send(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the engine has ended: %s" % self.process.wait(30)
        return json.loads(line)

    def end(self):
        """Ends as engines do, and with all that it stored visible or refused."""
        self.process.stdin.close()
        assert self.process.wait(300) == 0
        self.process.stdout.close()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()


def serve(handle):
    """The worker's side: answers each request with what handle(**request) returns, until the end."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print
    for line in sys.stdin:
        out.write(json.dumps(handle(**json.loads(line))) + "\n")
        out.flush()
