/* The global contrastive loss of the similarities of a batch with its gradient and moving averages, in one call. */

#include <stdlib.h>

#include "averages.h"

/* contrast.py packs the fields in this order. */
typedef struct {
    double temperature, eps, gamma;
    double value; /* output */
} Contrast;

/* Rows 0..n-1 are the first features of n examples, rows n..2n-1 the second ones. With `views`, s is the (2n, 2n) matrix
 * of all similarities, and the negatives of a row are the columns of other examples. Without, s is the (n, n) matrix of
 * the first features with the second, and a row has the negatives of the other kind only.
 * Adds the derivative to `by_s` (for views that with respect to s and to its transpose) and updates the averages
 * z (size, 2) of log g. On an error and without negatives nothing is changed; the value is then 0. */
EXPORT int semaopt_contrast(const void *s, void *by_s, const int64_t *index, void *z, int64_t n, int64_t size, int views,
                            int real, int wide, Contrast *r) {
    int several = 0;
    for (int64_t k = 0; k < n; k++) {
        if (index[k] < 0 || index[k] >= size) return WRONG_INDEX;
        several |= index[k] != index[0];
    }
    r->value = 0.0;
    if (!several) return OK;
    real = real == F64;
    int64_t columns = views ? 2 * n : n;
    double *e = malloc((columns + 2 * n) * sizeof(double)), *fresh = e ? e + columns : NULL;
    if (!e) return NO_MEMORY;
    double tau = r->temperature, total = 0.0;
    for (int64_t i = 0; i < 2 * n; i++) {
        int64_t k = i % n, second = i >= n;
        /* column j of row i is at start + j * step */
        int64_t start = views ? i * columns : second ? k : k * n, step = !views && second ? n : 1;
        int64_t partner = start + (views ? (second ? k : k + n) : k) * step;
        double own = get(s, real, partner), high = -INFINITY, sum = 0.0, count = 0.0;
        for (int64_t j = 0; j < columns; j++) {
            int negative = index[j < n ? j : j - n] != index[k];
            count += negative;
            e[j] = !negative ? -INFINITY : (get(s, real, start + j * step) - own) / tau;
            high = e[j] > high || isnan(e[j]) ? e[j] : high;
        }
        double log_g = log_mean_exp(e, columns, high);
        for (int64_t j = 0; j < columns; j++) sum += e[j];
        double log_z = fresh[i] = log_averaged(get(z, wide, 2 * index[k] + second), log_g, r->gamma);
        if (r->eps > 0.0) log_z = log_sum(log_z, log(r->eps));
        total += log_z;
        double weight = exp(high - log_z) / (2.0 * n * count); /* g/(eps + z) over the number of terms and over g */
        e[views && !second ? k + n : k] = -sum;
        for (int64_t j = 0; j < columns; j++) {
            int64_t at = start + j * step;
            set(by_s, real, at, get(by_s, real, at) + weight * e[j]);
            if (!views) continue;
            at = j * columns + i;
            set(by_s, real, at, get(by_s, real, at) + weight * e[j]);
        }
    }
    for (int64_t i = 0; i < 2 * n; i++) set(z, wide, 2 * index[i % n] + (i >= n), fresh[i]);
    r->value = tau * total / (2 * n);
    free(e);
    return OK;
}
