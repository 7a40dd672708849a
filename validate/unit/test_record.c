/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records: what is written is read back, files are whole or not there and leave nothing beside them, and what a record
 * may not hold (the job token, other variables, NaN, broken text) is not in it. Also the readers of nvidia-smi's text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/command.h"
#include "bench/lib/json.h"
#include "bench/lib/machine.h"
#include "bench/lib/record.h"

static char why[512], folder[64], file[96];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/afdep-record-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(file, sizeof file, "%s/r.json", folder);
    why[0] = 0;
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(folder); /* fails where a temporary file was left behind */
}

static int entries(void)
{
    int count = -2; /* . and .. */
    DIR *opened = opendir(folder);
    assert_non_null(opened);
    while (readdir(opened))
        count++;
    closedir(opened);
    return count;
}

static const cJSON *get(const cJSON *json, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(json, name);
}

static cJSON *begin(int argc, char **argv)
{
    afdep_scenario_t scenario;
    const afdep_arm_t arm = { .name = "sparse", .protocol = "sparse", .stagger = 1, .sparse_dispatch = 1, .dtype = "bf16",
                              .backend = "host", .fabric = "shm", .graph = 1, .domains = "declared" };
    afdep_scenario_default(&scenario);
    scenario.ffn_ranks = 2;
    scenario.attention_ranks = 6;
    scenario.ranks_per_domain = 2;
    scenario.capacity = 128;
    cJSON *record = afdep_record_begin("afdep-benchmark/1", argc, argv, &scenario, &arm, 8, 8);
    afdep_scenario_free(&scenario);
    return record;
}

/* Everything but the numbers' last digits: small integers and texts are exact. */
static void reads_what_it_wrote(void **state)
{
    (void)state;
    char *argv[] = { "afdep-bench", "--scenario", "a b.json", "it's", "", "$x" };
    cJSON *record = begin(6, argv);
    assert_int_equal(afdep_record_write(file, record, why, sizeof why), 0);
    cJSON *again = afdep_record_read(file, why, sizeof why);
    assert_non_null(again);
    assert_true(cJSON_Compare(record, again, 1));
    assert_string_equal(get(again, "schema")->valuestring, "afdep-benchmark/1");
    assert_string_equal(get(again, "command")->valuestring,
                        "afdep-bench --scenario 'a b.json' 'it'\\''s' '' '$x'");
    assert_string_equal(get(again, "native_tree")->valuestring, afdep_native_tree());
    assert_string_equal(get(get(again, "build"), "version")->valuestring, afdep_version());
    assert_int_equal(get(again, "ranks")->valueint, 8);
    assert_true(cJSON_IsTrue(get(get(again, "arm"), "sparse_dispatch")));
    assert_true(cJSON_IsFalse(get(get(again, "arm"), "sparse_combine")));
    assert_true(cJSON_IsTrue(get(get(again, "arm"), "graph")));
    assert_string_equal(get(get(again, "arm"), "domains")->valuestring, "declared");
    assert_int_equal(get(get(again, "machine"), "ranks_per_host")->valueint, 8);
    assert_true(cJSON_IsNull(get(get(again, "machine"), "ranks_per_gpu")));
    assert_int_equal(get(get(get(again, "scenario"), "topology"), "ffn_ranks")->valueint, 2);
    assert_int_equal(strlen(get(again, "created")->valuestring), strlen("2025-01-02T03:04:05Z"));
    cJSON_Delete(again);
    cJSON_Delete(record);
}

static void keeps_secrets_and_strangers_out(void **state)
{
    (void)state;
    setenv("AFDEP_JOB_TOKEN", "correct horse battery", 1);
    setenv("AFDEP_JOB_TOKEN_FILE", "/secret/place", 1);
    setenv("AFDEP_NUM_SMS", "2", 1);
    setenv("AFDEP_ODD", "a\xff\xc3\xa9\xc0\x80", 1);
    setenv("OTHER_AFDEP_THING", "stranger", 1);
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    char *argv[] = { "afdep-bench" };
    cJSON *record = begin(1, argv);
    char *text = cJSON_Print(record);
    const cJSON *environment = get(record, "environment");
    assert_null(strstr(text, "correct horse"));
    assert_null(strstr(text, "/secret/place"));
    assert_null(strstr(text, "stranger"));
    assert_string_equal(get(environment, "AFDEP_NUM_SMS")->valuestring, "2");
    /* Bytes that are no text become U+FFFD, overlong forms byte by byte; text stays. */
    assert_string_equal(get(environment, "AFDEP_ODD")->valuestring,
                        "a\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd");
    if (strlen(host) > 4) /* a short name may be part of any word */
        assert_null(strstr(text, host));
    free(text);
    cJSON_Delete(record);
    unsetenv("AFDEP_JOB_TOKEN");
    unsetenv("AFDEP_JOB_TOKEN_FILE");
    unsetenv("AFDEP_NUM_SMS");
    unsetenv("AFDEP_ODD");
    unsetenv("OTHER_AFDEP_THING");
}

static void writes_null_for_what_is_no_number(void **state)
{
    (void)state;
    cJSON *record = cJSON_CreateArray(), *nan = afdep_record_number(NAN);
    assert_true(cJSON_IsNull(nan));
    cJSON_AddItemToArray(record, nan);
    cJSON_AddItemToArray(record, afdep_record_number(INFINITY));
    cJSON_AddItemToArray(record, afdep_record_number(-INFINITY));
    cJSON_AddItemToArray(record, afdep_record_number(0.1));
    assert_int_equal(afdep_record_write(file, record, why, sizeof why), 0);
    char *text = afdep_file_text(file);
    assert_string_equal(text, "[null, null, null, 0.1]\n");
    free(text);
    cJSON_Delete(record);
}

static void replaces_whole_files(void **state)
{
    (void)state;
    struct stat status;
    char link_name[96];
    cJSON *one = cJSON_CreateNumber(1), *two = cJSON_CreateNumber(2);
    umask(022);
    assert_int_equal(afdep_record_write(file, one, why, sizeof why), 0);
    assert_int_equal(stat(file, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0644);
    /* Whoever has the old file open keeps it whole. */
    int old = open(file, O_RDONLY);
    char before[8] = "";
    assert_int_equal(afdep_record_write(file, two, why, sizeof why), 0);
    assert_int_equal(read(old, before, sizeof before), 2);
    assert_memory_equal(before, "1\n", 2);
    close(old);
    /* A link stays a link. */
    snprintf(link_name, sizeof link_name, "%s/link", folder);
    assert_int_equal(symlink(file, link_name), 0);
    assert_int_equal(afdep_record_write(link_name, one, why, sizeof why), 0);
    assert_int_equal(lstat(link_name, &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    unlink(link_name);
    char *text = afdep_file_text(file);
    assert_string_equal(text, "1\n");
    assert_int_equal(entries(), 1);
    free(text);
    cJSON_Delete(one);
    cJSON_Delete(two);
}

static void refuses_places_in_one_line(void **state)
{
    (void)state;
    char missing[128];
    cJSON *record = cJSON_CreateObject();
    snprintf(missing, sizeof missing, "%s/absent/r.json", folder);
    assert_int_equal(afdep_record_write(missing, record, why, sizeof why), -1);
    assert_non_null(strstr(why, missing));
    assert_non_null(strstr(why, "No such file or directory"));
    assert_int_equal(afdep_record_write(folder, record, why, sizeof why), -1);
    assert_non_null(strstr(why, "it is a directory"));
    assert_int_equal(afdep_record_write("", record, why, sizeof why), -1);
    assert_int_equal(entries(), 0);
    cJSON_Delete(record);
}

/* What is no regular file is written through, not replaced: a pipe gives the record to its reader. */
static void writes_through_pipes(void **state)
{
    (void)state;
    char text[8] = "";
    cJSON *record = cJSON_CreateNumber(1);
    assert_int_equal(mkfifo(file, 0600), 0);
    int reader = open(file, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(afdep_record_write(file, record, why, sizeof why), 0);
    assert_int_equal(read(reader, text, sizeof text), 2);
    assert_memory_equal(text, "1\n", 2);
    close(reader);
    cJSON_Delete(record);
}

/* Runs in a child that gave up its privileges: root may write anywhere, and a wrong program could replace devices. */
static int refused_in_child(void)
{
    cJSON *record = cJSON_CreateObject();
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return 77;
    if (afdep_record_write(file, record, why, sizeof why) != -1 || !strstr(why, file) ||
        !strstr(why, "Permission denied") || strchr(why, '\n'))
        return 1;
    /* A full disk. */
    if (afdep_record_write("/dev/full", record, why, sizeof why) != -1 ||
        strcmp(why, "/dev/full: cannot be written: No space left on device") != 0)
        return 2;
    if (afdep_record_write("/dev/null", record, why, sizeof why) != 0)
        return 3;
    cJSON_Delete(record);
    return 0;
}

static void refuses_folders_it_may_not_write(void **state)
{
    (void)state;
    int status;
    assert_int_equal(chmod(folder, 0555), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(refused_in_child());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(chmod(folder, 0755), 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        print_message("skipped: privileges cannot be given up here\n");
        skip();
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(entries(), 0);
}

/* A write that fails half way: the old record is still there, whole, and nothing is beside it. */
static int fails_half_way_in_child(void)
{
    const struct rlimit limit = { 10, 10 };
    char text[64];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    cJSON *record = cJSON_CreateString(text);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    int status = afdep_record_write(file, record, why, sizeof why);
    cJSON_Delete(record);
    return status == -1 && strstr(why, file) && strstr(why, "File too large") ? 0 : 1;
}

static void keeps_the_old_record_when_writing_fails(void **state)
{
    (void)state;
    int status;
    cJSON *old = cJSON_CreateNumber(1);
    assert_int_equal(afdep_record_write(file, old, why, sizeof why), 0);
    cJSON_Delete(old);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(fails_half_way_in_child());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    char *text = afdep_file_text(file);
    assert_string_equal(text, "1\n");
    free(text);
    assert_int_equal(entries(), 1);
}

static void reading_names_the_place(void **state)
{
    (void)state;
    char wanted[160];
    FILE *out = fopen(file, "w");
    fputs("{\n  \"a\": 1,\n  \"b\": nan\n}\n", out);
    fclose(out);
    assert_null(afdep_record_read(file, why, sizeof why));
    snprintf(wanted, sizeof wanted, "%s: line 3, column 8: is not JSON", file);
    assert_string_equal(why, wanted);
    unlink(file);
    assert_null(afdep_record_read(file, why, sizeof why));
    snprintf(wanted, sizeof wanted, "%s: cannot be opened: No such file or directory", file);
    assert_string_equal(why, wanted);
}

/* ---- The machine ----------------------------------------------------------------------------------------------- */

static void describes_this_machine(void **state)
{
    (void)state;
    cJSON *machine = afdep_record_machine();
    assert_true(get(machine, "cores")->valueint >= 1);
    assert_true(get(machine, "cores_allowed")->valueint >= 1);
    assert_true(get(machine, "memory_bytes")->valuedouble > 1e8);
    assert_true(cJSON_IsString(get(machine, "cpu")));
    assert_true(strncmp(get(machine, "kernel")->valuestring, "Linux ", 6) == 0);
    assert_true(cJSON_IsArray(get(machine, "gpus")));
    assert_int_equal(afdep_machine_gpus(machine), cJSON_GetArraySize(get(machine, "gpus")));
    assert_true(cJSON_IsArray(get(machine, "nics")) || cJSON_IsNull(get(machine, "nics")));
    static const char *const others[] = { "driver", "cuda", "nccl", "mpi" };
    for (int i = 0; i < 4; i++)
        assert_true(cJSON_IsString(get(machine, others[i])) || cJSON_IsNull(get(machine, others[i])));
    cJSON_Delete(machine);
}

static void reads_the_words_of_nvidia_smi(void **state)
{
    (void)state;
    char driver[64];
    cJSON *gpus = afdep_machine_parse_gpus("NVIDIA H200, 143771, 9.0, 00000000:19:00.0, Disabled, 570.133.20\n"
                                           "NVIDIA H200, 143771, 9.0, 00000000:3B:00.0, Enabled, 570.133.20\n"
                                           "Failed to initialize something\n\n",
                                           driver, sizeof driver);
    assert_int_equal(cJSON_GetArraySize(gpus), 2);
    assert_string_equal(driver, "570.133.20");
    const cJSON *second = cJSON_GetArrayItem(gpus, 1);
    assert_string_equal(get(second, "name")->valuestring, "NVIDIA H200");
    assert_true(get(second, "memory_bytes")->valuedouble == 143771.0 * 1048576);
    assert_string_equal(get(second, "compute")->valuestring, "9.0");
    assert_string_equal(get(second, "pci")->valuestring, "00000000:3B:00.0");
    assert_true(cJSON_IsTrue(get(second, "mig")));
    assert_true(cJSON_IsNull(get(second, "nvlinks")));
    afdep_machine_parse_nvlinks("", gpus); /* what a GPU alone in its machine prints */
    assert_true(cJSON_IsNull(get(second, "nvlinks")));
    /* Inactive links have no rate; a GPU that is not in the list is passed over. */
    afdep_machine_parse_nvlinks("GPU 0: NVIDIA H200 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n"
                                "\t Link 2: <inactive>\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n\t Link 0: <inactive>\n"
                                "GPU 7: NVIDIA H200 (UUID: GPU-3)\n\t Link 0: 26.562 GB/s\n",
                                gpus);
    const cJSON *first = cJSON_GetArrayItem(gpus, 0);
    assert_int_equal(get(first, "nvlinks")->valueint, 2);
    assert_true(fabs(get(first, "nvlink_gbytes_per_s")->valuedouble - 53.124) < 1e-9);
    assert_true(cJSON_IsNull(get(second, "nvlinks")));
    cJSON_Delete(gpus);
}

static void reads_the_drivers_version(void **state)
{
    (void)state;
    char driver[64];
    afdep_machine_parse_driver("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
                               "GCC version:  gcc version 15.3.0 (GCC) \n",
                               driver, sizeof driver);
    assert_string_equal(driver, "580.159.04");
    afdep_machine_parse_driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39\n",
                               driver, sizeof driver);
    assert_string_equal(driver, "535.54.03");
    afdep_machine_parse_driver("NVRM version: unknown\nGCC version:  gcc version 15.3.0\n", driver, sizeof driver);
    assert_string_equal(driver, "");
    afdep_machine_parse_driver("", driver, sizeof driver);
    assert_string_equal(driver, "");
}

static void runs_tools_within_bounds(void **state)
{
    (void)state;
    const char *const says[] = { "sh", "-c", "echo out; echo err >&2; cat", NULL };
    const char *const fails[] = { "sh", "-c", "echo out; exit 3", NULL };
    const char *const hangs[] = { "sleep", "100", NULL };
    const char *const closes[] = { "sh", "-c", "exec >&-; sleep 100", NULL };
    const char *const floods[] = { "yes", NULL };
    const char *const absent[] = { "afdep-no-such-program", NULL };
    char *text = afdep_command_output(says, 5000);
    assert_string_equal(text, "out\n");
    free(text);
    assert_null(afdep_command_output(fails, 5000));
    assert_null(afdep_command_output(hangs, 100));
    assert_null(afdep_command_output(closes, 100));
    assert_null(afdep_command_output(floods, 5000));
    assert_null(afdep_command_output(absent, 5000));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    char value[16];
    assert_string_equal(afdep_text_value("model\t: 7\nmodel name\t: A b \n", "model name", value, sizeof value), "A b");
    assert_null(afdep_text_value("model name: x\n", "model", value, sizeof value));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_what_it_wrote, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(keeps_secrets_and_strangers_out, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(writes_null_for_what_is_no_number, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(replaces_whole_files, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(refuses_places_in_one_line, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(writes_through_pipes, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(refuses_folders_it_may_not_write, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(keeps_the_old_record_when_writing_fails, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(reading_names_the_place, make_folder, remove_folder),
        cmocka_unit_test(describes_this_machine),
        cmocka_unit_test(reads_the_words_of_nvidia_smi),
        cmocka_unit_test(reads_the_drivers_version),
        cmocka_unit_test(runs_tools_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
