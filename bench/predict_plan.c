/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of afdep-sim. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/predict_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/why.h"

#define INT_MOST 2147483647.0

static const char usage[] = "--scenario FILE | --compare FILE | --fit FILE | --plan FILE [OPTION...]";
static const char description[] =
    "Predicts the round trip of exchanges in virtual time: the library's protocol code decides what is sent where and "
    "when a reader may go on, a cost model says how long it takes. No rank runs and nothing is measured: records say "
    "\"emulated\": true.";

typedef struct words {
    const char *scenario_file, *cost_file, *routing;
    int topology[3], topology_given[3], toggles[3], toggles_given[3];
    int dtype, dtype_given, hidden, hidden_given, num_experts, num_experts_given, top_k, top_k_given;
    int num_sms, num_sms_given, capacity, capacity_given, graph, graph_given, tokens_given;
    int protocol_given, evaluations_given;
    afdep_ints_t tokens;
} words_t;

static const char *const topology_names[] = { "ffn-ranks", "attention-ranks", "ranks-per-domain" };

#define INT_OPTION(option, field, help)                                                                               \
    { option, AFDEP_OPTION_INT, &w->field, 1, INT_MOST, 0, "N", help, &w->field##_given }
#define TOGGLE_OPTION(option, i)                                                                                      \
    { option, AFDEP_OPTION_ON_OFF, &w->toggles[i], 0, 0, 0, 0, "as in afdep-bench (default as the protocol)",         \
      &w->toggles_given[i] }
#define TOPOLOGY_OPTION(i, value, help)                                                                               \
    { topology_names[i], AFDEP_OPTION_INT, &w->topology[i], 1, INT_MOST, 0, value, help, &w->topology_given[i] }
#define FILE_OPTION(option, field, value, help) { option, AFDEP_OPTION_STRING, &plan->field, 0, 0, 0, value, help, 0 }

static int parse_words(afdep_predict_plan_t *plan, words_t *w, char *why, size_t why_size)
{
    const afdep_option_t options[] = {
        { "scenario", AFDEP_OPTION_STRING, &w->scenario_file, 0, 0, 0, "FILE", "what is exchanged, between whom", 0 },
        TOPOLOGY_OPTION(0, "F", "in place of a scenario: FFN ranks"),
        TOPOLOGY_OPTION(1, "A", "in place of a scenario: Attention ranks"),
        TOPOLOGY_OPTION(2, "D", "in place of a scenario: ranks of a domain (default: all, one domain)"),
        { "cost", AFDEP_OPTION_STRING, &w->cost_file, 0, 0, 0, "FILE",
          "the cost model, afdep-cost/1 (default: H200 with InfiniBand, built in)", 0 },
        { "protocol", AFDEP_OPTION_CHOICE, &plan->protocol, 0, 0, "sparse|dense|m2n", 0,
          "what is run (default sparse); dense has every toggle off", &w->protocol_given },
        TOGGLE_OPTION("stagger", 0),
        TOGGLE_OPTION("sparse-dispatch", 1),
        TOGGLE_OPTION("sparse-combine", 2),
        { "witness", AFDEP_OPTION_CHOICE, &plan->witness, 0, 0, "dispatch|collect", 0,
          "who awaits the done witness: the next dispatch, as in the library (default), or collect, as published", 0 },
        { "starts", AFDEP_OPTION_CHOICE, &plan->free_running, 0, 0, "aligned|free", 0,
          "ranks begin an exchange together, as afdep-bench has it (default), or each when it is done with the last",
          0 },
        FILE_OPTION("compare", compare, "FILE", "set predictions beside published tables or the bench's records"),
        FILE_OPTION("sweep", sweep, "LIST",
                    "vary the scenario: \"domains=2,8,32 channels=64,192 tokens=1,32\", "
                    "domains being those of Attention"),
        FILE_OPTION("fit", fit, "FILE", "move the cost model's fitted parameters to published tables or records"),
        FILE_OPTION("hold-out", hold_out, "NAME,...", "screens that the fit does not see, and is judged by"),
        FILE_OPTION("cost-out", cost_out, "FILE", "where --fit writes the fitted model"),
        { "evaluations", AFDEP_OPTION_INT, &plan->evaluations, 1, 1000000, 0, "N",
          "predictions of all fitted screens that --fit may take (default 600)", &w->evaluations_given },
        FILE_OPTION("plan", plan, "FILE",
                    "answer for a deployment: round trips, busiest resource, ratio of saturation"),
        FILE_OPTION("out", out, "DIR", "where --plan and --sweep write a page with pictures"),
        FILE_OPTION("trace", trace_out, "FILE",
                    "write the last exchange of the first token count in the Chrome trace format"),
        { "dtype", AFDEP_OPTION_CHOICE, &w->dtype, 0, 0, "bf16|fp8", 0, "of dispatched rows", &w->dtype_given },
        INT_OPTION("hidden", hidden, "elements of a row, a multiple of 256"),
        { "tokens", AFDEP_OPTION_INTS, &w->tokens, 0, INT_MOST, 0, "1,8,32", "token counts, one line each",
          &w->tokens_given },
        INT_OPTION("num-sms", num_sms, "channels are 8 times this"),
        INT_OPTION("num-experts", num_experts, "experts of all FFN ranks together"),
        INT_OPTION("top-k", top_k, "choices of a token"),
        INT_OPTION("capacity", capacity, "the largest token count the buffer can take"),
        { "graph", AFDEP_OPTION_ON_OFF, &w->graph, 0, 0, 0, 0, "kernels follow each other in a graph",
          &w->graph_given },
        { "routing", AFDEP_OPTION_STRING, &w->routing, 0, 0, 0, "uniform|zipf:S|hot:E|trace:FILE",
          "which experts tokens choose", 0 },
        { "iterations", AFDEP_OPTION_INT, &plan->iterations, 1, 100000, 0, "N",
          "exchanges that count, each with routes of its own (default 3; 1 in a fit)", 0 },
        { "warmup", AFDEP_OPTION_INT, &plan->warmup, 0, 100000, 0, "N", "exchanges before them (default 1; 0 in a fit)",
          0 },
        AFDEP_COMMON_OPTIONS(plan->common),
        { 0 },
    };
    int asked = afdep_options_parse(options, plan->argc, plan->argv, why, why_size);
    if (asked == 1 && plan->common.version)
        printf("afdep-sim %s\nlibrary %s, native tree %s%s\n", AFDEP_VERSION, afdep_version(), afdep_native_tree(),
               afdep_native_tree_dirty() ? " (modified)" : "");
    else if (asked == 1)
        afdep_options_help("afdep-sim", usage, description, options);
    return asked;
}

/* ---- The scenario -------------------------------------------------------------------------------------------- */

static int base_scenario(afdep_scenario_t *s, const words_t *w, char *why, size_t why_size)
{
    if (w->scenario_file) {
        for (int i = 0; i < 3; i++)
            if (w->topology_given[i])
                return afdep_why(why, why_size, "--%s: a topology stands in place of --scenario, not beside it",
                                 topology_names[i]);
        return afdep_scenario_load(w->scenario_file, s, why, why_size);
    }
    for (int i = 0; i < 2; i++)
        if (!w->topology_given[i])
            return afdep_why(why, why_size,
                             "--scenario: a scenario file is needed, or a topology (--ffn-ranks, "
                             "--attention-ranks, --ranks-per-domain)");
    if ((double)w->topology[0] + w->topology[1] > INT_MOST)
        return afdep_why(why, why_size, "--ffn-ranks: %d and --attention-ranks %d: too many ranks", w->topology[0],
                         w->topology[1]);
    afdep_scenario_default(s);
    s->ffn_ranks = w->topology[0];
    s->attention_ranks = w->topology[1];
    s->ranks_per_domain = w->topology_given[2] ? w->topology[2] : s->ffn_ranks + s->attention_ranks;
    s->graph = 1;
    return 0;
}

static int override_scenario(afdep_predict_plan_t *plan, const words_t *w, char *why, size_t why_size)
{
    afdep_scenario_t *s = &plan->scenario;
    const struct {
        int given, value;
        int *field;
    } ints[] = {
        { w->hidden_given, w->hidden, &s->hidden },       { w->num_experts_given, w->num_experts, &s->num_experts },
        { w->top_k_given, w->top_k, &s->top_k },          { w->num_sms_given, w->num_sms, &s->num_sms },
        { w->capacity_given, w->capacity, &s->capacity }, { w->graph_given, w->graph, &s->graph }
    };
    for (size_t i = 0; i < sizeof(ints) / sizeof(ints[0]); i++)
        if (ints[i].given)
            *ints[i].field = ints[i].value;
    if (w->dtype_given)
        s->dtype = w->dtype ? AFDEP_DTYPE_FP8 : AFDEP_DTYPE_BF16;
    if (plan->common.seed_given)
        s->seed = plan->common.seed;
    if (w->tokens_given && w->tokens.count > AFDEP_SCENARIO_TOKENS_MAX)
        return afdep_why(why, why_size, "--tokens: %d values: at most %d", w->tokens.count, AFDEP_SCENARIO_TOKENS_MAX);
    if (w->tokens_given) {
        s->token_counts = w->tokens.count;
        memcpy(s->tokens, w->tokens.values, (size_t)w->tokens.count * sizeof(int));
    }
    afdep_routing_t routing = { 0 };
    if (w->routing && afdep_routing_parse(w->routing, &routing, why, why_size) != 0)
        return -1;
    if (w->routing) {
        free(s->routing.trace_file);
        s->routing = routing;
    }
    if (s->capacity == 0) { /* of a topology: the largest token count */
        s->capacity = 1;
        for (int i = 0; i < s->token_counts; i++)
            s->capacity = s->tokens[i] > s->capacity ? s->tokens[i] : s->capacity;
    }
    if (afdep_scenario_check(s, why, why_size) != 0)
        return -1;
    if (s->routing.kind != AFDEP_ROUTING_TRACE)
        return 0;
    plan->trace = afdep_trace_load(s->routing.trace_file, s, why, why_size);
    return plan->trace ? 0 : -1;
}

/* ---- The plan ------------------------------------------------------------------------------------------------ */

/* A mode whose file says what is exchanged has no use for what changes a scenario; a plan still chooses the arm. */
static int refuse_unused(const afdep_predict_plan_t *plan, const words_t *w, const char *mode, char *why,
                         size_t why_size)
{
    int arm = plan->mode != AFDEP_PREDICT_PLAN;
    const struct {
        const char *name;
        int given;
    } unused[] = { { "protocol", arm && w->protocol_given },
                   { "stagger", arm && w->toggles_given[0] },
                   { "sparse-dispatch", arm && w->toggles_given[1] },
                   { "sparse-combine", arm && w->toggles_given[2] },
                   { "dtype", w->dtype_given },
                   { "hidden", w->hidden_given },
                   { "tokens", w->tokens_given },
                   { "num-sms", w->num_sms_given },
                   { "num-experts", w->num_experts_given },
                   { "top-k", w->top_k_given },
                   { "capacity", w->capacity_given },
                   { "graph", w->graph_given },
                   { "routing", w->routing != NULL },
                   { "seed", plan->common.seed_given } };
    for (size_t i = 0; i < sizeof(unused) / sizeof(unused[0]); i++)
        if (unused[i].given)
            return afdep_why(why, why_size, "--%s: --%s has its own from its file", unused[i].name, mode);
    return 0;
}

/* Each is written whole: the last to be written would be all that is left. */
static int refuse_same_file(const afdep_predict_plan_t *plan, char *why, size_t why_size)
{
    const struct {
        const char *name, *file;
    } files[] = { { "json", plan->common.json }, { "trace", plan->trace_out }, { "cost-out", plan->cost_out } };
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < i; k++)
            if (files[i].file && files[k].file && strcmp(files[i].file, files[k].file) == 0 &&
                strncmp(files[i].file, "/dev/", 5) != 0)
                return afdep_why(why, why_size, "--%s: %s: --%s names the same file", files[i].name, files[i].file,
                                 files[k].name);
    return 0;
}

static int choose_mode(afdep_predict_plan_t *plan, const words_t *w, char *why, size_t why_size)
{
    const struct {
        const char *given, *name;
        afdep_predict_mode_t mode;
    } modes[] = { { plan->compare, "compare", AFDEP_PREDICT_COMPARE },
                  { plan->sweep, "sweep", AFDEP_PREDICT_SWEEP },
                  { plan->fit, "fit", AFDEP_PREDICT_FIT },
                  { plan->plan, "plan", AFDEP_PREDICT_PLAN } };
    const char *chosen = NULL;
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (!modes[i].given)
            continue;
        if (chosen)
            return afdep_why(why, why_size, "--%s: stands in place of --%s, not beside it", modes[i].name, chosen);
        chosen = modes[i].name;
        plan->mode = modes[i].mode;
    }
    int own =
        plan->mode == AFDEP_PREDICT_COMPARE || plan->mode == AFDEP_PREDICT_FIT || plan->mode == AFDEP_PREDICT_PLAN;
    if (own && (w->scenario_file || w->topology_given[0] || w->topology_given[1] || w->topology_given[2]))
        return afdep_why(why, why_size, "--%s: its file says the scenarios: --scenario or a topology is not wanted",
                         chosen);
    if (own && refuse_unused(plan, w, chosen, why, why_size) != 0)
        return -1;
    if (w->evaluations_given && plan->mode != AFDEP_PREDICT_FIT)
        return afdep_why(why, why_size, "--evaluations: %d: goes with --fit only", plan->evaluations);
    if (plan->hold_out && plan->mode != AFDEP_PREDICT_FIT)
        return afdep_why(why, why_size, "--hold-out: %s: goes with --fit only", plan->hold_out);
    if (plan->cost_out && plan->mode != AFDEP_PREDICT_FIT)
        return afdep_why(why, why_size, "--cost-out: %s: goes with --fit only", plan->cost_out);
    if (plan->trace_out && plan->mode != AFDEP_PREDICT_CELLS)
        return afdep_why(why, why_size, "--trace: %s: goes with a scenario only", plan->trace_out);
    if (plan->out && plan->mode != AFDEP_PREDICT_SWEEP && plan->mode != AFDEP_PREDICT_PLAN)
        return afdep_why(why, why_size, "--out: %s: goes with --sweep and --plan only", plan->out);
    return 0;
}

static int refuse_unmodelled(const afdep_predict_plan_t *plan, char *why, size_t why_size)
{
    if (plan->protocol == 2)
        return afdep_why(why, why_size, "--protocol: m2n: the symmetric baseline has no cost model");
    if (plan->common.fabric && strcmp(plan->common.fabric, "sim") != 0)
        return afdep_why(why, why_size, "--fabric: %s: predictions run on sim only", plan->common.fabric);
    if (plan->common.backend == 1)
        return afdep_why(why, why_size, "--backend: cuda: predictions need no GPU and use none");
    return 0;
}

static int make_plan(afdep_predict_plan_t *plan, const words_t *w, char *why, size_t why_size)
{
    int *const toggles[] = { &plan->stagger, &plan->sparse_dispatch, &plan->sparse_combine };
    for (int i = 0; i < 3; i++)
        *toggles[i] = w->toggles_given[i] ? w->toggles[i] : plan->protocol != 1;
    if (choose_mode(plan, w, why, why_size) != 0 || refuse_same_file(plan, why, why_size) != 0 ||
        refuse_unmodelled(plan, why, why_size) != 0)
        return -1;
    int fit = plan->mode == AFDEP_PREDICT_FIT;
    plan->iterations = plan->iterations ? plan->iterations : fit ? 1 : 3;
    plan->warmup = plan->warmup >= 0 ? plan->warmup : fit ? 0 : 1;
    if ((w->cost_file ? afdep_cost_load(w->cost_file, &plan->cost, why, why_size)
                      : afdep_cost_builtin(&plan->cost, why, why_size)) != 0)
        return -1;
    if (plan->mode != AFDEP_PREDICT_CELLS && plan->mode != AFDEP_PREDICT_SWEEP) {
        afdep_scenario_default(&plan->scenario); /* what a record's head shows where there is none */
        return 0;
    }
    if (base_scenario(&plan->scenario, w, why, why_size) != 0)
        return -1;
    return override_scenario(plan, w, why, why_size);
}

int afdep_predict_plan_parse(afdep_predict_plan_t *plan, int argc, char **argv, char *why, size_t why_size)
{
    words_t *w = calloc(1, sizeof(*w));
    memset(plan, 0, sizeof(*plan));
    plan->argc = argc;
    plan->argv = argv;
    plan->warmup = -1;
    plan->evaluations = 600;
    if (!w)
        return afdep_why(why, why_size, "no memory for the command line");
    int asked = parse_words(plan, w, why, why_size);
    if (asked == 0)
        asked = make_plan(plan, w, why, why_size);
    free(w);
    return asked;
}

void afdep_predict_plan_free(afdep_predict_plan_t *plan)
{
    if (plan->trace)
        afdep_trace_free(plan->trace);
    afdep_scenario_free(&plan->scenario);
    afdep_cost_free(&plan->cost);
}

afdep_predict_case_t afdep_predict_case_of(const afdep_predict_plan_t *plan, int tokens)
{
    return (afdep_predict_case_t){ .scenario = &plan->scenario,
                                   .cost = &plan->cost,
                                   .trace = plan->trace,
                                   .stagger = plan->stagger,
                                   .sparse_dispatch = plan->sparse_dispatch,
                                   .sparse_combine = plan->sparse_combine,
                                   .witness = (afdep_witness_t)plan->witness,
                                   .tokens = tokens,
                                   .free_running = plan->free_running,
                                   .warmup = plan->warmup,
                                   .iterations = plan->iterations,
                                   .seed = plan->scenario.seed };
}

void afdep_predict_arm(const afdep_predict_plan_t *plan, afdep_arm_t *arm, char name[AFDEP_PREDICT_ARM_NAME_MAX])
{
    const char *const names[] = { "stagger", "sparse-dispatch", "sparse-combine" };
    const int toggles[] = { plan->stagger, plan->sparse_dispatch, plan->sparse_combine };
    int on = toggles[0] + toggles[1] + toggles[2];
    snprintf(name, AFDEP_PREDICT_ARM_NAME_MAX, "%s", on == 3 ? "sparse" : on == 0 ? "dense" : "");
    for (int i = 0; on > 0 && on < 3 && i < 3; i++) {
        size_t used = strlen(name);
        if (toggles[i])
            snprintf(name + used, AFDEP_PREDICT_ARM_NAME_MAX - used, "%s%s", used ? "+" : "", names[i]);
    }
    *arm = (afdep_arm_t){ .name = name,
                          .protocol = on ? "sparse" : "dense",
                          .stagger = toggles[0],
                          .sparse_dispatch = toggles[1],
                          .sparse_combine = toggles[2],
                          .dtype = plan->scenario.dtype == AFDEP_DTYPE_FP8 ? "fp8" : "bf16",
                          .backend = "host",
                          .fabric = "sim",
                          .emulated = 1,
                          .graph = plan->scenario.graph,
                          .domains = "declared" };
}

cJSON *afdep_predict_record(const afdep_predict_plan_t *plan, const char *schema, const char *list)
{
    char name[AFDEP_PREDICT_ARM_NAME_MAX];
    afdep_arm_t arm;
    afdep_predict_arm(plan, &arm, name);
    int ranks = afdep_scenario_ranks(&plan->scenario);
    cJSON *record = afdep_record_begin(schema, plan->argc, plan->argv, &plan->scenario, &arm, ranks, ranks);
    cJSON *cost = afdep_cost_json(&plan->cost);
    if (record && cost && cJSON_AddItemToObject(record, "cost", cost) &&
        cJSON_AddStringToObject(record, "witness", plan->witness == AFDEP_WITNESS_COLLECT ? "collect" : "dispatch") &&
        cJSON_AddArrayToObject(record, list))
        return record;
    cJSON_Delete(record);
    return NULL;
}

afdep_resource_t afdep_predict_busiest(const afdep_prediction_t *prediction)
{
    int most = 0;
    for (int i = 1; i < AFDEP_RESOURCES; i++)
        if (prediction->load[i].share > prediction->load[most].share)
            most = i;
    return (afdep_resource_t)most;
}
