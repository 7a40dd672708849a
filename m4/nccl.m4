# SPDX-License-Identifier: Apache-2.0
# AFDEP_CHECK_NCCL (after AFDEP_CHECK_CUDA, without which there is no NCCL): looks for the headers of NCCL 2.28 or newer,
# those of the device API too. The library itself is looked up at run time, so it need not be there; a program that links it
# all the same asks have_nccl_lib.
#   --with-nccl=DIR looks in DIR/include and DIR/lib only; --with-nccl insists; --without-nccl does not look.
# Sets have_nccl, nccl_version, have_nccl_lib, have_gin; substitutes NCCL_CPPFLAGS, NCCL_NVCC_CPPFLAGS (the same for nvcc) and NCCL_LIBS;
# defines AFDEP_HAVE_NCCL, AFDEP_HAVE_NCCL_VERSION and, where the device API has GIN, AFDEP_HAVE_GIN.
AC_DEFUN([AFDEP_CHECK_NCCL], [
  AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl@<:@=DIR@:>@], [use NCCL (in DIR) @<:@check@:>@])],
    [], [with_nccl=check])
  have_nccl=no
  have_nccl_lib=no
  have_gin=no
  nccl_why="the headers of NCCL were not found"
  AS_CASE([$with_nccl],
    [no], [nccl_why="--without-nccl"],
    [yes|check], [],
    [nccl_why="the headers of NCCL were not found in $with_nccl/include"
     NCCL_CPPFLAGS="-isystem $with_nccl/include"
     # nvcc puts the toolkit's own headers before those of -isystem, and an NCCL may stand among them.
     NCCL_NVCC_CPPFLAGS="-I$with_nccl/include"
     NCCL_LIBS="-L$with_nccl/lib"
     AS_IF([test -d "$with_nccl/lib64"], [NCCL_LIBS="-L$with_nccl/lib64 $NCCL_LIBS"])])
  AS_IF([test "x$with_nccl" != xno && test "$have_cuda" != yes],
    [nccl_why="NCCL needs CUDA: $cuda_why"],
    [test -n "$NCCL_CPPFLAGS" && test ! -f "$with_nccl/include/nccl.h"], [],
    [test "x$with_nccl" != xno], [
      afdep_save_CPPFLAGS=$CPPFLAGS
      CPPFLAGS="$CPPFLAGS $NCCL_CPPFLAGS $CUDA_CPPFLAGS"
      AC_MSG_CHECKING([for NCCL])
      AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <nccl.h>]], [[return NCCL_MAJOR == 0;]])], [
        AC_COMPUTE_INT([nccl_major], [NCCL_MAJOR], [#include <nccl.h>], [nccl_major=0])
        AC_COMPUTE_INT([nccl_minor], [NCCL_MINOR], [#include <nccl.h>], [nccl_minor=0])
        AC_COMPUTE_INT([nccl_patch], [NCCL_PATCH], [#include <nccl.h>], [nccl_patch=0])
        nccl_version=$nccl_major.$nccl_minor.$nccl_patch
        nccl_why="NCCL $nccl_version has no device API (nccl_device.h): 2.28 or newer is wanted"
        # Only C++ reads the whole header in all versions: that it is there, and the version, must do.
        AC_PREPROC_IFELSE([AC_LANG_SOURCE([[#include <nccl.h>
#if !__has_include(<nccl_device.h>) || NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0)
#error
#endif]])], [have_nccl=yes])
      ])
      AC_MSG_RESULT([$have_nccl${nccl_version:+ ($nccl_version)}])
      NCCL_LIBS="$NCCL_LIBS -lnccl"
      AS_IF([test "$have_nccl" = yes], [
        AC_MSG_CHECKING([whether programs link with NCCL])
        afdep_save_LIBS=$LIBS
        LIBS="$NCCL_LIBS $CUDA_LIBS $LIBS"
        AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <nccl.h>]],
          [[int version; return ncclGetVersion(&version) != ncclSuccess;]])], [have_nccl_lib=yes])
        # Packages of the library alone have no name to link by, and the linker would take another NCCL.
        AS_CASE([$with_nccl], [yes|check], [],
          [AS_IF([test ! -e "$with_nccl/lib/libnccl.so" && test ! -e "$with_nccl/lib64/libnccl.so"], [have_nccl_lib=no])])
        AC_MSG_RESULT([$have_nccl_lib])
        # GPU-initiated networking: its device interface came with 2.28.7, and works in what is tested here from 2.28.9.
        AC_COMPUTE_INT([nccl_code], [NCCL_VERSION_CODE], [#include <nccl.h>], [nccl_code=0])
        AS_IF([test "$nccl_code" -ge 22809], [have_gin=yes])
        LIBS=$afdep_save_LIBS
      ])
      CPPFLAGS=$afdep_save_CPPFLAGS
    ])
  AFDEP_WANTED([nccl], [$have_nccl], [$nccl_why])
  AS_IF([test "$have_nccl" = yes],
    [AC_DEFINE([AFDEP_HAVE_NCCL], [1], [Define to 1 where the nccl fabric is built])
     AS_IF([test "$have_gin" = yes], [AC_DEFINE([AFDEP_HAVE_GIN], [1], [Define to 1 where NCCL's GIN is a rail])])
     AC_DEFINE_UNQUOTED([AFDEP_HAVE_NCCL_VERSION], ["$nccl_version"], [NCCL's version, if there is one])],
    [NCCL_CPPFLAGS= NCCL_NVCC_CPPFLAGS=])
  AS_IF([test "$have_nccl_lib" = no], [NCCL_LIBS=])
  AC_SUBST([NCCL_CPPFLAGS])
  AC_SUBST([NCCL_LIBS])
  AC_SUBST([NCCL_NVCC_CPPFLAGS])
])
