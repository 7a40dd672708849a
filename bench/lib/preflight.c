/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requirements of a cluster run. Each is one function: what is needed, what was found, and whether that will do.
 * What cannot be told is not met: a run that starts on a guess fails later, with less to say.
 */
#include "bench/lib/preflight.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_MET, MET, DOES_NOT_APPLY };

typedef struct judging {
    const afdep_preflight_facts_t *facts;
    int world, per_domain, domains; /* world 0: not given */
    int local;                      /* ranks of this host: as launched, else one domain */
    const cJSON *gpus, *nics;
    cJSON *list;
    int unmet[2]; /* optional, fatal */
} judging_t;

typedef struct sentence {
    char text[512];
} sentence_t;

static sentence_t __attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
    sentence_t s;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s.text, sizeof s.text, format, arguments);
    va_end(arguments);
    for (char *c = s.text; *c; c++) /* variables are quoted: a requirement is one line all the same */
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return s;
}

static void add(judging_t *j, const char *name, int fatal, int met, sentence_t needed, sentence_t found)
{
    cJSON *r = cJSON_CreateObject();
    cJSON_AddStringToObject(r, "name", name);
    cJSON_AddBoolToObject(r, "fatal", fatal);
    cJSON_AddItemToObject(r, "met", met == DOES_NOT_APPLY ? cJSON_CreateNull() : cJSON_CreateBool(met == MET));
    cJSON_AddStringToObject(r, "needed", needed.text);
    cJSON_AddStringToObject(r, "found", found.text);
    cJSON_AddItemToArray(j->list, r);
    j->unmet[fatal != 0] += met == NOT_MET;
}

static const cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static const char *text_of(const cJSON *object, const char *name)
{
    const cJSON *item = get(object, name);
    return cJSON_IsString(item) ? item->valuestring : "unknown";
}

static double number_of(const cJSON *object, const char *name)
{
    const cJSON *item = get(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

/* ---- The job ---------------------------------------------------------------------------------------------------- */

static void judge_world(judging_t *j)
{
    const afdep_preflight_facts_t *f = j->facts;
    add(j, "mpi", 1, f->mpi ? MET : NOT_MET, say("a build with MPI"),
        f->mpi ? say("%s", text_of(f->machine, "mpi")) : say("configured without MPI"));
    if (j->world == 0)
        add(j, "world", 1, DOES_NOT_APPLY, say("as many tasks as the scenario has ranks"),
            say("no --scenario was given"));
    else if (!f->launched)
        add(j, "world", 0, DOES_NOT_APPLY, say("%d tasks", j->world), say("no launcher: not within a job"));
    else
        add(j, "world", 1, f->launched == j->world ? MET : NOT_MET, say("%d tasks", j->world),
            say("%s is %d", f->launcher, f->launched));
    if (f->local)
        add(j, "tasks-per-host", 1, f->local % j->per_domain == 0 ? MET : NOT_MET,
            say("a multiple of %d: no domain is torn apart", j->per_domain), say("%d tasks on this host", f->local));
    else
        add(j, "tasks-per-host", 0, DOES_NOT_APPLY, say("a multiple of %d", j->per_domain),
            say("not said by a launcher; %d is assumed below", j->local));
}

/* ---- GPUs ------------------------------------------------------------------------------------------------------- */

static void judge_gpus(judging_t *j)
{
    int count = cJSON_GetArraySize(j->gpus), mig = 0, old = 0, linked = 0;
    const cJSON *gpu;
    cJSON_ArrayForEach(gpu, j->gpus) {
        mig += cJSON_IsTrue(get(gpu, "mig"));
        old += strtod(text_of(gpu, "compute"), NULL) < 9.0;
        linked += number_of(gpu, "nvlinks") > 0;
    }
    add(j, "gpus", 1, count >= j->local ? MET : NOT_MET, say("%d, one per rank of this host", j->local),
        count ? say("%d x %s", count, text_of(j->gpus->child, "name")) : say("none"));
    add(j, "compute", 1, count && !old ? MET : NOT_MET, say("9.0 (Hopper) or newer on every GPU"),
        count ? say("%s%s", text_of(j->gpus->child, "compute"), old ? ", some are older or do not say" : "")
              : say("no GPU"));
    add(j, "mig", 1, mig ? NOT_MET : MET, say("off"), mig ? say("on at %d of %d GPUs", mig, count) : say("off"));
    if (j->per_domain == 1)
        add(j, "nvlink", 1, DOES_NOT_APPLY, say("nothing: domains of one rank"), say("%d GPUs with NVLink", linked));
    else
        add(j, "nvlink", 1, linked >= j->per_domain ? MET : NOT_MET,
            say("%d GPUs of this host with NVLink, for domains of %d", j->per_domain, j->per_domain),
            say("%d of %d GPUs", linked, count));
}

/* ---- NICs ------------------------------------------------------------------------------------------------------- */

static int is_active(const cJSON *port)
{
    return strcmp(text_of(port, "state"), "ACTIVE") == 0;
}

static int has_active_port(const cJSON *nic)
{
    const cJSON *port;
    cJSON_ArrayForEach(port, get(nic, "ports"))
        if (is_active(port))
            return 1;
    return 0;
}

/* "mlx5_0 port 1 DOWN, mlx5_3 port 1 INIT" of ports for which `bad` is true. */
static int list_ports(const cJSON *nics, int (*bad)(const cJSON *port), const char *what, sentence_t *out)
{
    int count = 0;
    size_t used = 0;
    const cJSON *nic, *port;
    out->text[0] = 0;
    cJSON_ArrayForEach(nic, nics)
        cJSON_ArrayForEach(port, get(nic, "ports")) {
            if (!bad(port))
                continue;
            const cJSON *item = get(port, what);
            char value[64];
            snprintf(value, sizeof value, "%s", cJSON_IsString(item) ? item->valuestring : "unknown");
            if (cJSON_IsNumber(item))
                snprintf(value, sizeof value, "%.0f", item->valuedouble);
            if (used < sizeof out->text - 1)
                used += (size_t)snprintf(out->text + used, sizeof out->text - used, "%s%s port %.0f: %s",
                                         count ? ", " : "", text_of(nic, "name"), number_of(port, "port"), value);
            count++;
        }
    return count;
}

static int is_down(const cJSON *port)
{
    return !is_active(port);
}

static int is_small(const cJSON *port)
{
    return is_active(port) && number_of(port, "mtu") < 4096;
}

static void judge_ports(judging_t *j)
{
    const cJSON *nic, *port;
    double least = 0, most = 0;
    int active = 0;
    sentence_t down, small;
    cJSON_ArrayForEach(nic, j->nics)
        cJSON_ArrayForEach(port, get(nic, "ports")) {
            double rate = number_of(port, "rate_gbits_per_s");
            if (!is_active(port))
                continue;
            least = active == 0 || rate < least ? rate : least;
            most = rate > most ? rate : most;
            active++;
        }
    int downs = list_ports(j->nics, is_down, "state", &down), smalls = list_ports(j->nics, is_small, "mtu", &small);
    add(j, "ports", 0, active && !downs ? MET : NOT_MET, say("every port ACTIVE"),
        downs ? down : say("%d ports are", active));
    add(j, "rate", 0, active && least == most && least > 0 ? MET : NOT_MET, say("the same at every active port"),
        !active ? say("no active port")
        : least == most ? say("%.0f Gbit/s", least)
                        : say("%.0f to %.0f Gbit/s", least, most));
    add(j, "mtu", 0, active && !smalls ? MET : NOT_MET, say("4096 at every active port"),
        smalls ? small : active ? say("4096") : say("no active port"));
}

static void judge_atomics(judging_t *j)
{
    const cJSON *nic;
    int able = 0, unable = 0;
    const char *first = "";
    cJSON_ArrayForEach(nic, j->nics) {
        if (!has_active_port(nic))
            continue;
        const char *atomics = text_of(nic, "atomics");
        if (strcmp(atomics, "hca") == 0 || strcmp(atomics, "global") == 0) {
            able++;
        } else {
            first = unable++ ? first : text_of(nic, "name");
        }
    }
    add(j, "atomics", 1, able && !unable ? MET : NOT_MET, say("RDMA atomics at every NIC in use: a signal is one"),
        unable ? say("none at %s%s", first, unable > 1 ? " and others" : "")
               : say("%d of %d NICs", able, able + unable));
}

/* How near the nearest active NIC of a GPU is. */
static int nearest(const judging_t *j, const cJSON *gpu)
{
    const cJSON *nic;
    int best = -1;
    cJSON_ArrayForEach(nic, j->nics) {
        if (!has_active_port(nic))
            continue;
        int near = afdep_preflight_near(j->facts->root, text_of(gpu, "pci"), text_of(nic, "pci"));
        best = near > best ? near : best;
    }
    return best;
}

static void judge_nics(judging_t *j)
{
    const cJSON *nic, *gpu;
    int active = 0, far = 0, used = 0;
    if (j->domains == 1) {
        add(j, "nics", 1, DOES_NOT_APPLY, say("nothing: one domain"), say("%d NICs", cJSON_GetArraySize(j->nics)));
        return;
    }
    if (!cJSON_IsArray(j->nics)) {
        add(j, "nics", 1, NOT_MET, say("%d with an active port, one per rank", j->local),
            say("not known: built without rdma-core"));
        return;
    }
    cJSON_ArrayForEach(nic, j->nics)
        active += has_active_port(nic);
    add(j, "nics", 1, active > 0 ? MET : NOT_MET, say("one with an active port"),
        say("%d, of them %d with an active port", cJSON_GetArraySize(j->nics), active));
    add(j, "nics-per-gpu", 0, active >= j->local ? MET : NOT_MET, say("%d, one per rank of this host", j->local),
        say("%d with an active port", active));
    cJSON_ArrayForEach(gpu, j->gpus) {
        if (used++ == j->local)
            break;
        far += nearest(j, gpu) < 2;
    }
    add(j, "nic-near-gpu", 0, active && !far ? MET : NOT_MET, say("a NIC below the PCI switch of every GPU in use"),
        far || !active ? say("%d GPUs have none, or it cannot be told", far) : say("each has one"));
    judge_ports(j);
    judge_atomics(j);
}

static void judge_gpudirect(judging_t *j)
{
    const afdep_preflight_facts_t *f = j->facts;
    if (j->domains == 1)
        return;
    add(j, "gpudirect", 1, f->peermem || f->dmabuf == 1 ? MET : NOT_MET,
        say("nvidia_peermem loaded, or a driver that exports DMA-BUF"),
        say("nvidia_peermem %s, DMA-BUF %s", f->peermem ? "loaded" : "not loaded",
            f->dmabuf == 1 ? "exported" : f->dmabuf == 0 ? "not exported" : "unknown: no driver"));
    add(j, "memlock", 0, f->memlock_bytes < 0 ? MET : NOT_MET, say("unlimited (ulimit -l): NICs lock memory"),
        f->memlock_bytes < 0 ? say("unlimited") : say("%.0f MiB", f->memlock_bytes / 1048576));
}

/* ---- NCCL ------------------------------------------------------------------------------------------------------- */

/* Whether version `a` ("2.28.9") is at least `b`; `parts` of it are compared. */
static int compare(const char *a, const char *b, int parts)
{
    int x[3] = { 0 }, y[3] = { 0 };
    (void)sscanf(a, "%d.%d.%d", &x[0], &x[1], &x[2]);
    (void)sscanf(b, "%d.%d.%d", &y[0], &y[1], &y[2]);
    for (int i = 0; i < parts; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* The rule by which the library opens NCCL (libafdep/cuda/nccl.c), said here again since a build without NCCL has none
   of it: the device interface's structs are compiled in, and from 2.29 on they say which version they are of. */
static int nccl_fits(const char *header, const char *runtime)
{
    if (compare(header, "2.29", 2) < 0)
        return compare(header, runtime, 3) == 0;
    return compare(header, runtime, 1) == 0 && compare(header, runtime, 3) <= 0;
}

static void judge_nccl(judging_t *j)
{
    static const char least[] = "2.28.9";
    const afdep_preflight_facts_t *f = j->facts;
    const char *plugin = f->net_plugin[0] ? f->net_plugin : "unset", *type = f->gin_type[0] ? f->gin_type : "unset";
    int loopback = strstr(f->net_plugin, "nccl-net-afdep") != NULL;
    if (j->domains == 1)
        return;
    add(j, "nccl-build", 1, f->built_nccl && compare(f->header, least, 3) >= 0 ? MET : NOT_MET,
        say("a build with NCCL %s or newer", least),
        f->built_nccl ? say("%s", f->header) : say("configured without NCCL"));
    add(j, "nccl-runtime", 1, f->runtime[0] && compare(f->runtime, least, 3) >= 0 ? MET : NOT_MET,
        say("libnccl.so.2 of %s or newer", least), f->runtime[0] ? say("%s", f->runtime) : say("%s", f->runtime_why));
    int match = f->built_nccl && f->runtime[0] && nccl_fits(f->header, f->runtime);
    add(j, "nccl-match", 1, match ? MET : NOT_MET,
        say("a library that takes the header's version: the same, from 2.29 on the same or newer"),
        say("header %s, library %s", f->header[0] ? f->header : "none", f->runtime[0] ? f->runtime : "none"));
    add(j, "gin", 1, strcmp(f->gin_enable, "0") == 0 || strcmp(f->ib_disable, "1") == 0 || loopback ? NOT_MET : MET,
        say("GPU-initiated networking over the NICs"),
        loopback ? say("NCCL_NET_PLUGIN names the loopback, which uses no NIC")
        : strcmp(f->gin_enable, "0") == 0 ? say("NCCL_GIN_ENABLE=0")
        : strcmp(f->ib_disable, "1") == 0 ? say("NCCL_IB_DISABLE=1")
                                          : say("no variable turns it off, NCCL_NET_PLUGIN %s", plugin));
    add(j, "gin-type", 0, strcmp(type, "2") == 0 || strcmp(type, "3") == 0 ? MET : NOT_MET,
        say("NCCL_GIN_TYPE set, 2 (proxy) or 3 (GDAKI): else NCCL chooses, per machine"),
        say("NCCL_GIN_TYPE %s", type));
}

static void judge_shm(judging_t *j)
{
    double bytes = number_of(j->facts->machine, "shared_memory_bytes");
    add(j, "shared-memory", 0, bytes >= 1073741824.0 ? MET : NOT_MET, say("1 GiB of /dev/shm"),
        say("%.1f GiB", bytes / 1073741824.0));
}

cJSON *afdep_preflight_judge(const afdep_preflight_facts_t *facts, const afdep_scenario_t *scenario)
{
    judging_t j = { .facts = facts, .per_domain = 2, .domains = 2 };
    cJSON *json = cJSON_CreateObject();
    if (scenario) {
        j.world = afdep_scenario_ranks(scenario);
        j.per_domain = scenario->ranks_per_domain;
        j.domains = (j.world + j.per_domain - 1) / j.per_domain;
    }
    j.local = facts->local ? facts->local : j.per_domain;
    j.gpus = get(facts->machine, "gpus");
    j.nics = get(facts->machine, "nics");
    cJSON_AddStringToObject(json, "schema", "afdep-preflight/1");
    cJSON_AddItemToObject(json, "scenario", scenario ? cJSON_CreateString(scenario->name) : cJSON_CreateNull());
    j.list = cJSON_AddArrayToObject(json, "requirements");
    judge_world(&j);
    judge_gpus(&j);
    judge_nics(&j);
    judge_gpudirect(&j);
    judge_nccl(&j);
    judge_shm(&j);
    cJSON_AddNumberToObject(json, "unmet_fatal", j.unmet[1]);
    cJSON_AddNumberToObject(json, "unmet_optional", j.unmet[0]);
    return json;
}
