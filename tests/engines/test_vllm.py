#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvpool.connectors.vllm in vLLM processes on the CPU beside a real kvpoold. Texts are compared with
those of vLLM without kvpool; logits are not, since vLLM's own depend on how a prompt is cut.
`test_vllm.py table` prints times to the first token instead."""
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

from engine import MODEL, Worker, hit, needs, prompt, serve

needs("torch", "vllm", "cffi")

# pylint: disable=wrong-import-position
from harness import Daemon, wait_for

import kvpool

STEPS = 16


def make_adapter(folder, seed):
    """Random weights of rank 8 for the projections whose results are cached, in peft's files."""
    import torch  # pylint: disable=import-outside-toplevel
    from safetensors.torch import save_file  # pylint: disable=import-outside-toplevel
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    rows = config["num_key_value_heads"] * config["head_dim"]
    torch.manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name in ("k_proj", "v_proj"):
            part = "base_model.model.model.layers.%d.self_attn.%s.lora_" % (layer, name)
            weights[part + "A.weight"] = torch.randn(8, config["hidden_size"]) * .1
            weights[part + "B.weight"] = torch.randn(rows, 8) * .1
    os.makedirs(folder, exist_ok=True)
    save_file(weights, os.path.join(folder, "adapter_model.safetensors"))
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "bias": "none",
                   "target_modules": ["k_proj", "v_proj"], "base_model_name_or_path": MODEL}, f)


def worker(socket, ranks="1", adapters=""):
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                      VLLM_CPU_OMP_THREADS_BIND="1" if ranks == "1" else "0|1",
                      VLLM_LOGGING_LEVEL="ERROR", VLLM_HOST_IP="127.0.0.1")
    from vllm import LLM, SamplingParams  # pylint: disable=import-outside-toplevel
    from vllm.config import KVTransferConfig  # pylint: disable=import-outside-toplevel
    from vllm.lora.request import LoRARequest  # pylint: disable=import-outside-toplevel
    more = {"tensor_parallel_size": int(ranks)}
    if adapters:
        more.update(enable_lora=True, max_lora_rank=8, max_loras=2)
    if socket != "off":
        more["kv_transfer_config"] = KVTransferConfig(
            kv_connector="KvpoolConnector", kv_connector_module_path="kvpool.connectors.vllm",
            kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config={"socket": socket, "timeout": 5})
    out = os.dup(1)
    os.dup2(2, 1)
    llm = LLM(model=MODEL, skip_tokenizer_init=True, dtype="float16", block_size=64,
              max_model_len=2048, enforce_eager=True, **more)
    os.dup2(out, 1)

    def generate(prompts, steps, salt=None, adapter=None):
        more = {"cache_salt": salt} if salt else {}
        lora = adapter and LoRARequest(adapter, ord(adapter), os.path.join(adapters, adapter))
        return llm.generate([{"prompt_token_ids": p, **more} for p in prompts],
                            SamplingParams(temperature=0, max_tokens=steps, detokenize=False,
                                           ignore_eos=True), use_tqdm=False,
                            lora_request=lora)

    generate([prompt(99, 200)], 2)  # what is done once

    def handle(prompts, steps=STEPS, for_ever=False, salt=None, adapter=None):
        for i in itertools.count() if for_ever else ():
            generate([[257, i % 256, i // 256] + p for p in prompts], 1)
        start = time.perf_counter()
        done = generate(prompts, steps, salt, adapter)
        ms = (time.perf_counter() - start) * 1e3
        llm.reset_prefix_cache()  # what it finds then is kvpool's
        return {"ms": ms, "hits": [r.num_cached_tokens for r in done],
                "texts": [list(r.outputs[0].token_ids) for r in done]}
    serve(handle)
    llm.llm_engine.engine_core.shutdown()


def check(daemon):
    """Nothing is left of what has ended."""
    def clean():
        r = subprocess.run([os.environ["KVCTL"], "--socket", daemon.socket, "check"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                           check=False)
        return r.returncode == 0 or print(r.stdout)
    wait_for(clean)


class Engines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prompts = [prompt(i) for i in range(3)]
        with Worker("off") as off:
            cls.texts = off.ask(prompts=cls.prompts)["texts"]
            off.end()

    def test_one_is_killed_while_it_stores_another_begins(self):
        with Daemon({"memory": "512MiB"}) as daemon:
            with Worker(daemon.socket) as a, kvpool.Client(daemon.socket) as client:
                cold = a.ask(prompts=self.prompts)
                self.assertEqual((cold["hits"], cold["texts"]), ([0, 0, 0], self.texts))
                before = client.stats()["blocks"]
                a.send(prompts=[prompt(7, 700)], for_ever=True)
                wait_for(lambda: client.stats()["blocks"] > before + 30)
                a.kill()
            check(daemon)
            with Worker(daemon.socket) as b:
                warm = b.ask(prompts=self.prompts)
                self.assertEqual((warm["hits"], warm["texts"]), ([hit(1900)] * 3, self.texts))
                self.assertEqual(b.ask(prompts=[self.prompts[0][:1300] + prompt(4, 400)])["hits"],
                                 [1300 // 64 * 64])
                # The daemon goes and comes back while requests run.
                for delay in (.01, .1):
                    b.send(prompts=self.prompts)
                    time.sleep(delay)
                    daemon.kill()
                    self.assertEqual(b.answer()["texts"], self.texts)
                    daemon.start()
                wait_for(lambda: b.ask(prompts=self.prompts)["hits"] == [hit(1900)] * 3, 60)
                b.end()
            check(daemon)

    def test_salts_and_a_daemon_that_stops(self):
        """Requests of equal tokens share under an equal cache_salt, and under no other. While the daemon
        is stopped nobody waits for it longer than a step's time."""
        with Daemon({"memory": "512MiB"}) as daemon:
            with Worker(daemon.socket) as a:
                for salt in ("alice", "bob"):
                    mine = a.ask(prompts=self.prompts[:2], salt=salt)
                    self.assertEqual((mine["hits"], mine["texts"]), ([0, 0], self.texts[:2]))
                a.end()
            with Worker(daemon.socket) as b:
                for salt, hits in (("alice", [hit(1900)] * 2), ("carol", [0, 0]), (None, [0, 0]),
                                   ("bob", [hit(1900)] * 2), (None, [hit(1900)] * 2)):
                    theirs = b.ask(prompts=self.prompts[:2], salt=salt)
                    self.assertEqual((theirs["hits"], theirs["texts"]), (hits, self.texts[:2]), salt)
                os.kill(daemon.pid, signal.SIGSTOP)
                try:
                    # What is there is found all the same; what is new is computed.
                    for _ in range(2):
                        self.assertEqual(b.ask(prompts=self.prompts)["texts"], self.texts)
                finally:
                    os.kill(daemon.pid, signal.SIGCONT)
                wait_for(lambda: b.ask(prompts=self.prompts)["hits"] == [hit(1900)] * 3, 60)
                b.end()
            check(daemon)

    def test_adapters(self):
        """Requests of equal tokens share what the same adapter computed, and not that of others, nor of
        the same name when its weights are others."""
        with tempfile.TemporaryDirectory() as folder, Daemon({"memory": "512MiB"}) as daemon:
            for seed, name in enumerate("ab"):
                make_adapter(os.path.join(folder, name), seed)
            with Worker("off", "1", folder) as off:
                alone = {a: off.ask(prompts=self.prompts[:2], adapter=a)["texts"] for a in ("a", "b", None)}
                off.end()
            self.assertNotEqual(alone["a"], alone["b"])
            self.assertNotEqual(alone["a"], alone[None])
            with Worker(daemon.socket, "1", folder) as one:
                for name in ("a", "b"):
                    mine = one.ask(prompts=self.prompts[:2], adapter=name)
                    self.assertEqual((mine["hits"], mine["texts"]), ([0, 0], alone[name]), name)
                one.end()
            with Worker(daemon.socket, "1", folder) as other:
                for name, hits in (("b", hit(1900)), (None, 0), ("a", hit(1900))):
                    theirs = other.ask(prompts=self.prompts[:2], adapter=name)
                    self.assertEqual((theirs["hits"], theirs["texts"]), ([hits] * 2, alone[name]), name)
                other.end()
            make_adapter(os.path.join(folder, "a"), 7)
            with Worker(daemon.socket, "1", folder) as new:
                theirs = new.ask(prompts=self.prompts[:2], adapter="a")
                self.assertEqual(theirs["hits"], [0, 0])
                self.assertNotEqual(theirs["texts"], alone["a"])
                new.end()
            check(daemon)

    def test_daemon_absent(self):
        with Worker("/nonexistent/kvpool.sock") as a:
            alone = a.ask(prompts=self.prompts)
            self.assertEqual((alone["hits"], alone["texts"]), ([0, 0, 0], self.texts))
            a.end()


def table():
    """Medians of five prompts of 1,900 tokens on one thread; both engines take turns."""
    prompts = [prompt(40 + i) for i in range(5)]
    with Daemon({"memory": "512MiB"}) as daemon:
        with Worker(daemon.socket) as first:
            first.ask(prompts=prompts)
            first.end()
        with Worker("off") as off, Worker(daemon.socket) as on:
            done = [(off.ask(prompts=[p], steps=1), on.ask(prompts=[p], steps=1)) for p in prompts * 3]
            off.end()
            on.end()
    cold, warm = (statistics.median(d[i]["ms"] for d in done) for i in (0, 1))
    print("vLLM: without kvpool %.1f ms, blocks of a dead process %.1f ms, %d of 1900 tokens: %.1f times "
          "shorter" % (cold, warm, min(d[1]["hits"][0] for d in done),
                       statistics.median(d[0]["ms"] / d[1]["ms"] for d in done)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    elif sys.argv[1:2] == ["table"]:
        table()
    else:
        unittest.main()
