/* Every table of kernels that this machine can run beside plain C: nets of random shapes, weights and output stages, built twice
   through the public interface. Sums, bits and all that follows from them must be equal, and so must what only compares or
   scales floats; sums of floats may differ by rounding. Then the same nets with several threads: the same bits. Needs nothing but the engine, so it runs under emulators, too.

       agreement SEED NETS */
#include "recipes.h"

static const int32_t WIDTHS[] = {1, 2, 7, 8};
enum { BATCH = 2, N_CHANNELS = sizeof CHANNELS / sizeof *CHANNELS, N_WIDTHS = sizeof WIDTHS / sizeof *WIDTHS };
static const float NEAR = 1e-5f; /* of the largest number */

static const struct {
    const char *name;
    void (*add)(Plan *plan);
} RECIPES[] = {{"bits to numbers and bits", bits_to_numbers_and_bits},
               {"bits to bits", bits_to_bits},
               {"extremes", extremes},
               {"sums", sums},
               {"stages of floats", stages_of_floats},
               {"float convolution", float_convolution},
               {"means", means},
               {"convolution of levels", convolution_of_levels},
               {"rows to a pool", rows_to_a_pool}};
enum { N_RECIPES = sizeof RECIPES / sizeof *RECIPES };

/* What is tested: a recipe, or, from N_RECIPES on, every_width of some channels. */
typedef struct {
    int which;
    uint64_t seed;
} Subject;

static void describe(Subject subject, char *words, size_t room) {
    const int shape = subject.which - N_RECIPES;
    if (shape < 0)
        snprintf(words, room, "%s, net %llu", RECIPES[subject.which].name, (unsigned long long)subject.seed);
    else
        snprintf(words, room, "3 x 3 of %d channels, width %d", CHANNELS[shape / N_WIDTHS], WIDTHS[shape % N_WIDTHS]);
}

static Plan new_plan(Subject subject, const char *isa) {
    Plan plan = {.net = checked(onebit_net_new(isa))};
    random_state = subject.seed;
    const int shape = subject.which - N_RECIPES;
    if (shape < 0)
        RECIPES[subject.which].add(&plan);
    else
        every_width(&plan, CHANNELS[shape / N_WIDTHS], WIDTHS[shape % N_WIDTHS]);
    must(&plan, onebit_net_finish(plan.net, plan.output));
    for (size_t i = 0; i < plan.n_kept; i++) free(plan.kept[i]);
    return plan;
}

/* Numbers with ties; where outputs must be equal, also zeros of both signs and what is not finite. */
static float *draw_images(const Plan *plan) {
    static const float ODD[] = {0, -0.f, 1, -1, NAN, INFINITY, -INFINITY, 1e-45f};
    const size_t count = BATCH * count_of(plan->values[0]);
    float *images = checked(malloc(count * sizeof *images));
    for (size_t i = 0; i < count; i++) images[i] = plan->is_exact && one_in(20) ? ONE_OF(ODD) : number();
    return images;
}

static void *new_workspace(const Plan *plan, int32_t threads) {
    return checked(aligned_alloc(64, (onebit_workspace_bytes(plan->net, threads) + 63) / 64 * 64 + 64));
}

static size_t n_outputs(const Plan *plan) { return BATCH * count_of(plan->values[plan->output]); }

static float *run(const Plan *plan, const float *images) {
    void *workspace = new_workspace(plan, 1);
    float *outputs = checked(malloc(n_outputs(plan) * sizeof *outputs));
    if (onebit_run(plan->net, NULL, workspace, images, BATCH, ONEBIT_NHWC, outputs, NULL, NULL)) exit(2);
    free(workspace);
    return outputs;
}

/* Several threads must make the same bits as one, within an image and side by side, in whatever workspace. */
static bool is_same_with_threads(const Plan *plan, const float *images, const float *expected) {
    static const int32_t THREADS[] = {2, 3};
    static onebit_team *teams[2];
    const size_t bytes = n_outputs(plan) * sizeof *expected;
    bool is_same = true;
    for (size_t i = 0; i < 2; i++) {
        if (!teams[i]) teams[i] = checked(onebit_team_new(THREADS[i]));
        void *workspaces[3] = {NULL}, *shared = new_workspace(plan, THREADS[i]);
        for (int32_t t = 0; t < THREADS[i]; t++) workspaces[t] = new_workspace(plan, 1);
        float *outputs = checked(malloc(bytes));
        if (onebit_run(plan->net, teams[i], shared, images, BATCH, ONEBIT_NHWC, outputs, NULL, NULL)) exit(2);
        is_same &= !memcmp(outputs, expected, bytes);
        memset(outputs, 0, bytes);
        if (onebit_run_apart(plan->net, teams[i], workspaces, images, BATCH, ONEBIT_NHWC, outputs)) exit(2);
        is_same &= !memcmp(outputs, expected, bytes);
        free(outputs);
        free(shared);
        for (int32_t t = 0; t < THREADS[i]; t++) free(workspaces[t]);
    }
    return is_same;
}

static bool is_same(float found, float expected) { return found == expected || (isnan(found) && isnan(expected)); }

static bool agree(Subject subject, const char *isa) {
    Plan plain = new_plan(subject, "scalar"), fast = new_plan(subject, isa);
    float *images = draw_images(&plain), *expected = run(&plain, images), *found = run(&fast, images), largest = 1;
    const size_t count = BATCH * count_of(plain.values[plain.output]);
    for (size_t i = 0; i < count; i++) largest = fabsf(expected[i]) > largest ? fabsf(expected[i]) : largest;
    size_t wrong = 0, first = 0;
    for (size_t i = count; i-- > 0;)
        if (plain.is_exact ? !is_same(found[i], expected[i]) : !(fabsf(found[i] - expected[i]) <= NEAR * largest))
            wrong++, first = i;
    if (wrong) {
        char words[100];
        describe(subject, words, sizeof words);
        printf("%s, %s: %zu of %zu numbers differ, number %zu is %.9g in place of %.9g\n", isa, words, wrong, count,
               first, (double)found[first], (double)expected[first]);
    }
    const bool is_same = is_same_with_threads(&fast, images, found) && is_same_with_threads(&plain, images, expected);
    if (!is_same) {
        char words[100];
        describe(subject, words, sizeof words);
        printf("%s, %s: several threads make other bits than one\n", isa, words);
    }
    free(images);
    free(expected);
    free(found);
    onebit_net_free(plain.net);
    onebit_net_free(fast.net);
    return !wrong && is_same;
}

int main(int n_words, char **words) {
    static const char *const ISAS[] = {"avx2", "avx512", "neon"};
    if (n_words != 3) {
        fprintf(stderr, "agreement SEED NETS\n");
        return 2;
    }
    const uint64_t seed = strtoull(words[1], NULL, 10), nets = strtoull(words[2], NULL, 10);
    int passed = 0, failed = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < sizeof ISAS / sizeof *ISAS; i++) {
        if (!onebit_has_isa(ISAS[i])) continue;
        printf("%s\n", ISAS[i]);
        for (int which = N_RECIPES; which < N_RECIPES + N_CHANNELS * N_WIDTHS; which++)
            agree((Subject){which, seed}, ISAS[i]) ? passed++ : failed++;
        for (uint64_t net = 0; net < nets; net++)
            agree((Subject){(int)(net % N_RECIPES), seed * 1000003 + net}, ISAS[i]) ? passed++ : failed++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed; /* with nothing but plain C there is nothing to compare */
}
