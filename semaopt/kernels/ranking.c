/* Ranking losses of one class with their gradients and moving averages, in one call.
 *
 * A positive i and another example j are compared by the squared hinge l_ij = max(0, m - h_i + h_j)^2. All arithmetic
 * is in double. Averages are read before any of them is written, so an example that a batch holds twice is averaged as
 * in the twin. */

#include <stdlib.h>

#include "averages.h"

/* ranking.py packs the fields in this order; a prior of NaN means the prior of the batch. */
typedef struct {
    double margin, sigmoid, gamma, prior, temperature, outer, share, validate;
    double value; /* output */
} Ranking;

enum { AVERAGE_PRECISION, KL, TWO_WAY_KL, CVAR, TWO_WAY_CVAR };
enum { LABEL_U8, LABEL_I8, LABEL_I32, LABEL_I64, LABEL_F32, LABEL_F64 };
enum { NEGATIVE, POSITIVE, MISSING };

/* The positives i and the examples j that they are compared with; for average precision the positives come first. */
typedef struct {
    double *h, *by_h;     /* scores of the others, and the gradient with respect to them */
    double *top, *by_top; /* the same for the positives */
    double *row;          /* pairwise values: one row per positive for the KL losses, else one row and scratch memory */
    double *fresh;        /* new averages, two for each positive */
    int64_t *at;          /* row of the averages of each positive */
    int64_t positives, others;
    void *z, *w;
    int wide; /* whether the averages are in double */
} Pairs;

static void write_averages(const Pairs *b, int width) {
    for (int64_t k = 0; k < b->positives; k++)
        for (int v = 0; v < width; v++) set(b->z, b->wide, b->at[k] * width + v, b->fresh[2 * k + v]);
}

static double sum_of_losses(const double *h, int64_t n, double above, double margin) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t q = 0; q < n; q++) {
        double d = distance(above, h[q], margin);
        sum += d * d;
    }
    return sum;
}

/* Add the derivative of c * (sum of the losses) to the gradient of the others; return minus the derivative in the
 * positive. */
static double push(const double *h, double *by_h, int64_t n, double above, double margin, double c) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t q = 0; q < n; q++) {
        double slope = 2.0 * c * distance(above, h[q], margin);
        by_h[q] += slope;
        sum += slope;
    }
    return sum;
}

/* The mean of 1 - z1/z2, with the mean of l over the positives (z1) and over all (z2), weighted by the prior. If the prior
 * is given and there are no negatives, z2 is unknown: the value is 0 and the averages stay. */
static void average_precision(Pairs *b, Ranking *r) {
    int64_t positives = b->positives, negatives = b->others - positives;
    if (negatives == 0 && !isnan(r->prior)) return;
    double p = isnan(r->prior) ? (double)positives / b->others : r->prior, total = 0.0;
    double first = p / positives, second = (1.0 - p) / (negatives > 0 ? negatives : 1);
    for (int64_t k = 0; k < positives; k++) {
        double g1 = first * sum_of_losses(b->h, positives, b->top[k], r->margin);
        double g2 = g1 + second * sum_of_losses(b->h + positives, negatives, b->top[k], r->margin);
        double old1 = get(b->z, b->wide, 2 * b->at[k]), old2 = get(b->z, b->wide, 2 * b->at[k] + 1);
        if (!isfinite(old1) || !isfinite(old2)) old1 = old2 = NAN; /* both start again */
        double z1 = b->fresh[2 * k] = averaged(old1, g1, r->gamma);
        double z2 = b->fresh[2 * k + 1] = averaged(old2, g2, r->gamma);
        double precision = z1 / z2, scale = 1.0 / (z2 * positives);
        total += precision;
        b->by_top[k] -= push(b->h, b->by_h, positives, b->top[k], r->margin, first * (precision - 1.0) * scale);
        b->by_top[k] -= push(b->h + positives, b->by_h + positives, negatives, b->top[k], r->margin,
                             second * precision * scale);
    }
    r->value = 1.0 - total / positives;
    write_averages(b, 2);
}

/* With log z_i = log E_j exp(l_ij / lambda): the one-way loss is the mean of log z_i over the positives i, times lambda.
 * The two-way loss is a log-mean-exp of lambda log z_i over the positives, tracked, with a temperature of its own. */
static void kl(Pairs *b, Ranking *r, int two_way) {
    int64_t positives = b->positives, others = b->others;
    double lambda = r->temperature, ratio = lambda / r->outer, total = 0.0, highest = -INFINITY;
    for (int64_t k = 0; k < positives; k++) {
        double *row = b->row + k * others, high = -INFINITY;
        for (int64_t q = 0; q < others; q++) {
            double d = distance(b->top[k], b->h[q], r->margin);
            row[q] = d * d / lambda;
            high = row[q] > high || isnan(row[q]) ? row[q] : high;
        }
        double log_g = log_mean_exp(row, others, high);
        double log_z = b->fresh[2 * k] = log_averaged(get(b->z, b->wide, b->at[k]), log_g, r->gamma);
        b->fresh[2 * k + 1] = exp(high - log_z) / others; /* times row: lambda times the derivative of log z */
        total += log_z;
        highest = log_z > highest || isnan(log_z) ? log_z : highest;
    }
    double log_w = 0.0, excess = 0.0;
    if (two_way) {
        for (int64_t k = 0; k < positives; k++) excess += expm1((b->fresh[2 * k] - highest) * ratio);
        log_w = log_averaged(get(b->w, b->wide, 0), highest * ratio + log1p(excess / positives), r->gamma);
        set(b->w, b->wide, 0, log_w);
    }
    r->value = two_way ? r->outer * log_w : lambda * total / positives;
    for (int64_t k = 0; k < positives; k++) {
        const double *row = b->row + k * others;
        double weight = two_way ? exp(b->fresh[2 * k] * ratio - log_w) / positives : 1.0 / positives;
        double c = 2.0 * weight * b->fresh[2 * k + 1], by_top = 0.0;
#pragma omp simd reduction(+ : by_top)
        for (int64_t q = 0; q < others; q++) {
            double slope = c * row[q] * distance(b->top[k], b->h[q], r->margin);
            b->by_h[q] += slope;
            by_top += slope;
        }
        b->by_top[k] -= by_top;
    }
    write_averages(b, 1);
}

/* The entry that `above` others exceed, by quickselect. */
static double selected(double *x, int64_t n, int64_t above) {
    for (int64_t low = 0, high = n - 1; low < high;) {
        double pivot = x[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (x[j] < pivot) j--;
            if (i > j) break;
            double kept = x[i];
            x[i++] = x[j];
            x[j--] = kept;
        }
        if (above <= j) high = j;
        else if (above >= i) low = i;
        else break;
    }
    return x[above];
}

/* Position of the upper quantile among n values in descending order: `share` of them are larger. */
static int64_t quantile_position(double share, int64_t n) {
    int64_t above = (int64_t)floor(share * n * (1.0 + 1e-9));
    return above < n - 1 ? above : n - 1;
}

/* The weight of an entry: 1 above the tracked quantile s. The entries that equal the quantile of the batch share `rest`,
 * what the weights of all entries lack to their sum; no weight is negative. */
static inline double weight_in_tail(double entry, double s, double quantile, double rest) {
    double weight = entry > s ? 1.0 : 0.0;
    return entry == quantile ? fmax(weight + rest, 0.0) : weight;
}

/* c_i = s_i + E_j (l_ij - s_i)_+ / a, with the tracked upper a-quantile s_i of the losses of i. The one-way loss is the
 * mean of c_i. The two-way loss is the same expression on the tracked c_i, with the share of the positives in place of a.
 * The derivative has the weights of weight_in_tail, whose sum is the number of entries in the tail. */
static void cvar(Pairs *b, Ranking *r, int two_way) {
    int64_t positives = b->positives, others = b->others;
    int width = two_way ? 2 : 1;
    double total = 0.0, scale = r->share * others, *quantiles = b->row + others, *weights = quantiles + positives;
    for (int64_t k = 0; k < positives; k++) {
        double excess = 0.0;
        for (int64_t q = 0; q < others; q++) {
            double d = distance(b->top[k], b->h[q], r->margin);
            b->row[q] = d * d;
        }
        quantiles[k] = selected(b->row, others, quantile_position(r->share, others));
        double s = b->fresh[2 * k] = averaged(get(b->z, b->wide, width * b->at[k]), quantiles[k], r->gamma);
        for (int64_t q = 0; q < others; q++) excess += b->row[q] > s ? b->row[q] - s : 0.0;
        double c = s + excess / scale;
        total += c / positives;
        weights[k] = 1.0 / positives;
        if (two_way) c = averaged(get(b->z, b->wide, width * b->at[k] + 1), c, r->gamma);
        b->fresh[2 * k + 1] = c;
    }
    r->value = total;
    if (two_way) {
        double all = r->outer * positives, excess = 0.0;
        for (int64_t k = 0; k < positives; k++) weights[k] = b->fresh[2 * k + 1];
        double quantile = selected(weights, positives, quantile_position(r->outer, positives));
        double s = averaged(get(b->w, b->wide, 0), quantile, r->gamma);
        set(b->w, b->wide, 0, s);
        int64_t larger = 0, tied = 0;
        for (int64_t k = 0; k < positives; k++) {
            double c = b->fresh[2 * k + 1];
            excess += c > s ? c - s : 0.0;
            larger += c > s, tied += c == quantile;
        }
        double rest = (all - larger) / tied;
        for (int64_t k = 0; k < positives; k++)
            weights[k] = weight_in_tail(b->fresh[2 * k + 1], s, quantile, rest) / all;
        r->value = s + excess / all;
    }
    for (int64_t k = 0; k < positives; k++) {
        double s = b->fresh[2 * k], by_top = 0.0;
        int64_t larger = 0, tied = 0;
        for (int64_t q = 0; q < others; q++) {
            double d = distance(b->top[k], b->h[q], r->margin);
            larger += d * d > s, tied += d * d == quantiles[k];
        }
        double c = 2.0 * weights[k] / scale, rest = (scale - larger) / tied;
        for (int64_t q = 0; q < others; q++) {
            double d = distance(b->top[k], b->h[q], r->margin);
            double slope = c * d * weight_in_tail(d * d, s, quantiles[k], rest);
            b->by_h[q] += slope;
            by_top += slope;
        }
        b->by_top[k] -= by_top;
    }
    write_averages(b, width);
}

#define CODES(LABEL)                                                                                                   \
    for (int64_t k = 0; k < n; k++) {                                                                                  \
        LABEL x = ((const LABEL *)labels)[k];                                                                          \
        int missing = x != x, positive = x == 1, zero = x == 0, minus = x == (LABEL)-1 && (LABEL)-1 < 0;               \
        zeros |= zero, minuses |= minus, others |= !(missing | positive | zero | minus);                               \
        codes[k] = missing ? MISSING : positive ? POSITIVE : NEGATIVE;                                                 \
    }                                                                                                                  \
    break;

/* Classify the labels: 1 is positive, 0 or -1 negative, NaN missing. Returns 1 if there are other labels, or both 0 and -1. */
static int classify(const void *labels, int label, int64_t n, uint8_t *codes) {
    int zeros = 0, minuses = 0, others = 0;
    switch (label) {
    case LABEL_U8: CODES(uint8_t)
    case LABEL_I8: CODES(int8_t)
    case LABEL_I32: CODES(int32_t)
    case LABEL_I64: CODES(int64_t)
    case LABEL_F32: CODES(float)
    default: CODES(double)
    }
    return others || (zeros && minuses);
}

/* Compute value and gradient, and update the averages z (size rows) and, for two-way losses, w. A batch without pairs
 * has value and gradient 0. On an error nothing is changed. */
EXPORT int semaopt_ranking(const void *scores, const void *labels, const int64_t *index, void *gradient, void *z, void *w,
                           int64_t n, int64_t size, int kind, int real, int label, int wide, Ranking *r) {
    uint8_t *codes = malloc(n + 1);
    if (!codes) return NO_MEMORY;
    int wrong = classify(labels, label, n, codes) && r->validate != 0.0;
    int64_t count[3] = {0, 0, 0};
    for (int64_t k = 0; k < n; k++) count[codes[k]]++;
    int status = wrong ? WRONG_LABELS : OK;
    for (int64_t k = 0; k < n && !wrong; k++)
        if (index[k] < 0 || index[k] >= size) status = WRONG_INDEX;
    int own = kind == AVERAGE_PRECISION; /* whether positives are also compared with each other */
    int64_t positives = count[POSITIVE], others = count[NEGATIVE] + (own ? positives : 0);
    int64_t pairs = kind == KL || kind == TWO_WAY_KL ? positives * others : others + 2 * positives; /* size of row */
    double *room = status == OK ? calloc(2 * others + 4 * positives + pairs + 1, sizeof(double)) : NULL;
    int64_t *at = status == OK ? malloc((positives + 1) * sizeof(int64_t)) : NULL;
    if (status == OK && !(room && at)) status = NO_MEMORY;
    if (status == OK) {
        double *by_h = room + others, *top = by_h + others, *by_top = top + positives, *row = by_top + positives;
        Pairs b = {room, by_h, top, by_top, row, row + pairs, at, positives, others, z, w, wide};
        int64_t i = 0, j = own ? positives : 0;
        for (int64_t k = 0; k < n; k++) {
            double h = score(get(scores, real == F64, k), r->sigmoid);
            if (codes[k] == POSITIVE) {
                if (own) b.h[i] = h;
                b.at[i] = index[k], b.top[i++] = h;
            } else if (codes[k] == NEGATIVE) b.h[j++] = h;
        }
        r->value = 0.0;
        if (positives > 0 && others > 0) {
            if (kind == AVERAGE_PRECISION) average_precision(&b, r);
            else if (kind == KL || kind == TWO_WAY_KL) kl(&b, r, kind == TWO_WAY_KL);
            else cvar(&b, r, kind == TWO_WAY_CVAR);
        }
        i = 0, j = own ? positives : 0;
        for (int64_t k = 0; k < n; k++) {
            double slope = 0.0, h = 0.0;
            if (codes[k] == POSITIVE) slope = b.by_top[i] + (own ? b.by_h[i] : 0.0), h = b.top[i++];
            else if (codes[k] == NEGATIVE) slope = b.by_h[j], h = b.h[j++];
            if (r->sigmoid != 0.0) slope *= h * (1.0 - h);
            set(gradient, real == F64, k, slope);
        }
    }
    free(at), free(room), free(codes);
    return status;
}
