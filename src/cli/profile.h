/* profile.h -- where the time goes: per kind of op and per node. */
#ifndef TESS_CLI_PROFILE_H
#define TESS_CLI_PROFILE_H

#include "cli/cli.h"
#include "runtime/session.h"

Status profile_print(FILE *f, const Session *s, bool json);

#endif
