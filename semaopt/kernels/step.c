/* One ASA step (alg:adam) for all tensors of a param group in one pass over memory.
 *
 * Plain C without headers of torch or Python; loader.py passes in pointers to the few functions it calls.
 *
 * Results are bitwise reproducible. The chunks do not depend on the number of threads, and every thread computes a
 * chunk in the same way. With -ffp-contract=off the results do not depend on the instruction set either, because +,
 * *, / and sqrt are correctly rounded on all of them. */

#include "step.h"

#include <float.h>
#include <math.h>

#include "numbers.h"

enum { HELD = 2 }; /* see arithmetic.h */
enum { AHEAD = 256 }; /* prefetch distance in elements; one prefetch per block */

#define PREFETCH(p, bytes)                                        \
    for (int line = 0; line < (int)(bytes); line += 64)           \
    PREFETCH_LINE((const char *)(p) + line)

/* ---- arithmetic, once per storage type --------------------------------------------------------------------------- */

#define LARGEST 0x1.fep127f /* largest finite bf16 number; estimator.py has the same constant */
#define SAME(value) (value)
#define KEEP(value, random) (value)

#define NAME(f) f##_f32
#define XT float
#define ST float
#define AT float
#define SQRT sqrtf
#define LOAD_X SAME
#define STORE_X SAME
#define LOAD_S SAME
#define STORE_S KEEP
#include "arithmetic.h"

#define NAME(f) f##_f64
#define XT double
#define ST double
#define AT double
#define SQRT sqrt
#define LOAD_X SAME
#define STORE_X SAME
#define LOAD_S SAME
#define STORE_S KEEP
#include "arithmetic.h"

#define NAME(f) f##_bf16
#define XT uint16_t
#define ST float
#define AT float
#define SQRT sqrtf
#define LOAD_X from_bf16
#define STORE_X to_bf16
#define LOAD_S SAME
#define STORE_S KEEP
#include "arithmetic.h"

#define NAME(f) f##_f32_state_bf16
#define XT float
#define ST uint16_t
#define AT float
#define SQRT sqrtf
#define LOAD_X SAME
#define STORE_X SAME
#define LOAD_S from_bf16
#define STORE_S to_bf16_random
#define RANDOM
#include "arithmetic.h"

#define NAME(f) f##_bf16_state_bf16
#define XT uint16_t
#define ST uint16_t
#define AT float
#define SQRT sqrtf
#define LOAD_X from_bf16
#define STORE_X to_bf16
#define LOAD_S from_bf16
#define STORE_S to_bf16_random
#define RANDOM
#include "arithmetic.h"

/* ---- arithmetic compiled for each instruction set ---------------------------------------------------------------- */

typedef void Update(const Tensor *, const Options *, int64_t start, int64_t n, int64_t far);
typedef double Norm(const Tensor *, const Options *, int64_t start, int64_t n);
typedef struct {
    Update *shb, *adam, *amsgrad, *ascend;
    Norm *norm;
} Verbs;

#define VERBS_OF(TARGET, storage, isa)                                                                                \
    TARGET static void shb_##storage##_##isa(const Tensor *t, const Options *o, int64_t a, int64_t n, int64_t far) {   \
        shb_##storage(t, o, a, n, far);                                                                               \
    }                                                                                                                 \
    TARGET static void adam_##storage##_##isa(const Tensor *t, const Options *o, int64_t a, int64_t n, int64_t far) {  \
        adam_##storage(t, o, a, n, far);                                                                              \
    }                                                                                                                 \
    TARGET static void amsgrad_##storage##_##isa(const Tensor *t, const Options *o, int64_t a, int64_t n,              \
                                                 int64_t far) {                                                       \
        amsgrad_##storage(t, o, a, n, far);                                                                           \
    }                                                                                                                 \
    TARGET static void ascend_##storage##_##isa(const Tensor *t, const Options *o, int64_t a, int64_t n,               \
                                                int64_t far) {                                                        \
        ascend_##storage(t, o, a, n, far);                                                                            \
    }                                                                                                                 \
    TARGET static double norm_##storage##_##isa(const Tensor *t, const Options *o, int64_t a, int64_t n) {             \
        return norm_##storage(t, o, a, n);                                                                            \
    }

#define ROW(storage, isa)                                                                            \
    {                                                                                                \
        shb_##storage##_##isa, adam_##storage##_##isa, amsgrad_##storage##_##isa,                    \
            ascend_##storage##_##isa, norm_##storage##_##isa                                         \
    }

#define INSTRUCTION_SET(TARGET, isa)                                                                 \
    VERBS_OF(TARGET, f32, isa)                                                                       \
    VERBS_OF(TARGET, f64, isa)                                                                       \
    VERBS_OF(TARGET, bf16, isa)                                                                      \
    VERBS_OF(TARGET, f32_state_bf16, isa)                                                            \
    VERBS_OF(TARGET, bf16_state_bf16, isa)                                                           \
    static const Verbs verbs_##isa[KINDS] = {ROW(f32, isa), ROW(f64, isa), ROW(bf16, isa),           \
                                             ROW(f32_state_bf16, isa), ROW(bf16_state_bf16, isa)};

#define NO_TARGET
INSTRUCTION_SET(NO_TARGET, portable)

#if defined(INSTRUCTION_SETS)
#define AVX2 "avx2,fma,bmi,bmi2,lzcnt"
#define AVX512 AVX2 ",avx512f,avx512bw,avx512dq,avx512vl"
#if defined(__clang__)
#define WIDE AVX512
#else
#define WIDE AVX512 ",prefer-vector-width=512"
#endif
INSTRUCTION_SET(__attribute__((target(AVX2))), avx2)
INSTRUCTION_SET(__attribute__((target(WIDE))), avx512)
#endif

static const Verbs *verbs = verbs_portable;

EXPORT int semaopt_interface(void) { return INTERFACE; }

/* Select an instruction set: 0 portable, 1 AVX2, 2 AVX-512. Returns 1 on success, 0 if this machine does not have
 * it. */
EXPORT int semaopt_use_isa(int isa) {
#if defined(INSTRUCTION_SETS)
    __builtin_cpu_init();
    if (isa == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        verbs = verbs_avx512;
        return 1;
    }
    if (isa == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        verbs = verbs_avx2;
        return 1;
    }
#endif
    if (isa != 0) return 0;
    verbs = verbs_portable;
    return 1;
}

/* ---- step -------------------------------------------------------------------------------------------------------- */

typedef struct {
    Table *table;
    const Options *options;
} Job;

static void update_chunk(void *argument, int64_t k) {
    const Job *job = argument;
    const Chunk *c = &job->table->chunks[k];
    const Tensor *t = &job->table->tensors[c->tensor];
    const Verbs *row = &verbs[t->kind];
    int64_t scaling = job->options->scaling;
    Update *update = scaling == SHB || scaling == ADAMPLUS ? row->shb : scaling == AMSGRAD ? row->amsgrad : row->adam;
    update(t, job->options, c->start, c->n, job->table->far);
}

static void ascend_chunk(void *argument, int64_t k) {
    const Job *job = argument;
    const Chunk *c = &job->table->chunks[k];
    const Tensor *t = &job->table->tensors[c->tensor];
    verbs[t->kind].ascend(t, job->options, c->start, c->n, job->table->far);
}

static void norm_chunk(void *argument, int64_t k) {
    const Job *job = argument;
    const Chunk *c = &job->table->chunks[k];
    const Tensor *t = &job->table->tensors[c->tensor];
    double square = verbs[t->kind].norm(t, job->options, c->start, c->n);
    job->table->partial[k] = square * t->inverse_weight * t->inverse_weight;
}

/* torch's lerp from a weight to 1, in its two forms. */
static double towards_one(double w, double gamma) {
    return gamma < 0.5 ? w + gamma * (1.0 - w) : 1.0 - (1.0 - w) * (1.0 - gamma);
}

static double clip(double value, double lo, double hi) { return value < lo ? lo : value > hi ? hi : value; }

/* Compute the coefficients of this step for one parameter and increment its step counter. */
static void count(Tensor *t, const Options *o) {
    double steps = *t->step;
    int first = steps == 0 && !o->corrected; /* v_0 = O(x_0): the first step uses gamma = 1 */
    t->gamma = first ? 1.0 : o->gamma;
    t->gamma_u = o->scaling == ADAFOM ? 1.0 / (steps + 1.0) : first ? 1.0 : o->gamma_u;
    t->inverse_weight = t->inverse_u_weight = 1.0;
    if (o->corrected) {
        *t->v_weight = towards_one(*t->v_weight, o->gamma);
        t->inverse_weight = 1.0 / *t->v_weight;
    }
    if (o->corrected && t->u_weight != NULL) {
        *t->u_weight = towards_one(*t->u_weight, o->gamma_u);
        t->inverse_u_weight = 1.0 / *t->u_weight;
    }
    t->eta = o->eta * t->inverse_weight;
    if (t->rounding != NULL) t->key = mix(mix((uint64_t)*t->rounding) + (uint64_t)steps);
    *t->step = steps + 1.0;
}

/* Step with a single scaling s for all coordinates: u = 1 in SHB, the norm of v over the group in Adam+. */
static void scale_by_one_number(Table *table, const Options *o, double u) {
    double s = 1.0 / clip(sqrt(u) + o->g0, o->inverse_lo, o->inverse_hi);
    for (int64_t i = 0; i < table->n_tensors; i++) table->tensors[i].eta *= s;
}

static void step(Table *table, const Options *o, int threads) {
    Job job = {table, o};
    for (int64_t i = 0; i < table->n_tensors; i++) count(&table->tensors[i], o);
    if (o->scaling == SHB) scale_by_one_number(table, o, 1.0);
    if (o->scaling == ADAMPLUS) {
        share(norm_chunk, &job, table->n_chunks, table->total, threads);
        double square = 0.0;
        for (int64_t k = 0; k < table->n_chunks; k++) square += table->partial[k];
        scale_by_one_number(table, o, sqrt(square));
    }
    share(update_chunk, &job, table->n_chunks, table->total, threads);
}

/* y <- clip(y + eta g, u_lo, u_hi) */
static void ascend(Table *table, const Options *o, int threads) {
    Job job = {table, o};
    share(ascend_chunk, &job, table->n_chunks, table->total, threads);
}

/* Gather the tensors (n < 0: they are in the table already) and take the step. Returns 0 on success, else the error of
 * gather(), and then nothing has changed. The caller holds the GIL, which is released during large computations. */
EXPORT int64_t semaopt_step(Table *table, int64_t n, Object *xs, Object *gs, Object *states, Object *means,
                            Object *keys, const Options *o, int threads) {
    int64_t failed = n < 0 ? 0 : gather(table, n, xs, gs, states, means, keys);
    if (failed) return failed;
    void *thread = table->total > ALONE ? release_gil() : NULL;
    (o->scaling == ASCEND ? ascend : step)(table, o, threads);
    if (thread != NULL) take_gil(thread);
    return 0;
}
