# SPDX-License-Identifier: Apache-2.0
"""vLLM: a KV connector by module path, for models on the CPU (docs/engines/vllm.md).

    KVTransferConfig(kv_connector="KvpoolConnector", kv_connector_module_path="kvpool.connectors.vllm",
                     kv_role="kv_both", kv_load_failure_policy="recompute")

vLLM makes one object for its scheduler and one for each worker; paged.py has what they do.
"""
import hashlib
import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole)
from vllm.distributed.parallel_state import get_tp_group
from vllm.platforms import current_platform
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

from .. import Layer
from .paged import Job, Scheduler, Spaces, Worker, halves
from .weights import weight_files

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Jobs(KVConnectorMetadata):
    """What the scheduler's side tells the workers' of one step."""

    def __init__(self, jobs: List[Job]) -> None:
        self.jobs = jobs


class _Model(NamedTuple):
    """What both sides derive alike from the configuration."""
    identity: Dict[str, Any]
    tokens: int
    layers: int
    heads: int  # of one worker
    dim: int
    itemsize: int
    ranks: List[Dict[str, Any]]  # in what each worker's identity differs
    rank: int  # of this process, if it is a worker


def _weights(model: Any) -> bytes:
    """A digest of what is known of the weights without reading them: the configuration, the revision,
    and of a folder its files' names, sizes and times."""
    config = {k: v for k, v in model.hf_config.to_dict().items()
              if k not in ("_name_or_path", "transformers_version")}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    digest.update(repr((model.model, model.revision, getattr(model.hf_config, "_commit_hash", None),
                        model.quantization)).encode())
    for facts in weight_files(model.model):
        digest.update(repr(facts).encode())
    return digest.digest()


def _model(config: Any, extra: Any, groups: Any) -> _Model:
    """ValueError: this connector cannot serve it, and why."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    if not current_platform.is_cpu():
        raise ValueError("kvpool: vLLM on the CPU only")
    if parallel.world_size != parallel.tensor_parallel_size \
            or parallel.decode_context_parallel_size != 1:
        raise ValueError("kvpool: tensor parallel at most; no pipeline or context parallel engines")
    if groups is not None and len(groups.kv_cache_groups) != 1:
        raise ValueError("kvpool: models whose layers all keep every token in one kind of cache")
    if cache.cache_dtype not in ("auto", str(model.dtype).rpartition(".")[2]) or model.dtype not in _DTYPES:
        raise ValueError("kvpool: a cache of the model's own type, float32, float16 or bfloat16")
    if config.kv_transfer_config.kv_load_failure_policy != "recompute":
        raise ValueError('kvpool: set "kv_load_failure_policy": "recompute" in kv_transfer_config, or a '
                         "request fails when the daemon goes while it is loaded")
    layers, heads = model.get_num_layers(parallel), model.get_num_kv_heads(parallel)
    dim, tokens = model.get_head_size(), cache.block_size
    given = str(extra("weights_digest", ""))
    identity = {
        "model": str(extra("name", "") or os.path.basename(os.path.normpath(model.model))),
        "layers": layers, "kv_heads": heads, "head_dim": dim, "dtype": _DTYPES[model.dtype],
        "block_tokens": tokens, "rope": None,  # in the configuration, which is in the digest
        "weights_digest": bytes.fromhex(given) if given else _weights(model),
        # What lies where in a page is the attention kernel's affair.
        "adapter": "vllm:cpu_attn:%s" % _get_attn_isa(model.dtype, tokens, dim),
    }
    ranks = _ranks(parallel.tensor_parallel_size, model.get_total_num_kv_heads(), layers, heads, dim)
    return _Model(identity, tokens, layers, heads, dim, model.dtype.itemsize, ranks, parallel.rank)


def _ranks(size: int, total: int, layers: int, heads: int, dim: int) -> List[Dict[str, Any]]:
    """Which of the model's `total` heads each of `size` workers has, `heads` of them, as vLLM deals them
    out: in order, each to several workers if there are fewer heads than workers."""
    if size == 1:
        return [{}]
    copies = max(size // total, 1)
    return [{"layers": [Layer(heads, dim, dim, i, rank // copies * heads) for i in range(layers)]}
            for rank in range(size)]


def _least(counts: List[int]) -> List[int]:
    """Of each number, the least that a worker of the tensor-parallel group has."""
    least = torch.tensor(counts)
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, get_tp_group().cpu_group)
    return [int(n) for n in least.tolist()]


class _Salts:
    """What else of a request its keys depend on, or who may share them: its adapter and its cache_salt.
    An adapter is what its files were when it was first asked for: vLLM reads them then."""

    def __init__(self) -> None:
        self._known: Dict[Tuple[int, str, str], Optional[str]] = {}

    def of(self, request: Any) -> Optional[bytes]:
        """b"": nothing. None: more than can be told here, not shared."""
        if getattr(request, "mm_features", None) \
                or getattr(request, "prompt_embeds", None) is not None \
                or getattr(request, "resumable", False):
            return None
        salt, adapter = getattr(request, "cache_salt", None), self._adapter(request)
        if adapter is None:
            return None
        if not salt and not adapter:
            return b""
        return hashlib.sha256(repr((adapter, salt or "")).encode()).digest()

    def _adapter(self, request: Any) -> Optional[str]:
        lora = getattr(request, "lora_request", None)
        if lora is None:
            return ""
        if getattr(lora, "load_inplace", False):
            return None  # other weights under the same name
        key = int(lora.lora_int_id), str(lora.lora_name), str(lora.lora_path)
        if key not in self._known:
            self._known[key] = self._name(*key[1:])
        return self._known[key]

    @staticmethod
    def _name(name: str, path: str) -> Optional[str]:
        files = weight_files(path)
        if not files:
            return None  # of a hub, in a revision that nobody tells
        return repr((name, path, files))


class KvpoolConnector(KVConnectorBase_V1):
    """Prefixes of prompts that any process of this user's tenant has computed are loaded instead of
    computed; whole blocks of prompts and answers are stored as they become complete. ValueError, when
    the engine starts: a configuration that it cannot serve, in words.

    kv_connector_extra_config: "socket": else $KVPOOL_SOCKET, else the system's; "name",
    "weights_digest" (64 hexadecimal digits): the model's identity; "timeout": seconds that a step waits
    at most, .2.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = vllm_config.kv_transfer_config.get_from_extra_config
        self._model = _model(vllm_config, extra, kv_cache_config)
        scheduler = role == KVConnectorRole.SCHEDULER
        m = self._model
        mine = [r for i, r in enumerate(m.ranks) if r not in m.ranks[:i]] if scheduler \
            else [m.ranks[m.rank % len(m.ranks)]]
        self._spaces = Spaces("vllm scheduler" if scheduler else "vllm worker", m.identity,
                              extra("socket", None), float(extra("timeout", 0.2)), mine)
        self._scheduler = Scheduler(self._spaces, self._model.tokens) if scheduler else None
        self._worker: Optional[Worker] = None
        self._salts = _Salts()

    @property
    def requires_kv_delivery(self) -> bool:
        """A block that is not stored is a miss later, and nothing waits for it."""
        return False

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[int, bool]:
        """(tokens after the first num_computed_tokens that can be loaded, False: within the step)"""
        salt = self._salts.of(request)
        if salt is None:
            return 0, False
        return self._scheduler.found(request.request_id, salt,
                                     lambda first: request.all_token_ids[first:],
                                     num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Pages were reserved for what was found."""
        self._scheduler.allocated(request.request_id, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Jobs:
        """What the step loads and stores."""
        scheduled = scheduler_output.num_scheduled_tokens
        jobs = [self._scheduler.step(r.req_id, r.block_ids[0], True, r.num_computed_tokens,
                                     scheduled[r.req_id])
                for r in scheduler_output.scheduled_new_reqs]
        cached = scheduler_output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            pages = cached.new_block_ids[i]
            jobs.append(self._scheduler.step(name, pages[0] if pages else (),
                                             name in cached.resumed_req_ids,
                                             cached.num_computed_tokens[i], scheduled[name]))
        return Jobs([job for job in jobs if job is not None])

    def request_finished(self, request: Any, block_ids: Any) -> Tuple[bool, Optional[Dict[str, Any]]]:
        """Its pages may be freed at once."""
        self._scheduler.finished(request.request_id)
        return False, None

    # The workers' side.

    def register_kv_caches(self, kv_caches: Dict[str, torch.Tensor]) -> None:
        """The engine's pages: a tensor for each layer, [pages, ...], dense in each page."""
        m = self._model
        page = 2 * m.tokens * m.heads * m.dim
        if len(kv_caches) != m.layers:
            raise ValueError("kvpool: %d layers, and memory for %d" % (m.layers, len(kv_caches)))
        planes = []
        for name in sorted(kv_caches, key=lambda n: [int(x) for x in re.findall(r"\d+", n)]):
            t = kv_caches[name]
            if t.device.type != "cpu" or t[0].numel() != page or not t[0].is_contiguous() \
                    or t.element_size() != m.itemsize:
                raise ValueError("kvpool: layer %s is %s of %s on %s, no dense pages of %d elements" %
                                 (name, tuple(t.shape), t.dtype, t.device, page))
            planes.append(halves(t.data_ptr(), t.shape[0], t.stride(0) * m.itemsize, m.tokens, m.heads,
                                 m.dim, m.itemsize))
        self._worker = Worker(self._spaces, m.tokens, planes, *([_least] if len(m.ranks) > 1 else []))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads what the step needs, before it."""
        self._worker.load(self._get_connector_metadata().jobs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All is there when the step begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Stored as a whole after the step."""

    def wait_for_save(self) -> None:
        """Stores what the step has completed."""
        self._worker.store(self._get_connector_metadata().jobs)

    def get_block_ids_with_load_errors(self) -> Set[int]:
        """Pages that vLLM has to compute after all."""
        return self._worker.take_failed() if self._worker is not None else set()

    def shutdown(self) -> None:
        """What was stored is visible when this returns, if there is a daemon."""
        if self._scheduler is not None:
            self._scheduler.close()
        elif self._worker is not None:
            self._worker.close()
        else:
            self._spaces.close()
