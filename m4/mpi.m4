# SPDX-License-Identifier: Apache-2.0
# AFDEP_CHECK_MPI: looks for an MPI-3 library, through pkg-config (ompi-c, then mpich), else through mpicc.
#   --with-mpi insists; --without-mpi does not look. MPI_CFLAGS and MPI_LIBS, where given, are believed.
# Sets have_mpi; substitutes MPI_CFLAGS, MPI_LIBS, MPIRUN; defines AFDEP_HAVE_MPI.
AC_DEFUN([AFDEP_CHECK_MPI], [
  AC_ARG_WITH([mpi], [AS_HELP_STRING([--with-mpi], [build libafdep-mpi, and programs that run under mpirun @<:@check@:>@])],
    [], [with_mpi=check])
  AC_ARG_VAR([MPIRUN], [launcher of MPI programs])
  have_mpi=no
  mpi_why="no MPI was found"
  AS_IF([test "x$with_mpi" != xno], [
    PKG_CHECK_MODULES([MPI], [ompi-c], [have_mpi=yes], [
      PKG_CHECK_MODULES([MPI], [mpich], [have_mpi=yes], [
        AC_CHECK_PROG([MPICC], [mpicc], [mpicc])
        AS_IF([test -n "$MPICC"], [
          MPI_CFLAGS=`$MPICC -showme:compile 2>/dev/null || $MPICC -show -c 2>/dev/null | sed 's/^@<:@^ @:>@* //; s/ -c\b//'`
          MPI_LIBS=`$MPICC -showme:link 2>/dev/null || $MPICC -show 2>/dev/null | sed 's/^@<:@^ @:>@* //'`
          have_mpi=yes
        ])
      ])
    ])
    AS_IF([test "$have_mpi" = yes], [
      AC_MSG_CHECKING([whether MPI has one-sided communication in shared windows])
      afdep_save_CFLAGS=$CFLAGS; afdep_save_LIBS=$LIBS
      CFLAGS="$CFLAGS $MPI_CFLAGS"; LIBS="$MPI_LIBS $LIBS"
      AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <mpi.h>
#if MPI_VERSION < 3
#error "MPI-3 is needed"
#endif]], [[MPI_Win window; void *base;
return MPI_Win_allocate_shared(8, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);]])], [],
        [have_mpi=no; mpi_why="the MPI that was found does not compile and link as MPI-3"])
      CFLAGS=$afdep_save_CFLAGS; LIBS=$afdep_save_LIBS
      AC_MSG_RESULT([$have_mpi])
    ])
  ])
  AFDEP_WANTED([mpi], [$have_mpi], [$mpi_why])
  AS_IF([test "$have_mpi" = yes], [
    AC_DEFINE([AFDEP_HAVE_MPI], [1], [Define to 1 where MPI is used])
    AC_CHECK_PROGS([MPIRUN], [mpirun mpiexec])
  ], [MPI_CFLAGS= MPI_LIBS= MPIRUN=])
])
