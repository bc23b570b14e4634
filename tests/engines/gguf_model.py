# SPDX-License-Identifier: Apache-2.0
"""Writes the model of bytes as llama.cpp reads it: rows of Q and K in the order of interleaved pairs."""
import json
import os

import gguf
import numpy as np
from safetensors.numpy import load_file


def _interleaved(rows, heads):
    """Pairs (i, i + d/2) of each head become (2i, 2i + 1)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write(model, path):
    with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    weights = load_file(os.path.join(model, "model.safetensors"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("bytes-4m")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_rope_freq_base(10000.0)
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])
    out.add_file_type(1)
    out.add_tokenizer_model("no_vocab")

    def add(name, rows, kind=np.float16):
        out.add_tensor(name, np.ascontiguousarray(rows.astype(kind)))

    add("token_embd.weight", weights["model.embed_tokens.weight"])
    add("output_norm.weight", weights["model.norm.weight"], np.float32)
    for i in range(config["num_hidden_layers"]):
        ours, theirs = "model.layers.%d." % i, "blk.%d." % i
        add(theirs + "attn_q.weight", _interleaved(weights[ours + "self_attn.q_proj.weight"], heads))
        add(theirs + "attn_k.weight", _interleaved(weights[ours + "self_attn.k_proj.weight"], kv_heads))
        for to, name in (("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"),
                         ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"),
                         ("ffn_down", "mlp.down_proj")):
            add(theirs + to + ".weight", weights[ours + name + ".weight"])
        add(theirs + "attn_norm.weight", weights[ours + "input_layernorm.weight"], np.float32)
        add(theirs + "ffn_norm.weight", weights[ours + "post_attention_layernorm.weight"], np.float32)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
