# SPDX-License-Identifier: Apache-2.0
# Sourced by quickstart and check: packages, configure, build. Expects `root` to be the project's root.
# shellcheck shell=bash disable=SC2154

say() { printf '== %s\n' "$*"; }

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }
have_numpy() { /usr/bin/python3 -c 'import numpy' 2>/dev/null; }
have_module() { pkg-config --exists "$1" 2>/dev/null; }

# need PACKAGE PROBE...: remembers PACKAGE as missing when the probe fails. Names of Debian 12 and Ubuntu 24.04.
missing=()
need() {
    local package=$1
    shift
    "$@" || missing+=("$package")
}

need_build_packages() {
    need gcc have gcc
    need libc6-dev test -e /usr/include/stdio.h
    need make have make
    need autoconf have autoconf
    need automake have automake
    need libtool have libtoolize
    need pkg-config have pkg-config
    need python3 have python3
    need procps have ps
    need libssl-dev have_module libcrypto
    need libcjson-dev have_module libcjson
    need libibverbs-dev have_module libibverbs
    need libopenmpi-dev have_module ompi-c
    need openmpi-bin have mpirun
    need help2man have help2man
}

# Installs what need() found missing, and nothing when nothing is.
install_missing() {
    [ ${#missing[@]} -gt 0 ] || return 0
    have apt-get || die "missing: ${missing[*]} (names of Debian's and Ubuntu's packages); there is no apt-get here to install them with"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || die "missing: ${missing[*]}; neither root nor sudo. As root: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    say "installing ${missing[*]}"
    "${as_root[@]}" apt-get update -q >"$1" 2>&1 ||
        say "apt-get update failed ($(tail -n 1 "$1")); trying with the package lists that are here"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >>"$1" 2>&1 ||
        die "apt-get could not install ${missing[*]}: $(grep -m 1 '^E:' "$1" || tail -n 1 "$1") (all of it: $1)"
    missing=()
}

# configure_tree FOLDER ARGUMENT...: an out-of-tree configuration, made again when the arguments or configure changed.
configure_tree() {
    local folder=$1
    shift
    mkdir -p "$folder"
    if [ ! -f "$folder/config.status" ] || [ "$root/configure" -nt "$folder/config.status" ] ||
        [ "$(cat "$folder/.configured-with" 2>/dev/null)" != "$*" ]; then
        (cd "$folder" && "$root/configure" -q "$@") || return 1
        printf '%s\n' "$*" >"$folder/.configured-with"
    fi
}

# Makes configure, where it is missing or older than what it is made of.
bootstrap() {
    local source
    [ ! -f "$root/config.status" ] || die "the source tree itself is configured, and builds elsewhere cannot be: make distclean"
    if [ ! -f "$root/configure" ] || [ ! -f "$root/Makefile.in" ]; then
        (cd "$root" && autoreconf -fi)
        return
    fi
    for source in "$root"/configure.ac "$root"/Makefile.am "$root"/*/Makefile.inc "$root"/m4/{afdep,cuda,mpi,nccl}.m4; do
        if [ "$source" -nt "$root/Makefile.in" ]; then
            (cd "$root" && autoreconf -fi)
            return
        fi
    done
}

jobs_here() { nproc 2>/dev/null || echo 2; }

# mpirun: more ranks than processors, root where it must be (containers), and an end after 5 minutes.
mpi_run() { # mpi_run RANKS COMMAND...
    local ranks=$1 as_root=()
    shift
    [ "$(id -u)" -ne 0 ] || as_root=(--allow-run-as-root)
    timeout 300 mpirun --oversubscribe "${as_root[@]}" -n "$ranks" "$@" </dev/null
}
