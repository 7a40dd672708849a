/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Screen files. A good scenario lies beside the screen under the name "s"; the process stands in that folder, so that
 * whatever name a screen holds is looked for there.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/screen_file.h"
#include "validate/fuzz/lib/file.h"
#include "validate/fuzz/lib/input.h"

static const char scenario[] =
    "{\"schema\": \"afdep-scenario/1\", \"name\": \"s\", \"topology\": {\"ffn_ranks\": 2, \"attention_ranks\": 4, "
    "\"ranks_per_domain\": 2}, \"model\": {\"num_experts\": 8, \"top_k\": 2, \"hidden\": 256}, \"dtype\": \"fp8\", "
    "\"capacity\": 16, \"num_sms\": 1, \"tokens\": [1, 8]}";

static char folder[] = "/dev/shm/afdep-fuzz-XXXXXX";

static void remove_folder(void)
{
    unlink("s");
    unlink("screen");
    (void)!chdir("/");
    rmdir(folder);
}

static void write_file(const char *name, const void *bytes, size_t size)
{
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    AFDEP_FUZZ_EXPECT(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && close(fd) == 0);
}

static void make_folder(void)
{
    AFDEP_FUZZ_EXPECT(mkdtemp(folder) && chdir(folder) == 0);
    atexit(remove_folder);
    write_file("s", scenario, sizeof(scenario) - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int made;
    static afdep_screen_t screen;
    char why[256] = "";
    if (!made++)
        make_folder();
    write_file("screen", data, size);
    if (afdep_screen_load("screen", &screen, why, sizeof(why)) < 0) {
        afdep_fuzz_expect_line(why, sizeof(why));
        return 0;
    }
    AFDEP_FUZZ_EXPECT(screen.arm_count >= 1 && screen.arm_count <= AFDEP_SCREEN_ARMS_MAX);
    AFDEP_FUZZ_EXPECT(screen.baseline >= 0 && screen.baseline < screen.arm_count);
    AFDEP_FUZZ_EXPECT(screen.token_counts >= 1 && screen.token_counts <= AFDEP_SCENARIO_TOKENS_MAX);
    AFDEP_FUZZ_EXPECT(screen.repeats >= 1 && screen.deadline_s >= 1);
    for (int i = 0; i < screen.arm_count; i++) {
        const afdep_screen_arm_t *arm = &screen.arms[i];
        AFDEP_FUZZ_EXPECT(arm->name && arm->program && arm->launcher && arm->flags && arm->env);
    }
    afdep_screen_free(&screen);
    return 0;
}
