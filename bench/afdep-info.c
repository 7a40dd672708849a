/* SPDX-License-Identifier: Apache-2.0 */
/*
 * afdep-info: what this build has (version, native tree, backends, fabrics, settings) and what this machine has
 * (processors, memory, GPUs, NICs, MPI, NCCL), for people and, with --json, for machines; and, with --preflight,
 * whether this host can do its part of a cluster run. Runs as one process.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <afdep/afdep.h>

#include "bench/lib/gin_note.h"
#include "bench/lib/machine.h"
#include "bench/lib/options.h"
#include "bench/lib/preflight.h"
#include "bench/lib/record.h"
#include "bench/lib/scenario.h"
#include "bench/lib/why.h"
#include "core/config.h"
#include "low_latency/ll_backend.h"

typedef struct afdep_info {
    afdep_common_t common;
    int config, preflight, gin;
    const char *scenario;
} afdep_info_t;

/* ---- As JSON --------------------------------------------------------------------------------------------------- */

static const char *const origins[] = { "default", "environment", "config" };

/* One row of the settings table; a value that cannot be used is null and says why. */
static cJSON *setting_json(const afdep_setting_t *setting)
{
    int64_t value = 0;
    const char *text = NULL;
    afdep_origin_t origin = AFDEP_FROM_DEFAULT;
    afdep_status_t status = afdep_setting_value(setting, NULL, &value, &text, &origin);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "name", setting->name);
    cJSON_AddItemToObject(json, "environment",
                          setting->environment ? cJSON_CreateString(setting->environment) : cJSON_CreateNull());
    if (status != AFDEP_OK || (setting->type == AFDEP_SETTING_TEXT && !text))
        cJSON_AddNullToObject(json, "value");
    else if (setting->type == AFDEP_SETTING_TEXT)
        cJSON_AddStringToObject(json, "value", text);
    else
        cJSON_AddNumberToObject(json, "value", (double)value);
    cJSON_AddStringToObject(json, "from", origins[origin]);
    if (status != AFDEP_OK)
        cJSON_AddStringToObject(json, "error", afdep_last_error());
    cJSON_AddStringToObject(json, "help", setting->help);
    return json;
}

static cJSON *config_json(void)
{
    const afdep_setting_t *const tables[] = { afdep_settings_table, afdep_ll_settings_table };
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        for (const afdep_setting_t *setting = tables[i]; setting->name; setting++)
            cJSON_AddItemToArray(list, setting_json(setting));
    return list;
}

/* What NCCL gives, as in records, or why it gives nothing. */
static cJSON *gin_json(void)
{
    afdep_gin_note_t note;
    char why[512];
    if (afdep_gin_note_ask(&note, why, sizeof why) == 0)
        return afdep_gin_note_json(&note);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "error", why);
    return json;
}

static cJSON *info_json(const afdep_info_t *info)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "schema", "afdep-info/1");
    cJSON_AddStringToObject(json, "version", afdep_version());
    cJSON_AddStringToObject(json, "native_tree", afdep_native_tree());
    cJSON_AddItemToObject(json, "build", afdep_record_build());
    cJSON_AddItemToObject(json, "backends", afdep_machine_backends());
    cJSON_AddItemToObject(json, "fabrics", afdep_machine_fabrics());
    cJSON_AddItemToObject(json, "config", config_json());
    cJSON_AddItemToObject(json, "machine", afdep_record_machine());
    if (info->gin)
        cJSON_AddItemToObject(json, "gin", gin_json());
    return json;
}

/* ---- As text --------------------------------------------------------------------------------------------------- */

static const cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static const char *text_of(const cJSON *object, const char *name, const char *fallback)
{
    const cJSON *item = get(object, name);
    return cJSON_IsString(item) ? item->valuestring : fallback;
}

static double number_of(const cJSON *object, const char *name)
{
    const cJSON *item = get(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static double gibibytes(const cJSON *object, const char *name)
{
    return number_of(object, name) / 1073741824.0;
}

static void print_parts(const char *title, const cJSON *parts)
{
    const char *label = title;
    for (const cJSON *part = parts->child; part; part = part->next) {
        printf("%-14s  %-6s  %s\n", label, text_of(part, "name", ""), text_of(part, "why", "yes"));
        label = "";
    }
}

static void print_build(const cJSON *info)
{
    const cJSON *build = get(info, "build");
    printf("%-14s  %s\n", "afdep", text_of(info, "version", ""));
    printf("%-14s  %s%s\n", "native tree", text_of(info, "native_tree", ""),
           cJSON_IsTrue(get(build, "dirty")) ? " (with uncommitted changes)" : "");
    printf("%-14s  %s\n", "compiler", text_of(build, "compiler", ""));
    printf("%-14s  %s\n", "flags", text_of(build, "flags", ""));
    print_parts("backends", get(info, "backends"));
    print_parts("fabrics", get(info, "fabrics"));
}

static void print_gpus(const cJSON *machine)
{
    const cJSON *gpus = get(machine, "gpus");
    printf("%-14s  %d", "GPUs", cJSON_GetArraySize(gpus));
    if (gpus->child)
        printf(", driver %s, MPS %s", text_of(machine, "driver", "unknown"),
               cJSON_IsTrue(get(machine, "mps")) ? "running" : "not running");
    putchar('\n');
    for (const cJSON *gpu = gpus->child; gpu; gpu = gpu->next) {
        printf("%-14s  %s, %.0f GiB, compute %s, MIG %s, ", "", text_of(gpu, "name", "unknown"),
               gibibytes(gpu, "memory_bytes"), text_of(gpu, "compute", "unknown"),
               cJSON_IsTrue(get(gpu, "mig")) ? "on" : "off");
        if (cJSON_IsNumber(get(gpu, "nvlinks")))
            printf("%.0f NVLinks of %.0f GB/s together\n", number_of(gpu, "nvlinks"),
                   number_of(gpu, "nvlink_gbytes_per_s"));
        else
            printf("no NVLink seen\n");
    }
}

static void print_nics(const cJSON *machine)
{
    const cJSON *nics = get(machine, "nics");
    if (!cJSON_IsArray(nics)) {
        printf("%-14s  not known: built without rdma-core\n", "RDMA NICs");
        return;
    }
    printf("%-14s  %d\n", "RDMA NICs", cJSON_GetArraySize(nics));
    for (const cJSON *nic = nics->child; nic; nic = nic->next) {
        printf("%-14s  %s, firmware %s, atomics %s\n", "", text_of(nic, "name", "unknown"),
               text_of(nic, "firmware", "unknown"), text_of(nic, "atomics", "unknown"));
        for (const cJSON *port = get(nic, "ports")->child; port; port = port->next)
            printf("%-14s    port %.0f %s, %s, %.0f Gbit/s\n", "", number_of(port, "port"),
                   text_of(port, "state", "unknown"), text_of(port, "link", "unknown"),
                   number_of(port, "rate_gbits_per_s"));
    }
}

static void print_machine(const cJSON *machine)
{
    printf("%-14s  %s\n", "processor", text_of(machine, "cpu", "unknown"));
    printf("%-14s  %.0f, %.0f allowed to this process\n", "cores", number_of(machine, "cores"),
           number_of(machine, "cores_allowed"));
    printf("%-14s  %.1f GiB, shared memory up to %.1f GiB\n", "memory", gibibytes(machine, "memory_bytes"),
           gibibytes(machine, "shared_memory_bytes"));
    printf("%-14s  %s\n", "kernel", text_of(machine, "kernel", "unknown"));
    printf("%-14s  %s\n", "distribution", text_of(machine, "distribution", "unknown"));
    print_gpus(machine);
    printf("%-14s  %s\n", "CUDA", text_of(machine, "cuda", "not configured in"));
    printf("%-14s  %s\n", "NCCL", text_of(machine, "nccl", "not configured in"));
    printf("%-14s  %s\n", "MPI", text_of(machine, "mpi", "not configured in"));
    print_nics(machine);
}

static void print_gin(const cJSON *gin)
{
    printf("%-14s  %s%s\n", "GIN", text_of(gin, "error", text_of(gin, "why", "")),
           cJSON_IsTrue(get(gin, "loopback")) ? "; over the loopback plugin, no network" : "");
}

static void print_config(const cJSON *config)
{
    printf("%-22s %-32s %-12s %-12s %s\n", "setting", "variable", "value", "from", "meaning");
    for (const cJSON *setting = config->child; setting; setting = setting->next) {
        const cJSON *value = get(setting, "value");
        char number[32];
        snprintf(number, sizeof number, "%.0f", number_of(setting, "value"));
        const char *unset = get(setting, "error") ? "refused" : "-";
        printf("%-22s %-32s %-12s %-12s %s\n", text_of(setting, "name", ""), text_of(setting, "environment", "-"),
               cJSON_IsNumber(value) ? number : text_of(setting, "value", unset), text_of(setting, "from", ""),
               text_of(setting, "error", text_of(setting, "help", "")));
    }
}

/* ---- Preflight ------------------------------------------------------------------------------------------------- */

/* What --preflight says, or NULL with a line: the scenario cannot be read. */
static cJSON *preflight_json(const afdep_info_t *info, char *why, size_t why_size)
{
    afdep_scenario_t scenario;
    afdep_preflight_facts_t facts;
    if (info->scenario && afdep_scenario_load(info->scenario, &scenario, why, why_size) < 0)
        return NULL;
    afdep_preflight_gather("", &facts);
    cJSON *json = afdep_preflight_judge(&facts, info->scenario ? &scenario : NULL);
    afdep_preflight_free(&facts);
    if (info->scenario)
        afdep_scenario_free(&scenario);
    return json;
}

static void print_preflight(const cJSON *json)
{
    printf("%-15s %-9s %-8s %s\n", "requirement", "kind", "", "what was found");
    for (const cJSON *r = get(json, "requirements")->child; r; r = r->next) {
        const cJSON *met = get(r, "met");
        printf("%-15s %-9s %-8s %s", text_of(r, "name", ""), cJSON_IsTrue(get(r, "fatal")) ? "fatal" : "optional",
               cJSON_IsNull(met) ? "-" : cJSON_IsTrue(met) ? "ok" : "NOT MET", text_of(r, "found", ""));
        if (!cJSON_IsTrue(met))
            printf(" (needed: %s)", text_of(r, "needed", ""));
        putchar('\n');
    }
    printf("%.0f fatal and %.0f optional requirements are not met\n", number_of(json, "unmet_fatal"),
           number_of(json, "unmet_optional"));
}

/* ---- The program ----------------------------------------------------------------------------------------------- */

/* A bare --json means standard output; the parser wants a value with every option, so it is given one. `copy` has room
   for argc arguments. */
static void complete_json(int argc, char **argv, char **copy)
{
    static char to_stdout[] = "--json=-";
    for (int i = 0; i < argc; i++) {
        int bare = strcmp(argv[i], "--json") == 0 && (i + 1 == argc || strncmp(argv[i + 1], "--", 2) == 0);
        copy[i] = bare ? to_stdout : argv[i];
    }
}

static int parse(afdep_info_t *info, int argc, char **argv, char *why, size_t why_size)
{
    const afdep_option_t options[] = {
        { "config", AFDEP_OPTION_FLAG, &info->config, 0, 0, 0, 0,
          "print every setting of the library: its variable, its value, and where that comes from", 0 },
        { "preflight", AFDEP_OPTION_FLAG, &info->preflight, 0, 0, 0, 0,
          "list what a cluster run needs of this host, and exit with 1 if something fatal is missing", 0 },
        { "gin", AFDEP_OPTION_FLAG, &info->gin, 0, 0, 0, 0,
          "ask NCCL, on the first GPU, which GPU-initiated networking a buffer of several domains would get", 0 },
        { "scenario", AFDEP_OPTION_STRING, &info->scenario, 0, 0, 0, "FILE",
          "of --preflight: the run's scenario (default: several domains of two ranks)", 0 },
        AFDEP_COMMON_OPTIONS(info->common), /* of which only help, version and json matter here */
        { 0 }
    };
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    if (!copy)
        return afdep_why(why, why_size, "no memory for the command line");
    complete_json(argc, argv, copy);
    int status = afdep_options_parse(options, argc, copy, why, why_size);
    free(copy);
    if (status == 1 && info->common.help)
        afdep_options_help("afdep-info", "[--config | --preflight [--scenario FILE]] [--gin] [--json [FILE]]",
                           "Says what this build of afdep has, and what this machine has that matters to it. --json "
                           "without a FILE writes to standard output.",
                           options);
    else if (status == 0 && info->config && info->preflight)
        status = afdep_why(why, why_size, "--config: stands in place of --preflight, not beside it");
    else if (status == 0 && info->common.json && strcmp(info->common.json, "-") != 0 &&
             afdep_record_probe(info->common.json, why, why_size) != 0)
        status = -1; /* before the machine is looked at, and not with the status of requirements that are not met */
    else if (status == 0 && info->gin && (info->config || info->preflight))
        status = afdep_why(why, why_size, "--gin: stands beside neither --config nor --preflight");
    else if (status == 0 && info->scenario && !info->preflight)
        status = afdep_why(why, why_size, "--scenario: only --preflight has a use for it");
    else if (status == 1)
        printf("afdep-info (afdep) %s\nnative tree %s\n", afdep_version(), afdep_native_tree());
    return status;
}

static int print_json(const cJSON *json)
{
    char *text = cJSON_Print(json);
    int failed = !text || puts(text) == EOF;
    cJSON_free(text);
    return failed;
}

static int report(const afdep_info_t *info, const cJSON *json, char *why, size_t why_size)
{
    if (info->common.json && strcmp(info->common.json, "-") != 0)
        return afdep_record_write(info->common.json, json, why, why_size);
    if (info->common.json)
        return print_json(json) ? afdep_why(why, why_size, "standard output: cannot be written") : 0;
    if (info->preflight) {
        print_preflight(json);
    } else if (info->config) {
        print_config(get(json, "config"));
    } else {
        print_build(json);
        print_machine(get(json, "machine"));
        if (info->gin)
            print_gin(get(json, "gin"));
    }
    return 0;
}

int main(int argc, char **argv)
{
    char why[512];
    afdep_info_t info = { 0 };
    int status = parse(&info, argc, argv, why, sizeof why);
    int refused = status < 0;
    int unmet = 0;
    if (status == 0) {
        cJSON *json = info.preflight ? preflight_json(&info, why, sizeof why) : info_json(&info);
        refused = !json;
        status = json ? report(&info, json, why, sizeof why) : -1;
        unmet = json && number_of(json, "unmet_fatal") > 0;
        cJSON_Delete(json);
    }
    if (status >= 0 && (fflush(stdout) != 0 || ferror(stdout)))
        status = afdep_why(why, sizeof why, "standard output: cannot be written");
    if (status >= 0)
        return unmet;
    fprintf(stderr, "afdep-info: %s\n", why);
    return refused ? 2 : 1;
}
