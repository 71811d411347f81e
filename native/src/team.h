/* Threads that work on one job together, and sleep in between. */
#ifndef ONEBIT_TEAM_H
#define ONEBIT_TEAM_H

#include <stdbool.h>

#include "onebit.h"

/* Every member calls job(context, member), the caller as member 0; returns when all have. One job at a time. */
typedef void (*Job)(void *context, size_t member);
void team_do(onebit_team *team, Job job, void *context);

size_t team_members(const onebit_team *team);

/* Within a job: claims some of `units` that nobody has claimed yet, from *first to before *end; false if none are left. */
bool team_claim(onebit_team *team, size_t units, size_t *first, size_t *end);

/* Within a job: waits until all members are here. Then no unit is claimed any more. */
void team_meet(onebit_team *team);
#endif
