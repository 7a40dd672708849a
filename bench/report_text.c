/* SPDX-License-Identifier: Apache-2.0 */
/* Tables and sentences. Records come from files: every field may be missing. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/report_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/json.h"

#define CELL 160 /* characters of a cell made here */
#define COLUMNS_MAX (2 * AFDEP_COMPARISON_ARMS_MAX + 2)

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static const char *text_of(const cJSON *object, const char *key, const char *fallback)
{
    const cJSON *value = get(object, key);
    return cJSON_IsString(value) ? value->valuestring : fallback;
}

static double number_of(const cJSON *object, const char *key)
{
    const cJSON *value = get(object, key);
    return cJSON_IsNumber(value) ? value->valuedouble : NAN;
}

static const char *on_off(const cJSON *object, const char *key)
{
    const cJSON *value = get(object, key);
    return cJSON_IsTrue(value) ? "on" : cJSON_IsFalse(value) ? "off" : "-";
}

/* A row of cells that are made one after the other. */
typedef struct row {
    char cells[COLUMNS_MAX][CELL];
    const char *list[COLUMNS_MAX];
    int count;
} row_t;

static void __attribute__((format(printf, 2, 3))) cell(row_t *row, const char *format, ...)
{
    va_list args;
    if (row->count == COLUMNS_MAX)
        return;
    va_start(args, format);
    vsnprintf(row->cells[row->count], CELL, format, args);
    va_end(args);
    row->list[row->count] = row->cells[row->count];
    row->count++;
}

static void cell_us(row_t *row, double us)
{
    if (isnan(us))
        cell(row, "-");
    else
        cell(row, "%.1f", us);
}

static void head(afdep_page_t *page, row_t *row, int numbers)
{
    afdep_page_table(page, row->list, row->count, numbers);
    row->count = 0;
}

static void put(afdep_page_t *page, row_t *row)
{
    afdep_page_row(page, row->list);
    row->count = 0;
}

/* ---- What changed ---------------------------------------------------------------------------------------------- */

static void paired_table(afdep_page_t *page, const afdep_comparison_t *c, row_t *row)
{
    char words[128];
    cell(row, "tokens");
    cell(row, "%s, µs", c->names[c->baseline]);
    for (int arm = 0; arm < c->arms; arm++)
        if (arm != c->baseline) {
            cell(row, "%s, µs", c->names[arm]);
            cell(row, "change, %% (95%%)");
        }
    head(page, row, row->count);
    for (int token = 0; token < c->token_counts; token++) {
        cell(row, "%d", c->tokens[token]);
        cell_us(row, afdep_comparison_median(c, c->baseline, token));
        for (int arm = 0; arm < c->arms; arm++) {
            if (arm == c->baseline)
                continue;
            afdep_paired_t paired = afdep_comparison_pair(c, arm, token);
            cell_us(row, afdep_comparison_median(c, arm, token));
            cell(row, "%s", afdep_paired_words(&paired, words, sizeof(words)));
        }
        put(page, row);
    }
    afdep_page_table_end(page);
}

/* A line for each arm and token count. */
static void long_table(afdep_page_t *page, const afdep_comparison_t *c, row_t *row)
{
    char words[128];
    static const char *const names[] = { "arm", "tokens", "µs", "change, % (95%)" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        cell(row, "%s", names[i]);
    head(page, row, 3);
    for (int arm = 0; arm < c->arms; arm++)
        for (int token = 0; token < c->token_counts; token++) {
            afdep_paired_t paired = afdep_comparison_pair(c, arm, token);
            cell(row, "%s", c->names[arm]);
            cell(row, "%d", c->tokens[token]);
            cell_us(row, afdep_comparison_median(c, arm, token));
            cell(row, "%s", arm == c->baseline ? "baseline" : afdep_paired_words(&paired, words, sizeof(words)));
            put(page, row);
        }
    afdep_page_table_end(page);
}

static void median_table(afdep_page_t *page, const afdep_comparison_t *c, row_t *row)
{
    cell(row, "tokens");
    for (int arm = 0; arm < c->arms; arm++)
        cell(row, "%s, µs", c->names[arm]);
    head(page, row, row->count);
    for (int token = 0; token < c->token_counts; token++) {
        cell(row, "%d", c->tokens[token]);
        for (int arm = 0; arm < c->arms; arm++)
            cell_us(row, afdep_comparison_median(c, arm, token));
        put(page, row);
    }
    afdep_page_table_end(page);
}

/* "at 1, 8 tokens" of those with this verdict; 0 when there are none. */
static int tokens_of_verdict(const afdep_comparison_t *c, int arm, const char *verdict, char *text, size_t size)
{
    size_t used = 0;
    int count = 0;
    for (int token = 0; token < c->token_counts; token++) {
        afdep_paired_t paired = afdep_comparison_pair(c, arm, token);
        if (strcmp(afdep_paired_verdict(&paired), verdict) != 0 || used + 16 > size)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%d", count++ ? ", " : "", c->tokens[token]);
    }
    return count;
}

static void verdicts(afdep_page_t *page, const afdep_comparison_t *c, int arm)
{
    static const char *const words[] = { "faster", "slower", "no difference seen", "one repeat" };
    static const char *const said[] = { "faster at %s tokens", "slower at %s tokens", "no difference seen at %s tokens",
                                        "one repeat only, so nothing can be said of chance, at %s tokens" };
    char sentence[1024], tokens[256], part[384];
    size_t used =
        (size_t)snprintf(sentence, sizeof(sentence), "%.128s against %.128s: ", c->names[arm], c->names[c->baseline]);
    int any = 0;
    for (int i = 0; i < 4; i++) {
        if (!tokens_of_verdict(c, arm, words[i], tokens, sizeof(tokens)) || used + sizeof(part) > sizeof(sentence))
            continue;
        const char *percent = strstr(said[i], "%s");
        snprintf(part, sizeof(part), "%.*s%s%s", (int)(percent - said[i]), said[i], tokens, percent + 2);
        used += (size_t)snprintf(sentence + used, sizeof(sentence) - used, "%s%s", any++ ? "; " : "", part);
    }
    afdep_page_paragraph(page, "%s.", any ? sentence : "nothing was paired");
}

void afdep_text_changes(afdep_page_t *page, const afdep_report_set_t *set)
{
    const afdep_comparison_t *c = &set->comparison;
    row_t *row = calloc(1, sizeof(*row));
    if (!row)
        return;
    if (c->arms == 0)
        afdep_page_paragraph(page, "Nothing was measured.");
    else if (c->baseline < 0 || c->arms < 2)
        median_table(page, c, row);
    else if (c->arms - 1 > AFDEP_COMPARISON_ABREAST)
        long_table(page, c, row);
    else
        paired_table(page, c, row);
    for (int arm = 0; c->baseline >= 0 && arm < c->arms; arm++)
        if (arm != c->baseline)
            verdicts(page, c, arm);
    if (cJSON_IsFalse(get(set->json, "complete")))
        afdep_page_paragraph(page, "The screen did not end: what follows is what it had so far.");
    free(row);
}

/* ---- Arms and builds ------------------------------------------------------------------------------------------- */

static void arms_table(afdep_page_t *page, const afdep_comparison_t *c, row_t *row)
{
    static const char *const names[] = { "arm",   "repeats", "protocol", "stagger", "sparse dispatch", "sparse combine",
                                         "dtype", "backend", "fabric",   "domains" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        cell(row, "%s", names[i]);
    head(page, row, 0);
    for (int arm = 0; arm < c->arms; arm++) {
        const cJSON *one = get(c->first[arm], "arm");
        cell(row, "%s%s", c->names[arm], arm == c->baseline ? " (baseline)" : "");
        cell(row, "%d", c->runs[arm]);
        cell(row, "%s", text_of(one, "protocol", "-"));
        cell(row, "%s", on_off(one, "stagger"));
        cell(row, "%s", on_off(one, "sparse_dispatch"));
        cell(row, "%s", on_off(one, "sparse_combine"));
        cell(row, "%s", text_of(one, "dtype", "-"));
        cell(row, "%s%s", text_of(one, "backend", "-"), cJSON_IsTrue(get(one, "emulated")) ? " (emulated)" : "");
        cell(row, "%s", text_of(one, "fabric", "-"));
        cell(row, "%s", text_of(one, "domains", "-"));
        put(page, row);
    }
    afdep_page_table_end(page);
}

static void builds_table(afdep_page_t *page, const afdep_comparison_t *c, row_t *row)
{
    static const char *const names[] = { "arm", "native tree", "version", "compiler", "MPI", "CUDA", "NCCL" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        cell(row, "%s", names[i]);
    head(page, row, 0);
    for (int arm = 0; arm < c->arms; arm++) {
        const cJSON *build = get(c->first[arm], "build"), *machine = get(c->first[arm], "machine");
        cell(row, "%s", c->names[arm]);
        cell(row, "%s%s", text_of(c->first[arm], "native_tree", "-"),
             cJSON_IsTrue(get(build, "dirty")) ? " with uncommitted changes" : "");
        cell(row, "%s", text_of(build, "version", "-"));
        cell(row, "%s", text_of(build, "compiler", "-"));
        cell(row, "%s", text_of(machine, "mpi", "-"));
        cell(row, "%s", text_of(machine, "cuda", "-"));
        cell(row, "%s", text_of(machine, "nccl", "-"));
        put(page, row);
    }
    afdep_page_table_end(page);
}

static void commands(afdep_page_t *page, const afdep_comparison_t *c)
{
    for (int arm = 0; arm < c->arms; arm++) {
        const char *own = text_of(c->first[arm], "command", "-");
        afdep_page_paragraph(page, "%s: %s", c->names[arm], text_of(get(c->first[arm], "run"), "command", own));
    }
}

/* ---- Exchange and machine -------------------------------------------------------------------------------------- */

static void exchange(afdep_page_t *page, const cJSON *record)
{
    const cJSON *scenario = get(record, "scenario"), *topology = get(scenario, "topology"),
                *model = get(scenario, "model");
    afdep_page_paragraph(
        page,
        "Scenario %s: %g FFN ranks and %g Attention ranks in domains of %g; %g experts, top-%g, hidden "
        "%g, %s; %g channels; capacity %g; routing %s; seed %g.",
        text_of(scenario, "name", "?"), number_of(topology, "ffn_ranks"), number_of(topology, "attention_ranks"),
        number_of(topology, "ranks_per_domain"), number_of(model, "num_experts"), number_of(model, "top_k"),
        number_of(model, "hidden"), text_of(scenario, "dtype", "?"), 8 * number_of(scenario, "num_sms"),
        number_of(scenario, "capacity"), text_of(get(scenario, "routing"), "kind", "?"), number_of(scenario, "seed"));
}

static void fact(afdep_page_t *page, row_t *row, const char *name, const char *value)
{
    if (!value)
        return;
    cell(row, "%s", name);
    cell(row, "%s", value);
    put(page, row);
}

static void gpu_fact(afdep_page_t *page, row_t *row, const cJSON *machine)
{
    const cJSON *gpus = get(machine, "gpus");
    char text[CELL];
    int count = cJSON_GetArraySize(gpus);
    double per_gpu = number_of(machine, "ranks_per_gpu");
    if (count == 0) {
        fact(page, row, "GPUs", "none");
        return;
    }
    int used = snprintf(text, sizeof(text), "%d x %.60s, driver %.30s", count, text_of(gpus->child, "name", "?"),
                        text_of(machine, "driver", "?"));
    if (!isnan(per_gpu))
        snprintf(text + used, sizeof(text) - (size_t)used, ", %g ranks per GPU", per_gpu);
    fact(page, row, "GPUs", text);
}

static void nic_fact(afdep_page_t *page, row_t *row, const cJSON *machine)
{
    const cJSON *nics = get(machine, "nics");
    char text[CELL] = "none";
    if (!cJSON_IsArray(nics))
        return;
    size_t used = 0;
    for (const cJSON *nic = nics->child; nic && used + 64 < sizeof(text); nic = nic->next) {
        const cJSON *ports = get(nic, "ports");
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%.24s %g Gbit/s", used ? ", " : "",
                                 text_of(nic, "name", "?"), number_of(ports ? ports->child : NULL, "rate_gbits_per_s"));
    }
    fact(page, row, "RDMA NICs", text);
}

static void machine_table(afdep_page_t *page, const cJSON *machine, row_t *row)
{
    char text[CELL];
    cell(row, "machine");
    cell(row, "what it is");
    head(page, row, 0);
    fact(page, row, "processor", text_of(machine, "cpu", NULL));
    snprintf(text, sizeof(text), "%g, %g of them allowed", number_of(machine, "cores"),
             number_of(machine, "cores_allowed"));
    fact(page, row, "cores", text);
    snprintf(text, sizeof(text), "%.1f GiB", number_of(machine, "memory_bytes") / 1073741824.0);
    fact(page, row, "memory", text);
    fact(page, row, "kernel", text_of(machine, "kernel", NULL));
    fact(page, row, "distribution", text_of(machine, "distribution", NULL));
    snprintf(text, sizeof(text), "%g", number_of(machine, "ranks_per_host"));
    fact(page, row, "ranks per host", text);
    gpu_fact(page, row, machine);
    nic_fact(page, row, machine);
    afdep_page_table_end(page);
    double ranks = number_of(machine, "ranks_per_host"), cores = number_of(machine, "cores_allowed");
    if (!cJSON_GetArraySize(get(machine, "gpus")) && ranks > cores)
        afdep_page_paragraph(
            page,
            "%g ranks share %g cores here: times include waiting for a core, and say more of the order "
            "of the arms than of a cluster's microseconds.",
            ranks, cores);
}

/* ---- Signals and failures -------------------------------------------------------------------------------------- */

static void signals_table(afdep_page_t *page, const afdep_comparison_t *c, row_t *row)
{
    static const char *const kinds[] = { "finish_tail", "count_word", "progress_tail", "combine", "witness", "total" };
    static const char *const titles[] = {
        "finish tails", "count words", "progress tails", "combine", "witness", "total"
    };
    cell(row, "arm");
    cell(row, "tokens");
    for (int kind = 0; kind < 6; kind++)
        cell(row, "%s", titles[kind]);
    head(page, row, row->count - 1);
    for (int arm = 0; arm < c->arms; arm++)
        for (int token = 0; token < c->token_counts; token++) {
            const cJSON *one = afdep_benchmark_cell(c->first[arm], c->tokens[token]);
            cell(row, "%s", c->names[arm]);
            cell(row, "%d", c->tokens[token]);
            for (int kind = 0; kind < 6; kind++) {
                double count = afdep_cell_number(one, "signals_per_exchange", kinds[kind]);
                if (isnan(count))
                    cell(row, "-");
                else
                    cell(row, "%.10g", count);
            }
            put(page, row);
        }
    afdep_page_table_end(page);
}

static double wrong_values(const afdep_report_set_t *set, int *unchecked)
{
    double wrong = 0;
    for (const cJSON *record = set->records->child; record; record = record->next)
        for (const cJSON *one = get(record, "cells")->child; one; one = one->next) {
            double here = afdep_cell_number(one, "mismatches", NULL);
            *unchecked += isnan(here);
            wrong += isnan(here) ? 0 : here;
        }
    return wrong;
}

static void failures(afdep_page_t *page, const afdep_report_set_t *set)
{
    const cJSON *list = get(set->json, "failures");
    if (!list || !list->child)
        return;
    afdep_page_heading(page, 3, "What failed");
    for (const cJSON *failure = list->child; failure; failure = failure->next)
        afdep_page_paragraph(page, "%s, repeat %g: %s", text_of(failure, "arm", "?"), number_of(failure, "repeat"),
                             text_of(failure, "why", "?"));
}

/* The first and the last record's time. */
static void when(afdep_page_t *page, const afdep_report_set_t *set)
{
    const cJSON *last = set->records->child;
    while (last->next)
        last = last->next;
    int unchecked = 0;
    double wrong = wrong_values(set, &unchecked);
    afdep_page_paragraph(page, "Measured from %s to %s (UTC, each run's begin). %s",
                         text_of(set->records->child, "created", "?"), text_of(last, "created", "?"),
                         wrong > 0   ? "WRONG VALUES were found when checking: these times mean nothing."
                         : unchecked ? "Values were not checked in every cell."
                                     : "Every cell's values were checked against the oracle: none was wrong.");
}

void afdep_text_details(afdep_page_t *page, const afdep_report_set_t *set)
{
    const afdep_comparison_t *c = &set->comparison;
    row_t *row = calloc(1, sizeof(*row));
    if (row && c->arms > 0) {
        afdep_page_heading(page, 3, "Arms and builds");
        arms_table(page, c, row);
        builds_table(page, c, row);
        commands(page, c);
        afdep_page_heading(page, 3, "Exchange and machine");
        exchange(page, c->first[0]);
        when(page, set);
        machine_table(page, get(c->first[0], "machine"), row);
        afdep_page_heading(page, 3, "Signals per exchange at the busiest FFN rank");
        signals_table(page, c, row);
    }
    free(row);
    failures(page, set);
}
