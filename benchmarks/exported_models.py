"""Twenty models through every door: how much of the predicted time is opaque.

Run: `python benchmarks/exported_models.py [--models A,B] [--doors A,B] [--out FILE.json]`. Models
of the bundled zoo, of timm and of transformers (from a configuration, random weights, no download)
are exported here, one at a time, to a folder that is emptied in between: `pt2` (torch.export),
`tsNN` (ONNX by the TorchScript exporter at opset NN) and `dynNN` (ONNX by the exporter through
torch.export). Exports that PyTorch itself refuses are listed with its reason. Needs onnx,
onnxscript, timm and transformers; half an hour on one core.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import predictor
from predictor import zoo
from predictor.errors import PredictorError
from predictor.torchvision_ops import ensure_torchvision

DEVICE = "nvidia-a100-sxm-80gb"
BAR = 0.98
VOCAB, TOKENS = 1000, 64
DOORS = ("torch", "pt2", "ts11", "ts13", "ts17", "ts20", "dyn18", "dyn23")
"""Each way in; 20 is the newest opset of the TorchScript exporter, 23 that of the other."""
FUSED_OPSET = 14
"""The first opset that PyTorch's TorchScript exporter writes its attention call in."""
Made = tuple[nn.Module, tuple[Tensor, ...]]


class Plain(nn.Module):
    """A model whose result is one tensor: its logits, or its last hidden state."""

    def __init__(self, body: nn.Module, *names: str) -> None:
        super().__init__()
        self.body, self.names = body, names

    def forward(self, *inputs: Tensor) -> Tensor:
        output = self.body(**dict(zip(self.names, inputs, strict=True)))
        if isinstance(output, Tensor):
            return output
        named = output if isinstance(output, dict) else dict(output)
        return next(named[k] for k in ("logits", "last_hidden_state") if k in named)


def _zoo(name: str) -> Made:
    program = zoo.build(name, mode="infer", batch=1, seq=TOKENS if "lm" in name else None)
    module = program.module.to_empty(device="cpu")
    inputs = tuple(torch.zeros(t.shape, dtype=t.dtype) for t in program.inputs.values())
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)
    for buffer in module.buffers():
        buffer.zero_()  # ids of positions, which the exporter through TorchScript looks up
    return Plain(module, *program.inputs), inputs


def _timm(name: str) -> Made:
    import timm

    size = 256 if name.startswith("mobilevit") else 224
    return timm.create_model(name), (torch.zeros(1, 3, size, size),)


def _small(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB, "hidden_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 1024, **more,
    }  # fmt: skip


def _transformers(kind: str) -> Made:
    import transformers as t

    makers: Mapping[str, Callable[[], nn.Module]] = {
        "bert": lambda: t.BertForMaskedLM(t.BertConfig(**_small())),
        "roberta": lambda: t.RobertaForMaskedLM(t.RobertaConfig(**_small())),
        "distilbert": lambda: t.DistilBertModel(
            t.DistilBertConfig(vocab_size=VOCAB, dim=256, n_layers=2, n_heads=4, hidden_dim=1024)
        ),
        "gpt2": lambda: t.GPT2LMHeadModel(
            t.GPT2Config(vocab_size=VOCAB, n_embd=256, n_layer=2, n_head=4, use_cache=False)
        ),
        "llama": lambda: t.LlamaForCausalLM(
            t.LlamaConfig(**_small(num_key_value_heads=2, use_cache=False))
        ),
        "qwen2": lambda: t.Qwen2ForCausalLM(
            t.Qwen2Config(**_small(num_key_value_heads=2, use_cache=False))
        ),
    }
    tokens, mask = torch.zeros(2, TOKENS, dtype=torch.long), torch.ones(2, TOKENS, dtype=torch.long)
    return Plain(makers[kind](), "input_ids", "attention_mask"), (tokens, mask)


ZOO = ("resnet-18", "resnet-50", "vit-b-16", "convnext-base", "bert-base", "gpt2", "lstm-lm")
TIMM = (
    "mobilenetv3_small_100", "efficientnet_b0", "regnetx_002", "convnext_atto",
    "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s32_224",
)  # fmt: skip
TRANSFORMERS = ("bert", "roberta", "distilbert", "gpt2", "llama", "qwen2")
MODELS: Mapping[str, Callable[[], Made]] = {
    **{f"zoo:{n}": (lambda n=n: _zoo(n)) for n in ZOO},  # type: ignore[misc]
    **{f"timm:{n}": (lambda n=n: _timm(n)) for n in TIMM},  # type: ignore[misc]
    **{f"transformers:{n}": (lambda n=n: _transformers(n)) for n in TRANSFORMERS},  # type: ignore[misc]
}


@contextmanager
def written_out(opset: int) -> Iterator[None]:
    """Attention as products and a softmax, where the opset has no other way to write it."""
    fused = functional.scaled_dot_product_attention

    def attention(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if enable_gqa:
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        scores = (q @ k.transpose(-1, -2)) * (scale or q.shape[-1] ** -0.5)
        if is_causal:
            attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -1e9)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return scores.softmax(-1) @ v

    if opset < FUSED_OPSET:
        functional.scaled_dot_product_attention = attention  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = fused


def exported(module: nn.Module, inputs: tuple[Tensor, ...], door: str, folder: Path) -> str:
    """The file of a model by one exporter."""
    if door == "pt2":
        path = folder / "program.pt2"
        torch.export.save(torch.export.export(module, inputs), path)
        return str(path)
    path = folder / "model.onnx"
    kind, opset = door.rstrip("0123456789"), int(door.lstrip("tsdyn"))
    options: dict[str, Any] = {"dynamo": kind == "dyn", "opset_version": opset}
    if kind == "dyn":
        options["verbose"] = False
    with written_out(opset):
        torch.onnx.export(module, inputs, str(path), **options)
    return str(path)


def scored(
    module: nn.Module, inputs: tuple[Tensor, ...], door: str, folder: Path
) -> dict[str, Any]:
    """What one door gives: the share not opaque, or who refused and why."""
    start = time.perf_counter()
    target: Any = module
    if door != "torch":
        try:
            target = exported(module, inputs, door, folder)
        except Exception as error:  # noqa: BLE001 (PyTorch's exporters raise anything)
            return {
                "exporter": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
            }
    made = time.perf_counter()
    try:
        graph = predictor.capture(target, inputs if door == "torch" else None)
        estimate = predictor.estimate(graph, device=DEVICE, allow_opaque=True)
    except PredictorError as error:
        return {"refused": str(error)[:300]}
    opaque = estimate.kernels[estimate.kernels["label"] == "opaque"]["name"]
    return {
        "known": round(1 - estimate.coverage.opaque, 4),
        "opaque": sorted(set(opaque)),
        "latency_us": round(estimate.latency_us, 1),
        "matmul_flops": sum(k.matmul_flops for k in estimate.graph.kernels),
        "parameters_bytes": graph.workload.parameters_bytes,
        "calls": len(graph.nodes),
        "export_s": round(made - start, 1),
        "capture_s": round(time.perf_counter() - made, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="some of them, separated by commas")
    parser.add_argument("--doors", default=",".join(DOORS), help=f"some of {', '.join(DOORS)}")
    parser.add_argument("--out", type=Path, help="write every figure as JSON")
    given = parser.parse_args()
    library = ensure_torchvision()  # which timm and transformers import
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows: dict[str, dict[str, Any]] = {}
    for name in given.models.split(",") if given.models else MODELS:
        torch.manual_seed(0)
        module, inputs = MODELS[name]()
        module.eval()
        rows[name] = {}
        for door in given.doors.split(","):
            with tempfile.TemporaryDirectory() as folder:
                found = rows[name][door] = scored(module, inputs, door, Path(folder))
            told = f"{found['known']:7.1%}" if "known" in found else next(iter(found))
            print(f"{name:36s} {door:6s} {told:9s} {_facts(found)}", flush=True)
            if given.out is not None:
                given.out.write_text(json.dumps(rows, indent=1) + "\n")
        del module
        gc.collect()
    shares = [f["known"] for row in rows.values() for f in row.values() if "known" in f]
    refused = sum("refused" in f for row in rows.values() for f in row.values())
    unmade = sum("exporter" in f for row in rows.values() for f in row.values())
    print(
        f"{len(rows)} models, {len(shares)} graphs: least not opaque {min(shares):.1%}, "
        f"{sum(s >= BAR for s in shares)} at 98% or more; {refused} refused here; "
        f"{unmade} that PyTorch's exporter refused"
    )
    del library
    return int(refused > 0 or min(shares) < BAR)


def _facts(found: Mapping[str, Any]) -> str:
    if "known" not in found:
        return str(next(iter(found.values())))
    opaque = f" opaque: {', '.join(found['opaque'])}" if found["opaque"] else ""
    return f"{found['latency_us']:9.1f} us {found['matmul_flops'] / 1e9:9.3f} GFLOP{opaque}"


if __name__ == "__main__":
    sys.exit(main())
