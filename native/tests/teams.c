/* Teams that are new, and teams that are old: every unit is done exactly once, and all are done when `team_share` returns.
   Workers round as the caller does, however it rounds by then.

       teams TEAMS */
#include <fenv.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "../src/team.h"

enum { MOST_UNITS = 5000 };

typedef struct {
    atomic_int times[MOST_UNITS];
    atomic_int at_work;
} Tally;

static void count(void *given, size_t member, size_t first, size_t end) {
    Tally *tally = given;
    (void)member;
    atomic_fetch_add(&tally->at_work, 1);
    for (size_t unit = first; unit < end; unit++) atomic_fetch_add(&tally->times[unit], 1);
    atomic_fetch_sub(&tally->at_work, 1);
}

static int is_right(onebit_team *team, size_t units) {
    static Tally tally;
    for (size_t i = 0; i < MOST_UNITS; i++) atomic_store(&tally.times[i], 0);
    team_share(team, count, &tally, units);
    int right = !atomic_load(&tally.at_work);
    for (size_t i = 0; i < MOST_UNITS; i++) right &= atomic_load(&tally.times[i]) == (i < units);
    return right;
}

typedef struct {
    float expected;
    atomic_int of_workers, wrong; /* looks */
} Rounding;

/* Of a third the nearest float is the larger one of two. */
static float third(void) {
    volatile float one = 1, three = 3; /* divided now, and not by the compiler */
    return one / three;
}

static void look(void *given, size_t member, size_t first, size_t end) {
    Rounding *it = given;
    (void)first, (void)end;
    if (third() != it->expected) atomic_fetch_add(&it->wrong, 1);
    if (member) atomic_fetch_add(&it->of_workers, 1);
    while (!atomic_load(&it->of_workers)) sched_yield(); /* a worker looks, too, however busy the machine is */
}

static int rounds_as_the_caller(onebit_team *team) {
    static const int WAYS[] = {FE_DOWNWARD, FE_TONEAREST};
    int right = 1;
    float before = 0;
    for (int i = 0; i < 2; i++) {
        right &= !fesetround(WAYS[i]);
        Rounding it = {.expected = third()};
        right &= it.expected > before;
        before = it.expected;
        team_share(team, look, &it, 2);
        right &= atomic_load(&it.of_workers) > 0 && !atomic_load(&it.wrong);
    }
    return right;
}

int main(int n_words, char **words) {
    static const size_t UNITS[] = {0, 1, 2, 3, 7, 80, 4095, 4096, 4097, MOST_UNITS};
    enum { N_UNITS = sizeof UNITS / sizeof *UNITS, N_OLD = 50 };
    if (n_words != 2) return 2;
    int passed = 0, failed = 0;
    for (int i = 0, wanted = atoi(words[1]); i < wanted; i++) {
        onebit_team *team = onebit_team_new(2 + i % 3);
        if (!team) return 2;
        for (volatile int looks = 0; looks < i % 97 * 500;) looks = looks + 1; /* its workers have begun, or have not */
        is_right(team, UNITS[i % N_UNITS]) ? passed++ : failed++;
        for (int j = 0; i % 100 == 0 && j < N_OLD; j++) is_right(team, UNITS[j % N_UNITS]) ? passed++ : failed++;
        if (i % 100 == 0) rounds_as_the_caller(team) ? passed++ : failed++;
        onebit_team_free(team);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}
