/* Errors travel once: whoever decides an error writes its sentence here, callers pass the status on. */
#ifndef AFDEP_CORE_ERROR_H
#define AFDEP_CORE_ERROR_H

#include <afdep/status.h>

/* Sets the thread's last error to one sentence (printf format, no newline, no trailing stop) and returns `status`.
   errno is preserved. Exported for libafdep-mpi; not part of the public interface. */
AFDEP_EXPORT afdep_status_t afdep_fail(afdep_status_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
