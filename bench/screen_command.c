/* SPDX-License-Identifier: Apache-2.0 */
/* Words, variables, and where programs are. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/screen_command.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/lib/record.h"
#include "bench/lib/why.h"

extern char **environ;

/* ---- Where programs are ---------------------------------------------------------------------------------------- */

static int can_run(const char *file)
{
    struct stat status;
    return stat(file, &status) == 0 && S_ISREG(status.st_mode) && access(file, X_OK) == 0;
}

static char *join(const char *folder, size_t folder_length, const char *name)
{
    size_t size = folder_length + strlen(name) + 2;
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%.*s/%s", (int)folder_length, folder, name);
    return path;
}

/* The runnable file `name` in one of the folders of a list as PATH is; NULL when there is none. */
static char *find_in(const char *folders, const char *name)
{
    for (const char *folder = folders; folder && *folder;) {
        size_t length = strcspn(folder, ":");
        char *path = length ? join(folder, length, name) : join(".", 1, name);
        if (path && can_run(path))
            return path;
        free(path);
        folder += length + (folder[length] == ':');
    }
    return NULL;
}

static char *find_beside_this(const char *name)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[length > 0 ? length : 0] = 0;
    char *slash = strrchr(self, '/');
    char *path = slash ? join(self, (size_t)(slash - self), name) : NULL;
    if (path && can_run(path))
        return path;
    free(path);
    return NULL;
}

static char *find_program(const char *name)
{
    char *path = strchr(name, '/') ? NULL : find_beside_this(name);
    if (!path && !strchr(name, '/'))
        path = find_in(getenv("PATH"), name);
    return path ? path : strdup(name);
}

/* ---- Words ----------------------------------------------------------------------------------------------------- */

typedef struct words {
    char **list;
    int count, room;
    int failed; /* no memory: nothing more is added */
} words_t;

static void add(words_t *words, const char *text)
{
    if (!words->failed && words->count + 1 >= words->room) {
        int room = words->room ? 2 * words->room : 32;
        char **grown = realloc(words->list, (size_t)room * sizeof(*grown));
        words->failed = !grown;
        if (grown)
            words->list = grown, words->room = room;
    }
    char *copy = words->failed ? NULL : strdup(text);
    if (!copy) {
        words->failed = 1;
        return;
    }
    words->list[words->count++] = copy;
    words->list[words->count] = NULL;
}

static void add_list(words_t *words, const cJSON *list)
{
    for (const cJSON *word = list->child; word; word = word->next)
        add(words, word->valuestring);
}

static void add_option(words_t *words, const char *name, const char *value)
{
    add(words, name);
    add(words, value);
}

static void add_tokens(words_t *words, const afdep_screen_t *screen)
{
    char text[AFDEP_SCENARIO_TOKENS_MAX * 12];
    size_t used = 0;
    for (int i = 0; i < screen->token_counts; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%d", i ? "," : "", screen->tokens[i]);
    add_option(words, "--tokens", text);
}

/* What afdep-screen was given and every arm should know. */
static void add_common(words_t *words, const afdep_common_t *common)
{
    static const char *const levels[] = { "error", "warn", "info", "debug" };
    char number[32];
    if (common->backend)
        add_option(words, "--backend", "cuda");
    if (common->fabric)
        add_option(words, "--fabric", common->fabric);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)common->seed);
    if (common->seed_given)
        add_option(words, "--seed", number);
    snprintf(number, sizeof(number), "%d", common->timeout_ms);
    if (common->timeout_ms)
        add_option(words, "--timeout-ms", number);
    if (common->log > 0)
        add_option(words, "--log", levels[common->log]);
}

/* ---- Variables ------------------------------------------------------------------------------------------------- */

static void add_variable(words_t *words, const char *name, const char *value)
{
    size_t size = strlen(name) + strlen(value) + 2;
    char *entry = malloc(size);
    if (entry)
        snprintf(entry, size, "%s=%s", name, value);
    if (entry)
        add(words, entry);
    else
        words->failed = 1;
    free(entry);
}

/* Open MPI refuses to run as root unless told twice. As variables other launchers of the same name do not mind it. */
static int needs_root_word(const afdep_screen_arm_t *arm)
{
    const cJSON *first = arm->launcher->child;
    const char *slash = first ? strrchr(first->valuestring, '/') : NULL;
    const char *name = slash ? slash + 1 : first ? first->valuestring : "";
    return geteuid() == 0 && (strcmp(name, "mpirun") == 0 || strcmp(name, "mpiexec") == 0);
}

/* Only what is added to this process's environment. */
static void add_variables(words_t *words, const afdep_screen_arm_t *arm)
{
    static const char *const root[] = { "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" };
    for (size_t i = 0; needs_root_word(arm) && i < 2; i++)
        if (!cJSON_GetObjectItemCaseSensitive(arm->env, root[i]))
            add_variable(words, root[i], "1");
    for (const cJSON *item = arm->env->child; item; item = item->next)
        add_variable(words, item->string, item->valuestring);
}

static int overridden(const words_t *added, const char *entry)
{
    size_t length = strcspn(entry, "=") + 1;
    for (int i = 0; i < added->count; i++)
        if (strncmp(added->list[i], entry, length) == 0)
            return 1;
    return 0;
}

/* ---- The whole ------------------------------------------------------------------------------------------------- */

static void free_words(char **list)
{
    for (char **word = list; word && *word; word++)
        free(*word);
    free(list);
}

int afdep_screen_command_make(const afdep_screen_t *screen, const afdep_screen_arm_t *arm, const afdep_common_t *common,
                              const char *record, afdep_screen_command_t *command, char *why, size_t why_size)
{
    words_t argv = { 0 }, variables = { 0 }, environment = { 0 }, line = { 0 };
    memset(command, 0, sizeof(*command));
    command->program = find_program(arm->program);
    add_list(&argv, arm->launcher);
    add(&argv, command->program ? command->program : arm->program);
    add_option(&argv, "--scenario", screen->scenario_file);
    add_tokens(&argv, screen);
    add_common(&argv, common);
    add_list(&argv, arm->flags);
    add_option(&argv, "--json", record);
    add_variables(&variables, arm);
    for (int i = 0; i < variables.count; i++)
        add(&environment, variables.list[i]), add(&line, variables.list[i]);
    for (char **entry = environ; *entry; entry++)
        if (!overridden(&variables, *entry))
            add(&environment, *entry);
    for (int i = 0; i < argv.count; i++)
        add(&line, argv.list[i]);
    command->argv = argv.list;
    command->argc = argv.count;
    command->environment = environment.list;
    command->line = line.failed ? NULL : afdep_command_line(line.count, line.list);
    int failed = !command->program || argv.failed || variables.failed || environment.failed || !command->line;
    free_words(variables.list);
    free_words(line.list);
    return failed ? afdep_why(why, why_size, "arm %s: no memory for its command line", arm->name) : 0;
}

void afdep_screen_command_free(afdep_screen_command_t *command)
{
    free_words(command->argv);
    free_words(command->environment);
    free(command->line);
    free(command->program);
    memset(command, 0, sizeof(*command));
}

int afdep_screen_command_check(const afdep_screen_t *screen, const afdep_screen_arm_t *arm,
                               const afdep_screen_command_t *command, char *why, size_t why_size)
{
    int index = (int)(arm - screen->arms);
    if (!can_run(command->program))
        return afdep_why(why, why_size,
                         "%s: arms[%d].program: \"%s\" is no program (not beside afdep-screen, not on "
                         "PATH)",
                         screen->file, index, arm->program);
    if (!arm->launcher->child)
        return 0;
    const char *launcher = arm->launcher->child->valuestring;
    char *found = strchr(launcher, '/') ? strdup(launcher) : find_in(getenv("PATH"), launcher);
    int there = found && can_run(found);
    free(found);
    return there ? 0
                 : afdep_why(why, why_size, "%s: arms[%d].launcher: \"%s\" is not there to be run", screen->file, index,
                             launcher);
}
