"""Compiles kernels of rows and of entmax for a card of compute capability 9.0 that need not be there; a line for each.

A program of its own: where tests run, Triton's interpreter takes the place of its compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from headlens.attention.kernels import entmax_kernels, row_kernels
from headlens.attention.kernels.entmax_rows import sizes_of
from headlens.attention.kernels.row_attention import DIVERGENCE_SIZES, tile_sizes

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {"fp32": "*fp32", "fp16": "*fp16", "bf16": "*bf16"}
KINDS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
INTEGERS = {
    *("PEAK_KEY", "KEY_FLAGS", "QUERY_FLAGS", "QUERY_TOKENS", "QUERY_STARTS", "QUERY_WORDS", "KEY_TOKENS"),
    *("KEY_SLOTS", "KEY_STEPS", "KEY_WORDS", "TARGET"),
}
LIKE_QUERY = {"QUERY", "KEY", "VALUE", "MASK", "OUT", "SINK"}


def signature(kernel: Any, kind: str, constants: dict[str, Any]) -> dict[str, str]:
    """Types of a kernel's arguments, from their names."""
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name in LIKE_QUERY:
            types[name] = TYPES[kind]
        elif name in INTEGERS:
            types[name] = "*i32"
        elif name in ("SENTENCE", "ROW"):
            types[name] = "*i64"
        elif name == "MASKED":
            types[name] = "*i8"
        elif name in ("scale", "cap"):
            types[name] = "fp32"
        else:
            types[name] = "*fp32" if name.isupper() else "i32"
    return types


def cases() -> Iterator[tuple[Any, str, dict[str, Any], dict[str, int]]]:
    """Kernels, types, constants and options that cover every branch, and the largest heads of every type."""
    for kind, d, more in [(k, d, m) for k in TYPES for d in (64, 128, 256) for m in (False, True)]:
        size = tile_sizes(KINDS[kind], d)
        options = {name: size.pop(name) for name in ("num_warps", "num_stages")}
        scores = {"D": d - 4 if more else d, "BD": d, "HAS_MASK": more, "CAUSAL": not more, "HAS_CAP": more}
        yield row_kernels.attention_forward, kind, {**scores, **size, "HAS_SINK": more, "IP": "tf32x3"}, options
        wanted = dict.fromkeys(("OF_PEAK", "OF_ENTROPY", "OF_PLACES", "OF_RECEIVED"), True)
        wanted |= {"OF_READ": more, "OF_PARTS": more, "N_PARTS": 32, "IP": "tf32x3"}
        yield row_kernels.row_statistics, kind, {**scores, **size, **wanted}, options
        yield row_kernels.chosen_rows, kind, {**scores, "BN": 64}, {"num_warps": 4}
        words = {"TILE": 32, "OTHERS": more, "IP": "tf32x3"}
        yield row_kernels.word_targets, kind, {**scores, **words}, {"num_warps": 2, "num_stages": 2}


def without_heads() -> Iterator[tuple[Any, str, dict[str, Any], dict[str, int]]]:
    """Kernels that read weights, whatever the type and size of heads."""
    sizes = dict(DIVERGENCE_SIZES)
    options = {"num_warps": sizes.pop("num_warps")}
    yield row_kernels.pair_divergences, "fp32", sizes, options
    for n_keys, square in [(128, True), (512, False), (4096, False), (4096, True)]:
        sizes = sizes_of(n_keys)
        options = {"num_warps": sizes.pop("num_warps")}
        yield entmax_kernels.entmax_forward, "fp32", {**sizes, "STEPS": 24, "SQUARE": square}, options
        yield entmax_kernels.entmax_backward, "fp32", {**sizes, "SQUARE": square, "LEARNS": not square}, options


def main() -> None:
    for kernel, kind, constants, options in [*cases(), *without_heads()]:
        source = ASTSource(kernel, signature(kernel, kind, constants), constants)
        compiled = triton.compile(source, target=TARGET, options=options)
        shared = compiled.metadata.shared
        assert shared <= 227 * 1024, f"{shared} bytes of shared memory"
        print(f"ok {kernel.__name__} {kind} {constants.get('BD', '')}: {shared} bytes shared", flush=True)


if __name__ == "__main__":
    main()
