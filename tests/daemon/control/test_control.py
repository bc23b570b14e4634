# SPDX-License-Identifier: Apache-2.0
"""The control plane against hand-written packets: $KVPOOLD is kvpoold with the tests' own data plane
(fake_dataplane.c), whose `status` tells what the control plane asked of it."""
import errno
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "e2e"))
from harness import DAEMON_UID, Daemon, needs_root, wait_for  # noqa: E402
import rawclient  # noqa: E402
from rawclient import Raw  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))

# One line of Python per command: the client lives in another process, of another uid. It takes that
# uid by itself, when all is imported: the interpreter may lie where only root can read.
CHILD = r"""
import sys
sys.path.insert(0, %r)
import rawclient, os, json, socket, struct
from rawclient import Raw
r, path, uid = [], sys.argv[1], int(sys.argv[2])
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
""" % HERE


class Client:
    """A process of its own that does what it is told. Expressions may name r (a list of Raw)."""

    def __init__(self, path, uid=1001):
        self.process = subprocess.Popen([sys.executable, "-c", CHILD, path, str(uid)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, expression):
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def attach(self):
        """(session, tenant, epoch), or the error's number."""
        return self.do("(lambda x: x if isinstance(x, tuple) else x.error)"
                       "(r.append(Raw(path)) or r[-1].attach())")

    def end(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        self.process.communicate()


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def status(d):
    a = Raw(d.socket)
    a.hello(rawclient.ADMINISTRATOR)
    p = a.receive()
    assert p.type == rawclient.WELCOME and not p.fds
    # "check" answers what the data plane was told, see fake_dataplane.c.
    answer = {}
    for verb in "status", "check", "tenants":
        code, text = a.ask(json.dumps({"verb": verb}))
        assert code == 0, code
        answer.update(json.loads(text))
    a.close()
    return answer


class Control(unittest.TestCase):
    config = {}

    def setUp(self):
        self.d = Daemon({"memory": "1GiB", "defaults": {"share": "4MiB"}, **self.config}).start()
        self.clients = []
        self.addCleanup(self.finish)

    def finish(self):
        for c in self.clients:
            if c.process.poll() is None:
                c.end()
        failed = self._outcome and getattr(self._outcome, "success", True) is False
        self.d.__exit__(AssertionError if failed else None, None, None)

    def client(self, uid=1001, path=None):
        c = Client(path or self.d.socket, uid)
        self.clients.append(c)
        return c

    def fds_of_daemon(self):
        return len(os.listdir("/proc/%d/fd" % self.d.pid))


class Attaching(Control):
    def test_attach_and_bye(self):
        c = self.client()
        session, tenant, epoch = c.attach()
        self.assertGreater(session, 0)
        self.assertGreater(epoch, 0)
        self.assertEqual(c.do("r[0].send(rawclient.SPACE_OPEN, bytes(rawclient.CANON), 5) or "
                              "[r[0].receive().error]"), [-errno.EINVAL])
        self.assertEqual(c.do("r[0].send(rawclient.SPACE_OPEN, rawclient.canon(b''), 6)"
                              " or [(lambda p: (p.type, p.tag))(r[0].receive())]"),
                         [[rawclient.SPACE, 6]])
        self.assertEqual(c.do("r[0].send(rawclient.EXTENT_GET, b'\\1\\0\\0\\0\\0\\0\\0\\0', 8) or "
                              "(lambda p: p.close() or [p.type, p.tag, len(p.fds)])"
                              "(r[0].receive())"), [rawclient.EXTENT, 8, 1])
        self.assertEqual(c.do("r[0].send(rawclient.EXTENT_GET, b'\\7\\0\\0\\0\\0\\0\\0\\0', 9) or "
                              "r[0].receive().error"), -errno.ENOENT)
        self.assertEqual(status(self.d)["detached"], 0)
        self.assertIsNone(c.do("r[0].send(rawclient.BYE) or r[0].receive()"))
        self.assertEqual(status(self.d)["detached"], 1)

    def test_lost_connection_keeps_the_session_until_death(self):
        c = self.client()
        c.attach()
        c.do("r.pop().close()")
        time.sleep(0.3)
        self.assertEqual(status(self.d)["detached"], 0)
        c.end()
        wait_for(lambda: status(self.d)["detached"] == 1)

    def test_a_space_that_takes_long_to_open_holds_nobody_up(self):
        # The data plane goes on emptying another one for it until an administrator evicts.
        c, gone, other = self.client(), self.client(1002), self.client(1003)
        for x in c, gone:
            x.attach()
            x.do("r[0].send(rawclient.SPACE_OPEN, rawclient.canon(b'slow'), 8) or "
                 "r[0].send(rawclient.EXTENT_GET, struct.pack('=II', 0, 0), 9)")
        self.assertGreater(other.attach()[0], 0)
        gone.do("r.pop().close()")
        gone.end()
        wait_for(lambda: status(self.d)["detached"] == 1)
        a = Raw(self.d.socket)
        a.hello(1)
        a.receive()
        self.assertEqual(a.ask('{"verb": "evict"}')[0], 0)
        # Answers come in the order of the questions.
        self.assertEqual(c.do("[[p.type, p.tag] for p in (r[0].receive(), r[0].receive())]"),
                         [[rawclient.SPACE, 8], [rawclient.EXTENT, 9]])

    def test_death_is_seen_although_a_child_holds_the_socket(self):
        c = self.client()
        c.attach()
        child = c.do("(lambda p: p if p else os.execvp('sleep', ['sleep', '30']))"
                     "(os.set_inheritable(r[0].fileno(), True) or os.fork())")
        self.assertEqual(status(self.d)["detached"], 0)
        c.process.kill()
        wait_for(lambda: status(self.d)["detached"] == 1)
        os.kill(child, signal.SIGKILL)

    def test_abi_and_role(self):
        for low, high, role, error in ((rawclient.ABI + 1, rawclient.ABI + 2, 0, -errno.EPROTONOSUPPORT),
                                       (0, rawclient.ABI - 1, 0, -errno.EPROTONOSUPPORT),
                                       (rawclient.ABI, rawclient.ABI, 9, -errno.EPROTO)):
            r = Raw(self.d.socket)
            r.hello(role, low, high)
            refusal = r.receive()
            self.assertEqual(refusal.error, error)
            if error == -errno.EPROTONOSUPPORT:  # who is newer, and what to do
                self.assertIn("%d to %d, this kvpoold %d" % (low, high, rawclient.ABI), refusal.text)
                self.assertIn("install the same release of both", refusal.text)
            self.assertIsNone(r.receive())
            r.close()
        self.assertEqual(self.client().do("r.append(Raw(path)) or r[0].hello(0, 0, %d) or "
                                          "(lambda p: p.close() or p.type)(r[0].receive())" % rawclient.ABI),
                         rawclient.WELCOME)

    def test_own_uid_is_refused(self):
        self.assertEqual(self.client(DAEMON_UID).attach(), -errno.EACCES)

    def test_overflow_uid_is_refused(self):
        uid = int(read("/proc/sys/kernel/overflowuid"))
        self.assertEqual(self.client(uid).attach(), -errno.EACCES)

    def test_each_uid_its_own_tenant(self):
        _, a, _ = self.client(1001).attach()
        _, b, _ = self.client(1002).attach()
        _, c, _ = self.client(1001).attach()
        self.assertNotEqual(a, b)
        self.assertEqual(a, c)

    def test_handshake_timeout(self):
        self.d.write_config({"handshake_ms": 200})
        self.d.reload()
        r = Raw(self.d.socket)
        self.assertEqual(r.receive().error, -errno.ETIMEDOUT)
        self.assertIsNone(r.receive())

    def test_expel(self):
        c = self.client()
        c.attach()
        self.assertEqual(
            c.do("r[0].send(rawclient.ARENA_ACK, b'\\1\\0\\0\\0\\0\\0\\0\\0') or "
                 "(lambda p: [p.error, p.text])(r[0].receive())"),
            [-errno.EPROTO, "it asked for it"])
        self.assertEqual(status(self.d)["detached"], 1)

    def test_events_reach_the_tenant_and_nobody_else(self):
        a, b, other = self.client(1001), self.client(1001), self.client(1002)
        for c in (a, b, other):
            c.attach()
        a.do("r[0].send(rawclient.ARENA_ACK, b'\\2\\0\\0\\0\\0\\0\\0\\0')")
        self.assertEqual(b.do("(lambda p: p.close() or [p.type, len(p.fds)])(r[0].receive())"),
                         [rawclient.EXTENT, 1])
        a.do("r[0].send(rawclient.ARENA_ACK, b'\\3\\0\\0\\0\\0\\0\\0\\0')")
        self.assertEqual(b.do("r[0].receive().type"), rawclient.RETIRE)
        # The sender of the first gets the second only; the other tenant neither.
        self.assertEqual(a.do("r[0].receive().type"), rawclient.RETIRE)
        self.assertEqual(other.do("r[0].send(rawclient.SPACE_OPEN, bytes(rawclient.CANON), 5) or "
                                  "r[0].receive().type"), rawclient.ERROR)

    def test_events_come_in_their_order_and_once(self):
        """To each of many guests, also while others come and go."""
        one, many, passing = (self.client(1001) for _ in range(3))
        one.attach()
        self.assertEqual(many.do("sum(isinstance((r.append(Raw(path)), r[-1].attach())[1], tuple) "
                                 "for i in range(100))"), 100)
        before = self.fds_of_daemon()
        one.do("[r[0].send(rawclient.ARENA_ACK, struct.pack('=II', 3, i)) and 0 "
               "for i in range(10)] and 1")
        passing.do("[(r.append(Raw(path)), r[-1].attach(), r.pop().close()) and 0 "
                   "for i in range(50)] and 1")
        one.do("[r[0].send(rawclient.ARENA_ACK, struct.pack('=II', 3, i)) and 0 "
               "for i in range(10, 20)] and 1")
        told = many.do("[[(lambda p: p.close() or [p.type, struct.unpack_from('=II', p.body)[1]])"
                       "(x.receive()) for i in range(20)] for x in r]")
        expected = [[rawclient.RETIRE, i] for i in range(20)]
        for heard in told:
            self.assertEqual(heard, expected)
        # A question each, whose answer is the next that comes.
        self.assertEqual(many.do("[x.send(rawclient.SPACE_OPEN, bytes(rawclient.CANON), 5) or "
                                 "x.receive().type for x in r]"), [rawclient.ERROR] * 100)
        passing.end()
        wait_for(lambda: self.fds_of_daemon() <= before)


class Hostile(Control):
    config = {"log_level": "warning"}

    def broken(self, send):
        r = Raw(self.d.socket)
        send(r)
        p = r.receive()
        if p is not None:
            self.assertEqual(p.error, -errno.EPROTO)
            self.assertIsNone(r.receive())
        r.close()

    def test_malformed_packets(self):
        before = self.fds_of_daemon()
        hello = struct.pack("=IIII64s", rawclient.ABI, rawclient.ABI, 0, 0, b"x")
        cases = [
            lambda r: r.send(rawclient.HELLO, hello, n_fds=3),
            lambda r: r.send(rawclient.HELLO, hello, fds=[0]),
            lambda r: r.send(rawclient.HELLO, hello, n_fds=1, fds=[0]),
            lambda r: r.send(rawclient.HELLO, hello, n_fds=100, fds=[0] * 100),
            lambda r: r.send(rawclient.HELLO, hello[:-1]),
            lambda r: r.send(rawclient.HELLO, hello + b"\0"),
            lambda r: r.send(rawclient.HELLO, hello, length=1 << 31),
            lambda r: r.send(rawclient.HELLO, hello, magic=1),
            lambda r: r.send(rawclient.HELLO, hello[:16] + b"n" * 64),
            lambda r: r.send_bytes(b"K"),
            lambda r: r.send(rawclient.WELCOME, b"\0" * 40),
            lambda r: r.send(0), lambda r: r.send(18), lambda r: r.send(65535),
            lambda r: r.send(rawclient.BYE), lambda r: r.send(rawclient.ADMIN, b"{}"),
            lambda r: r.send(rawclient.PROOF, b"\0" * 8),
        ]
        for case in cases:
            self.broken(case)
        wait_for(lambda: self.fds_of_daemon() <= before)
        # Some lines, not one for each packet.
        self.assertLessEqual(self.d.log().count("broke the control protocol"), 5)
        self.assertGreaterEqual(self.d.log().count("broke the control protocol"), 1)

    def test_random_packets(self):
        seed = int(os.environ.get("KVP_TEST_SEED", time.time_ns() & 0xFFFFFFFF))
        print("seed", seed)
        rng = random.Random(seed)
        c = self.client()
        c.attach()
        for _ in range(300):
            r = Raw(self.d.socket)
            try:
                if rng.random() < 0.5:
                    r.hello(rng.choice((0, 1)))
                for _ in range(rng.randrange(1, 6)):
                    body = rng.randbytes(rng.choice((0, 8, 80, rawclient.CANON, rng.randrange(9000))))
                    if rng.random() < 0.2:
                        body = b'{"verb": "' + body[:9] + b'"}'
                    r.send(rng.randrange(20), body,
                           length=len(body) if rng.random() < 0.8 else rng.getrandbits(32),
                           n_fds=rng.choice((0, 0, 0, 1, 9)), fds=[0] * rng.choice((0, 0, 0, 1, 5)))
            except (BrokenPipeError, ConnectionResetError):
                pass
            r.close()
        self.assertEqual(c.do("r[0].send(rawclient.SPACE_OPEN, bytes(rawclient.CANON), 5) or "
                              "r[0].receive().type"), rawclient.ERROR)
        # Those whose connection only ended are still there: this process lives.
        s = status(self.d)
        self.assertLess(s["detached"], s["attached"])

    def test_packet_after_attaching_ends_the_session(self):
        c = self.client()
        c.attach()
        self.assertEqual(c.do("r[0].hello() or r[0].receive().error"), -errno.EPROTO)
        self.assertEqual(status(self.d)["detached"], 1)

    def test_ten_thousand_connects(self):
        """One uid connects without end; another one attaches as if nothing were."""
        c = self.client(1001)
        before = self.fds_of_daemon()
        rss = self.resident()
        c.do("sum(1 for i in range(2000) if not r.append(Raw(path)))")
        self.assertLess(self.fds_of_daemon(), before + 600)
        self.assertLessEqual(status(self.d)["daemon"]["pending"], 512)
        self.assertGreater(self.client(1002).attach()[0], 0)
        c.do("[x.close() for x in r] and r.clear()")
        c.do("sum(1 for i in range(10000) if not Raw(path).close())")
        self.assertGreater(self.client(1003).attach()[0], 0)
        self.assertLess(self.resident() - rss, 16 << 20)
        self.assertLess(self.d.log().count("refused a connection"), 30)

    def resident(self):
        return int(read("/proc/%d/statm" % self.d.pid).split()[1]) * 4096

    def test_a_client_that_never_reads(self):
        """Its queue is bounded, others get theirs."""
        mute, busy = self.client(1001), self.client(1001)
        mute.attach()
        busy.attach()
        rss = self.resident()
        busy.do("[r[0].send(rawclient.ARENA_ACK, b'\\3\\0\\0\\0\\0\\0\\0\\0') or "
                "r[0].receive().type for i in range(20000)] and 1")
        self.assertLess(self.resident() - rss, 8 << 20)
        self.assertEqual(status(self.d)["detached"], 0)
        self.assertGreater(self.client(1001).attach()[0], 0)

    def test_what_cannot_be_sent_is_not_asked_for(self):
        """A client that asks for extents and never reads costs the ledger what its socket holds."""
        c = self.client(1001)
        c.attach()
        c.do("[r[0].send(rawclient.EXTENT_GET, b'\\1\\0\\0\\0\\0\\0\\0\\0', 8) and 0 "
             "for i in range(3000)] and 1")
        self.assertEqual(c.do("(r.append(Raw(path)), r[1].attach()) and 1"), 1)
        self.assertLess(status(self.d)["asked_extents"], 64)
        # When it reads, each has an answer: the extent, or that it was too slow for more.
        self.assertEqual(c.do("list({(lambda p: p.close() or p.tag)(r[0].receive()) "
                              "for i in range(3000)})"), [8])
        self.assertEqual(c.do("r[0].send(rawclient.EXTENT_GET, b'\\1\\0\\0\\0\\0\\0\\0\\0', 9) or "
                              "(lambda p: p.close() or [p.type, p.tag])(r[0].receive())"),
                         [rawclient.EXTENT, 9])


class Proof(Control):
    """Kernels before 6.5: pidfd_open and a nonce."""
    config = {"peer_pidfd": "never"}

    PROVE = ("(lambda p: [p.type, int.from_bytes(p.body, 'little')])"
             "(r.append(Raw(path)) or r[0].hello() or r[0].receive())")
    SEND = ("__import__('socket') and r[0].sock.sendmsg([rawclient.HEADER.pack(rawclient.MAGIC, "
            "rawclient.PROOF, 0, 8, 1) + (%d).to_bytes(8, 'little')])")

    def test_proof(self):
        c = self.client()
        kind, nonce = c.do(self.PROVE)
        self.assertEqual(kind, rawclient.PROVE)
        # SO_PASSCRED is set: the kernel adds the sender's credentials.
        c.do(self.SEND % nonce)
        self.assertEqual(c.do("(lambda p: p.close() or p.type)(r[0].receive())"),
                         rawclient.WELCOME)
        c.end()
        wait_for(lambda: status(self.d)["detached"] == 1)

    def test_wrong_nonce(self):
        c = self.client()
        _, nonce = c.do(self.PROVE)
        c.do(self.SEND % (nonce ^ 1))
        self.assertEqual(c.do("r[0].receive().error"), -errno.EACCES)

    def test_proof_by_another_process(self):
        c = self.client()
        _, nonce = c.do(self.PROVE)
        c.do("(lambda p: os.waitpid(p, 0) if p else (%s, os._exit(0)))(os.fork())"
             % (self.SEND % nonce))
        self.assertEqual(c.do("r[0].receive().error"), -errno.EACCES)

    def test_something_else_instead(self):
        c = self.client()
        c.do(self.PROVE)
        self.assertEqual(c.do("r[0].hello() or r[0].receive().error"), -errno.EPROTO)


class Administration(Control):
    config = {"admin_group": "1777"}

    def test_who_may(self):
        self.assertEqual(
            self.client(1001).do("r.append(Raw(path)) or r[0].hello(1) or r[0].receive().error"),
            -errno.EPERM)
        member = subprocess.run(
            [sys.executable, "-c", "import os, sys; sys.path.insert(0, %r)\n"
             "from rawclient import Raw\nos.setgroups([1777])\nos.setresgid(1001, 1001, 1001)\n"
             "os.setresuid(1001, 1001, 1001)\nr = Raw(%r)\n"
             "r.hello(1)\nprint(r.receive().type, r.ask('{\"verb\": \"version\"}'))"
             % (HERE, self.d.socket)], capture_output=True, text=True, check=True).stdout
        self.assertTrue(member.startswith("2 (0, "), member)

    def test_answers(self):
        a = Raw(self.d.socket)
        a.hello(1)
        a.receive()
        self.assertEqual(a.ask("nonsense")[0], -errno.EINVAL)
        self.assertEqual(a.ask("[]")[0], -errno.EINVAL)
        self.assertEqual(a.ask("[" * 16000)[0], -errno.EINVAL)
        self.assertEqual(a.ask('{"verb": 5}')[0], -errno.EINVAL)
        code, text = a.ask('{"verb": "what"}')
        self.assertEqual(code, -errno.EOPNOTSUPP)
        self.assertIn("error", json.loads(text))
        code, text = a.ask('{"verb": "blocks"}')
        self.assertEqual((code, json.loads(text)),
                         (0, {"blocks": [[i] for i in range(100000)], "total": 100000}))
        self.assertIn("heap", status(self.d)["daemon"])
        # A request that takes long holds nobody up either, and ends when nobody waits for it.
        long, other = Raw(self.d.socket), Raw(self.d.socket)
        for x in long, other:
            x.hello(1)
            x.receive()
            x.send(rawclient.ADMIN, b'{"verb": "drain"}', 9)
        self.assertGreater(self.client().attach()[0], 0)
        self.assertEqual(status(self.d)["under_way"], 3)
        other.close()
        wait_for(lambda: status(self.d)["under_way"] == 2)
        other = Raw(self.d.socket)
        other.hello(1)
        other.receive()
        self.assertEqual(a.ask('{"verb": "evict"}')[0], 0)
        p = long.receive()
        self.assertEqual((p.type, p.tag, p.body[8:]), (rawclient.ADMIN_PART, 9, b'{"drained":true}'))
        self.assertEqual(status(self.d)["under_way"], 1)
        # A long list is written in steps, of a few rows each: another is answered after a few of them.
        before = status(self.d)["rows_written"]
        long.send(rawclient.ADMIN, b'{"verb": "blocks"}')
        code, text = other.ask('{"verb": "check"}')
        self.assertLess(json.loads(text)["rows_written"] - before, 50000)
        # An administrator who does not read his answer holds nobody up.
        a.send(rawclient.ADMIN, b'{"verb": "blocks"}')
        self.assertGreater(self.client().attach()[0], 0)


class Boxes(Control):
    """Containers of uid 0 with a socket each: none uses up what another needs."""
    config = {"max_sessions": 4096, "tenants": [
        {"name": name, "socket": name + ".sock", "share": "8MiB"} for name in ("bad", "good")]}
    TIMES = 2800  # three descriptors each: more than may be in flight
    ONE_MORE = "r.append(Raw(path)) or r[-1].attach().error"
    ERROR = -errno.EBUSY

    def test_a_box_that_receives_nothing(self):
        bad, more = (self.client(0, os.path.join(self.d.runtime_dir, "bad.sock"))
                     for _ in range(2))
        good = self.client(0, os.path.join(self.d.runtime_dir, "good.sock"))
        bad.do("__import__('resource').setrlimit(7, (4096, 4096))")
        for _ in range(0, self.TIMES, 200):  # no more than may wait before they have attached
            bad.do("[(r.append(Raw(path)), r[-1].come_and_go()) and 0 for i in range(200)] and 1")
            wait_for(lambda: status(self.d)["daemon"]["pending"] <= 1)
        self.assertEqual(more.do(self.ONE_MORE), self.ERROR)
        self.assertGreater(good.attach()[0], 0)


class FewBoxes(Boxes):
    """The same with the bound on connections, which sessions that ended use up."""
    config = {**Boxes.config, "max_sessions": 8}
    TIMES = 8 + 512 + 264  # some of them may be slow to come, and are turned away
    ONE_MORE = "r.append(Raw(path)) or r[-1].receive().error"  # before it has said a word
    ERROR = -errno.EUSERS


class Tenants(Control):
    config = {"unlisted_uids": "false", "tenants": [
        {"name": "team", "uids": [1001, 1002], "share": "8MiB", "max_sessions": 2},
        {"name": "box", "socket": "box.sock", "share": "8MiB"},
        {"name": "vip", "socket": "vip.sock", "uids": [1005], "share": "8MiB"},
    ]}

    def sock(self, name):
        return os.path.join(self.d.runtime_dir, name)

    def test_membership(self):
        _, a, _ = self.client(1001).attach()
        _, b, _ = self.client(1002).attach()
        self.assertEqual(a, b)
        self.assertEqual(self.client(1003).attach(), -errno.EACCES)
        self.assertEqual(self.client(1005).attach(), -errno.EACCES)  # has a door of its own
        self.assertEqual(self.client(1002).attach(), -errno.EUSERS)

    def test_sockets(self):
        self.assertEqual(os.stat(self.sock("box.sock")).st_mode & 0o777, 0o600)
        _, box, _ = self.client(0, self.sock("box.sock")).attach()
        _, vip, _ = self.client(1005, self.sock("vip.sock")).attach()
        self.assertNotEqual(box, vip)
        self.assertEqual(self.client(1001, self.sock("vip.sock")).attach(), -errno.EACCES)
        stranger = self.client(1001, self.sock("box.sock"))
        self.assertEqual(
            stranger.do("socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect_ex(path)"),
            errno.EACCES)
        # Root in a container is no administrator.
        r = Raw(self.sock("box.sock"))
        r.hello(1)
        self.assertEqual(r.receive().error, -errno.EPERM)

    def test_reload_starts_a_changed_tenant_anew(self):
        stays, goes = self.client(1001), self.client(1002)
        _, before, _ = stays.attach()
        goes.attach()
        names = {t["name"]: t["id"] for t in status(self.d)["tenants"]}
        tenants = json.loads(json.dumps(self.d.config["tenants"]))
        tenants[0]["uids"] = [1001]
        self.d.write_config({"tenants": tenants})
        self.d.reload()
        s = status(self.d)
        self.assertEqual((s["abandoned"], s["detached"], s["reconfigured"]), (1, 2, 1))
        self.assertIn("team", {t["name"] for t in s["tenants"]})
        self.assertEqual(names["box"], {t["name"]: t["id"] for t in s["tenants"]}["box"])
        self.assertIsNone(stays.do("r.pop().receive()"))
        self.assertGreater(stays.attach()[0], 0)
        self.assertEqual(goes.attach(), -errno.EACCES)

    def test_reload_with_a_newcomer_gives_him_nothing_old(self):
        c = self.client(1001)
        c.attach()
        tenants = json.loads(json.dumps(self.d.config["tenants"]))
        tenants[0]["uids"].append(1009)
        self.d.write_config({"tenants": tenants})
        self.d.reload()
        self.assertEqual(status(self.d)["abandoned"], 1)
        self.assertGreater(self.client(1009).attach()[0], 0)

    def test_reload_of_sockets(self):
        tenants = json.loads(json.dumps(self.d.config["tenants"]))
        tenants[1]["socket"] = "crate.sock"
        del tenants[2]
        self.d.write_config({"tenants": tenants})
        self.d.reload()
        self.assertEqual(sorted(f for f in os.listdir(self.d.runtime_dir) if f.endswith(".sock")),
                         ["crate.sock", "kvpool.sock"])
        self.client(0, self.sock("crate.sock")).attach()

    def test_reload_refused(self):
        c = self.client(1001)
        c.attach()
        for change, key in (({"memory": "2GiB"}, "memory"),
                            ({"memory": "1GiB", "trust_daemon_uid": "true"}, "trust_daemon_uid"),
                            ({"trust_daemon_uid": None, "admin_group": "4"}, "admin_group")):
            self.d.write_config(change)
            self.d.reload()
            self.assertIn("`%s` changed" % key, self.d.log())
        with open(self.d.config_file, "w", encoding="utf-8") as f:
            f.write("memory: {\n")
        self.d.reload()
        self.assertIn("reload refused, the old configuration stays: %s:" % self.d.config_file,
                      self.d.log())
        s = status(self.d)
        self.assertEqual((s["reconfigured"], s["detached"]), (0, 0))
        self.assertEqual(self.client(DAEMON_UID).attach(), -errno.EACCES)

    def test_reload_widens_for_new_clients_only(self):
        self.d.write_config({"unlisted_uids": "true"})
        self.d.reload()
        c = self.client(1003)
        c.attach()
        self.d.write_config({"unlisted_uids": "false"})
        self.d.reload()
        self.assertIsNone(c.do("r[0].receive()"))
        self.assertEqual(self.client(1003).attach(), -errno.EACCES)
        self.assertEqual(status(self.d)["abandoned"], 1)


class ManyUids(Control):
    config = {"memory": "32MiB", "defaults": {"share": "16MiB"}}

    def test_idle_tenants_make_room(self):
        for uid in (1001, 1002):
            c = self.client(uid)
            c.attach()
            c.end()
        wait_for(lambda: status(self.d)["detached"] == 2)
        self.assertGreater(self.client(1003).attach()[0], 0)
        self.assertGreater(self.client(1004).attach()[0], 0)
        # Both are in use now.
        self.assertEqual(self.client(1005).attach(), -errno.ENOSPC)
        self.assertEqual(status(self.d)["abandoned"], 2)


class Running(unittest.TestCase):
    def start(self, config, **more):
        d = Daemon(config, **more)
        self.addCleanup(lambda: d.__exit__(None, None, None))
        return d

    def fails(self, d):
        with self.assertRaises(AssertionError):
            d.start()
        return d.log()

    def test_second_daemon(self):
        d = self.start({}).start()
        second = self.start({"runtime_dir": d.runtime_dir})
        self.assertIn("is running with the runtime directory %s already (process %d)"
                      % (d.runtime_dir, d.pid), self.fails(second))
        self.assertGreater(status(d)["daemon"]["pid"], 0)

    def test_stale_socket_is_replaced_and_a_live_one_is_not(self):
        d = self.start({}).start()
        d.kill()
        self.assertTrue(os.path.exists(d.socket))
        d.start()
        status(d)
        d.stop()
        self.assertFalse(os.path.exists(d.socket))
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.bind(d.socket)
        s.listen()
        self.assertIn("another program listens on %s" % d.socket, self.fails(d))
        s.close()
        os.unlink(d.socket)
        with open(d.socket, "w", encoding="utf-8") as f:
            f.write("precious")
        self.assertIn("is no socket", self.fails(d))
        self.assertEqual(read(d.socket), "precious")

    def test_runtime_directory(self):
        d = self.start({})
        os.chmod(d.runtime_dir, 0o777)
        self.assertIn("others can write in the runtime directory", self.fails(d))
        self.d = self.start({"runtime_dir": "/proc/kvpool"})
        self.assertIn("cannot make the runtime directory /proc/kvpool", self.fails(self.d))

    def test_missing_user(self):
        self.assertIn("user: there is no user 'no-such-user': create it",
                      self.fails(self.start({"user": "no-such-user"})))

    def test_privileges_are_gone(self):
        d = self.start({}).start()
        fields = dict(line.split(":\t", 1) for line in
                      read("/proc/%d/status" % d.pid).splitlines() if ":\t" in line)
        self.assertEqual(fields["Uid"].split(), [str(DAEMON_UID)] * 4)
        self.assertEqual(fields["Gid"].split(), [str(DAEMON_UID)] * 4)
        for cap in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            self.assertEqual(int(fields[cap], 16), 0, cap)
        self.assertEqual(fields["NoNewPrivs"].strip(), "1")
        # Not dumpable: its files in /proc are root's.
        self.assertEqual(os.stat("/proc/%d/mem" % d.pid).st_uid, 0)

    def test_background(self):
        """With relative paths and --runtime-dir, both of which a reload must still know."""
        d = self.start({"runtime_dir": "/nonexistent/elsewhere"})
        command = [d.program, "--config", os.path.basename(d.config_file), "--runtime-dir",
                   d.runtime_dir]
        r = subprocess.run(command, cwd=d.dir, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
        self.assertEqual(r.returncode, 0)
        pid = status(d)["daemon"]["pid"]
        again = subprocess.run(command, cwd=d.dir, stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=120)
        self.assertEqual(again.returncode, 1)
        self.assertIn("process %d" % pid, again.stderr)
        os.kill(pid, signal.SIGHUP)
        wait_for(lambda: status(d)["reconfigured"] == 1)
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not os.path.exists(d.socket))

    def test_watchdog_and_status(self):
        d = self.start({}, env={"WATCHDOG_USEC": "300000"})
        d.start()
        wait_for(lambda: d.notes.count("WATCHDOG=1") > 2)
        d.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "STOPPING=1" in d.notes)

    def test_manager_that_reads_nothing(self):
        """Its socket is full for good: everybody else is served; later it hears what is true then."""
        d = self.start({})
        name = "\0kvpool-test-%d" % os.getpid()
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(name)
        filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        filler.setblocking(False)
        with self.assertRaises(BlockingIOError):
            while True:
                filler.sendto(b"full", name)
        p = subprocess.Popen([d.program, "--foreground", "--config", d.config_file],
                             env=dict(os.environ, NOTIFY_SOCKET="@" + name[1:], WATCHDOG_USEC="30000"),
                             stderr=subprocess.DEVNULL)
        self.addCleanup(p.kill)
        wait_for(lambda: os.path.exists(d.socket))
        c = Client(d.socket)
        c.attach()
        p.send_signal(signal.SIGHUP)
        wait_for(lambda: status(d)["reconfigured"] == 1)
        before = status(d)["daemon"]["turns_total"]
        wait_for(lambda: status(d)["daemon"]["turns_total"] > before + 30)
        heard = []
        manager.settimeout(60)
        while not any("STATUS=1 sessions" in m for m in heard):
            heard.append(manager.recv(4096).decode())
        told = next(m for m in heard if m != "full").split("\n")
        for line in "READY=1", "WATCHDOG=1", "RELOADING=1":
            self.assertEqual(told.count(line), 1, told)
        p.terminate()
        while "STOPPING=1" not in heard[-1]:
            heard.append(manager.recv(4096).decode())
        self.assertEqual(p.wait(), 0)
        c.end()

    def test_socket_activation(self):
        d = self.start({})
        main = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        main.bind(os.path.join(d.dir, "given.sock"))
        main.listen()
        os.chmod(os.path.join(d.dir, "given.sock"), 0o666)
        # systemd's environment names the pid of the program itself.
        os.dup2(main.fileno(), 3, inheritable=True)
        p = subprocess.Popen(["sh", "-c", "LISTEN_PID=$$ exec %s --foreground --config %s"
                              % (d.program, d.config_file)],
                             env=dict(os.environ, LISTEN_FDS="1", LISTEN_FDNAMES="kvpool"),
                             pass_fds=(3,), stderr=subprocess.PIPE)
        r = Raw(os.path.join(d.dir, "given.sock"))
        r.hello(1)
        self.assertEqual(r.receive().type, rawclient.WELCOME)
        p.terminate()
        p.communicate()
        self.assertFalse(os.path.exists(d.socket))
        self.assertTrue(os.path.exists(os.path.join(d.dir, "given.sock")))

    def test_idle_costs_nothing(self):
        d = self.start({}).start()
        c = Client(d.socket)
        c.attach()

        def switches():
            return sum(int(line.split()[1])
                       for line in read("/proc/%d/status" % d.pid).splitlines() if "ctxt_switches" in line)
        before = switches()
        time.sleep(1)
        self.assertLess(switches() - before, 5)
        c.end()


if __name__ == "__main__":
    needs_root()
    unittest.main(warnings="ignore")  # sockets end with the process
