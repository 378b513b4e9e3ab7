"""ringattention (JAX): shard_map over CPU devices of one process."""
import importlib.metadata
import importlib.util
import os
from typing import Any, Iterator

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import numpy as np  # noqa: E402

import cpscope  # noqa: E402
import stand_ins  # noqa: E402
from case import Case, Verdict, said  # noqa: E402

PACKAGE = "ringattention"
RANKS, TOKENS = 4, 256


def _load() -> Any:
    """ringattention_jax.py alone: the package imports its TPU kernels and flax, which this ring does not use."""
    stand_ins.module("flax")
    stand_ins.module("flax.linen")
    stand_ins.module("flax.linen.partitioning")
    path = importlib.metadata.distribution("ringattention").locate_file("ringattention/ringattention_jax.py")
    spec = importlib.util.spec_from_file_location("ringattention_jax", str(path))
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def ring(dtype: str = "fp32", documents: list[int] | None = None) -> Any:
    def judge(_: int) -> Verdict:
        import jax
        import jax.numpy as jnp
        from jax.sharding import Mesh, PartitionSpec
        peer = _load()
        batch = 1 if documents else 2
        keys: dict[str, Any] = dict(lengths=documents, attn_mask_type="padding_causal", layout="contiguous", pad_between_seqs=False) if documents \
            else dict(batch_size=batch, seqlen=TOKENS, qkv_format="bshd")
        scenario = cpscope.Scenario.of(heads=4, head_dim=32, cp_size=RANKS, dtype=dtype, **keys)
        number = {"fp32": jnp.float32, "bf16": jnp.bfloat16}[dtype]
        tensors = {name: jnp.asarray(tensor.reshape(batch, TOKENS, 4, 32), number) for name, tensor in scenario.inputs().items()}
        segments = jnp.asarray(np.repeat(np.arange(len(documents)), documents)[None]) if documents else None
        settings = dict(causal_block_size=1, deterministic=True, dropout_rng=None, attn_pdrop=0.0, query_chunk_size=32, key_chunk_size=32,
                        dtype=number, policy=jax.checkpoint_policies.nothing_saveable, precision=None, prevent_cse=True)
        mesh, split = Mesh(np.array(jax.devices()[:RANKS]), ("sp",)), PartitionSpec(None, "sp")
        attend = jax.shard_map(lambda q, k, v: peer.ring_attention(q, k, v, None, segments, None, "sp", True, settings), mesh=mesh,
                               in_specs=(split,) * 3, out_specs=split, check_vma=False)
        out, pull_back = jax.vjp(jax.jit(attend), tensors["q"], tensors["k"], tensors["v"])
        dq, dk, dv = pull_back(tensors["d_out"])
        answer = dict(**tensors, out=out, dq=dq, dk=dk, dv=dv)
        return said(scenario.grade({name: np.asarray(tensor) for name, tensor in answer.items()}, format="bshd"))
    return judge


def cases() -> Iterator[Case]:
    yield Case("ring, causal, batch 2, fp32", 1, ring())
    yield Case("ring, causal, batch 2, bf16", 1, ring("bf16"))
    yield Case("ring, 2 segments, fp32", 1, ring(documents=[100, 156]))
