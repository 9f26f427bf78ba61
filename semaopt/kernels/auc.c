/* Objective of AUC maximization for one class and its gradients, in one pass over the examples. */

#include <math.h>
#include <stddef.h>

#include "step.h"

/* auc.py packs the fields in this order. */
typedef struct {
    double p, s, r, y, margin, sigmoid; /* inputs; sigmoid is 0 or 1 */
    double value, by_s, by_r, by_y;     /* outputs */
} Auc;

enum { LABEL_U8, LABEL_I8, LABEL_I32, LABEL_I64, LABEL_F32, LABEL_F64 };

/* Sums are accumulated in double for every score dtype. Label 1 is positive, 0 or -1 negative, NaN missing. Other
 * labels are invalid, and so is a mix of 0 and -1. */
#define OBJECTIVE(NAME, REAL, LABEL)                                                                                   \
    static int NAME(const REAL *scores, const LABEL *labels, REAL *gradient, int64_t n, Auc *a) {                      \
        double quadratic = 0.0, linear = 0.0, by_s = 0.0, by_r = 0.0;                                                  \
        int zeros = 0, minuses = 0, others = 0;                                                                        \
        int64_t present = n;                                                                                           \
        for (int64_t i = 0; i < n; i++) present -= labels[i] != labels[i];                                             \
        double mean = 1.0 / (present > 0 ? present : 1);                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            if (labels[i] != labels[i]) {                                                                              \
                gradient[i] = 0;                                                                                       \
                continue;                                                                                              \
            }                                                                                                          \
            int positive = labels[i] == 1, zero = labels[i] == 0, minus = labels[i] == (LABEL)-1 && (LABEL)-1 < 0;     \
            zeros |= zero, minuses |= minus, others |= !(positive | zero | minus);                                     \
            double h = scores[i], slope = 1.0;                                                                         \
            if (a->sigmoid != 0.0) {                                                                                   \
                double small = exp(-fabs(h)), q = 1.0 / (1.0 + small);                                                 \
                slope = small * q * q;                                                                                 \
                h = h >= 0.0 ? q : small * q;                                                                          \
            }                                                                                                          \
            double b = positive ? a->p - 1.0 : a->p;                                                                   \
            double d = h - (positive ? a->s : a->r), e = (positive ? -b : b) * d;                                      \
            quadratic += e * d;                                                                                        \
            linear += b * h;                                                                                           \
            by_s += positive ? e : 0.0;                                                                                \
            by_r += positive ? 0.0 : e;                                                                                \
            gradient[i] = (REAL)(2.0 * mean * (e + (a->margin + a->y) * b) * slope);                                   \
        }                                                                                                              \
        double spread = present > 0 ? a->p * (1.0 - a->p) : 0.0;                                                       \
        a->value = (quadratic + 2.0 * (a->margin + a->y) * linear) * mean - spread * a->y * a->y;                      \
        a->by_s = -2.0 * by_s * mean;                                                                                  \
        a->by_r = -2.0 * by_r * mean;                                                                                  \
        a->by_y = 2.0 * (linear * mean - spread * a->y);                                                               \
        return others || (zeros && minuses);                                                                           \
    }

OBJECTIVE(f32_u8, float, uint8_t)
OBJECTIVE(f32_i8, float, int8_t)
OBJECTIVE(f32_i32, float, int32_t)
OBJECTIVE(f32_i64, float, int64_t)
OBJECTIVE(f32_f32, float, float)
OBJECTIVE(f32_f64, float, double)
OBJECTIVE(f64_u8, double, uint8_t)
OBJECTIVE(f64_i8, double, int8_t)
OBJECTIVE(f64_i32, double, int32_t)
OBJECTIVE(f64_i64, double, int64_t)
OBJECTIVE(f64_f32, double, float)
OBJECTIVE(f64_f64, double, double)

#define ROW(REAL)                                                                                                      \
    switch (label) {                                                                                                   \
    case LABEL_U8: return REAL##_u8(scores, labels, gradient, n, a);                                                   \
    case LABEL_I8: return REAL##_i8(scores, labels, gradient, n, a);                                                   \
    case LABEL_I32: return REAL##_i32(scores, labels, gradient, n, a);                                                 \
    case LABEL_I64: return REAL##_i64(scores, labels, gradient, n, a);                                                 \
    case LABEL_F32: return REAL##_f32(scores, labels, gradient, n, a);                                                 \
    default: return REAL##_f64(scores, labels, gradient, n, a);                                                        \
    }

/* Returns 1 if a label is invalid; the results are computed in any case. */
EXPORT int semaopt_auc(const void *scores, const void *labels, void *gradient, int64_t n, int real, int label, Auc *a) {
    if (real == F64) ROW(f64)
    ROW(f32)
}
