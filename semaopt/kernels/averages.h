/* Moving averages of the compositional losses, their scores and pairwise distances. */

#ifndef SEMAOPT_AVERAGES_H
#define SEMAOPT_AVERAGES_H

#include <math.h>

#include "step.h"

/* What a call returns; ranking.py knows OK. */
enum { OK, WRONG_LABELS, WRONG_INDEX, NO_MEMORY };

/* An entry of an array of doubles if `wide`, else of floats. */
static inline double get(const void *z, int wide, int64_t k) {
    return wide ? ((const double *)z)[k] : ((const float *)z)[k];
}

static inline void set(void *z, int wide, int64_t k, double value) {
    if (wide) ((double *)z)[k] = value;
    else ((float *)z)[k] = (float)value;
}

/* (1-gamma) old + gamma g, or g at the first visit; an average that has overflowed starts again. */
static inline double averaged(double old, double g, double gamma) {
    return !isfinite(old) ? g : old + gamma * (g - old);
}

/* log(exp(a) + exp(b)) */
static inline double log_sum(double a, double b) {
    double high = a > b ? a : b, low = a > b ? b : a;
    return isinf(high) ? high : high + log1p(exp(low - high));
}

/* The average of logarithms of values; one that has overflowed the range of float starts again. With expm1 and log1p,
 * logarithms near 0 keep their digits. */
static inline double log_averaged(double old, double g, double gamma) {
    if (!isfinite((float)old) || gamma == 1.0) return g;
    double high = old > g ? old : g, low = old > g ? g : old, weight = old > g ? gamma : 1.0 - gamma;
    return high + log1p(weight * expm1(low - high));
}

/* The logarithm of the mean of exp(x), with the largest entry `high`; entries of -inf do not count. Replaces x by
 * exp(x - high). */
static inline double log_mean_exp(double *x, int64_t n, double high) {
    double excess = 0.0;
    int64_t count = 0;
    for (int64_t q = 0; q < n; q++) {
        double small = expm1(x[q] - high);
        if (x[q] != -INFINITY) excess += small, count++;
        x[q] = small + 1.0;
    }
    return high + log1p(excess / count);
}

/* The raw score, or its sigmoid. */
static inline double score(double raw, double sigmoid) {
    if (sigmoid == 0.0) return raw;
    double small = exp(-fabs(raw)), share = 1.0 / (1.0 + small);
    return raw >= 0.0 ? share : small * share;
}

static inline double distance(double above, double below, double margin) {
    double d = below - above + margin;
    return d < 0.0 ? 0.0 : d; /* NaN stays */
}

#endif
