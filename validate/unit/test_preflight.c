/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preflight on machines that are not here: trees of /sys as such machines have them, written out below, and a verbs
 * library of this test's own, whose functions take the place of rdma-core's. Each machine is judged right at first;
 * then one thing after the other is taken from it, and exactly the requirement that says so must fail.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/lib/machine.h"
#include "bench/lib/nics.h"
#include "bench/lib/preflight.h"

/* ---- A verbs library -------------------------------------------------------------------------------------------- */

#ifdef AFDEP_HAVE_VERBS

#include <infiniband/verbs.h>
#undef ibv_query_port
#undef ibv_get_device_list

typedef struct fake_port {
    enum ibv_port_state state;
    enum ibv_mtu mtu;
    uint8_t link;
} fake_port_t;

typedef struct fake_nic {
    const char *name;
    enum ibv_atomic_cap atomics;
    int ports, closed; /* closed: cannot be opened */
    fake_port_t port[2];
} fake_nic_t;

static fake_nic_t *fake_nics;
static int fake_count, fake_open;
static struct ibv_device fake_devices[16];
static struct ibv_context fake_contexts[16];

struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc((size_t)fake_count + 1, sizeof *list);
    assert_non_null(list);
    for (int i = 0; i < fake_count; i++)
        list[i] = &fake_devices[i];
    *count = fake_count;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    return fake_nics[device - fake_devices].name;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    long i = device - fake_devices;
    if (fake_nics[i].closed)
        return NULL;
    fake_open++;
    fake_contexts[i].device = device; /* no verbs_context around it: its calls come to the functions here */
    return &fake_contexts[i];
}

int ibv_close_device(struct ibv_context *context)
{
    (void)context;
    fake_open--;
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    const fake_nic_t *nic = &fake_nics[context->device - fake_devices];
    memset(attributes, 0, sizeof *attributes);
    snprintf(attributes->fw_ver, sizeof attributes->fw_ver, "28.39.1002");
    attributes->atomic_cap = nic->atomics;
    attributes->phys_port_cnt = (uint8_t)nic->ports;
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compatible)
{
    struct ibv_port_attr *attributes = (struct ibv_port_attr *)(void *)compatible;
    const fake_port_t *p = &fake_nics[context->device - fake_devices].port[port - 1];
    attributes->state = p->state;
    attributes->active_mtu = p->mtu;
    attributes->link_layer = p->link;
    return 0;
}

const char *ibv_port_state_str(enum ibv_port_state state)
{
    static const char *const names[] = { "PORT_NOP", "PORT_DOWN", "PORT_INIT", "PORT_ARMED", "PORT_ACTIVE" };
    return names[state];
}

/* ---- Trees ------------------------------------------------------------------------------------------------------ */

/* One line each: "path" a folder, "path -> target" a link, "path = text" a file. */
static void grow(const char *root, const char *const *lines)
{
    for (; *lines; lines++) {
        char line[512], path[1024];
        snprintf(line, sizeof line, "%s", *lines);
        char *arrow = strstr(line, " -> "), *equals = strstr(line, " = ");
        if (arrow)
            *arrow = 0;
        if (equals)
            *equals = 0;
        snprintf(path, sizeof path, "%s/%s", root, line);
        for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
            *slash = 0;
            mkdir(path, 0700);
            *slash = '/';
        }
        if (arrow) {
            assert_int_equal(symlink(arrow + 4, path), 0);
        } else if (equals) {
            FILE *file = fopen(path, "w");
            assert_non_null(file);
            fprintf(file, "%s\n", equals + 3);
            fclose(file);
        } else {
            mkdir(path, 0700);
        }
    }
}

static void fell(const char *root)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

/* Two GPUs, each below a switch of its own with a NIC beside it: 0000:15 and 0000:37, two root complexes. */
static const char *const two_switches[] = {
    "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0",
    "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:19:00.0",
    "sys/devices/pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:00.0/0000:3a:00.0",
    "sys/devices/pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:02.0/0000:3b:00.0",
    "sys/bus/pci/devices/0000:18:00.0 -> "
    "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0",
    "sys/bus/pci/devices/0000:19:00.0 -> "
    "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:19:00.0",
    "sys/bus/pci/devices/0000:3a:00.0 -> "
    "../../../devices/pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:00.0/0000:3a:00.0",
    "sys/bus/pci/devices/0000:3b:00.0 -> "
    "../../../devices/pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:02.0/0000:3b:00.0",
    "sys/class/infiniband/mlx5_0/device -> ../../../0000:18:00.0",
    "sys/class/infiniband/mlx5_0/ports/1/rate = 400 Gb/sec (4X NDR)",
    "sys/class/infiniband/mlx5_1/device -> ../../../0000:3a:00.0",
    "sys/class/infiniband/mlx5_1/ports/1/rate = 400 Gb/sec (4X NDR)",
    "sys/module/nvidia_peermem/refcnt = 0",
    NULL
};

/* The same without switches: GPUs and one NIC at root ports of one complex. */
static const char *const root_ports[] = {
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
    "sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0",
    "sys/devices/pci0000:00/0000:00:02.0/0000:02:00.1",
    "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0",
    "sys/bus/pci/devices/0000:01:00.0 -> ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0",
    "sys/bus/pci/devices/0000:02:00.0 -> ../../../devices/pci0000:00/0000:00:02.0/0000:02:00.0",
    "sys/bus/pci/devices/0000:02:00.1 -> ../../../devices/pci0000:00/0000:00:02.0/0000:02:00.1",
    "sys/bus/pci/devices/0000:81:00.0 -> ../../../devices/pci0000:80/0000:80:01.0/0000:81:00.0",
    "sys/class/infiniband/rocep1s0/device -> ../../../0000:01:00.0",
    "sys/class/infiniband/rocep1s0/ports/1/rate = 100 Gb/sec (4X EDR)",
    NULL
};

static char root[64];

static void plant(const char *const *lines)
{
    snprintf(root, sizeof root, "/tmp/afdep-preflight-XXXXXX");
    assert_non_null(mkdtemp(root));
    grow(root, lines);
}

static fake_nic_t good_nics[2];

static void good_machine(void)
{
    static const fake_nic_t nic = { "mlx5_0", IBV_ATOMIC_HCA, 1, 0,
                                    { { IBV_PORT_ACTIVE, IBV_MTU_4096, IBV_LINK_LAYER_INFINIBAND } } };
    good_nics[0] = good_nics[1] = nic;
    good_nics[1].name = "mlx5_1";
    fake_nics = good_nics;
    fake_count = 2;
}

/* Facts of a host of two GPUs in a job of 24 tasks, two per host, on the tree at `root`. */
static afdep_preflight_facts_t good_facts(void)
{
    char driver[32];
    afdep_preflight_facts_t f = { .root = root, .launched = 24, .local = 2, .launcher = "SLURM_NTASKS", .peermem = 1,
                                  .dmabuf = -1, .built_nccl = 1, .header = "2.28.9", .runtime = "2.28.9",
                                  .gin_type = "3", .memlock_bytes = -1, .mpi = 1 };
    cJSON *gpus = afdep_machine_parse_gpus("NVIDIA H200, 143771, 9.0, 00000000:19:00.0, Disabled, 580.0\n"
                                           "NVIDIA H200, 143771, 9.0, 00000000:3B:00.0, Disabled, 580.0\n", driver, 32);
    afdep_machine_parse_nvlinks(
        "GPU 0: NVIDIA H200\n\t Link 0: 26.562 GB/s\nGPU 1: NVIDIA H200\n\t Link 0: 26.562 GB/s\n", gpus);
    f.machine = cJSON_CreateObject();
    cJSON_AddItemToObject(f.machine, "gpus", gpus);
    cJSON_AddItemToObject(f.machine, "nics", afdep_nics(root));
    cJSON_AddStringToObject(f.machine, "mpi", "Open MPI v4.1.6");
    cJSON_AddNumberToObject(f.machine, "shared_memory_bytes", 8e9);
    return f;
}

static afdep_scenario_t scenario_of(int ffn, int attention, int per_domain)
{
    static char name[] = "here";
    afdep_scenario_t s;
    memset(&s, 0, sizeof s);
    s.name = name;
    s.ffn_ranks = ffn;
    s.attention_ranks = attention;
    s.ranks_per_domain = per_domain;
    return s;
}

/* The names of what is not met, "a b c", fatal ones with an exclamation mark. */
static const char *unmet(const afdep_preflight_facts_t *facts, const afdep_scenario_t *scenario)
{
    static char names[512];
    cJSON *json = afdep_preflight_judge(facts, scenario);
    const cJSON *r;
    int fatal = 0, optional = 0;
    names[0] = 0;
    cJSON_ArrayForEach(r, cJSON_GetObjectItem(json, "requirements")) {
        int is_fatal = cJSON_IsTrue(cJSON_GetObjectItem(r, "fatal"));
        assert_true(cJSON_GetObjectItem(r, "found")->valuestring[0] &&
                    cJSON_GetObjectItem(r, "needed")->valuestring[0]);
        if (!cJSON_IsFalse(cJSON_GetObjectItem(r, "met")))
            continue;
        *(is_fatal ? &fatal : &optional) += 1;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s%s", names[0] ? " " : "",
                 cJSON_GetObjectItem(r, "name")->valuestring, is_fatal ? "!" : "");
    }
    assert_int_equal(cJSON_GetObjectItem(json, "unmet_fatal")->valueint, fatal);
    assert_int_equal(cJSON_GetObjectItem(json, "unmet_optional")->valueint, optional);
    cJSON_Delete(json);
    return names;
}

/* What was found for `name`. */
static const char *found(const afdep_preflight_facts_t *facts, const afdep_scenario_t *scenario, const char *name)
{
    static char text[512];
    cJSON *json = afdep_preflight_judge(facts, scenario);
    const cJSON *r;
    text[0] = 0;
    cJSON_ArrayForEach(r, cJSON_GetObjectItem(json, "requirements"))
        if (strcmp(cJSON_GetObjectItem(r, "name")->valuestring, name) == 0)
            snprintf(text, sizeof text, "%s", cJSON_GetObjectItem(r, "found")->valuestring);
    cJSON_Delete(json);
    return text;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------ */

static void test_nics(void **state)
{
    (void)state;
    plant(two_switches);
    good_machine();
    good_nics[1].atomics = IBV_ATOMIC_NONE;
    good_nics[1].ports = 2;
    good_nics[1].port[1] = (fake_port_t){ IBV_PORT_DOWN, IBV_MTU_1024, IBV_LINK_LAYER_ETHERNET };
    cJSON *nics = afdep_nics(root);
    char *text = cJSON_PrintUnformatted(nics);
    assert_string_equal(
        text, "[{\"name\":\"mlx5_0\",\"pci\":\"0000:18:00.0\",\"firmware\":\"28.39.1002\",\"atomics\":\"hca\","
              "\"ports\":[{\"port\":1,\"state\":\"ACTIVE\",\"link\":\"infiniband\",\"mtu\":4096,"
              "\"rate_gbits_per_s\":400}]},"
              "{\"name\":\"mlx5_1\",\"pci\":\"0000:3a:00.0\",\"firmware\":\"28.39.1002\",\"atomics\":\"none\","
              "\"ports\":[{\"port\":1,\"state\":\"ACTIVE\",\"link\":\"infiniband\",\"mtu\":4096,"
              "\"rate_gbits_per_s\":400},{\"port\":2,\"state\":\"DOWN\",\"link\":\"ethernet\",\"mtu\":1024,"
              "\"rate_gbits_per_s\":null}]}]");
    cJSON_free(text);
    cJSON_Delete(nics);
    assert_int_equal(fake_open, 0);
    fell(root);
}

static void test_near(void **state)
{
    (void)state;
    plant(two_switches);
    assert_int_equal(afdep_preflight_near(root, "00000000:19:00.0", "0000:18:00.0"), 2);
    assert_int_equal(afdep_preflight_near(root, "00000000:3B:00.0", "0000:3a:00.0"), 2);
    assert_int_equal(afdep_preflight_near(root, "00000000:19:00.0", "0000:3a:00.0"), 0);
    assert_int_equal(afdep_preflight_near(root, "00000000:19:00.0", "0000:77:00.0"), 0); /* no such device */
    assert_int_equal(afdep_preflight_near(root, "unknown", "0000:18:00.0"), 0);
    fell(root);
    plant(root_ports);
    assert_int_equal(afdep_preflight_near(root, "00000000:02:00.0", "0000:01:00.0"), 1);
    assert_int_equal(afdep_preflight_near(root, "00000000:81:00.0", "0000:01:00.0"), 0);
    assert_int_equal(afdep_preflight_near(root, "00000000:02:00.0", "0000:02:00.1"), 1); /* a port is no switch */
    fell(root);
}

static void test_good(void **state)
{
    (void)state;
    plant(two_switches);
    good_machine();
    afdep_scenario_t s = scenario_of(2, 22, 2);
    afdep_preflight_facts_t f = good_facts();
    assert_string_equal(unmet(&f, &s), "");
    assert_string_equal(unmet(&f, NULL), "");
    /* A header from 2.29 on under a newer library, DMA-BUF in place of the module. */
    snprintf(f.header, sizeof f.header, "2.29.2");
    snprintf(f.runtime, sizeof f.runtime, "2.30.7");
    f.peermem = 0;
    f.dmabuf = 1;
    assert_string_equal(unmet(&f, &s), "");
    afdep_preflight_free(&f);
    fell(root);
}

/* One change each, and all that must then fail. */
static void test_taken_away(void **state)
{
    (void)state;
    static const char *const wants[] = {
        "world!",                                  /* 0: 23 tasks */
        "tasks-per-host! gpus! nics-per-gpu",      /* 1: three tasks on this host */
        "mpi!",                                    /* 2 */
        "gpudirect!",                              /* 3: no module, and a driver without DMA-BUF */
        "gpudirect!",                              /* 4: no module, and no driver to ask */
        "memlock",                                 /* 5 */
        "nccl-build! nccl-match!",                 /* 6: configured without NCCL */
        "nccl-build! nccl-match!",                 /* 7: header too old */
        "nccl-runtime! nccl-match!",               /* 8: a library without GIN */
        "nccl-match!",                             /* 9: another release */
        "nccl-runtime! nccl-match!",               /* 10: none */
        "gin!",                                    /* 11: switched off */
        "gin!",                                    /* 12: InfiniBand switched off */
        "gin!",                                    /* 13: the loopback */
        "gin-type",                                /* 14: left to NCCL */
        "nics-per-gpu nic-near-gpu ports",         /* 15: the second NIC's port is down */
        "mtu",                                     /* 16 */
        "atomics!",                                /* 17: none at the second NIC */
        "rate",                                    /* 18: half of it at the second NIC */
        "gpus! nvlink!",                           /* 19: one GPU */
        "mig!",                                    /* 20 */
        "compute!",                                /* 21: an older GPU */
        "nvlink!",                                 /* 22: without NVLink */
        "nics! nics-per-gpu nic-near-gpu ports rate mtu atomics!", /* 23: no NIC at all */
        "nics!",                                   /* 24: built without rdma-core */
        "shared-memory",                           /* 25 */
        "nics-per-gpu nic-near-gpu",               /* 26: a NIC that cannot be opened */
        "world!",                                  /* 27: 25 tasks */
        "nccl-match!",                             /* 28: before 2.29, another patch level */
        "nccl-match!",                             /* 29: a library older than the header */
        "nccl-match!",                             /* 30: of another major version */
    };
    afdep_scenario_t s = scenario_of(2, 22, 2);
    for (int what = 0; what < 31; what++) {
        plant(two_switches);
        good_machine();
        char file[128];
        snprintf(file, sizeof file, "%s/sys/class/infiniband/mlx5_1/ports/1/rate", root);
        if (what == 15)
            good_nics[1].port[0].state = IBV_PORT_INIT;
        if (what == 16)
            good_nics[0].port[0].mtu = IBV_MTU_1024;
        if (what == 17)
            good_nics[1].atomics = IBV_ATOMIC_NONE;
        if (what == 18) {
            FILE *rate = fopen(file, "w");
            assert_non_null(rate);
            fputs("200 Gb/sec (4X HDR)\n", rate);
            fclose(rate);
        }
        if (what == 23)
            fake_count = 0;
        if (what == 26)
            good_nics[1].closed = 1;
        afdep_preflight_facts_t f = good_facts();
        cJSON *gpus = cJSON_GetObjectItem(f.machine, "gpus");
        switch (what) {
        case 0: f.launched = 23; break;
        case 27: f.launched = 25; break;
        case 1: f.local = 3; break;
        case 2: f.mpi = 0; break;
        case 3: f.peermem = f.dmabuf = 0; break;
        case 4: f.peermem = 0; break;
        case 5: f.memlock_bytes = 65536; break;
        case 6: f.built_nccl = 0, f.header[0] = 0; break;
        case 7: snprintf(f.header, sizeof f.header, "2.27.9"); break;
        case 8: snprintf(f.runtime, sizeof f.runtime, "2.27.3"); break;
        case 9: snprintf(f.runtime, sizeof f.runtime, "2.30.7"); break;
        case 28: snprintf(f.runtime, sizeof f.runtime, "2.28.12"); break;
        case 29: snprintf(f.header, sizeof f.header, "2.30.4"), snprintf(f.runtime, sizeof f.runtime, "2.30.3"); break;
        case 30: snprintf(f.header, sizeof f.header, "2.30.4"), snprintf(f.runtime, sizeof f.runtime, "3.0.0"); break;
        case 10: f.runtime[0] = 0, snprintf(f.runtime_why, sizeof f.runtime_why, "no such file"); break;
        case 11: snprintf(f.gin_enable, sizeof f.gin_enable, "0"); break;
        case 12: snprintf(f.ib_disable, sizeof f.ib_disable, "1"); break;
        case 13: snprintf(f.net_plugin, sizeof f.net_plugin, "/usr/lib/libnccl-net-afdep.so"); break;
        case 14: f.gin_type[0] = 0; break;
        case 19: cJSON_DeleteItemFromArray(gpus, 1); break;
        case 20: cJSON_ReplaceItemInObject(gpus->child, "mig", cJSON_CreateTrue()); break;
        case 21: cJSON_ReplaceItemInObject(gpus->child, "compute", cJSON_CreateString("8.0")); break;
        case 22: cJSON_ReplaceItemInObject(gpus->child, "nvlinks", cJSON_CreateNull()); break;
        case 24: cJSON_ReplaceItemInObject(f.machine, "nics", cJSON_CreateNull()); break;
        case 25: cJSON_ReplaceItemInObject(f.machine, "shared_memory_bytes", cJSON_CreateNumber(64 << 20)); break;
        default: break;
        }
        const char *got = unmet(&f, &s), *want = wants[what];
        if (strcmp(got, want) != 0)
            fail_msg("change %d: '%s' is not met, and should be '%s'", what, got, want);
        if (what == 15)
            assert_string_equal(found(&f, &s, "ports"), "mlx5_1 port 1: INIT");
        if (what == 16)
            assert_string_equal(found(&f, &s, "mtu"), "mlx5_0 port 1: 1024");
        if (what == 17)
            assert_string_equal(found(&f, &s, "atomics"), "none at mlx5_1");
        afdep_preflight_free(&f);
        fell(root);
    }
}

/* Domains of one rank need no NVLink, and one domain no NIC and no NCCL. */
static void test_does_not_apply(void **state)
{
    (void)state;
    plant(root_ports);
    good_machine();
    fake_count = 0;
    afdep_preflight_facts_t f = good_facts();
    afdep_scenario_t s = scenario_of(1, 7, 8);
    f.launched = f.local = 8;
    f.built_nccl = f.header[0] = f.runtime[0] = f.peermem = 0;
    assert_string_equal(unmet(&f, &s), "gpus! nvlink!");
    f.local = 0; /* the launcher does not say: a domain on this host is assumed */
    assert_string_equal(unmet(&f, &s), "gpus! nvlink!");
    afdep_preflight_free(&f);

    good_machine();
    f = good_facts();
    s = scenario_of(1, 1, 1);
    f.launched = 2;
    f.local = 1;
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(f.machine, "gpus")->child, "nvlinks", cJSON_CreateNull());
    /* GPUs of another tree: nothing is known of how near they are. */
    assert_string_equal(unmet(&f, &s), "nic-near-gpu rate");
    f.launched = 0;
    f.launcher = NULL;
    assert_string_equal(found(&f, &s, "world"), "no launcher: not within a job");
    afdep_preflight_free(&f);
    fell(root);
}

/* ---- Launchers -------------------------------------------------------------------------------------------------- */

static const char *const *variables; /* name, value, ..., NULL */

static const char *look_up(const char *name)
{
    for (const char *const *v = variables; *v; v += 2)
        if (strcmp(v[0], name) == 0)
            return v[1];
    return NULL;
}

static void test_launchers(void **state)
{
    (void)state;
    static const struct {
        const char *variables[8];
        int launched, local;
    } cases[] = {
        { { NULL }, 0, 0 },
        { { "SLURM_NTASKS", "24", "SLURM_NTASKS_PER_NODE", "2", NULL }, 24, 2 },
        { { "SLURM_NTASKS", "24", "SLURM_TASKS_PER_NODE", "2(x12)", NULL }, 24, 2 },
        { { "SLURM_NTASKS", "24", NULL }, 24, 0 },
        { { "SLURM_NPROCS", "6", "SLURM_TASKS_PER_NODE", "6", NULL }, 6, 6 },
        { { "OMPI_COMM_WORLD_SIZE", "8", "OMPI_COMM_WORLD_LOCAL_SIZE", "4", "SLURM_NTASKS", "1", NULL }, 8, 4 },
        { { "PMI_SIZE", "4", "MPI_LOCALNRANKS", "2", NULL }, 4, 2 },
        { { "SLURM_NTASKS", "x", NULL }, 0, 0 },
        { { "SLURM_NTASKS", "-3", NULL }, 0, 0 },
        { { "SLURM_NTASKS", "99999999999", NULL }, 0, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        afdep_preflight_facts_t f = { .launched = -1, .local = -1 };
        variables = cases[i].variables;
        afdep_preflight_launched(look_up, &f);
        if (f.launched != cases[i].launched || f.local != cases[i].local)
            fail_msg("launcher %zu: %d tasks, %d here", i, f.launched, f.local);
        assert_true((f.launcher != NULL) == (f.launched > 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nics),       cmocka_unit_test(test_near),           cmocka_unit_test(test_good),
        cmocka_unit_test(test_taken_away), cmocka_unit_test(test_does_not_apply), cmocka_unit_test(test_launchers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    printf("skipped: built without rdma-core\n");
    return 77;
}

#endif
