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

/* The average of logarithms of values; one that has overflowed starts again. */
static inline double log_averaged(double old, double g, double gamma) {
    return !isfinite(old) ? g : log_sum(old + log1p(-gamma), g + log(gamma));
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
