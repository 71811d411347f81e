/* How units are shared.

   There is one word, the ticket: a serial number of what is shared now, and the first part of it that nobody has claimed.
   Whoever moves the ticket on, by an atomic exchange, has claimed what lies between, and reads only then what there is to
   do. The caller goes on as soon as all parts are done. So it never waits for a thread that holds no part: one that the
   system has put aside, or that is not awake yet, finds a later ticket, or none. On cores that others use, too, this is
   what makes the difference between a little help and standing still. */
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

/* How often one looks for work, or for the end of it, before it gives the core away: some ten microseconds. Steps of a net
   are not much longer, and to fall asleep and wake up takes longer than that. */
enum { LOOKS = 1 << 11, MAX_MEMBERS = 1 << 10 };

/* Units are handed out in at most so many parts, which are counted in the lower bits of the ticket; all bits set: closed. */
enum { PART_BITS = 16, MOST_PARTS = 1 << 12 };
static const uint64_t PART_MASK = (UINT64_C(1) << PART_BITS) - 1;

typedef struct {
    onebit_team *team;
    size_t member;
    pthread_t thread;
} Worker;

struct onebit_team {
    size_t members;
    Worker *workers; /* members 1, 2, ... */
    /* What is shared: written while no part can be claimed, read by those who have claimed one. */
    Work work;
    void *context;
    size_t units;
    uint64_t float_mode;
    atomic_size_t parts;
    _Atomic uint64_t ticket; /* serial number << PART_BITS | part */
    atomic_size_t done;      /* parts */
    atomic_size_t sleepers;  /* that nobody has woken; changed under the mutex */
    atomic_bool ends;
    pthread_mutex_t mutex;
    pthread_cond_t more_work;
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

/* How floats are rounded, and whether the smallest become 0: workers follow the caller, or bits would depend on who does what. */
#if defined(__x86_64__)
static uint64_t float_mode(void) { return __builtin_ia32_stmxcsr(); }
static void set_float_mode(uint64_t mode) { __builtin_ia32_ldmxcsr((unsigned)mode); }
#elif defined(__aarch64__)
static uint64_t float_mode(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static void set_float_mode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
static uint64_t float_mode(void) { return 0; }
static void set_float_mode(uint64_t mode) { (void)mode; }
#endif

size_t team_members(const onebit_team *team) { return team ? team->members : 1; }

/* Claims some parts of what is shared, and does them; false if there are none left. */
static bool do_some(onebit_team *team, size_t member) {
    uint64_t ticket = atomic_load_explicit(&team->ticket, memory_order_acquire), next;
    size_t first, end;
    do {
        /* Whoever sees the parts of the next ticket sees that this one is closed, too, and can't exchange it. */
        const size_t parts = atomic_load_explicit(&team->parts, memory_order_acquire);
        first = (size_t)(ticket & PART_MASK);
        if (first >= parts) return false;
        /* Large claims first: few of them, and neighbours. Small ones last: nobody waits long for the last one. */
        const size_t share = (parts - first) / (2 * team->members);
        end = first + (share ? share : 1);
        next = (ticket & ~PART_MASK) | end;
    } while (!atomic_compare_exchange_weak_explicit(&team->ticket, &ticket, next, memory_order_acq_rel,
                                                    memory_order_acquire));
    if (member) set_float_mode(team->float_mode);
    const size_t parts = atomic_load_explicit(&team->parts, memory_order_relaxed);
    team->work(team->context, member, team->units * first / parts, team->units * end / parts);
    atomic_fetch_add_explicit(&team->done, end - first, memory_order_release);
    return true;
}

/* Either a worker sees the ticket before it sleeps, or it is seen to sleep: both are sequentially consistent. Those that are
   woken no longer count: until they are awake, some phases go by, which need not wake them again. */
static void wake(onebit_team *team) {
    if (!atomic_load(&team->sleepers)) return;
    pthread_mutex_lock(&team->mutex);
    atomic_store(&team->sleepers, 0);
    pthread_cond_broadcast(&team->more_work);
    pthread_mutex_unlock(&team->mutex);
}

void team_share(onebit_team *team, Work work, void *context, size_t units) {
    if (!team || units < 2) {
        if (units) work(context, 0, 0, units);
        return;
    }
    const uint64_t last = atomic_load_explicit(&team->ticket, memory_order_relaxed);
    team->work = work;
    team->context = context;
    team->units = units;
    team->float_mode = float_mode();
    const size_t parts = units < MOST_PARTS ? units : MOST_PARTS;
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    atomic_store_explicit(&team->parts, parts, memory_order_release);
    atomic_store(&team->ticket, ((last >> PART_BITS) + 1) << PART_BITS);
    wake(team);
    while (do_some(team, 0)) continue;
    for (size_t looks = 0; atomic_load_explicit(&team->done, memory_order_acquire) < parts; looks++) look_again(looks);
    /* Closed: whatever `parts` will be next, nothing can be claimed by this ticket. */
    atomic_store_explicit(&team->ticket, atomic_load_explicit(&team->ticket, memory_order_relaxed) | PART_MASK,
                          memory_order_relaxed);
}

static bool has_work(const onebit_team *team) {
    const uint64_t part = atomic_load(&team->ticket) & PART_MASK;
    return part < atomic_load(&team->parts) || atomic_load(&team->ends);
}

static void wait_for_work(onebit_team *team) {
    for (size_t looks = 0; looks < LOOKS; looks++) {
        if (has_work(team)) return;
        look_again(looks);
    }
    pthread_mutex_lock(&team->mutex);
    for (;;) {
        atomic_fetch_add(&team->sleepers, 1);
        if (has_work(team)) break;
        pthread_cond_wait(&team->more_work, &team->mutex);
    }
    atomic_fetch_sub(&team->sleepers, 1);
    pthread_mutex_unlock(&team->mutex);
}

static void *help(void *given) {
    const Worker *worker = given;
    for (;;) {
        wait_for_work(worker->team);
        if (atomic_load(&worker->team->ends)) return NULL;
        do_some(worker->team, worker->member);
    }
}

void onebit_team_free(onebit_team *team) {
    if (!team) return;
    atomic_store(&team->ends, true);
    wake(team);
    for (size_t i = 0; i + 1 < team->members; i++) pthread_join(team->workers[i].thread, NULL);
    pthread_cond_destroy(&team->more_work);
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
    pthread_cond_init(&team->more_work, NULL); /* never fails where threads exist at all */
    team->workers = workers;
    team->members = (size_t)threads;
    atomic_init(&team->ticket, PART_MASK);
    /* Signals are for the threads of the program. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    size_t made = 1;
    for (; made < team->members; made++) {
        workers[made - 1] = (Worker){.team = team, .member = made};
        if (pthread_create(&workers[made - 1].thread, NULL, help, &workers[made - 1])) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (made == team->members) return team;
    team->members = made; /* those that there are; nothing was shared yet */
    onebit_team_free(team);
    return NULL;
}
