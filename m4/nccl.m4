# SPDX-License-Identifier: Apache-2.0
# AFDEP_CHECK_NCCL (after AFDEP_CHECK_CUDA, without which there is no NCCL): looks for NCCL's header and library.
#   --with-nccl=DIR looks in DIR only; --with-nccl insists; --without-nccl does not look.
# Sets have_nccl, have_nccl_gin, nccl_version; substitutes NCCL_CPPFLAGS, NCCL_LIBS; defines AFDEP_HAVE_NCCL_VERSION.
AC_DEFUN([AFDEP_CHECK_NCCL], [
  AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl@<:@=DIR@:>@], [use NCCL (in DIR) @<:@check@:>@])],
    [], [with_nccl=check])
  have_nccl=no
  have_nccl_gin=no
  nccl_why="NCCL was not found"
  AS_CASE([$with_nccl],
    [no], [nccl_why="--without-nccl"],
    [yes|check], [],
    [nccl_why="NCCL was not found in $with_nccl"
     NCCL_CPPFLAGS="-isystem $with_nccl/include"
     NCCL_LIBS="-L$with_nccl/lib"
     AS_IF([test -d "$with_nccl/lib64"], [NCCL_LIBS="-L$with_nccl/lib64 $NCCL_LIBS"])])
  AS_IF([test "x$with_nccl" != xno && test "$have_cuda" != yes],
    [nccl_why="NCCL needs CUDA: $cuda_why"],
    [test -n "$NCCL_CPPFLAGS" && test ! -f "$with_nccl/include/nccl.h"], [],
    [test "x$with_nccl" != xno], [
      NCCL_LIBS="$NCCL_LIBS -lnccl"
      afdep_save_CPPFLAGS=$CPPFLAGS; afdep_save_LIBS=$LIBS
      CPPFLAGS="$CPPFLAGS $NCCL_CPPFLAGS $CUDA_CPPFLAGS"; LIBS="$NCCL_LIBS $CUDA_LIBS $LIBS"
      AC_MSG_CHECKING([for NCCL])
      AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <nccl.h>]],
          [[int version; return ncclGetVersion(&version) != ncclSuccess;]])], [have_nccl=yes])
      AS_IF([test "$have_nccl" = yes], [
        AC_COMPUTE_INT([nccl_major], [NCCL_MAJOR], [#include <nccl.h>], [have_nccl=no])
        AC_COMPUTE_INT([nccl_minor], [NCCL_MINOR], [#include <nccl.h>], [have_nccl=no])
        AC_COMPUTE_INT([nccl_patch], [NCCL_PATCH], [#include <nccl.h>], [have_nccl=no])
        nccl_version=$nccl_major.$nccl_minor.$nccl_patch
        AC_COMPUTE_INT([nccl_code], [NCCL_VERSION_CODE], [#include <nccl.h>], [nccl_code=0])
        # GPU-initiated networking: its device interface came with 2.28.7, and works in what is tested here from 2.28.9.
        AS_IF([test "$nccl_code" -ge 22809], [have_nccl_gin=yes])
      ])
      AC_MSG_RESULT([${nccl_version:-no}])
      CPPFLAGS=$afdep_save_CPPFLAGS; LIBS=$afdep_save_LIBS
    ])
  AFDEP_WANTED([nccl], [$have_nccl], [$nccl_why])
  AS_IF([test "$have_nccl" = yes],
    [AC_DEFINE_UNQUOTED([AFDEP_HAVE_NCCL_VERSION], ["$nccl_version"], [NCCL's version, if there is one])],
    [NCCL_CPPFLAGS= NCCL_LIBS=])
  AC_SUBST([NCCL_CPPFLAGS])
  AC_SUBST([NCCL_LIBS])
])
