# SPDX-License-Identifier: Apache-2.0
# AFDEP_CHECK_CUDA: looks for nvcc, the runtime's header and its library.
#   --with-cuda=DIR looks in DIR only; --with-cuda in the usual places, and insists; --without-cuda does not look.
# Sets have_cuda, cuda_dir, cuda_version; substitutes NVCC, CUDA_CPPFLAGS, CUDA_LIBS; defines AFDEP_HAVE_CUDA_VERSION.
AC_DEFUN([AFDEP_CHECK_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [use the CUDA toolkit (in DIR) @<:@check@:>@])],
    [], [with_cuda=check])
  AC_ARG_VAR([NVCC], [CUDA compiler])
  have_cuda=no
  cuda_why="no CUDA toolkit was found"
  AS_CASE([$with_cuda],
    [no], [cuda_why="--without-cuda"; cuda_places=],
    [yes|check], [
      afdep_nvcc=`command -v nvcc 2>/dev/null`
      AS_IF([test -n "$afdep_nvcc"], [afdep_nvcc=`readlink -f "$afdep_nvcc"`; afdep_nvcc=`dirname "$afdep_nvcc"`/..])
      cuda_places="$CUDA_HOME $CUDA_PATH $afdep_nvcc /usr/local/cuda /opt/cuda"],
    [cuda_places=$with_cuda; cuda_why="no CUDA toolkit was found in $with_cuda"])
  AS_IF([test "x$with_cuda" != xno], [
    AC_MSG_CHECKING([for the CUDA toolkit])
    cuda_dir=
    for afdep_place in $cuda_places; do
      AS_IF([test -x "$afdep_place/bin/nvcc"], [cuda_dir=`cd "$afdep_place" && pwd`; break])
    done
    AS_IF([test -z "$cuda_dir"], [AC_MSG_RESULT([no])], [
      AC_MSG_RESULT([$cuda_dir])
      AS_IF([test -z "$NVCC"], [NVCC=$cuda_dir/bin/nvcc])
      cuda_version=`"$NVCC" --version 2>/dev/null | sed -n 's/.*release \(@<:@0-9.@:>@*\).*/\1/p'`
      CUDA_CPPFLAGS="-isystem $cuda_dir/include"
      CUDA_LDFLAGS=
      for afdep_lib in "$cuda_dir/lib64" "$cuda_dir/lib" "$cuda_dir/targets/x86_64-linux/lib"; do
        AS_IF([test -d "$afdep_lib"], [CUDA_LDFLAGS="-L$afdep_lib"; break])
      done
      # Static: programs start where no CUDA is, and the library's own copy shares contexts with any other.
      CUDA_LIBS="$CUDA_LDFLAGS -lcudart_static -ldl -lrt -lpthread"
      AC_MSG_CHECKING([whether CUDA ${cuda_version:-of unknown version} compiles and links])
      afdep_save_CPPFLAGS=$CPPFLAGS; afdep_save_LIBS=$LIBS
      CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"; LIBS="$CUDA_LIBS $LIBS"
      AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cuda_runtime_api.h>]],
          [[int version; return cudaRuntimeGetVersion(&version) != cudaSuccess;]])], [have_cuda=yes])
      CPPFLAGS=$afdep_save_CPPFLAGS; LIBS=$afdep_save_LIBS
      AS_IF([test -z "$cuda_version"], [have_cuda=no])
      AC_MSG_RESULT([$have_cuda])
      AS_IF([test "$have_cuda" = no], [cuda_why="the toolkit in $cuda_dir does not compile and link"])
    ])
  ])
  AFDEP_WANTED([cuda], [$have_cuda], [$cuda_why])
  AS_IF([test "$have_cuda" = yes],
    [AC_DEFINE([AFDEP_HAVE_CUDA], [1], [Define to 1 where the CUDA backend is built])
     AC_DEFINE_UNQUOTED([AFDEP_HAVE_CUDA_VERSION], ["$cuda_version"], [The CUDA toolkit's version, if there is one])],
    [NVCC= CUDA_CPPFLAGS= CUDA_LIBS=])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_LIBS])
])
