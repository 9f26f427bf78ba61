/* Data structures and functions shared by table.c and step.c. */

#pragma once

#include <stdint.h>

#include "compiler.h"

struct DLTensor;

/* Version of the structs and functions used from Python: increment it when they change. loader.py has the same
 * number. */
enum { INTERFACE = 12 };

/* Elements per chunk, and the size up to which a single thread is fastest. */
enum { CHUNK = 16384, ALONE = 24576 };

/* The rows of Table 2 (AdaBound is Adam with clipped u), and ascent on a box. */
enum { SHB, ADAM, AMSGRAD, ADAFOM, ADAMPLUS, ASCEND };

/* Storage types of a parameter and its averages. */
enum { F32, F64, BF16, F32_STATE_BF16, BF16_STATE_BF16, KINDS };

/* Options of a param group; compiled.py packs them in this order. */
typedef struct {
    double eta, gamma, gamma_u, g0;
    double u_lo, u_hi;             /* AdaBound clips u to [u_lo, u_hi] */
    double inverse_lo, inverse_hi; /* clip_scaling clips sqrt(u) + g0 to this interval */
    double decay;                  /* coupled decay: decay * x is added to the gradient */
    double shrink;                 /* decoupled decay: x is multiplied by it */
    double sign;                   /* -1 to maximize */
    double mean_weight;            /* weight of x in the average of iterates */
    int64_t scaling, corrected;
} Options;

/* Roles of the tensors of one parameter, in the order of gathering. */
enum { X, G, V, U, U_MAX, STEP, V_WEIGHT, U_WEIGHT, ROUNDING, MEAN, ROLES };

/* One parameter: the addresses of its tensors (NULL if absent) and the coefficients of this step. */
typedef struct {
    union {
        void *at[ROLES];
        struct {
            void *x, *g, *v, *u, *u_max;
            double *step, *v_weight, *u_weight;
            int64_t *rounding;
            void *mean; /* average of iterates, in the type of the arithmetic */
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
    double *partial; /* one sum per chunk */
    int64_t n_tensors, n_chunks, tensor_room, chunk_room;
    int64_t total; /* number of elements */
    int64_t far;   /* whether they exceed the caches, so that prefetching pays off */
} Table;

/* Call chunk(argument, k) for every k < chunks, in any order, on at most `threads` threads. */
void share(void (*chunk)(void *, int64_t), void *argument, int64_t chunks, int64_t elements, int threads);

/* Functions of Python and torch, passed in by loader.py. */
typedef void Object;
typedef struct {
    Object *(*list_item)(Object *, intptr_t);        /* PyList_GetItem */
    Object *(*dict_item)(Object *, Object *);        /* PyDict_GetItem */
    void (*clear_error)(void);                       /* PyErr_Clear */
    void *(*save_thread)(void);                      /* PyEval_SaveThread */
    void (*restore_thread)(void *);                  /* PyEval_RestoreThread */
    int (*read)(Object *, struct DLTensor *);        /* DLPackExchangeAPI.dltensor_from_py_object_no_sync, or NULL */
    intptr_t type_at;                                /* offset of an object's type pointer */
    const void *plain[2];                            /* tensor types that own their storage */
} Python;

/* Fill the table from lists of parameters, gradients, state dicts and averages of iterates (or None). `keys` lists the
 * dict keys of the roles from V to ROUNDING, with None for unused roles and a final None. Returns 0 on success, i * ROLES + role + 1 if that tensor of
 * parameter i is unsupported, -1 if out of memory. */
int64_t gather(Table *table, int64_t n, Object *xs, Object *gs, Object *states, Object *means, Object *keys);

/* Release the GIL, and acquire it again. */
void *release_gil(void);
void take_gil(void *thread);
