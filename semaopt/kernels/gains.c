/* The smooth NDCG of the queries of a batch with its gradient and moving averages, in one call.
 *
 * Items of one query are compared by the squared hinge l_ij = max(0, m - h_i + h_j)^2. All arithmetic is in double. */

#include <stdlib.h>

#include "averages.h"

/* gains.py packs the fields in this order; top is 0 for all ranks. */
typedef struct {
    double margin, sigmoid, gamma, top, temperature;
    double value; /* output */
} Gains;

/* One item of a batch: its query, score, gradient, and what the other items of the query determine. */
typedef struct {
    int64_t at, query; /* row of the averages, row of the queries */
    int64_t first;     /* the first item of the same query */
    int64_t size;      /* on the first item: items of the query in the batch */
    int64_t last, after; /* on the first item: the items that the threshold lies between */
    int64_t place;     /* items of the query that score higher */
    double h, by_h, fresh, threshold;
} Item;

/* The threshold between the top items of a query and the others, averaged; see Cuts in ranking.py. */
static void find_threshold(Item *items, int64_t first, int64_t n, double share, double old, double gamma) {
    Item *head = items + first;
    int64_t count = (int64_t)nearbyint((share < 1.0 ? share : 1.0) * head->size);
    count = count < 1 ? 1 : count > head->size ? head->size : count;
    int whole = count == head->size;
    head->last = head->after = first;
    for (int64_t k = first; k < n; k++) {
        if (items[k].first != first) continue;
        if (items[k].place == count - 1) head->last = k;
        if (items[k].place == count - whole) head->after = k;
    }
    head->threshold = averaged(old, (items[head->last].h + items[head->after].h - whole) / 2.0, gamma);
}

/* Compute value and gradient of the smooth NDCG; update the averages z (size rows) and, with a top K, the thresholds.
 * All of scale, z and thresholds are double if `wide`. On an error nothing is changed. */
EXPORT int semaopt_gains(const void *scores, const double *relevance, const int64_t *index, void *gradient, void *z,
                         void *thresholds, const int32_t *query, const int64_t *counts, const void *scale, int64_t n,
                         int64_t size, int real, int wide, Gains *r) {
    for (int64_t k = 0; k < n; k++)
        if (index[k] < 0 || index[k] >= size) return WRONG_INDEX;
    Item *items = calloc(n + 1, sizeof(Item));
    if (!items) return NO_MEMORY;
    int64_t queries = 0; /* with relevant items */
    for (int64_t k = 0; k < n; k++) {
        Item *a = items + k;
        a->at = index[k], a->query = query[index[k]], a->first = 0;
        a->h = score(get(scores, real == F64, k), r->sigmoid);
        while (items[a->first].query != a->query) a->first++;
        items[a->first].size++;
        queries += a->first == k && get(scale, wide, a->query) > 0.0;
    }
    for (int64_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (int64_t j = items[i].first; j < n; j++) {
            if (items[j].first != items[i].first) continue;
            double d = distance(items[i].h, items[j].h, r->margin);
            sum += d * d;
            items[i].place += items[j].h > items[i].h || (items[j].h == items[i].h && j < i);
        }
        items[i].fresh = averaged(get(z, wide, items[i].at), sum / items[items[i].first].size, r->gamma);
    }
    for (int64_t k = 0; k < n && r->top > 0.0; k++)
        if (items[k].first == k) {
            int64_t q = items[k].query;
            find_threshold(items, k, n, r->top / counts[q], get(thresholds, wide, q), r->gamma);
        }
    r->value = queries > 0 ? 1.0 : 0.0;
    for (int64_t i = 0; i < n; i++) {
        Item *a = items + i, *head = items + a->first;
        double total = counts[a->query], rank = 1.0 + total * a->fresh, log_rank = log2(rank);
        double weight = get(scale, wide, a->query) / ((double)head->size * (queries > 0 ? queries : 1));
        double gain = weight * (exp2(relevance[i]) - 1.0) / log_rank;
        if (r->top > 0.0) {
            double gate = score((a->h - head->threshold) / r->temperature, 1.0);
            double slope = gain * gate * (1.0 - gate) / r->temperature;
            a->by_h -= slope;
            items[head->last].by_h += slope / 2.0;
            items[head->after].by_h += slope / 2.0;
            gain *= gate;
        }
        r->value -= gain;
        double c = 2.0 * gain * total / (log_rank * rank * head->size * log(2.0)), sum = 0.0;
        for (int64_t j = a->first; j < n && c != 0.0; j++) {
            if (items[j].first != a->first) continue;
            double slope = c * distance(a->h, items[j].h, r->margin);
            items[j].by_h += slope;
            sum += slope;
        }
        a->by_h -= sum;
    }
    for (int64_t k = 0; k < n; k++) {
        Item *a = items + k;
        set(z, wide, a->at, a->fresh);
        if (r->top > 0.0 && a->first == k) set(thresholds, wide, a->query, a->threshold);
        set(gradient, real == F64, k, r->sigmoid != 0.0 ? a->by_h * a->h * (1.0 - a->h) : a->by_h);
    }
    free(items);
    return OK;
}
