/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files: magic, version, a padded text header that says type and shape, then the elements. */
#include "bench/lib/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are written as they lie in memory, which must be little endian"
#endif

enum {
    PREFIX = 10, /* magic, version, length of the header */
    HEADER = 128 /* bytes up to the elements: a multiple of 64, as the format wants it, that holds any shape */
};

static const struct {
    const char *descr;
    size_t bytes;
} types[] = {
    [AFDEP_NPY_UINT8] = { "|u1", 1 },
    [AFDEP_NPY_UINT16] = { "<u2", 2 },
    [AFDEP_NPY_INT32] = { "<i4", 4 },
    [AFDEP_NPY_FLOAT32] = { "<f4", 4 },
};

static void format_header(char *header, afdep_npy_type_t type, int64_t rows, int64_t columns)
{
    char text[HEADER];
    char shape[48];

    if (columns == AFDEP_NPY_1D)
        snprintf(shape, sizeof(shape), "(%lld,)", (long long)rows);
    else
        snprintf(shape, sizeof(shape), "(%lld, %lld)", (long long)rows, (long long)columns);
    int length = snprintf(text, sizeof(text), "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                          types[type].descr, shape);

    memset(header, ' ', HEADER);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)((HEADER - PREFIX) & 0xFF);
    header[9] = (char)((HEADER - PREFIX) >> 8);
    memcpy(header + PREFIX, text, (size_t)length);
    header[HEADER - 1] = '\n';
}

static int write_all(int descriptor, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t written = write(descriptor, bytes, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return -1;
        bytes += written;
        size -= (size_t)written;
    }
    return 0;
}

/* Opens a file that did not exist, beside `file`; several ranks of a process write at once, each its own file. */
static int open_temporary(char *name, size_t size, const char *file)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        if (snprintf(name, size, "%s.%ld.%d.tmp", file, (long)getpid(), attempt) >= (int)size) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || errno != EEXIST)
            return descriptor;
    }
    return -1;
}

static int fail(const char *file, const char *what, int error, char *why, size_t why_size)
{
    snprintf(why, why_size, "%s: %s: %s", file, what, strerror(error));
    return -1;
}

int afdep_npy_write(const char *file, afdep_npy_type_t type, const void *data, int64_t rows, int64_t columns, char *why,
                    size_t why_size)
{
    char header[HEADER];
    char temporary[4096];
    size_t bytes = (size_t)rows * (columns == AFDEP_NPY_1D ? 1 : (size_t)columns) * types[type].bytes;
    int descriptor = open_temporary(temporary, sizeof(temporary), file);

    if (descriptor < 0)
        return fail(file, "cannot create a temporary file beside it", errno, why, why_size);
    format_header(header, type, rows, columns);
    int error = 0;
    if (write_all(descriptor, header, sizeof(header)) != 0 || write_all(descriptor, data, bytes) != 0)
        error = errno;
    if (close(descriptor) != 0 && error == 0)
        error = errno;
    if (error == 0 && rename(temporary, file) != 0)
        error = errno;
    if (error != 0) {
        unlink(temporary);
        return fail(file, "cannot write", error, why, why_size);
    }
    return 0;
}
