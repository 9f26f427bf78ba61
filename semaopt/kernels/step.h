/* What table.c gathers and step.c moves. */

#pragma once

#include <stdint.h>

struct DLTensor;

#define EXPORT __attribute__((visibility("default")))

/* Changed with every struct and function that Python sees; loader.py has the same number. */
enum { INTERFACE = 8 };

/* Elements that one thread takes at a time, and up to which waking another costs more than it brings. */
enum { CHUNK = 16384, ALONE = 24576 };

/* The rows of Table 2 (AdaBound is Adam with a clip of u), and the ascent on a box. */
enum { SHB, ADAM, AMSGRAD, ADAFOM, ADAMPLUS, ASCEND };

/* Storage of a parameter and of its averages. */
enum { F32, F64, BF16, F32_STATE_BF16, BF16_STATE_BF16, KINDS };

/* What a param group asks for; compiled.py packs it in this order. */
typedef struct {
    double eta, gamma, gamma_u, g0;
    double u_lo, u_hi;             /* AdaBound holds u between them */
    double inverse_lo, inverse_hi; /* clip_scaling holds sqrt(u) + g0 between them */
    double decay;                  /* times x, added to the gradient */
    double shrink;                 /* multiplies x: decoupled decay */
    double sign;                   /* -1 to maximize */
    int64_t scaling, corrected;
} Options;

/* The tensors of one parameter, in the order in which they are gathered. */
enum { X, G, V, U, U_MAX, STEP, V_WEIGHT, U_WEIGHT, ROUNDING, ROLES };

/* One parameter: where its tensors lie (NULL: it has none), and the numbers of this step. */
typedef struct {
    union {
        void *at[ROLES];
        struct {
            void *x, *g, *v, *u, *u_max;
            double *step, *v_weight, *u_weight;
            int64_t *rounding;
        };
    };
    int64_t n, kind;
    double gamma, gamma_u, eta, inverse_weight, inverse_u_weight;
    uint64_t key;
} Tensor;

typedef struct {
    int64_t tensor, start, n;
} Chunk;

typedef struct {
    Tensor *tensors;
    Chunk *chunks;
    double *partial; /* one sum for each chunk */
    int64_t n_tensors, n_chunks, tensor_room, chunk_room;
    int64_t total; /* elements */
    int64_t far;   /* whether they lie beyond the caches, so that prefetching pays */
} Table;

/* chunk(argument, k) for every k < chunks, on up to that many threads, in any order. */
void share(void (*chunk)(void *, int64_t), void *argument, int64_t chunks, int64_t elements, int threads);

/* What is called of Python and torch; loader.py hands it over. */
typedef void Object;
typedef struct {
    Object *(*list_item)(Object *, intptr_t);        /* PyList_GetItem */
    Object *(*dict_item)(Object *, Object *);        /* PyDict_GetItem */
    void (*clear_error)(void);                       /* PyErr_Clear */
    void *(*save_thread)(void);                      /* PyEval_SaveThread */
    void (*restore_thread)(void *);                  /* PyEval_RestoreThread */
    int (*read)(Object *, struct DLTensor *);        /* DLPackExchangeAPI.dltensor_from_py_object_no_sync, or NULL */
    intptr_t type_at;                                /* where an object says its type */
    const void *plain[2];                            /* the types whose values are in their own memory */
} Python;

/* Fill the table from lists of parameters, gradients and state dicts. `keys` are the dicts' keys from the role V on,
 * with None for what is not needed and None at the end. 0 on success; i * ROLES + role + 1 for what cannot be used;
 * -1 without memory. */
int64_t gather(Table *table, int64_t n, Object *xs, Object *gs, Object *states, Object *keys);

/* Let other threads of Python run, and wait for one's turn again. */
void *release_gil(void);
void take_gil(void *thread);
