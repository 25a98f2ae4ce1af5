"""Triton kernels of attention and of what its rows say: no map of queries by keys is ever written.

Scores are those of all kernels alike, `_scores`: q k scaled, perhaps with a soft cap, plus a mask, to the base 2. Sums
over rows are written by block of queries and added up afterwards, always in the same order. Numbers that differ from
batch to batch are not specialised: Triton would compile anew for each that is 1 or a multiple of 16.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Scores that a mask closes: low enough for a weight of 0, high enough for differences of them.
CLOSED = tl.constexpr(-1.0e30)
NOTHING = tl.constexpr(-2.0e30)  # below all scores
NEVER = tl.constexpr(2147483647)
SMALLEST = tl.constexpr(1.1754943508222875e-38)  # whose logarithm is finite


@triton.jit
def _tanh(x):
    # 1 - exp(-2x) would lose the digits of small numbers.
    square = x * x
    series = -0.0539682540 + square * 0.0218694885
    series = x * (1 + square * (-0.3333333333 + square * (0.1333333333 + square * series)))
    small = tl.exp2(tl.abs(x) * -2.8853900817779268)
    large = (1 - small) / (1 + small)
    return tl.where(tl.abs(x) < 0.3, series, tl.where(x < 0, -large, large))


@triton.jit
def _scores(
    products, MASK, rows, cols, here, smq, smk, scale, cap,
    HAS_MASK: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """Scores to the base 2 of products q k, of rows and columns of the same shape, where they are `here`."""
    s = products * scale
    if HAS_CAP:
        s = cap * _tanh(s / cap)
    if HAS_MASK:
        s = s + tl.load(MASK + rows * smq + cols * smk, mask=here, other=0.0).to(tl.float32)
    return tl.maximum(s, CLOSED) * LOG2E


@triton.jit
def _tile_scores(
    q, KEY, MASK, rows, cols, n_rows, n_keys, skn, smq, smk, scale, cap,
    D: tl.constexpr, BD: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, HAS_CAP: tl.constexpr,
    IP: tl.constexpr,
):  # fmt: skip
    """`_scores` of a tile of rows and columns, (BM, BN), and which of them there are."""
    d = tl.arange(0, BD)
    k = tl.load(KEY + cols[None, :] * skn + d[:, None], mask=(cols[None, :] < n_keys) & (d[:, None] < D), other=0.0)
    here = (cols[None, :] < n_keys) & (rows[:, None] < n_rows)
    if CAUSAL:
        here = here & (cols[None, :] <= rows[:, None])
    products = tl.dot(q, k, input_precision=IP)
    s = _scores(products, MASK, rows[:, None], cols[None, :], here, smq, smk, scale, cap, HAS_MASK, HAS_CAP)
    return s, here


@triton.jit(do_not_specialize=["n_heads", "n_rows", "n_keys", "groups"])
def attention_forward(
    QUERY, KEY, VALUE, MASK, SINK, OUT, LSE, GIVEN,
    sqb, sqh, sqn, skb, skh, skn, svb, svh, svn, smb, smh, smq, smk, sob, soh, son,
    n_heads, n_rows, n_keys, groups, scale, cap,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HAS_MASK: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SINK: tl.constexpr, IP: tl.constexpr,
):  # fmt: skip
    """Head outputs; of every row the logarithm, to the base 2, of the sum over tokens, and the share they get."""
    block = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // n_heads, bh % n_heads
    rows, d = block * BM + tl.arange(0, BM), tl.arange(0, BD)
    inside = (rows[:, None] < n_rows) & (d[None, :] < D)
    q = tl.load(QUERY + b * sqb + h * sqh + rows[:, None] * sqn + d[None, :], mask=inside, other=0.0)
    KEY += b * skb + (h // groups) * skh
    VALUE += b * svb + (h // groups) * svh
    MASK += b * smb + h * smh
    most = tl.full([BM], NOTHING, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    end = n_keys
    if CAUSAL:
        end = tl.minimum(n_keys, (block + 1) * BM)
    for start in range(0, end, BN):
        cols = start + tl.arange(0, BN)
        s, here = _tile_scores(
            q, KEY, MASK, rows, cols, n_rows, n_keys, skn, smq, smk, scale, cap, D, BD, HAS_MASK, CAUSAL, HAS_CAP, IP
        )
        new = tl.maximum(most, tl.max(tl.where(here, s, NOTHING), 1))
        p = tl.where(here, tl.exp2(s - new[:, None]), 0.0)
        shrink = tl.exp2(most - new)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(
            VALUE + cols[:, None] * svn + d[None, :], mask=(cols[:, None] < n_keys) & (d[None, :] < D), other=0.0
        )
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=IP)
        most = new
    everything = total
    if HAS_SINK:
        sink = tl.load(SINK + h).to(tl.float32) * LOG2E
        # A sink above all scores: sums relative to it, so that nothing is too large.
        top = tl.maximum(most, sink)
        shrink = tl.exp2(most - top)
        everything = total * shrink + tl.exp2(sink - top)
        tl.store(GIVEN + bh * n_rows + rows, total * shrink / everything, mask=rows < n_rows)
        acc = acc * shrink[:, None]
    real = rows < n_rows
    everything = tl.where(real, everything, 1.0)
    out = (acc / everything[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + b * sob + h * soh + rows[:, None] * son + d[None, :], out, mask=inside)
    tl.store(LSE + bh * n_rows + rows, most + tl.log2(tl.where(real, total, 1.0)), mask=real)


@triton.jit(do_not_specialize=["orb", "orh", "n_heads", "n_rows", "n_keys", "n_blocks", "groups"])
def row_statistics(
    QUERY, KEY, MASK, LSE, KEY_FLAGS, QUERY_FLAGS, KEY_PARTS, QUERY_PARTS,
    HIGHEST, BETWEEN, PEAK, PEAK_KEY, ENTROPY, DISTANCE, PREVIOUS, SELF, NEXT, GIVEN, RECEIVED, READ, PARTS,
    sqb, sqh, sqn, skb, skh, skn, smb, smh, smq, smk, orb, orh,
    n_heads, n_rows, n_keys, n_blocks, groups, scale, cap,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, N_PARTS: tl.constexpr,
    HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr, HAS_CAP: tl.constexpr, OF_PEAK: tl.constexpr,
    OF_ENTROPY: tl.constexpr, OF_PLACES: tl.constexpr, OF_RECEIVED: tl.constexpr, OF_READ: tl.constexpr,
    OF_PARTS: tl.constexpr, IP: tl.constexpr,
):  # fmt: skip
    """What the rows of weights say, given the logarithms of their sums; see `RowStatistics`.

    Flags of keys: 1 where one is not special, 2 where it is real and no separator; of queries: 1 where one is real.
    """
    block = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // n_heads, bh % n_heads
    rows, d = block * BM + tl.arange(0, BM), tl.arange(0, BD)
    real = rows < n_rows
    q = tl.load(
        QUERY + b * sqb + h * sqh + rows[:, None] * sqn + d[None, :], mask=real[:, None] & (d[None, :] < D), other=0.0
    )
    KEY += b * skb + (h // groups) * skh
    MASK += b * smb + h * smh
    lse = tl.load(LSE + bh * n_rows + rows, mask=real, other=0.0)
    counted = (tl.load(QUERY_FLAGS + b * n_rows + rows, mask=real, other=0) & 1) > 0
    given = tl.zeros([BM], tl.float32)
    if OF_READ:
        given = tl.load(GIVEN + bh * n_rows + rows, mask=counted, other=0.0)
    highest = tl.full([BM], NOTHING, tl.float32)
    between = tl.full([BM], NOTHING, tl.float32)
    peak = tl.full([BM], NOTHING, tl.float32)
    peak_key = tl.full([BM], NEVER, tl.int32)
    entropy = tl.zeros([BM], tl.float32)
    distance = tl.zeros([BM], tl.float32)
    previous = tl.zeros([BM], tl.float32)
    own = tl.zeros([BM], tl.float32)
    following = tl.zeros([BM], tl.float32)
    part = tl.arange(0, N_PARTS)
    mass = tl.zeros([BM, N_PARTS], tl.float32)
    end = n_keys
    if CAUSAL:
        end = tl.minimum(n_keys, (block + 1) * BM)
    # All keys, so that every block of `RECEIVED` is written; those behind a causal row get 0.
    for start in range(0, n_keys, BN):
        cols = start + tl.arange(0, BN)
        if start >= end:
            if OF_RECEIVED:
                none = tl.zeros([BN], tl.float32)
                tl.store(RECEIVED + (bh * n_blocks + block) * n_keys + cols, none, mask=cols < n_keys)
                if OF_READ:
                    tl.store(READ + (bh * n_blocks + block) * n_keys + cols, none, mask=cols < n_keys)
        else:
            s, here = _tile_scores(
                q, KEY, MASK, rows, cols, n_rows, n_keys, skn, smq, smk, scale, cap, D, BD, HAS_MASK, CAUSAL, HAS_CAP,
                IP,
            )  # fmt: skip
            below = tl.where(here, s - lse[:, None], 0.0)  # logarithm of the weight
            p = tl.where(here, tl.exp2(below), 0.0)
            if OF_PEAK:
                flags = tl.load(KEY_FLAGS + b * n_keys + cols, mask=cols < n_keys, other=0)
                seen = tl.where(here, s, NOTHING)
                highest = tl.maximum(highest, tl.max(seen, 1))
                between = tl.maximum(between, tl.max(tl.where((flags & 2)[None, :] > 0, seen, NOTHING), 1))
                seen = tl.where((flags & 1)[None, :] > 0, seen, NOTHING)
                top = tl.max(seen, 1)
                first = tl.min(tl.where(seen == top[:, None], cols[None, :], NEVER), 1)
                peak_key = tl.where(top > peak, first, peak_key)
                peak = tl.maximum(peak, top)
            if OF_ENTROPY:
                entropy -= tl.sum(p * below, 1)
            if OF_PLACES:
                away = cols[None, :] - rows[:, None]
                distance += tl.sum(p * tl.abs(away).to(tl.float32), 1)
                if (start <= block * BM + BM) & (start + BN >= block * BM):
                    previous += tl.sum(tl.where(away == -1, p, 0.0), 1)
                    own += tl.sum(tl.where(away == 0, p, 0.0), 1)
                    following += tl.sum(tl.where(away == 1, p, 0.0), 1)
            if OF_RECEIVED:
                sums = tl.sum(tl.where(counted[:, None], p, 0.0), 0)
                tl.store(RECEIVED + (bh * n_blocks + block) * n_keys + cols, sums, mask=cols < n_keys)
                if OF_READ:
                    sums = tl.sum(p * given[:, None], 0)
                    tl.store(READ + (bh * n_blocks + block) * n_keys + cols, sums, mask=cols < n_keys)
            if OF_PARTS:
                of_keys = tl.load(
                    KEY_PARTS + (b * n_keys + cols[:, None]) * N_PARTS + part[None, :],
                    mask=cols[:, None] < n_keys,
                    other=0.0,
                )
                mass = tl.dot(p, of_keys, mass, input_precision=IP)
    place = b * orb + h * orh + rows
    if OF_PEAK:
        weight = tl.exp2(peak - lse)
        tl.store(HIGHEST + place, tl.exp2(highest - lse), mask=real)
        tl.store(BETWEEN + place, tl.exp2(between - lse), mask=real)
        tl.store(PEAK + place, weight, mask=real)
        tl.store(PEAK_KEY + place, tl.where(weight > 0, peak_key, -1), mask=real)
    if OF_ENTROPY:
        tl.store(ENTROPY + place, entropy * LN2, mask=real)
    if OF_PLACES:
        tl.store(DISTANCE + place, distance, mask=real)
        tl.store(PREVIOUS + place, previous, mask=real)
        tl.store(SELF + place, own, mask=real)
        tl.store(NEXT + place, following, mask=real)
    if OF_PARTS:
        of_queries = tl.load(
            QUERY_PARTS + (b * n_rows + rows[None, :]) * N_PARTS + part[:, None], mask=real[None, :], other=0.0
        )
        sums = tl.dot(of_queries, mass, input_precision=IP)
        at = ((bh * n_blocks + block) * N_PARTS + part[:, None]) * N_PARTS + part[None, :]
        tl.store(PARTS + at, sums)


@triton.jit(do_not_specialize=["n_heads", "n_rows", "n_keys", "n_chosen", "groups"])
def chosen_rows(
    QUERY, KEY, MASK, LSE, SENTENCE, ROW, WEIGHTS,
    sqb, sqh, sqn, skb, skh, skn, smb, smh, smq, smk,
    n_heads, n_rows, n_keys, n_chosen, groups, scale, cap,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_CAP: tl.constexpr,
):  # fmt: skip
    """The weights of some rows, (heads, chosen, keys)."""
    number = tl.program_id(0)
    h = tl.program_id(1).to(tl.int64)
    b = tl.load(SENTENCE + number).to(tl.int64)
    row = tl.load(ROW + number)
    d = tl.arange(0, BD)
    q = tl.load(QUERY + b * sqb + h * sqh + row * sqn + d, mask=d < D, other=0.0).to(tl.float32)
    KEY += b * skb + (h // groups) * skh
    MASK += b * smb + h * smh
    lse = tl.load(LSE + (b * n_heads + h) * n_rows + row)
    for start in range(0, n_keys, BN):
        cols = start + tl.arange(0, BN)
        k = tl.load(KEY + cols[:, None] * skn + d[None, :], mask=(cols[:, None] < n_keys) & (d[None, :] < D), other=0.0)
        here = cols < n_keys
        if CAUSAL:
            here = here & (cols <= row)
        products = tl.sum(k.to(tl.float32) * q[None, :], 1)
        s = _scores(products, MASK, row, cols, here, smq, smk, scale, cap, HAS_MASK, HAS_CAP)
        p = tl.where(here, tl.exp2(s - lse), 0.0)
        tl.store(WEIGHTS + (h * n_chosen + number) * n_keys + cols, p, mask=cols < n_keys)


@triton.jit(
    do_not_specialize=[
        "otb",
        "oth",
        "n_heads",
        "n_rows",
        "query_tiles",
        "query_steps",
        "key_tiles",
        "key_steps",
        "groups",
    ]
)
def word_targets(
    QUERY, KEY, MASK, LSE, QUERY_TOKENS, QUERY_STARTS, QUERY_WORDS, KEY_TOKENS, KEY_SLOTS, KEY_STEPS, KEY_WORDS, TARGET,
    sqb, sqh, sqn, skb, skh, skn, smb, smh, smq, smk, otb, oth,
    n_heads, n_rows, query_tiles, query_steps, key_tiles, key_steps, groups, scale, cap,
    D: tl.constexpr, BD: tl.constexpr, TILE: tl.constexpr, HAS_MASK: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_CAP: tl.constexpr, OTHERS: tl.constexpr, IP: tl.constexpr,
):  # fmt: skip
    """The word that every word attends to most, -1 for none; see `WordTiles`."""
    tile = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // n_heads, bh % n_heads
    lane, d = tl.arange(0, TILE), tl.arange(0, BD)
    begin = tl.load(QUERY_STARTS + b * (query_tiles + 1) + tile)
    end = tl.load(QUERY_STARTS + b * (query_tiles + 1) + tile + 1)
    of_query = tl.load(QUERY_WORDS + (b * query_tiles + tile) * TILE + lane)
    QUERY += b * sqb + h * sqh
    KEY += b * skb + (h // groups) * skh
    MASK += b * smb + h * smh
    best = tl.zeros([TILE], tl.float32)
    target = tl.full([TILE], NEVER, tl.int32)
    sums = tl.zeros([TILE, TILE], tl.float32)
    for step in range(tl.load(KEY_STEPS + b)):
        cols = tl.load(KEY_TOKENS + (b * key_steps + step) * TILE + lane)
        slot = tl.load(KEY_SLOTS + b * key_steps + step)  # twice the tile, + 1 where its sums go on
        k = tl.load(KEY + cols[None, :] * skn + d[:, None], mask=(cols[None, :] >= 0) & (d[:, None] < D), other=0.0)
        sums = tl.where((slot & 1) > 0, sums, 0.0)
        # One token of every word of the tile at a time.
        for piece in range(begin, end):
            rows = tl.load(QUERY_TOKENS + (b * query_steps + piece) * TILE + lane)
            q = tl.load(
                QUERY + rows[:, None] * sqn + d[None, :], mask=(rows[:, None] >= 0) & (d[None, :] < D), other=0.0
            )
            here = (rows[:, None] >= 0) & (cols[None, :] >= 0)
            if CAUSAL:
                here = here & (cols[None, :] <= rows[:, None])
            products = tl.dot(q, k, input_precision=IP)
            s = _scores(products, MASK, rows[:, None], cols[None, :], here, smq, smk, scale, cap, HAS_MASK, HAS_CAP)
            lse = tl.load(LSE + bh * n_rows + rows, mask=rows >= 0, other=0.0)
            sums += tl.where(here, tl.exp2(s - lse[:, None]), 0.0)
        of_key = tl.load(KEY_WORDS + (b * key_tiles + slot // 2) * TILE + lane)
        seen = sums
        if OTHERS:
            seen = tl.where(of_key[None, :] == of_query[:, None], 0.0, sums)
        top = tl.max(seen, 1)
        first = tl.min(tl.where(seen == top[:, None], of_key[None, :], NEVER), 1)
        better = (top > best) | ((top == best) & (first < target) & (top > 0))
        target = tl.where(better, first, target)
        best = tl.maximum(best, top)
    tl.store(TARGET + b * otb + h * oth + of_query, tl.where(best > 0, target, -1), mask=of_query >= 0)


@triton.jit
def _times_log(x):
    return x * tl.log2(tl.maximum(x, SMALLEST))


@triton.jit(do_not_specialize=["n_heads", "n_weights", "n_parts", "part"])
def pair_divergences(
    WEIGHTS, SUMS, n_heads, n_weights, n_parts, part, TILE: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Jensen-Shannon divergences, to the base 2, of all pairs of heads over some of their weights.

    Term by term: differences of sums would lose the digits by which heads that are alike differ.
    """
    number, lane = tl.program_id(2), tl.arange(0, TILE)
    one, other = tl.program_id(0) * TILE + lane, tl.program_id(1) * TILE + lane
    if tl.program_id(0) <= tl.program_id(1):
        acc = tl.zeros([TILE, TILE, BN], tl.float32)
        for start in range(number * part, tl.minimum(n_weights, (number + 1) * part), BN):
            at = start + tl.arange(0, BN)
            here = at < n_weights
            place = one.to(tl.int64)[:, None] * n_weights + at[None, :]
            a = tl.load(WEIGHTS + place, mask=(one < n_heads)[:, None] & here[None, :], other=0.0)
            place = other.to(tl.int64)[:, None] * n_weights + at[None, :]
            b = tl.load(WEIGHTS + place, mask=(other < n_heads)[:, None] & here[None, :], other=0.0)
            mean = (a[:, None, :] + b[None, :, :]) / 2
            acc += (_times_log(a)[:, None, :] + _times_log(b)[None, :, :]) / 2 - _times_log(mean)
        place = (one.to(tl.int64)[:, None] * n_heads + other[None, :]) * n_parts + number
        tl.store(SUMS + place, tl.sum(acc, 2), mask=(one < n_heads)[:, None] & (other < n_heads)[None, :])
