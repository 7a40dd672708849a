#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The four role calls from Python: a ctypes wrapper over libafdep for NumPy arrays, and for PyTorch tensors where PyTorch is
installed. BF16 is uint16 bits in NumPy and torch.bfloat16 in PyTorch; calls release the interpreter's lock, so that ranks
may be threads.

    ffn rank                                   attention rank
    buffer = Buffer(group, ffn_ranks=...)      buffer = Buffer(group, ffn_ranks=...)
    got = buffer.worker_receive(bucket=16)     buffer.source_dispatch(x, ids, weights, bucket=16)
    buffer.worker_reply(replies, got)          out = buffer.source_collect()

Run as a program it exchanges between four ranks that are threads, and compares with NumPy. AFDEP_LIBRARY names the library
where the loader does not find it.
"""
import ctypes
import ctypes.util
import os
import sys
import threading
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

try:
    import torch
except ImportError:
    torch = None

APPLY_WEIGHTS = 1  # worker_reply multiplies by the routing weights


class Sized(Structure):
    """A struct of the library: its first field says how much of it this program knows."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.struct_size = ctypes.sizeof(self)


class Config(Sized):
    _fields_ = [("struct_size", c_size_t)] + [(name, c_int32) for name in (
        "ffn_ranks", "ranks_per_domain", "num_experts", "top_k", "hidden", "dtype", "capacity", "num_sms",
        "expert_alignment", "in_flight", "timeout_ms", "stagger", "sparse_dispatch", "sparse_combine")] + [
        ("flags", c_uint32), ("backend", c_char_p), ("fabric", c_char_p), ("fp8_combine", c_int32),
        ("fp8_combine_min_bucket", c_int32)]


class Group(Sized):
    _fields_ = [("struct_size", c_size_t), ("rank", c_int), ("size", c_int), ("context", c_void_p), ("allgather", c_void_p),
                ("barrier", c_void_p), ("destroy", c_void_p), ("fabrics", c_void_p)]


class Tcp(Sized):
    _fields_ = [("struct_size", c_size_t), ("address", c_char_p), ("port", c_int), ("rank", c_int), ("size", c_int),
                ("token", c_char_p), ("timeout_ms", c_int)]


class Memory(Sized):
    _fields_ = [(name, c_uint64) for name in ("struct_size", "ffn_segment", "attention_segment", "ffn_private",
                                              "attention_private", "receive_rows", "receive_bytes", "reply_bytes")]


class Dispatch(Sized):
    _fields_ = [("struct_size", c_size_t), ("tokens", c_int32), ("bucket", c_int32), ("x", c_void_p), ("x_scale", c_void_p),
                ("x_scale_token_stride", c_int64), ("x_scale_block_stride", c_int64), ("ids", c_void_p),
                ("weights", c_void_p), ("cached", c_int32), ("send_only", c_int32)]


class Receipt(Structure):
    _fields_ = [("opaque", c_uint64 * 4)]


class Receive(Sized):
    _fields_ = [("struct_size", c_size_t), ("bucket", c_int32), ("read_host_counts", c_int32), ("rows", c_void_p),
                ("row_scale", c_void_p), ("row_weight", c_void_p), ("row_source", c_void_p), ("ends", c_void_p),
                ("rows_capacity", c_int64), ("host_counts", c_void_p), ("allocate", c_void_p),
                ("allocate_context", c_void_p), ("row_count", c_int64), ("receipt", Receipt), ("cached", c_int32),
                ("reserved", c_int32)]


class Reply(Sized):
    _fields_ = [("struct_size", c_size_t), ("rows", c_void_p), ("receipt", Receipt)]


class Collect(Sized):
    _fields_ = [("struct_size", c_size_t), ("out", c_void_p), ("view", c_int32), ("result", c_void_p),
                ("result_stride", c_int64), ("tokens", c_int32)]


class Error(RuntimeError):
    def __init__(self, status):
        super().__init__(f"{library().afdep_status_string(status).decode()}: {library().afdep_last_error().decode()}")
        self.status = status


_library = None


def library():
    """Loaded at first use."""
    global _library
    if _library is None:
        _library = ctypes.CDLL(os.environ.get("AFDEP_LIBRARY") or ctypes.util.find_library("afdep") or "libafdep.so.0")
        _library.afdep_last_error.restype = _library.afdep_status_string.restype = c_char_p
        _library.afdep_buffer_open.argtypes = [POINTER(Group), POINTER(Config), POINTER(c_void_p)]
        _library.afdep_buffer_close.argtypes = [c_void_p]
        for call in ("source_dispatch", "source_collect", "worker_receive", "worker_reply"):
            getattr(_library, "afdep_" + call).argtypes = [c_void_p, c_void_p, c_void_p]
    return _library


def must(status):
    if status != 0:
        raise Error(status)


def thread_groups(size, timeout_ms=60000):
    """The groups of `size` ranks that are threads of this process."""
    groups = (Group * size)()
    must(library().afdep_group_threads_create(size, timeout_ms, groups))
    return groups


def tcp_group(rank=-1, size=0, address=None, port=0, token=None, timeout_ms=60000):
    """This process's group; what is not given comes from the variables that launchers set (MASTER_ADDR and so on)."""
    tcp = Tcp(address=address and address.encode(), port=port, rank=rank, size=size, token=token and token.encode(),
              timeout_ms=timeout_ms)
    group = Group()
    must(library().afdep_group_tcp_create(ctypes.byref(tcp), ctypes.byref(group)))
    return group


# ---- Arrays and tensors


def to_bf16(values):
    """FP32 to BF16 bits, to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)


def is_tensor(value):
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(value, dtype, shape, name):
    """A contiguous array of that type and shape over the caller's memory, or a clear refusal."""
    if is_tensor(value):
        if value.device.type != "cpu":
            raise ValueError(f"{name} is on {value.device}: the host backend wants CPU tensors")
        value = value.contiguous()
        if value.dtype == torch.bfloat16:
            value = value.view(torch.int16)
        elif value.element_size() == 1:
            value = value.view(torch.uint8)
        value = value.numpy()
    array = np.ascontiguousarray(value)
    if array.dtype == np.int16 and dtype == np.uint16:
        array = array.view(np.uint16)
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{name} is {array.dtype} {array.shape}: {np.dtype(dtype)} {shape} is wanted")
    return array


def empty(shape, dtype):
    """Uninitialized, aligned for the library."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    space = np.empty(count + 64, np.uint8)
    start = -space.ctypes.data % 64
    return space[start:start + count].view(dtype).reshape(shape)


def as_bf16_tensor(array):
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def pointer(array):
    return array.ctypes.data if array is not None else None


class Received:
    """The rows of an exchange, expert after expert, and the receipt that the reply needs. Expert e of this rank has rows
    starts[e] to ends[e]."""

    def __init__(self, rows, row_scale, row_weight, row_source, ends, alignment, receipt):
        self.rows, self.row_scale, self.row_weight, self.row_source = rows, row_scale, row_weight, row_source
        self.ends, self.receipt = ends, receipt
        self.starts = np.concatenate(([0], (ends[:-1] + alignment - 1) // alignment * alignment))


class Buffer:
    """One rank's buffer. Opening and closing are collective. `tensors`: received rows and results are PyTorch tensors."""

    def __init__(self, group, tensors=False, **config):
        self.config, self.rank, self.handle = Config(**config), group.rank, c_void_p()
        self.tensors, self.tokens = tensors, 0
        if tensors and torch is None:
            raise ValueError("tensors: PyTorch is not installed")
        self.size = group.size
        must(library().afdep_buffer_open(ctypes.byref(group), ctypes.byref(self.config), ctypes.byref(self.handle)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        handle, self.handle = self.handle, c_void_p()
        must(library().afdep_buffer_close(handle))

    def _payload_type(self):
        return np.uint8 if self.config.dtype else np.uint16

    def source_dispatch(self, x, ids, weights, x_scale=None, *, bucket):
        """Attention: x [T, H], ids and weights [T, K]; FP8: x_scale [T, H/128]. Nothing is kept after the call."""
        tokens, top_k, hidden = len(x), self.config.top_k, self.config.hidden
        x = as_array(x, self._payload_type(), (tokens, hidden), "x")
        ids = as_array(ids, np.int32, (tokens, top_k), "ids")
        weights = as_array(weights, np.float32, (tokens, top_k), "weights")
        if x_scale is not None:
            x_scale = as_array(x_scale, np.float32, (tokens, hidden // 128), "x_scale")
        call = Dispatch(tokens=tokens, bucket=bucket, x=pointer(x), x_scale=pointer(x_scale), ids=pointer(ids),
                        weights=pointer(weights))
        must(library().afdep_source_dispatch(self.handle, ctypes.byref(call), None))
        self.tokens = tokens

    def source_collect(self):
        """Attention: the sums [T, H] in BF16, in token order."""
        out = empty((self.tokens, self.config.hidden), np.uint16)
        call = Collect(out=pointer(out))
        must(library().afdep_source_collect(self.handle, ctypes.byref(call), None))
        return as_bf16_tensor(out) if self.tensors else out

    def worker_receive(self, *, bucket):
        """FFN: what the sources sent to this rank's experts. Room for the worst case is touched only as far as it is used."""
        memory = Memory()
        must(library().afdep_buffer_bytes(ctypes.byref(self.config), self.size, bucket, ctypes.byref(memory)))
        most, hidden, fp8 = memory.receive_rows, self.config.hidden, bool(self.config.dtype)
        rows = empty((most, hidden), self._payload_type())
        row_scale = empty((most, hidden // 128), np.float32) if fp8 else None
        row_weight, row_source = empty((most,), np.float32), empty((most, 2), np.int32)
        ends = empty((self.config.num_experts // self.config.ffn_ranks,), np.int32)
        call = Receive(bucket=bucket, rows=pointer(rows), row_scale=pointer(row_scale), row_weight=pointer(row_weight),
                       row_source=pointer(row_source), ends=pointer(ends), rows_capacity=most)
        must(library().afdep_worker_receive(self.handle, ctypes.byref(call), None))
        rows = rows[:call.row_count]
        if self.tensors and not fp8:
            rows = as_bf16_tensor(rows)
        return Received(rows, row_scale[:call.row_count] if fp8 else None, row_weight[:call.row_count],
                        row_source[:call.row_count], ends, self.config.expert_alignment or 1, call.receipt)

    def worker_reply(self, rows, received):
        """FFN: BF16 [R, H] in place of the received rows, multiplied by row_weight unless the library does that."""
        rows = as_array(rows, np.uint16, (len(received.row_weight), self.config.hidden), "rows")
        if rows.ctypes.data % 16:
            aligned = empty(rows.shape, np.uint16)
            aligned[:] = rows
            rows = aligned
        call = Reply(rows=pointer(rows) if len(rows) else None, receipt=received.receipt)
        must(library().afdep_worker_reply(self.handle, ctypes.byref(call), None))


# ---- The demonstration: two FFN and two Attention ranks, expert e multiplies by (e + 1) / 8

FFN, ATTENTION, EXPERTS, TOP_K, HIDDEN, STEPS = 2, 2, 8, 2, 256, 5


def serve(buffer):
    for step in range(STEPS):
        got = buffer.worker_receive(bucket=16)
        rows = got.rows.float().numpy() if is_tensor(got.rows) else from_bf16(got.rows)
        replies = np.zeros(rows.shape, np.float32)
        for e, (start, end) in enumerate(zip(got.starts, got.ends)):
            expert = buffer.rank * (EXPERTS // FFN) + e
            replies[start:end] = rows[start:end] * (expert + 1) / 8 * got.row_weight[start:end, None]
        replies = to_bf16(replies)
        buffer.worker_reply(as_bf16_tensor(replies) if buffer.tensors else replies, got)


def attend(buffer):
    random = np.random.default_rng(buffer.rank)
    for step in range(STEPS):
        tokens = step * 4 % 17
        x = to_bf16(random.standard_normal((tokens, HIDDEN)))
        ids = np.array([random.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)], np.int32).reshape(tokens, TOP_K)
        weights = random.random((tokens, TOP_K), np.float32)
        sent = as_bf16_tensor(x) if buffer.tensors else x
        buffer.source_dispatch(sent, ids, weights, bucket=16)
        out = buffer.source_collect()
        out = out.float().numpy() if is_tensor(out) else from_bf16(out)
        want = from_bf16(x) * ((ids + 1) / 8 * weights).sum(axis=1, keepdims=True)
        if not np.allclose(out, want, rtol=2 ** -6, atol=2 ** -6):
            raise AssertionError(f"step {step}: {np.abs(out - want).max()} from what NumPy says")


def demonstrate(tensors):
    groups, failures = thread_groups(FFN + ATTENTION), []

    def run(group):
        try:
            with Buffer(group, tensors, ffn_ranks=FFN, num_experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, capacity=16) as buffer:
                (serve if group.rank < FFN else attend)(buffer)
        except Exception as error:  # of a thread: it is shown by the main one
            failures.append(f"rank {group.rank}: {error}")

    threads = [threading.Thread(target=run, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        library().afdep_group_destroy(ctypes.byref(group))
    return failures


def main():
    for tensors in [False] + ([True] if torch is not None else []):
        failures = demonstrate(tensors)
        if failures:
            sys.exit("\n".join(failures))
        print(f"{FFN} FFN and {ATTENTION} Attention ranks, {STEPS} exchanges of {'tensors' if tensors else 'arrays'}: as NumPy "
              "says")


if __name__ == "__main__":
    main()
