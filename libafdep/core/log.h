/* Log lines: quiet unless the level asks for them. */
#ifndef AFDEP_CORE_LOG_H
#define AFDEP_CORE_LOG_H

#include <afdep/afdep.h>

/* The level in force, for callers that would have to work for a line. */
afdep_log_level_t afdep_log_level(void);

/* Writes one line (printf format, no newline) when the level in force includes `level`. errno is preserved. */
void afdep_log(afdep_log_level_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
