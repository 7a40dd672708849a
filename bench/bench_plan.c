/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of afdep-bench: a scenario, or a topology in its place; overrides; what to run and what to keep. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/emulation.h"
#include "bench/lib/why.h"

#define INT_MOST 2147483647.0

static const char usage[] = "--scenario FILE | --ffn-ranks F --attention-ranks A [--ranks-per-domain D] [OPTION...]";
static const char description[] =
    "Measures the round trip of one exchange (dispatch, receive, reply, collect, with no expert computation between) "
    "for each token count of a scenario. Under mpirun every process is a rank; without it the ranks are threads.";

/* What the command line holds, before it becomes a plan. */
typedef struct bench_words {
    const char *scenario_file, *routing, *fault, *nic;
    int topology[3], topology_given[3];
    int protocol_given;
    int toggles[3], toggles_given[3];
    int dtype, dtype_given;
    int hidden, hidden_given, num_experts, num_experts_given, top_k, top_k_given;
    int num_sms, num_sms_given, expert_alignment, expert_alignment_given, capacity, capacity_given;
    afdep_ints_t tokens;
    int tokens_given, tokens_per_source_given;
    int graph, graph_given;
    int ll_format, ll_format_given, ll_profile_given, ll_zero_copy_given;
} bench_words_t;

static const char *const topology_names[] = { "ffn-ranks", "attention-ranks", "ranks-per-domain" };

#define INT_OPTION(option, field, low, help)                                                                          \
    { option, AFDEP_OPTION_INT, &w->field, low, INT_MOST, 0, "N", help, &w->field##_given }
#define TOGGLE_OPTION(option, i, help)                                                                                 \
    { option, AFDEP_OPTION_ON_OFF, &w->toggles[i], 0, 0, 0, 0, help, &w->toggles_given[i] }
#define TOPOLOGY_OPTION(i, value, help)                                                                               \
    { topology_names[i], AFDEP_OPTION_INT, &w->topology[i], i ? 1 : 0, INT_MOST, 0, value, help, &w->topology_given[i] }

/* Parses into `w` and the simple fields of `plan`; as afdep_bench_plan_parse(). */
static int parse_words(afdep_bench_plan_t *plan, bench_words_t *w, int print, char *why, size_t why_size)
{
    const afdep_option_t options[] = {
        { "scenario", AFDEP_OPTION_STRING, &w->scenario_file, 0, 0, 0, "FILE", "what is exchanged, between whom", 0 },
        TOPOLOGY_OPTION(0, "F",
                        "in place of a scenario: FFN ranks; 0: symmetric, every rank has tokens and owns experts"),
        TOPOLOGY_OPTION(1, "A", "in place of a scenario: Attention ranks (symmetric: all ranks)"),
        TOPOLOGY_OPTION(2, "D", "in place of a scenario: ranks of a domain (default: all, one domain)"),
        { "protocol", AFDEP_OPTION_CHOICE, &plan->protocol, 0, 0, AFDEP_BENCH_PROTOCOLS, 0,
          "what is run (default: sparse, or as the AFDEP_ environment says); dense has every toggle off; m2n (every "
          "rank takes part in everything, with an entry barrier), alltoallv (host, under mpirun) and nccl-p2p (CUDA) "
          "are baselines",
          &w->protocol_given },
        { "api", AFDEP_OPTION_CHOICE, &plan->api, 0, 0, "role|low-latency", 0,
          "what is measured: dispatch, receive, reply, collect between roles, or the symmetric dispatch and combine, "
          "each apart and together, over all ranks of the scenario (default role)", 0 },
        { "format", AFDEP_OPTION_CHOICE, &w->ll_format, 0, 0,
          "bf16|int8|fp8-token|mxfp8|mxfp4|fp8-block|fp8-block-ue8m0", 0,
          "low-latency: of dispatched rows (default bf16)", &w->ll_format_given },
        { "profile", AFDEP_OPTION_CHOICE, &plan->ll_profile, 0, 0, "native|a2|a3|a5", 0,
          "low-latency: whose limits hold (default native)", &w->ll_profile_given },
        { "zero-copy", AFDEP_OPTION_ON_OFF, &plan->ll_zero_copy, 0, 0, 0, 0,
          "low-latency: combine from the next combine buffer (default off)", &w->ll_zero_copy_given },
        TOGGLE_OPTION("stagger", 0, "sources start on different channels (default as the protocol)"),
        TOGGLE_OPTION("sparse-dispatch", 1, "finish tails only from channels with tokens (default as the protocol)"),
        TOGGLE_OPTION("sparse-combine", 2, "combine signals only on channels replied on (default as the protocol)"),
        { "dtype", AFDEP_OPTION_CHOICE, &w->dtype, 0, 0, "bf16|fp8", 0, "of dispatched rows", &w->dtype_given },
        INT_OPTION("hidden", hidden, 1, "elements of a row, a multiple of 256"),
        { "tokens", AFDEP_OPTION_INTS, &w->tokens, 0, INT_MOST, 0, "1,8,32", "token counts, one line each",
          &w->tokens_given },
        INT_OPTION("num-sms", num_sms, 1, "channels are 8 times this"),
        { "iterations", AFDEP_OPTION_INT, &plan->iterations, 1, INT_MOST, 0, "N",
          "timed iterations of a token count (default: as many as fit the budget, at least 20)", 0 },
        { "budget-ms", AFDEP_OPTION_INT, &plan->budget_ms, 1, INT_MOST, 0, "N",
          "time for the iterations of a token count where their number is not given (default 2000)", 0 },
        { "warmup", AFDEP_OPTION_INT, &plan->warmup, 0, INT_MOST, 0, "N", "iterations before them (default 5)", 0 },
        { "graph", AFDEP_OPTION_ON_OFF, &w->graph, 0, 0, 0, 0,
          "replay recorded exchanges where the backend can; the host backend runs eager", &w->graph_given },
        { "view", AFDEP_OPTION_ON_OFF, &plan->view, 0, 0, 0, 0,
          "timed exchanges on GPUs collect views where there are any (default on)", 0 },
        { "check", AFDEP_OPTION_ON_OFF, &plan->check, 0, 0, 0, 0,
          "compare every value of exchanges before and after the timed ones with the oracle (default on)", 0 },
        { "routing", AFDEP_OPTION_STRING, &w->routing, 0, 0, 0, "uniform|zipf:S|hot:E|trace:FILE",
          "which experts tokens choose", 0 },
        INT_OPTION("num-experts", num_experts, 1, "experts of all FFN ranks together"),
        INT_OPTION("top-k", top_k, 1, "choices of a token"),
        INT_OPTION("expert-alignment", expert_alignment, 1, "an expert's rows start at multiples of it"),
        INT_OPTION("capacity", capacity, 1, "the largest token count the buffer can take"),
        { "tokens-per-source", AFDEP_OPTION_INTS, &plan->tokens_per_source_option, 0, INT_MOST, 0, "3,0,7",
          "each Attention rank's own token count: one line, in place of --tokens", &w->tokens_per_source_given },
        { "in-flight", AFDEP_OPTION_INT, &plan->in_flight, 1, AFDEP_BENCH_IN_FLIGHT_MAX, 0, "N",
          "dispatches outstanding at once; times are per exchange of a pipelined N (default 1)", 0 },
        { "microbatches", AFDEP_OPTION_INT, &plan->microbatches, 2, 10000, 0, "N",
          "also time N micro-batches one after another over one buffer, and as ping-pong over two, with "
          "--expert-us", 0 },
        { "expert-us", AFDEP_OPTION_INT, &plan->expert_us, 1, INT_MOST, 0, "X",
          "microseconds that an FFN rank's experts take for a micro-batch, beside its communication", 0 },
        { "pin", AFDEP_OPTION_ON_OFF, &plan->pin, 0, 0, 0, 0,
          "where ranks outnumber processors, bind them to these round robin, alike in every arm (default off)", 0 },
        { "fault", AFDEP_OPTION_STRING, &w->fault, 0, 0, 0, "FILE",
          "faults to inject (afdep-fault/1): exchanges run late, or end in an error that names what is missing", 0 },
        { "emulate-nic", AFDEP_OPTION_STRING, &w->nic, 0, 0, 0, "FILE",
          "charge a modelled NIC (afdep-nic/1) for what crosses domains (CUDA); the record says emulated", 0 },
        { "dump", AFDEP_OPTION_STRING, &plan->dump, 0, 0, 0, "DIR",
          "write one checked exchange of each token count as NumPy files", 0 },
        AFDEP_COMMON_OPTIONS(plan->common),
        { 0 },
    };
    int asked = afdep_options_parse(options, plan->argc, plan->argv, why, why_size);
    if (asked == 1 && print && plan->common.version)
        printf("afdep-bench %s\nlibrary %s, native tree %s%s\n", AFDEP_VERSION, afdep_version(), afdep_native_tree(),
               afdep_native_tree_dirty() ? " (modified)" : "");
    else if (asked == 1 && print)
        afdep_options_help("afdep-bench", usage, description, options);
    return asked;
}

/* Options that the chosen API has no use for. */
static int refuse_foreign(const afdep_bench_plan_t *plan, const bench_words_t *w, char *why, size_t why_size)
{
    const struct {
        const char *name;
        int given;
    } role[] = { { "protocol", w->protocol_given }, { "stagger", w->toggles_given[0] },
                 { "sparse-dispatch", w->toggles_given[1] }, { "sparse-combine", w->toggles_given[2] },
                 { "dtype", w->dtype_given }, { "num-sms", w->num_sms_given }, { "graph", w->graph_given },
                 { "expert-alignment", w->expert_alignment_given }, { "fault", w->fault != NULL },
                 { "in-flight", plan->in_flight > 1 }, { "dump", plan->dump != NULL },
                 { "tokens-per-source", w->tokens_per_source_given } },
      ll[] = { { "format", w->ll_format_given }, { "profile", w->ll_profile_given },
               { "zero-copy", w->ll_zero_copy_given } };
    for (size_t i = 0; plan->api && i < sizeof(role) / sizeof(role[0]); i++)
        if (role[i].given)
            return afdep_why(why, why_size, "--%s: the low-latency API has no such setting", role[i].name);
    for (size_t i = 0; !plan->api && i < sizeof(ll) / sizeof(ll[0]); i++)
        if (ll[i].given)
            return afdep_why(why, why_size, "--%s: is of --api low-latency", ll[i].name);
    return 0;
}

/* What this build or backend does not have is refused by name. */
static int refuse_unbuilt(const afdep_bench_plan_t *plan, const bench_words_t *w, char *why, size_t why_size)
{
#ifndef AFDEP_HAVE_CUDA
    if (plan->common.backend == 1)
        return afdep_why(why, why_size, "--backend: cuda: this build has no CUDA backend");
#endif
    if (w->fault && plan->common.backend == 1)
        return afdep_why(why, why_size, "--fault: %s: faults on the CUDA backend are not built yet", w->fault);
    if ((plan->microbatches > 0) != (plan->expert_us > 0))
        return afdep_why(why, why_size, "--%s: is needed with --%s",
                         plan->microbatches > 0 ? "expert-us" : "microbatches",
                         plan->microbatches > 0 ? "microbatches" : "expert-us");
    if (plan->microbatches > 0 &&
        plan->protocol != AFDEP_BENCH_SPARSE && plan->protocol != AFDEP_BENCH_DENSE)
        return afdep_why(why, why_size, "--microbatches: %d: only sparse and dense have them", plan->microbatches);
    if (plan->microbatches > 0 && plan->in_flight > 1)
        return afdep_why(why, why_size, "--microbatches: %d: stands in place of --in-flight, not beside it",
                         plan->microbatches);
    if (plan->protocol != AFDEP_BENCH_ALLTOALLV && plan->protocol != AFDEP_BENCH_NCCL_P2P)
        return 0;
    const char *name = plan->protocol == AFDEP_BENCH_ALLTOALLV ? "alltoallv" : "nccl-p2p";
    if (plan->protocol == AFDEP_BENCH_NCCL_P2P) {
#ifndef AFDEP_HAVE_NCCL
        return afdep_why(why, why_size, "--protocol: nccl-p2p: this build has no NCCL");
#endif
        if (plan->common.backend != 1)
            return afdep_why(why, why_size, "--protocol: nccl-p2p: --backend cuda is wanted with it");
        if (plan->common.fabric && strcmp(plan->common.fabric, "nccl") != 0)
            return afdep_why(why, why_size, "--fabric: %s: nccl-p2p runs on nccl", plan->common.fabric);
    } else if (plan->common.backend == 1) {
        return afdep_why(why, why_size, "--protocol: alltoallv: it runs on the host backend");
    }
    for (int i = 0; i < 3; i++)
        if (w->toggles_given[i])
            return afdep_why(why, why_size, "--protocol: %s has no toggles to set", name);
    if (w->fault)
        return afdep_why(why, why_size, "--fault: %s: %s has no fabric to inject faults into", w->fault, name);
    if (plan->in_flight > 1)
        return afdep_why(why, why_size, "--in-flight: %d: %s has one exchange at a time", plan->in_flight, name);
    return 0;
}

/* The topology's own name, as the scenario files' are formed. */
static char *topology_name(const afdep_scenario_t *s)
{
    char name[128];
    int ranks = afdep_scenario_ranks(s), domain = s->ranks_per_domain > 0 ? s->ranks_per_domain : 1;
    snprintf(name, sizeof(name), "%df%da-%dx%d-%s-h%d", s->ffn_ranks, s->attention_ranks, ranks / domain, domain,
             s->dtype == AFDEP_DTYPE_FP8 ? "fp8" : "bf16", s->hidden);
    return strdup(name);
}

static int base_scenario(afdep_scenario_t *s, const bench_words_t *w, char *why, size_t why_size)
{
    int topology = w->topology_given[0] || w->topology_given[1] || w->topology_given[2];
    if (w->scenario_file) {
        for (int i = 0; i < 3; i++)
            if (w->topology_given[i])
                return afdep_why(why, why_size, "--%s: a topology stands in place of --scenario, not beside it",
                                 topology_names[i]);
        return afdep_scenario_load(w->scenario_file, s, why, why_size);
    }
    if (!topology)
        return afdep_why(why, why_size, "--scenario: a scenario file is needed, or a topology (--ffn-ranks, "
                                        "--attention-ranks, --ranks-per-domain)");
    for (int i = 0; i < 2; i++)
        if (!w->topology_given[i])
            return afdep_why(why, why_size, "--%s: is needed for a topology", topology_names[i]);
    if ((double)w->topology[0] + w->topology[1] > INT_MOST)
        return afdep_why(why, why_size, "--ffn-ranks: %d and --attention-ranks %d: too many ranks", w->topology[0],
                         w->topology[1]);
    afdep_scenario_default(s);
    s->ffn_ranks = w->topology[0];
    s->attention_ranks = w->topology[1];
    s->ranks_per_domain = w->topology_given[2] ? w->topology[2] : s->ffn_ranks + s->attention_ranks;
    return 0;
}

static int override_tokens(afdep_scenario_t *s, const afdep_ints_t *tokens, char *why, size_t why_size)
{
    if (tokens->count > AFDEP_SCENARIO_TOKENS_MAX)
        return afdep_why(why, why_size, "--tokens: %d values: at most %d", tokens->count, AFDEP_SCENARIO_TOKENS_MAX);
    s->token_counts = tokens->count;
    memcpy(s->tokens, tokens->values, (size_t)tokens->count * sizeof(int));
    return 0;
}

/* Each Attention rank its own count: one cell, whose token count is the largest. */
static int override_tokens_per_source(afdep_bench_plan_t *plan, const bench_words_t *w, char *why, size_t why_size)
{
    const afdep_ints_t *each = &plan->tokens_per_source_option;
    if (w->tokens_given)
        return afdep_why(why, why_size, "--tokens-per-source: stands in place of --tokens, not beside it");
    if (each->count != plan->scenario.attention_ranks)
        return afdep_why(why, why_size, "--tokens-per-source: %d values for %d Attention ranks", each->count,
                         plan->scenario.attention_ranks);
    int most = 0;
    for (int i = 0; i < each->count; i++)
        most = each->values[i] > most ? each->values[i] : most;
    plan->tokens_per_source = each->values;
    plan->scenario.token_counts = 1;
    plan->scenario.tokens[0] = most;
    return 0;
}

static int override_routing(afdep_scenario_t *s, const char *text, char *why, size_t why_size)
{
    afdep_routing_t routing = { 0 };
    if (afdep_routing_parse(text, &routing, why, why_size) != 0)
        return -1;
    free(s->routing.trace_file);
    s->routing = routing;
    return 0;
}

static int largest_tokens(const afdep_scenario_t *s)
{
    int most = 1;
    for (int i = 0; i < s->token_counts; i++)
        most = s->tokens[i] > most ? s->tokens[i] : most;
    return most;
}

static int override_scenario(afdep_bench_plan_t *plan, const bench_words_t *w, char *why, size_t why_size)
{
    afdep_scenario_t *s = &plan->scenario;
    const struct {
        int given, value;
        int *field;
    } ints[] = {
        { w->hidden_given, w->hidden, &s->hidden },
        { w->num_experts_given, w->num_experts, &s->num_experts },
        { w->top_k_given, w->top_k, &s->top_k },
        { w->num_sms_given, w->num_sms, &s->num_sms },
        { w->expert_alignment_given, w->expert_alignment, &s->expert_alignment },
        { w->capacity_given, w->capacity, &s->capacity },
        { w->graph_given, w->graph, &s->graph },
    };
    for (size_t i = 0; i < sizeof(ints) / sizeof(ints[0]); i++)
        if (ints[i].given)
            *ints[i].field = ints[i].value;
    if (w->dtype_given)
        s->dtype = w->dtype ? AFDEP_DTYPE_FP8 : AFDEP_DTYPE_BF16;
    if (plan->common.seed_given)
        s->seed = plan->common.seed;
    if (w->tokens_given && override_tokens(s, &w->tokens, why, why_size) != 0)
        return -1;
    if (w->tokens_per_source_given && override_tokens_per_source(plan, w, why, why_size) != 0)
        return -1;
    if (w->routing && override_routing(s, w->routing, why, why_size) != 0)
        return -1;
    if (s->capacity == 0)
        s->capacity = largest_tokens(s);
    if (!w->scenario_file) {
        free(s->name);
        s->name = topology_name(s);
        if (!s->name)
            return afdep_why(why, why_size, "no memory for the scenario's name");
    }
    return afdep_scenario_check(s, why, why_size);
}

/* What a buffer whose ranks all make the same two calls cannot do. */
static int check_symmetric(const afdep_bench_plan_t *plan, char *why, size_t why_size)
{
    const afdep_scenario_t *s = &plan->scenario;
    int m2n = plan->protocol == AFDEP_BENCH_M2N;
    if (!m2n && s->ffn_ranks > 0)
        return 0;
    if (m2n && afdep_scenario_shares_domains(s))
        return afdep_why(why, why_size, "--protocol: m2n: %s has domains of both roles, and a symmetric buffer other "
                         "domains than those", s->name);
    if (plan->protocol == AFDEP_BENCH_ALLTOALLV)
        return afdep_why(why, why_size, "--protocol: alltoallv: ffn_ranks is 0, and the baseline has roles");
    if (plan->common.backend)
        return afdep_why(why, why_size, "--backend: cuda: symmetric buffers (%s) are not built yet",
                         m2n ? "--protocol m2n" : "ffn_ranks 0");
    if (plan->in_flight > 1)
        return afdep_why(why, why_size, "--in-flight: %d: %s has one exchange at a time", plan->in_flight,
                         m2n ? "m2n" : "a symmetric scenario");
    return 0;
}

/* Without --protocol a toggle that is not given stays at the library's default, so that its environment counts. */
static afdep_toggle_t resolve_toggle(const afdep_bench_plan_t *plan, const bench_words_t *w, int i)
{
    if (w->toggles_given[i])
        return w->toggles[i] ? AFDEP_ON : AFDEP_OFF;
    if (!w->protocol_given)
        return AFDEP_DEFAULT;
    return plan->protocol == AFDEP_BENCH_DENSE || plan->protocol == AFDEP_BENCH_M2N ? AFDEP_OFF : AFDEP_ON;
}

static void make_config(afdep_bench_plan_t *plan, const bench_words_t *w)
{
    const afdep_scenario_t *s = &plan->scenario;
    afdep_config_t config = AFDEP_CONFIG_INIT;
    config.ffn_ranks = s->ffn_ranks;
    config.ranks_per_domain = s->ranks_per_domain;
    config.num_experts = s->num_experts;
    config.top_k = s->top_k;
    config.hidden = s->hidden;
    config.dtype = s->dtype;
    config.capacity = s->capacity;
    config.num_sms = s->num_sms;
    config.expert_alignment = s->expert_alignment;
    config.in_flight = plan->in_flight;
    config.timeout_ms = plan->common.timeout_ms;
    config.stagger = resolve_toggle(plan, w, 0);
    config.sparse_dispatch = resolve_toggle(plan, w, 1);
    config.sparse_combine = resolve_toggle(plan, w, 2);
    config.backend = plan->common.backend ? "cuda" : "host";
    config.fabric = plan->common.fabric;
    plan->ranks = afdep_scenario_ranks(s);
    if (plan->protocol == AFDEP_BENCH_M2N) {
        /* The real experts stay where they are, the FFN ranks'; Attention ranks get as many that no token chooses. */
        config.ffn_ranks = 0;
        config.num_experts = afdep_scenario_experts(s) * plan->ranks;
        config.flags |= AFDEP_FLAG_ENTRY_BARRIER;
    }
    plan->config = config;
}

/* A modelled NIC is never charged unsaid: the record has to hold the model. */
static int load_nic(afdep_bench_plan_t *plan, const bench_words_t *w, char *why, size_t why_size)
{
    if (!w->nic && afdep_emulation_set())
        return afdep_why(why, why_size, "%s: is set: give the model as a file, with --emulate-nic",
                         afdep_emulation_set());
    if (w->nic && plan->common.backend != 1)
        return afdep_why(why, why_size, "--emulate-nic: %s: only --backend cuda has a modelled NIC", w->nic);
    if (w->nic)
        plan->nic = afdep_emulation_load(w->nic, why, why_size);
    return w->nic && !plan->nic ? -1 : 0;
}

static int make_plan(afdep_bench_plan_t *plan, const bench_words_t *w, char *why, size_t why_size)
{
    if (refuse_foreign(plan, w, why, why_size) != 0 || refuse_unbuilt(plan, w, why, why_size) != 0 ||
        base_scenario(&plan->scenario, w, why, why_size) != 0 || override_scenario(plan, w, why, why_size) != 0 ||
        check_symmetric(plan, why, why_size) != 0)
        return -1;
    if (plan->scenario.routing.kind == AFDEP_ROUTING_TRACE) {
        plan->trace = afdep_trace_load(plan->scenario.routing.trace_file, &plan->scenario, why, why_size);
        if (!plan->trace)
            return -1;
    }
    if (plan->microbatches > 0 && plan->scenario.ffn_ranks == 0)
        return afdep_why(why, why_size, "--microbatches: %d: a symmetric rank is both sides of an exchange",
                         plan->microbatches);
    make_config(plan, w);
    plan->ll_format = w->ll_format + 1; /* as the choices follow each other in afdep_ll_format_t */
    if (w->fault && (afdep_fault_file_load(w->fault, &plan->faults, why, why_size) != 0 ||
                     afdep_fault_file_check(&plan->faults, plan->ranks, 8 * plan->scenario.num_sms, why,
                                            why_size) != 0))
        return -1;
    if (load_nic(plan, w, why, why_size) != 0)
        return -1;
    plan->align = afdep_align_area_create(plan->ranks);
    return plan->align ? 0 : afdep_why(why, why_size, "no memory for %d ranks", plan->ranks);
}

int afdep_bench_plan_parse(afdep_bench_plan_t *plan, int argc, char **argv, int print, char *why, size_t why_size)
{
    memset(plan, 0, sizeof(*plan));
    plan->argc = argc;
    plan->argv = argv;
    plan->check = 1;
    plan->view = 1;
    plan->warmup = 5;
    plan->budget_ms = 2000;
    plan->in_flight = 1;
    bench_words_t *words = calloc(1, sizeof(*words));
    if (!words)
        return afdep_why(why, why_size, "no memory for the command line");
    int asked = parse_words(plan, words, print, why, why_size);
    if (asked == 0)
        asked = make_plan(plan, words, why, why_size);
    free(words);
    return asked;
}

void afdep_bench_plan_free(afdep_bench_plan_t *plan)
{
    free(plan->align);
    cJSON_Delete(plan->nic);
    afdep_fault_file_free(&plan->faults);
    afdep_trace_free(plan->trace);
    afdep_scenario_free(&plan->scenario);
}
