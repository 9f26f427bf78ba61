/* Collects the addresses of the tensors of a param group and divides them into chunks.
 *
 * Gradients are new tensors in every step, and a user may move a parameter or replace a state at any time. Therefore
 * all tensors are read and validated in every step. This is cheap in C (about 20 ns per tensor) but not in Python. Only
 * the chunks are kept as long as sizes and dtypes do not change. */

#include "step.h"

#include <stdlib.h>
#include <string.h>

enum { FAR = 4 << 20 }; /* number of elements of a group from which prefetching pays off */

/* The part of DLPack 1.x used here: https://github.com/dmlc/dlpack/blob/main/include/dlpack/dlpack.h */
typedef struct {
    int32_t type, id;
} DLDevice;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;
typedef struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
enum { CPU = 1 };
#define TYPE(code, bits) ((code) << 8 | (bits))
enum { INT64 = TYPE(0, 64), FLOAT32 = TYPE(2, 32), FLOAT64 = TYPE(2, 64), BFLOAT16 = TYPE(4, 16) };

static Python python;

EXPORT void semaopt_use_python(Python given) { python = given; }

void *release_gil(void) { return python.save_thread(); }
void take_gil(void *thread) { python.restore_thread(thread); }

EXPORT Table *semaopt_table(void) { return calloc(1, sizeof(Table)); }

EXPORT void semaopt_free_table(Table *table) {
    free(table->tensors);
    free(table->chunks);
    free(table->partial);
    free(table);
}

static int make_room(Table *table, int64_t n) {
    if (n <= table->tensor_room) return 1;
    Tensor *tensors = realloc(table->tensors, (size_t)n * sizeof(Tensor));
    if (tensors == NULL) return 0;
    memset(tensors + table->tensor_room, 0, (size_t)(n - table->tensor_room) * sizeof(Tensor));
    table->tensors = tensors;
    table->tensor_room = n;
    return 1;
}

static int cut_into_chunks(Table *table) {
    int64_t count = 0, total = 0;
    for (int64_t i = 0; i < table->n_tensors; i++) {
        count += (table->tensors[i].n + CHUNK - 1) / CHUNK;
        total += table->tensors[i].n;
    }
    table->total = total;
    table->far = total > FAR;
    if (count > table->chunk_room) {
        Chunk *chunks = realloc(table->chunks, (size_t)count * sizeof(Chunk));
        if (chunks != NULL) table->chunks = chunks;
        double *partial = realloc(table->partial, (size_t)count * sizeof(double));
        if (partial != NULL) table->partial = partial;
        if (chunks == NULL || partial == NULL) return 0;
        table->chunk_room = count;
    }
    Chunk *c = table->chunks;
    for (int64_t i = 0; i < table->n_tensors; i++)
        for (int64_t start = 0; start < table->tensors[i].n; start += CHUNK, c++) {
            int64_t left = table->tensors[i].n - start;
            *c = (Chunk){i, start, left < CHUNK ? left : CHUNK};
        }
    table->n_chunks = count;
    return 1;
}

/* ---- validation -------------------------------------------------------------------------------------------------- */

static int type_of(const DLTensor *t) { return t->dtype.lanes == 1 ? TYPE(t->dtype.code, t->dtype.bits) : -1; }

static int64_t size_of(const DLTensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++) n *= t->shape[d];
    return n;
}

/* Whether the elements fill a block of memory without gaps or overlap, for any order of the dimensions. */
static int is_dense(const DLTensor *t, int64_t n) {
    int64_t stride = 1;
    int d = t->ndim;
    if (n <= 1 || t->strides == NULL) return 1;
    while (d-- > 0) {
        if (t->shape[d] != 1 && t->strides[d] != stride) break;
        stride *= t->shape[d];
    }
    if (d < 0) return 1;
    for (stride = 1; stride < n;) { /* find the dimension that continues the block so far */
        for (d = 0; d < t->ndim; d++)
            if (t->shape[d] != 1 && t->strides[d] == stride) break;
        if (d == t->ndim) return 0;
        stride *= t->shape[d];
    }
    return 1;
}

static int same_layout(const DLTensor *a, const DLTensor *b, int64_t n) {
    if (a->ndim != b->ndim) return 0;
    for (int d = 0; d < a->ndim; d++) {
        if (a->shape[d] != b->shape[d]) return 0;
        if (n > 1 && a->shape[d] != 1 && (a->strides == NULL || b->strides == NULL || a->strides[d] != b->strides[d]))
            return 0;
    }
    return 1;
}

static int kind_of(int x, int v) {
    if (v == x && x == FLOAT32) return F32;
    if (v == x && x == FLOAT64) return F64;
    if (x == BFLOAT16 && v == FLOAT32) return BF16;
    if (x == FLOAT32 && v == BFLOAT16) return F32_STATE_BF16;
    if (x == BFLOAT16 && v == BFLOAT16) return BF16_STATE_BF16;
    return -1;
}

/* A tensor subclass may keep its values elsewhere. */
static int is_plain(const Object *object) {
    const void *type = *(const void *const *)((const char *)object + python.type_at);
    return type == python.plain[0] || type == python.plain[1];
}

static int read_tensor(Object *object, DLTensor *out) {
    if (object == NULL || python.read(object, out) != 0) {
        python.clear_error();
        return 0;
    }
    return out->device.type == CPU;
}

/* Read the tensors of parameter i. Returns the role of an unsupported tensor, or -1 if all are supported. */
static int gather_one(Tensor *t, Object *const *objects, uint64_t roles) {
    DLTensor x, other;
    if (!read_tensor(objects[X], &x)) return X;
    int64_t n = size_of(&x);
    int x_type = type_of(&x), v_type = x_type;
    if (!is_dense(&x, n)) return X;
    t->at[X] = (char *)x.data + x.byte_offset;
    for (int role = G; role < ROLES; role++) {
        t->at[role] = NULL;
        if (!(roles >> role & 1)) continue;
        if (!read_tensor(objects[role], &other)) return role;
        int type = type_of(&other), ok;
        if (role < STEP || role == MEAN) {
            int wide = x_type == FLOAT64 ? FLOAT64 : FLOAT32;
            if (role == V) v_type = type;
            ok = same_layout(&other, &x, n) && type == (role == G ? x_type : role == MEAN ? wide : v_type);
        } else {
            int wanted = role == ROUNDING ? INT64 : FLOAT64;
            ok = type == wanted && size_of(&other) == 1;
        }
        if (!ok) return role;
        t->at[role] = (char *)other.data + other.byte_offset;
    }
    int kind = roles >> V & 1 ? kind_of(x_type, v_type) : kind_of(x_type, x_type == BFLOAT16 ? FLOAT32 : x_type);
    if (kind < 0) return X;
    if (roles >> V & 1 && (roles >> ROUNDING & 1) != (kind == F32_STATE_BF16 || kind == BF16_STATE_BF16)) return V;
    t->n = n;
    t->kind = kind;
    return -1;
}

int64_t gather(Table *table, int64_t n, Object *xs, Object *gs, Object *states, Object *means, Object *keys) {
    Object *objects[ROLES] = {NULL}, *names[ROLES] = {NULL};
    uint64_t roles = 1 << X | 1 << G;
    int64_t fresh = table->n_tensors != n;
    table->n_tensors = 0; /* until gathering has succeeded */
    if (!make_room(table, n)) return -1;
    Object *none = python.list_item(keys, MEAN - V);
    for (int role = V; role < MEAN; role++) {
        names[role] = python.list_item(keys, role - V);
        roles |= (uint64_t)(names[role] != none) << role;
    }
    uint64_t of_state = roles >> V;
    roles |= (uint64_t)(means != none) << MEAN;
    for (int64_t i = 0; i < n; i++) {
        Tensor *t = &table->tensors[i];
        int64_t size = t->n, role;
        Object *state = of_state ? python.list_item(states, i) : NULL;
        objects[X] = python.list_item(xs, i);
        objects[G] = python.list_item(gs, i);
        if (!is_plain(objects[X])) return i * ROLES + X + 1;
        if (!is_plain(objects[G])) return i * ROLES + G + 1;
        for (int k = V; k < MEAN; k++)
            if (roles >> k & 1) objects[k] = python.dict_item(state, names[k]);
        if (roles >> MEAN & 1) objects[MEAN] = python.list_item(means, i);
        if ((role = gather_one(t, objects, roles)) >= 0) return i * ROLES + role + 1;
        fresh |= t->n != size;
    }
    table->n_tensors = n;
    return fresh && !cut_into_chunks(table) ? -1 : 0;
}

/* Fill the table from addresses, sizes and kinds that the caller has validated, for torch versions without the
 * DLPack exchange API. */
EXPORT int64_t semaopt_fill(Table *table, int64_t n, void *const *at, const int64_t *sizes, const int64_t *kinds) {
    table->n_tensors = 0;
    if (!make_room(table, n)) return -1;
    for (int64_t i = 0; i < n; i++) {
        for (int role = X; role < ROLES; role++) table->tensors[i].at[role] = at[i * ROLES + role];
        table->tensors[i].n = sizes[i];
        table->tensors[i].kind = kinds[i];
    }
    table->n_tensors = n;
    return cut_into_chunks(table) ? 0 : -1;
}
