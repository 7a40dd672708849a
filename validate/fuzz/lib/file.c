/* SPDX-License-Identifier: Apache-2.0 */
/* One anonymous file per process, opened through its name below /proc. */
#include "validate/fuzz/lib/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "validate/fuzz/lib/input.h"

const char *afdep_fuzz_file(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char name[64];
    if (fd < 0) {
        fd = memfd_create("afdep-fuzz", MFD_CLOEXEC);
        snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    }
    AFDEP_FUZZ_EXPECT(fd >= 0 && ftruncate(fd, 0) == 0);
    AFDEP_FUZZ_EXPECT(size == 0 || pwrite(fd, data, size, 0) == (ssize_t)size);
    return name;
}

void afdep_fuzz_expect_line(const char *why, size_t why_size)
{
    size_t length = strnlen(why, why_size);
    AFDEP_FUZZ_EXPECT(length > 0 && length < why_size);
    for (size_t i = 0; i < length; i++)
        AFDEP_FUZZ_EXPECT((unsigned char)why[i] >= 0x20);
}
