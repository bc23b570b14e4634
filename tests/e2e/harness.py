# SPDX-License-Identifier: Apache-2.0
"""Starts a real kvpoold for a test and stops it again.

In Python:

    from harness import Daemon, run_as
    with Daemon({"memory": "256MiB"}) as d:
        run_as(1001, [client, "--socket", d.socket])

On the command line, for tests that are C programs (KVPOOL_SOCKET is set for them):

    python3 harness.py [--config JSON] [--uid N] -- PROGRAM ARGS...

The program to start is $KVPOOLD. It runs as uid 61999, so that clients of other uids, root included,
may attach; a test that is not root gets `user: ""` and `trust_daemon_uid` instead. Exit status 77
means that a test cannot run here (needs_root()).
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

DAEMON_UID = 61999
SKIP = 77


def needs_root():
    """Ends the test as skipped unless it may take other uids."""
    if os.geteuid() != 0:
        print("skipped: needs root, to run clients as several users")
        sys.exit(SKIP)


def _become(uid):
    def change():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    return change


def popen_as(uid, command, **more):
    """A process of another uid (and the gid of the same number); uid None: as this one."""
    return subprocess.Popen(command, preexec_fn=_become(uid) if uid is not None else None, **more)


def run_as(uid, command, **more):
    more.setdefault("timeout", 120)
    return subprocess.run(command, preexec_fn=_become(uid) if uid is not None else None, **more)


def others_may_run(path):
    """May any user run this program where it lies? Not in a build folder below /root, for one."""
    path = os.path.realpath(path)
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


def wait_for(what, seconds=60.0):
    """Waits until what() is true and returns its value. Fails if it never is."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("waited %.0f s in vain for %s" % (seconds, what))
        time.sleep(0.01)


class Daemon:
    """A kvpoold in a directory of its own below /tmp. `config`: what differs from the test's
    defaults, as a dict. `group`: the control group it runs in (cgroup.py). Attributes: socket, dir,
    config_file, log_file, pid, notes (what it told systemd)."""

    def __init__(self, config=None, program=None, env=None, ready_s=60.0, group=None):
        self.program = program or os.environ["KVPOOLD"]
        self.group = group
        self.env = env or {}
        self.ready_s = ready_s
        self.process = None
        self.dir = tempfile.mkdtemp(prefix="kvpool-test-")
        os.chmod(self.dir, 0o755)
        self.runtime_dir = os.path.join(self.dir, "run")
        self.socket = os.path.join(self.runtime_dir, "kvpool.sock")
        self.config_file = os.path.join(self.dir, "kvpoold.json")
        self.log_file = os.path.join(self.dir, "log")
        self.config = {"runtime_dir": self.runtime_dir, "memory": "256MiB", "extent": "8MiB",
                       "log_level": "debug"}
        if os.geteuid() == 0:
            self.config["user"] = str(DAEMON_UID)
            os.mkdir(self.runtime_dir, 0o755)
            os.chown(self.runtime_dir, DAEMON_UID, DAEMON_UID)
        else:
            self.config.update(user="", trust_daemon_uid="true")
        self.write_config(config or {})

    def write_config(self, changes):
        """Changes some keys (None removes one) and writes the file; reload() makes it count."""
        for key, value in changes.items():
            if value is None:
                self.config.pop(key, None)
            else:
                self.config[key] = value
        with open(self.config_file, "w", encoding="utf-8") as f:
            json.dump(self.config, f, indent=1)

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        with open(self.log_file, encoding="utf-8", errors="replace") as f:
            return f.read()

    def start(self):
        path = os.path.join(self.dir, "notify")
        if os.path.exists(path):
            os.unlink(path)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.notify.bind(path)
        os.chmod(path, 0o777)
        # Read all the time, as systemd does.
        self.notes = []
        threading.Thread(target=self._listen, args=(self.notify, self.notes), daemon=True).start()
        env = dict(os.environ, NOTIFY_SOCKET=path, **self.env)
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                [self.program, "--foreground", "--config", self.config_file],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                preexec_fn=self.group.enter if self.group else None)
        try:
            self._wait_ready()
        except AssertionError:
            self.kill()
            raise
        return self

    @staticmethod
    def _listen(notify, notes):
        while True:
            try:
                data = notify.recv(4096)
            except OSError:
                return
            if not data:
                return
            notes.extend(data.decode().split("\n"))

    def _wait_ready(self):
        end = time.monotonic() + self.ready_s
        while "READY=1" not in self.notes:
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("kvpoold is not ready (status %s):\n%s"
                                     % (self.process.poll(), self.log()))
            time.sleep(0.002)

    def _hang_up(self):
        self.notify.shutdown(socket.SHUT_RDWR)
        self.notify.close()

    def reload(self):
        """SIGHUP, and waits until it has been dealt with."""
        self.notes.clear()
        self.process.send_signal(signal.SIGHUP)
        self._wait_ready()

    def stop(self):
        """SIGTERM. A daemon that does not end well fails the test."""
        if not self.process:
            return
        self.process.terminate()
        status = self.process.wait(timeout=30)
        self.process = None
        self._hang_up()
        if status != 0:
            raise AssertionError("kvpoold ended with status %d:\n%s" % (status, self.log()))

    def kill(self):
        """SIGKILL: as if it had crashed. start() makes the next one."""
        self.process.kill()
        self.process.wait()
        self.process = None
        self._hang_up()

    def __enter__(self):
        return self if self.process else self.start()

    def __exit__(self, kind, value, trace):
        try:
            if kind is None:
                self.stop()
            elif self.process:
                self.process.kill()
                self.process.wait()
                sys.stderr.write("---- log of kvpoold\n%s----\n" % self.log()[-8000:])
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)
        return False


def main():
    import argparse
    p = argparse.ArgumentParser(description="runs a program beside a kvpoold of its own")
    p.add_argument("--config", default="{}", help="JSON object: keys that differ")
    p.add_argument("--uid", type=int, help="run the program as this user (needs root)")
    p.add_argument("program", nargs=argparse.REMAINDER)
    a = p.parse_args()
    command = a.program[1:] if a.program[:1] == ["--"] else a.program
    if not command:
        p.error("which program?")
    if a.uid is not None:
        needs_root()
    with Daemon(json.loads(a.config)) as d:
        env = dict(os.environ, KVPOOL_SOCKET=d.socket, KVPOOLD_PID=str(d.pid))
        return run_as(a.uid, command, env=env, timeout=None).returncode


if __name__ == "__main__":
    sys.exit(main())
