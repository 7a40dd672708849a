# SPDX-License-Identifier: Apache-2.0
# Small helpers shared by configure.ac and the other macros.

# AFDEP_WANTED(FEATURE, FOUND, WHAT)
# What the user asked for with --with-FEATURE and is not there ends configure; what nobody asked for is left out.
AC_DEFUN([AFDEP_WANTED], [
  AS_IF([test "x$2" != xyes && test "x$with_$1" != xcheck && test "x$with_$1" != xno],
    [AC_MSG_ERROR([--with-$1 was given, but $3 (see config.log)])])
])

# AFDEP_TRY_CFLAG(VARIABLE, FLAG): appends FLAG to VARIABLE if the compiler takes it without a warning.
AC_DEFUN([AFDEP_TRY_CFLAG], [
  AC_MSG_CHECKING([whether $CC takes $2])
  afdep_save_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS -Werror $2"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
    [AC_MSG_RESULT([yes]); $1="$$1 $2"], [AC_MSG_RESULT([no])])
  CFLAGS=$afdep_save_CFLAGS
])

# AFDEP_TRY_LDFLAG(VARIABLE, FLAG): the same for the linker.
AC_DEFUN([AFDEP_TRY_LDFLAG], [
  AC_MSG_CHECKING([whether the linker takes $2])
  afdep_save_LDFLAGS=$LDFLAGS
  LDFLAGS="$LDFLAGS $2"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
    [AC_MSG_RESULT([yes]); $1="$$1 $2"], [AC_MSG_RESULT([no])])
  LDFLAGS=$afdep_save_LDFLAGS
])
