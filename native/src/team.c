#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* How often one looks for others before it gives the core away: some ten microseconds. Steps of a net are not much longer,
   and sleeping takes longer than that; beyond it something else has the core that one waits for. */
enum { LOOKS = 1 << 11, MAX_MEMBERS = 1 << 10 };

typedef struct {
    onebit_team *team;
    size_t member;
    pthread_t thread;
} Worker;

struct onebit_team {
    size_t members;
    Worker *workers; /* members 1, 2, ... */
    Job job;
    void *context;
    atomic_size_t jobs;              /* how many there were; the last one is at work, or done */
    atomic_size_t claimed;           /* units */
    atomic_size_t arrived, meetings; /* who waits in team_meet; how often all met */
    atomic_size_t sleepers;          /* changed under the mutex */
    bool ends;                       /* read by workers after `jobs` */
    pthread_mutex_t mutex;
    pthread_cond_t another_job;
};

static void look_again(size_t looks) {
    if (looks >= LOOKS)
        sched_yield();
    else
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#else
        sched_yield();
#endif
}

size_t team_members(const onebit_team *team) { return team->members; }

bool team_claim(onebit_team *team, size_t units, size_t *first, size_t *end) {
    size_t from = atomic_load_explicit(&team->claimed, memory_order_relaxed), to;
    do {
        if (from >= units) return false;
        /* Large claims first: few of them, and neighbours. Small ones last: nobody waits long for the last one. */
        const size_t share = (units - from) / (2 * team->members);
        to = from + (share ? share : 1);
    } while (
        !atomic_compare_exchange_weak_explicit(&team->claimed, &from, to, memory_order_relaxed, memory_order_relaxed));
    *first = from;
    *end = to;
    return true;
}

void team_meet(onebit_team *team) {
    const size_t before = atomic_load_explicit(&team->meetings, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->members) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&team->claimed, 0, memory_order_relaxed);
        atomic_store_explicit(&team->meetings, before + 1, memory_order_release);
        return;
    }
    for (size_t looks = 0; atomic_load_explicit(&team->meetings, memory_order_acquire) == before; looks++)
        look_again(looks);
}

static void wait_for_job(onebit_team *team, size_t seen) {
    for (size_t looks = 0; looks < LOOKS; looks++) {
        if (atomic_load_explicit(&team->jobs, memory_order_acquire) != seen) return;
        look_again(looks);
    }
    pthread_mutex_lock(&team->mutex);
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->jobs) == seen) pthread_cond_wait(&team->another_job, &team->mutex);
    atomic_fetch_sub(&team->sleepers, 1);
    pthread_mutex_unlock(&team->mutex);
}

static void *work(void *given) {
    const Worker *worker = given;
    onebit_team *team = worker->team;
    for (size_t seen = 0;; seen++) {
        wait_for_job(team, seen);
        if (team->ends) return NULL;
        team->job(team->context, worker->member);
        team_meet(team);
    }
}

/* Either a worker sees the job before it sleeps, or it is seen to sleep: both counters are sequentially consistent. */
static void begin(onebit_team *team) {
    atomic_fetch_add(&team->jobs, 1);
    if (!atomic_load(&team->sleepers)) return;
    pthread_mutex_lock(&team->mutex);
    pthread_cond_broadcast(&team->another_job);
    pthread_mutex_unlock(&team->mutex);
}

void team_do(onebit_team *team, Job job, void *context) {
    team->job = job;
    team->context = context;
    begin(team);
    job(context, 0);
    team_meet(team);
}

void onebit_team_free(onebit_team *team) {
    if (!team) return;
    team->ends = true;
    begin(team);
    for (size_t i = 0; i + 1 < team->members; i++) pthread_join(team->workers[i].thread, NULL);
    pthread_cond_destroy(&team->another_job);
    pthread_mutex_destroy(&team->mutex);
    free(team->workers);
    free(team);
}

onebit_team *onebit_team_new(int32_t threads) {
    if (threads < 1 || threads > MAX_MEMBERS) return NULL;
    onebit_team *team = calloc(1, sizeof *team);
    Worker *workers = calloc((size_t)threads, sizeof *workers);
    if (!team || !workers || pthread_mutex_init(&team->mutex, NULL)) {
        free(team);
        free(workers);
        return NULL;
    }
    pthread_cond_init(&team->another_job, NULL); /* never fails where threads exist at all */
    team->workers = workers;
    for (team->members = 1; team->members < (size_t)threads; team->members++) {
        Worker *worker = &workers[team->members - 1];
        *worker = (Worker){.team = team, .member = team->members};
        if (pthread_create(&worker->thread, NULL, work, worker)) {
            onebit_team_free(team); /* joins those that there are */
            return NULL;
        }
    }
    return team;
}
