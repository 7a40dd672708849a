/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The strict JSON reader behind scenarios and records. cJSON parses; this file bounds what it is given (size, depth),
 * refuses what cJSON lets pass (control characters as white space, escaped NULs that would cut strings short, a key
 * given twice, of which readers would see only one), and turns offsets into lines and columns.
 */
#include "bench/lib/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/why.h"

typedef struct afdep_json_text {
    char *bytes; /* NUL-terminated */
    size_t size;
} afdep_json_text_t;

/* Grows by doubling rather than trusting the size that stat reports: pipes have none. */
static int read_all(FILE *stream, const char *file, size_t limit, afdep_json_text_t *text, char *why, size_t why_size)
{
    size_t room = 4096;
    text->size = 0;
    text->bytes = malloc(room);
    while (text->bytes) {
        text->size += fread(text->bytes + text->size, 1, room - 1 - text->size, stream);
        if (ferror(stream))
            return afdep_why(why, why_size, "%s: cannot be read: %s", file, strerror(errno));
        if (text->size > limit)
            return afdep_why(why, why_size, "%s: is larger than %zu bytes", file, limit);
        if (text->size < room - 1) {
            text->bytes[text->size] = 0;
            return 0;
        }
        room *= 2;
        char *grown = realloc(text->bytes, room);
        if (!grown)
            break;
        text->bytes = grown;
    }
    return afdep_why(why, why_size, "%s: no memory to read it", file);
}

static int refuse_at(const char *file, const afdep_json_text_t *text, size_t offset, const char *rule, char *why,
                     size_t why_size)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < offset && i < text->size; i++) {
        column = text->bytes[i] == '\n' ? 1 : column + 1;
        line += text->bytes[i] == '\n';
    }
    return afdep_why(why, why_size, "%s: line %zu, column %zu: %s", file, line, column, rule);
}

/* One pass ahead of the parser, for what it would accept or recurse into. */
static int scan(const char *file, const afdep_json_text_t *text, char *why, size_t why_size)
{
    int in_string = 0;
    size_t depth = 0;
    for (size_t i = 0; i < text->size; i++) {
        unsigned char c = (unsigned char)text->bytes[i];
        if (c < 0x20 && (in_string || (c != '\n' && c != '\r' && c != '\t')))
            return refuse_at(file, text, i, "a control character is not JSON", why, why_size);
        if (in_string) {
            if (c == '\\' && strncmp(text->bytes + i + 1, "u0000", 5) == 0)
                return refuse_at(file, text, i, "a string holds a NUL", why, why_size);
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = 0;
        } else if (c == '"') {
            in_string = 1;
        } else if (c == '{' || c == '[') {
            if (++depth > AFDEP_JSON_DEPTH_MAX)
                return refuse_at(file, text, i, "is nested too deeply", why, why_size);
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return 0;
}

static cJSON *parse(const char *file, const afdep_json_text_t *text, char *why, size_t why_size)
{
    if (strspn(text->bytes, " \t\r\n") == text->size) {
        afdep_why(why, why_size, "%s: is empty", file);
        return NULL;
    }
    if (scan(file, text, why, why_size) < 0)
        return NULL;
    const char *end = text->bytes;
    cJSON *json = cJSON_ParseWithLengthOpts(text->bytes, text->size + 1, &end, 1);
    if (!json)
        refuse_at(file, text, (size_t)(end - text->bytes), "is not JSON", why, why_size);
    return json;
}

/* Where a value stands, from the whole file down: for one that is wrong, "faults[0].kind". */
typedef struct place {
    const struct place *outer; /* NULL: the file itself */
    const cJSON *value;
    int index; /* in a list; -1 in an object */
} place_t;

static void name_place(const place_t *place, char *text, size_t size)
{
    text[0] = 0;
    if (!place->outer)
        return;
    name_place(place->outer, text, size);
    size_t used = strlen(text);
    if (place->index < 0)
        snprintf(text + used, size - used, "%s%.64s", used ? "." : "", place->value->string);
    else
        snprintf(text + used, size - used, "[%d]", place->index);
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

/* Sorted, since a hostile object may hold as many keys as fit into a file. */
static int check_keys_of(const char *file, const place_t *object, int count, char *why, size_t why_size)
{
    const cJSON **keys = malloc((size_t)count * sizeof(*keys)), *key;
    int known = 0, status = 0;
    if (!keys)
        return afdep_why(why, why_size, "%s: no memory to read it", file);
    cJSON_ArrayForEach(key, object->value)
        keys[known++] = key;
    qsort(keys, (size_t)count, sizeof(*keys), by_key);
    for (int i = 1; status == 0 && i < count; i++) {
        place_t twice = { object, keys[i], -1 };
        char name[256], text[64];
        if (strcmp(keys[i - 1]->string, keys[i]->string) != 0)
            continue;
        name_place(&twice, name, sizeof name);
        status = afdep_why(why, why_size, "%s: %s: %s is given a second time", file, name,
                           afdep_json_quote(keys[i], text, sizeof text));
    }
    free(keys);
    return status;
}

/* No deeper than scan() lets pass. */
static int check_keys(const char *file, const place_t *place, char *why, size_t why_size)
{
    place_t inner = { place, NULL, -1 };
    int count = 0, keyed = cJSON_IsObject(place->value);
    cJSON_ArrayForEach(inner.value, place->value)
    {
        inner.index = keyed ? -1 : count;
        count++;
        if (inner.value->child && check_keys(file, &inner, why, why_size) != 0)
            return -1;
    }
    return keyed && count > 1 ? check_keys_of(file, place, count, why, why_size) : 0;
}

cJSON *afdep_json_read(const char *file, size_t limit, char *why, size_t why_size)
{
    FILE *stream = fopen(file, "rbe");
    if (!stream) {
        afdep_why(why, why_size, "%s: cannot be opened: %s", file, strerror(errno));
        return NULL;
    }
    afdep_json_text_t text;
    cJSON *json = NULL;
    if (read_all(stream, file, limit, &text, why, why_size) == 0)
        json = parse(file, &text, why, why_size);
    free(text.bytes);
    fclose(stream);
    place_t whole = { NULL, json, -1 };
    if (json && check_keys(file, &whole, why, why_size) != 0) {
        cJSON_Delete(json);
        return NULL;
    }
    return json;
}

/* Length of the well-formed UTF-8 sequence at `s`, 0 when there is none (overlong forms and surrogates included). */
static size_t utf8_length(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    size_t length = s[0] >= 0xc2 && s[0] <= 0xdf ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

cJSON *afdep_json_string(const char *text)
{
    if (!text)
        return cJSON_CreateNull();
    char *clean = malloc(3 * strlen(text) + 1);
    if (!clean)
        return NULL;
    char *out = clean;
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t length = utf8_length(s);
        memcpy(out, length ? (const char *)s : "\xef\xbf\xbd", length ? length : 3);
        out += length ? length : 3;
        s += length ? length : 1;
    }
    *out = 0;
    cJSON *json = cJSON_CreateString(clean);
    free(clean);
    return json;
}

const char *afdep_json_quote(const cJSON *value, char *text, size_t size)
{
    char *printed = cJSON_PrintUnformatted(value);
    if (snprintf(text, size, "%s", printed ? printed : "?") >= (int)size && size > 4)
        memcpy(text + size - 4, "...", 4);
    cJSON_free(printed);
    return text;
}
