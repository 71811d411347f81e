/* Threads that help the caller with units of work, and sleep in between. */
#ifndef ONEBIT_TEAM_H
#define ONEBIT_TEAM_H

#include <stdbool.h>

#include "onebit.h"

/* Does units from `first` to before `end`; member: of whose scratch, 0 is the caller. */
typedef void (*Work)(void *context, size_t member, size_t first, size_t end);

/* Does all units, shared with whoever of the team has the time; returns when all are done. Only the thread that has the team
   may call it. A null team has no members but the caller. */
void team_share(onebit_team *team, Work work, void *context, size_t units);

size_t team_members(const onebit_team *team);
#endif
