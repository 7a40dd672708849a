#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kernels as C++ for the processor: translate.py [--plant NAME] OUT FILE...

Copies files, with what a C++ compiler cannot take replaced: PTX instructions by what they mean, launches of the few kernels
that are started with <<<>>> by the loop that they are, dynamic shared memory by a fixed array. An instruction that is not in
the table is refused, so that a new one is thought about here too. --plant changes the text before, to a wrong variant that
the suites must catch; --plants lists them, each with the file that it is in and the cases that do."""

import os
import re
import sys

# First words of an instruction, and its replacement: {0}, {1}, ... are the operands in the order they are written in.
INSTRUCTIONS = [
    ("ld.acquire.", "{0} = afdep_simt_load({1}, __ATOMIC_ACQUIRE)"),
    ("ld.relaxed.", "{0} = afdep_simt_load({1}, __ATOMIC_RELAXED)"),
    ("st.relaxed.", "__atomic_store_n({0}, {1}, __ATOMIC_RELAXED)"),
    ("st.release.", "__atomic_store_n({0}, {1}, __ATOMIC_RELEASE)"),
    ("fence.acq_rel.", "__atomic_thread_fence(__ATOMIC_SEQ_CST)"),
    ("atom.acq_rel.gpu.global.add.u32", "{0} = __atomic_fetch_add({1}, 1, __ATOMIC_ACQ_REL)"),
    ("atom.acq_rel.gpu.global.add.u64", "{0} = __atomic_fetch_add({1}, {2}, __ATOMIC_ACQ_REL)"),
    ("atom.acq_rel.cta.add.u32", "{0} = __atomic_fetch_add({1}, 1, __ATOMIC_ACQ_REL)"),
    ("ld.global.L1::no_allocate.v4.u32", "memcpy(&v, {4}, 16)"),
    ("st.global.L1::no_allocate.v4.u32", "memcpy({0}, &v, 16)"),
    ("cvt.rn.bf16x2.f32", "{0} = afdep_simt_bf16({1}) << 16 | afdep_simt_bf16({2})"),
    ("cvt.rn.satfinite.e4m3x2.f32", "{0} = (uint16_t)(afdep_e4m3_from_f32({1}) << 8 | afdep_e4m3_from_f32({2}))"),
    ("max.u16x2", "{0} = afdep_simt_max_pairs({1}, {2})"),
    ("mov.u64", "{0} = afdep_simt_now_ns()"),
    ("griddepcontrol.", "(void)0"),
    ("prefetch.", "(void)0"),
    (r"{\n\t.reg .b128 word;\n\tld.relaxed.sys.global.b128", "afdep_simt_load16({2}, &{0}, &{1})"),
    (r"{\n\t.reg .b128 word;\n\tmov.b128 word, {%1, %2};", "afdep_simt_store16({0}, {1}, {2})"),
]


# Wrong variants of the GIN rail: name, file, cases, what stands there, what stands there instead.
PLANTS = [
    ("tail_on_another_context", "rail_gin.cuh", "all_channels", "        net.put(ncclTeamRail(gin.comm), place, gin.window, offset, gin.window, from, bytes, add);",
     "        net.put(ncclTeamRail(gin.comm), place, gin.window, offset, gin.window, from, bytes, ncclGin_None{}),\n"
     "        ncclGin(gin.comm, afdep_gin_context(gin, channel) + 1).signal(ncclTeamRail(gin.comm), place, add);"),
    ("tail_before_its_row", "rail_gin.cuh", "all_channels", "        net.put(ncclTeamRail(gin.comm), place, gin.window, offset, gin.window, from, bytes, add);",
     "        net.signal(ncclTeamRail(gin.comm), place, add), net.put(ncclTeamRail(gin.comm), place, gin.window, offset, gin.window, from, bytes, ncclGin_None{});"),
    ("read_on_the_control_context", "rail_gin.cuh", "few_tokens", "ncclGin net(r.gin.comm, afdep_gin_context(r.gin, channel));",
     "ncclGin net(r.gin.comm, AFDEP_GIN_CONTROL);"),
    ("value_in_place_of_difference", "rail_gin.cuh", "few_tokens", "bytes, word, value - old);", "bytes, word, value);"),
    ("staging_of_a_channel", "rail_dispatch.cu", "capacity", "(uint32_t)s.capacity + (uint32_t)token) *",
     "(uint32_t)s.capacity + (uint32_t)channel) *"),
    ("staging_on_one_plane", "rail_dispatch.cu", "four_in_flight", "r.staging + ((uint64_t)afdep_plane(s, exchange)",
     "r.staging + ((uint64_t)0"),
    ("reply_staging_on_one_plane", "rail_reply.cu", "four_in_flight", "r.reply_staging + (((uint64_t)afdep_plane(s, exchange)",
     "r.reply_staging + (((uint64_t)0"),
]


def closing(text, start):
    """The place behind the parenthesis that closes the one before `start`."""
    depth, quoted = 1, False
    for i in range(start, len(text)):
        if text[i] == '"':
            quoted = not quoted
        elif not quoted and text[i] in "()":
            depth += 1 if text[i] == "(" else -1
            if depth == 0:
                return i + 1
    raise SystemExit("translate: a parenthesis is not closed")


def operands(text):
    found, at = [], 0
    for constraint in re.finditer(r'"[=+]?[rlfh]"\s*\(', text):
        if constraint.start() >= at:
            at = closing(text, constraint.end())
            found.append(text[constraint.end():at - 1])
    return found


def instruction(statement, name):
    text = re.search(r'"([^"]*)"', statement).group(1)
    if text == "mov.u64 %0, %%clock64;":
        raise SystemExit(f"translate: {name}: clock64 has no meaning here")
    for start, replacement in INSTRUCTIONS:
        if text.startswith(start):
            return replacement.format(*operands(statement[statement.index(text) + len(text):]))
    raise SystemExit(f"translate: {name}: the instruction \"{text}\" is not in the table")


def translate(text, name):
    out, at = [], 0
    for asm in re.finditer(r"\basm(\s+volatile)?\(", text):
        if asm.start() < at:
            continue
        end = closing(text, asm.end())
        out += [text[at:asm.start()], instruction(text[asm.start():end], name)]
        at = end
    text = "".join(out) + text[at:]
    text = re.sub(r"extern __shared__ (.*?)(\w+)\[\];", r"\1*\2 = (\1*)afdep_simt_shared;", text)
    text = re.sub(r"fill_kernel<\w+><<<[^>]*>>>\(words, count, value\);",
                  "for (uint64_t i = 0; i < count; i++)\n        words[i] = value;", text)
    return "#include <cuda_runtime.h>\n" + text.replace("return cudaGetLastError();", "return cudaSuccess;")


def plant(text, name, wanted):
    for title, file, _, right, wrong in PLANTS:
        if title == wanted and file == name:
            if text.count(right) != 1:
                raise SystemExit(f"translate: {name}: what {title} changes stands there {text.count(right)} times")
            return text.replace(right, wrong)
    return text


def main():
    if sys.argv[1] == "--plants":
        for title, file, cases, _, _ in PLANTS:
            print(title, file, cases)
        return
    planted = None
    if sys.argv[1] == "--plant":
        planted = sys.argv[2]
        del sys.argv[1:3]
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for path in sys.argv[2:]:
        name = os.path.basename(path)
        with open(path, encoding="utf-8") as file:
            text = translate(plant(file.read(), name, planted), name)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


main()
