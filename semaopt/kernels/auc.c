/* Objective of AUC maximization and its gradients: one pass over the examples of each class. */

#include <math.h>
#include <stddef.h>

#include "step.h"

/* auc.py packs the fields in this order. */
typedef struct {
    double p, s, r, y, margin, sigmoid; /* inputs; sigmoid is 0 or 1 */
    double value, by_s, by_r, by_y;     /* outputs */
} Auc;

/* A class among others: its scores, labels and gradients have this distance in memory, and its part of the mean over the
 * classes is `share`. */
typedef struct {
    int64_t n, stride, present; /* examples, and those with a label */
    double share;
} Column;

enum { LABEL_U8, LABEL_I8, LABEL_I32, LABEL_I64, LABEL_F32, LABEL_F64 };
enum { ZEROS = 1, MINUSES = 2, OTHERS = 4 };

/* Sums are accumulated in double for every score dtype. Label 1 is positive, 0 or -1 negative, NaN missing. Other
 * labels are invalid, and so is a mix of 0 and -1. */
#define OBJECTIVE(NAME, REAL, LABEL)                                                                                   \
    static int64_t count_##NAME(const LABEL *labels, int64_t n, int64_t stride) {                                      \
        int64_t present = n;                                                                                           \
        for (int64_t i = 0; i < n; i++) present -= labels[i * stride] != labels[i * stride];                           \
        return present;                                                                                                \
    }                                                                                                                  \
    static int NAME(const REAL *scores, const LABEL *labels, REAL *gradient, Column c, Auc *a) {                       \
        double quadratic = 0.0, linear = 0.0, by_s = 0.0, by_r = 0.0;                                                  \
        int zeros = 0, minuses = 0, others = 0;                                                                        \
        double mean = c.share / (c.present > 0 ? c.present : 1);                                                       \
        for (int64_t k = 0; k < c.n; k++) {                                                                            \
            int64_t i = k * c.stride;                                                                                  \
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
        double spread = c.present > 0 ? c.share * a->p * (1.0 - a->p) : 0.0;                                           \
        a->value = (quadratic + 2.0 * (a->margin + a->y) * linear) * mean - spread * a->y * a->y;                      \
        a->by_s = -2.0 * by_s * mean;                                                                                  \
        a->by_r = -2.0 * by_r * mean;                                                                                  \
        a->by_y = 2.0 * (linear * mean - spread * a->y);                                                               \
        return zeros * ZEROS | minuses * MINUSES | others * OTHERS;                                                    \
    }                                                                                                                  \
    static int one_##NAME(const REAL *scores, const LABEL *labels, REAL *gradient, int64_t n, Auc *a) {                \
        return NAME(scores, labels, gradient, (Column){n, 1, count_##NAME(labels, n, 1), 1.0}, a);                     \
    }                                                                                                                  \
    static int all_##NAME(const REAL *scores, const LABEL *labels, REAL *gradient, int64_t n, int64_t classes,         \
                          const double *in, double *out, Auc a) {                                                      \
        int64_t labelled = 0;                                                                                          \
        int found = 0;                                                                                                 \
        double *value = out, *by_s = value + classes, *by_r = by_s + classes, *by_y = by_r + classes;                  \
        double *present = by_y + classes;                                                                              \
        for (int64_t k = 0; k < classes; k++) {                                                                        \
            present[k] = (double)count_##NAME(labels + k, n, classes);                                                 \
            labelled += present[k] > 0.0;                                                                              \
        }                                                                                                              \
        for (int64_t k = 0; k < classes; k++) {                                                                        \
            Column c = {n, classes, (int64_t)present[k], 1.0 / (labelled > 0 ? labelled : 1)};                         \
            a.p = in[k], a.s = in[classes + k], a.r = in[2 * classes + k], a.y = in[3 * classes + k];                  \
            found |= NAME(scores + k, labels + k, gradient + k, c, &a);                                                \
            value[k] = a.value, by_s[k] = a.by_s, by_r[k] = a.by_r, by_y[k] = a.by_y;                                  \
        }                                                                                                              \
        return found;                                                                                                  \
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

#define ROW(KIND, REAL, ...)                                                                                           \
    switch (label) {                                                                                                   \
    case LABEL_U8: return is_invalid(KIND##_##REAL##_u8(__VA_ARGS__));                                                 \
    case LABEL_I8: return is_invalid(KIND##_##REAL##_i8(__VA_ARGS__));                                                 \
    case LABEL_I32: return is_invalid(KIND##_##REAL##_i32(__VA_ARGS__));                                               \
    case LABEL_I64: return is_invalid(KIND##_##REAL##_i64(__VA_ARGS__));                                               \
    case LABEL_F32: return is_invalid(KIND##_##REAL##_f32(__VA_ARGS__));                                               \
    default: return is_invalid(KIND##_##REAL##_f64(__VA_ARGS__));                                                      \
    }

static int is_invalid(int found) { return (found & OTHERS) || ((found & ZEROS) && (found & MINUSES)); }

/* Returns 1 if a label is invalid; the results are computed in any case. */
EXPORT int semaopt_auc(const void *scores, const void *labels, void *gradient, int64_t n, int real, int label, Auc *a) {
    if (real == F64) ROW(one, f64, scores, labels, gradient, n, a)
    ROW(one, f32, scores, labels, gradient, n, a)
}

/* The mean over the columns of (n, classes) scores and labels that have a label. `in` holds p, s, r and y of all classes;
 * `out` gets their part of the value, by_s, by_r, by_y and the number of labels. Returns 1 if a label is invalid. */
EXPORT int semaopt_auc_columns(const void *scores, const void *labels, void *gradient, int64_t n, int64_t classes,
                               int real, int label, double margin, double sigmoid, const double *in, double *out) {
    Auc a = {.margin = margin, .sigmoid = sigmoid};
    if (real == F64) ROW(all, f64, scores, labels, gradient, n, classes, in, out, a)
    ROW(all, f32, scores, labels, gradient, n, classes, in, out, a)
}
