/* The arithmetic of one chunk. Included once per storage type, with these macros defined:
 *   NAME(f)           the name of f for this storage type
 *   XT, ST, AT, SQRT  types of parameter, average and arithmetic; square root of type AT
 *   LOAD_X, STORE_X   convert a parameter or gradient to AT, and AT to a parameter
 *   LOAD_S, STORE_S   convert an average to AT, and (AT, 16 random bits) to an average
 *   RANDOM            defined if STORE_S uses its random bits
 *
 * Each operation consists of a span, which the compiler vectorizes, and an outer loop over blocks, which prefetches.
 * SIMD asserts that elements are independent; x and g may share memory. A span is compiled three times: with all
 * options; plain, without the operations that are no-ops in this step; and HELD, which is plain plus AdaBound's bounds
 * on u. With an average of iterates there are two: with all options, and plain. */

#ifdef RANDOM /* element indices have 32 bits: each run of 2^32 elements has its own key */
#define KEY(t, start) mix((t)->key + ((uint64_t)(start) >> 32))
#define FIRST_BITS uint32_t weyl = (first + (uint32_t)r.key) * WEYL, key = (uint32_t)(r.key >> 32)
#define BITS(i) uint32_t random = random_bits(weyl + weyl_of[i], key)
#else
#define KEY(t, start) ((void)(start), 0)
#define FIRST_BITS (void)first
#define BITS(i) enum { random = 0 }
#endif

typedef struct {
    AT sign, decay, shrink, eta, g0, u_lo, u_hi, lo, hi;
    AT gamma, gamma_u, gamma_mean, weight_u; /* weights in the form that lerp takes */
    int low, low_u, low_mean, decays, plain; /* plain: 0, 1 or HELD */
    uint64_t key;
} NAME(rates);

/* Equals torch's lerp: v + w (g - v) for w < 1/2, else g - (1-w)(g - v). It is exact at both ends. */
INLINE AT NAME(lerp)(AT v, AT g, AT w, int low) { return (low ? v : g) + w * (g - v); }
INLINE AT NAME(lerp_weight)(double gamma) { return gamma < 0.5 ? (AT)gamma : -((AT)1 - (AT)gamma); }
/* Clamp to the largest finite bf16 number: an infinite average could never recover. NaN stays NaN. */
INLINE AT NAME(square)(AT g) {
    const AT largest = sizeof(AT) == sizeof(float) ? (AT)LARGEST : (AT)DBL_MAX;
    return g * g > largest ? largest : g * g;
}
/* NaN stays NaN. */
INLINE AT NAME(clamp)(AT value, AT lo, AT hi) {
    value = value < lo ? lo : value;
    return value > hi ? hi : value;
}

INLINE NAME(rates) NAME(rates_of)(const Tensor *t, const Options *o, int64_t start) {
    int low = t->gamma < 0.5, low_u = t->gamma_u < 0.5, decays = o->decay != 0;
    int free = o->inverse_lo == -INFINITY && o->inverse_hi == INFINITY;
    int plain = low && low_u && free && !decays && o->shrink == 1 && o->sign == 1;
    return (NAME(rates)){
        .sign = (AT)o->sign, .decay = (AT)o->decay, .shrink = (AT)o->shrink, .eta = (AT)t->eta, .g0 = (AT)o->g0,
        .u_lo = (AT)o->u_lo, .u_hi = (AT)o->u_hi, .lo = (AT)o->inverse_lo, .hi = (AT)o->inverse_hi,
        .gamma = NAME(lerp_weight)(t->gamma), .gamma_u = NAME(lerp_weight)(t->gamma_u),
        .gamma_mean = NAME(lerp_weight)(o->mean_weight), .low_mean = o->mean_weight < 0.5,
        .weight_u = (AT)t->inverse_u_weight,
        .low = low, .low_u = low_u, .decays = decays,
        .plain = !plain ? 0 : o->u_lo == -INFINITY && o->u_hi == INFINITY ? 1 : HELD,
        .key = KEY(t, start),
    };
}

INLINE AT NAME(gradient)(XT g, AT x, const NAME(rates) *r, int plain) {
    if (plain) return LOAD_X(g);
    AT value = r->sign * LOAD_X(g);
    return r->decays ? value + r->decay * x : value;
}

INLINE AT NAME(moved)(AT x, AT v, AT root, const NAME(rates) *r, int plain) {
    if (plain) return x - v / (root + r->g0) * r->eta;
    return r->shrink * x - v / NAME(clamp)(root + r->g0, r->lo, r->hi) * r->eta;
}

/* Line 3, and line 5 with a single scaling s for all coordinates; eta includes s. */
INLINE void NAME(shb_span)(XT *x, const XT *g, ST *v, AT *mean, int n, NAME(rates) r, uint32_t first, int plain, int averaged) {
    FIRST_BITS;
    SIMD
    for (int i = 0; i < n; i++) {
        BITS(i);
        AT xi = LOAD_X(x[i]), gi = NAME(gradient)(g[i], xi, &r, plain);
        if (averaged) mean[i] = NAME(lerp)(mean[i], xi, r.gamma_mean, r.low_mean); /* x before the step */
        AT vi = NAME(lerp)(LOAD_S(v[i]), gi, r.gamma, plain || r.low);
        v[i] = STORE_S(vi, random);
        x[i] = STORE_X((plain ? xi : r.shrink * xi) - vi * r.eta);
    }
}

INLINE void NAME(adam_span)(XT *x, const XT *g, ST *v, ST *u, AT *mean, int n, NAME(rates) r, uint32_t first, int plain, int averaged) {
    FIRST_BITS;
    SIMD
    for (int i = 0; i < n; i++) {
        BITS(i);
        AT xi = LOAD_X(x[i]), gi = NAME(gradient)(g[i], xi, &r, plain);
        if (averaged) mean[i] = NAME(lerp)(mean[i], xi, r.gamma_mean, r.low_mean); /* x before the step */
        AT vi = NAME(lerp)(LOAD_S(v[i]), gi, r.gamma, plain || r.low);            /* line 3 */
        AT ui = NAME(lerp)(LOAD_S(u[i]), NAME(square)(gi), r.gamma_u, plain || r.low_u);   /* line 4 */
        v[i] = STORE_S(vi, random);
        u[i] = STORE_S(ui, random);
        AT root = SQRT(plain == 1 ? ui * r.weight_u : NAME(clamp)(ui * r.weight_u, r.u_lo, r.u_hi));
        x[i] = STORE_X(NAME(moved)(xi, vi, root, &r, plain)); /* line 5 */
    }
}

INLINE void NAME(amsgrad_span)(XT *x, const XT *g, ST *v, ST *u, ST *u_max, AT *mean, int n, NAME(rates) r, uint32_t first, int plain, int averaged) {
    FIRST_BITS;
    SIMD
    for (int i = 0; i < n; i++) {
        BITS(i);
        AT xi = LOAD_X(x[i]), gi = NAME(gradient)(g[i], xi, &r, plain);
        if (averaged) mean[i] = NAME(lerp)(mean[i], xi, r.gamma_mean, r.low_mean); /* x before the step */
        AT vi = NAME(lerp)(LOAD_S(v[i]), gi, r.gamma, plain || r.low);
        AT ui = NAME(lerp)(LOAD_S(u[i]), NAME(square)(gi), r.gamma_u, plain || r.low_u);
        AT peak = LOAD_S(u_max[i]);
        peak = peak > ui || peak != peak ? peak : ui;
        v[i] = STORE_S(vi, random);
        u[i] = STORE_S(ui, random);
        u_max[i] = STORE_S(peak, random); /* an old peak is stored exactly; a new one is rounded like u */
        AT root = SQRT(peak * r.weight_u);
        x[i] = STORE_X(NAME(moved)(xi, vi, root, &r, plain));
    }
}

INLINE void NAME(ascend_span)(XT *y, const XT *g, int n, NAME(rates) r) {
    SIMD
    for (int i = 0; i < n; i++) y[i] = STORE_X(NAME(clamp)(LOAD_X(y[i]) + r.eta * LOAD_X(g[i]), r.u_lo, r.u_hi));
}

#define NEAR(p, T) PREFETCH((p) + i + AHEAD, BLOCK * sizeof(T))
#define BLOCKS(SPAN, NEARS, plain, averaged)             \
    {                                                    \
        int64_t i = 0;                                   \
        for (; i + BLOCK <= n; i += BLOCK) {             \
            if (far) {                                   \
                NEARS;                                   \
                if (averaged) NEAR(mean, AT);            \
            }                                            \
            SPAN(BLOCK, plain, averaged);                \
        }                                                \
        SPAN((int)(n - i), plain, averaged);             \
    }
#define BLOCKS_OF(SPAN, NEARS)                           \
    AT *mean = t->mean == NULL ? NULL : (AT *)t->mean + start; \
    if (mean != NULL && r.plain == 1) BLOCKS(SPAN, NEARS, 1, 1)    \
    else if (mean != NULL) BLOCKS(SPAN, NEARS, 0, 1)     \
    else if (r.plain == 1) BLOCKS(SPAN, NEARS, 1, 0)     \
    else if (r.plain == HELD) BLOCKS(SPAN, NEARS, HELD, 0) \
    else BLOCKS(SPAN, NEARS, 0, 0)
#define PLACE (uint32_t)(start + i)

INLINE void NAME(shb)(const Tensor *t, const Options *o, int64_t start, int64_t n, int64_t far) {
    NAME(rates) r = NAME(rates_of)(t, o, start);
    XT *x = (XT *)t->x + start;
    const XT *g = (const XT *)t->g + start;
    ST *v = (ST *)t->v + start;
#define SPAN(count, plain, averaged) \
    NAME(shb_span)(x + i, g + i, v + i, mean + i, count, r, PLACE, plain, averaged)
    BLOCKS_OF(SPAN, NEAR(x, XT); NEAR(g, XT); NEAR(v, ST))
#undef SPAN
}

INLINE void NAME(adam)(const Tensor *t, const Options *o, int64_t start, int64_t n, int64_t far) {
    NAME(rates) r = NAME(rates_of)(t, o, start);
    XT *x = (XT *)t->x + start;
    const XT *g = (const XT *)t->g + start;
    ST *v = (ST *)t->v + start, *u = (ST *)t->u + start;
#define SPAN(count, plain, averaged) \
    NAME(adam_span)(x + i, g + i, v + i, u + i, mean + i, count, r, PLACE, plain, averaged)
    BLOCKS_OF(SPAN, NEAR(x, XT); NEAR(g, XT); NEAR(v, ST); NEAR(u, ST))
#undef SPAN
}

INLINE void NAME(amsgrad)(const Tensor *t, const Options *o, int64_t start, int64_t n, int64_t far) {
    NAME(rates) r = NAME(rates_of)(t, o, start);
    XT *x = (XT *)t->x + start;
    const XT *g = (const XT *)t->g + start;
    ST *v = (ST *)t->v + start, *u = (ST *)t->u + start, *u_max = (ST *)t->u_max + start;
    far = 0; /* with five arrays prefetching costs more than it gains: 1.02 to 1.10 against 0.91 of torch's fused step */
#define SPAN(count, plain, averaged) \
    NAME(amsgrad_span)(x + i, g + i, v + i, u + i, u_max + i, mean + i, count, r, PLACE, plain, averaged)
    BLOCKS_OF(SPAN, NEAR(x, XT))
#undef SPAN
}

INLINE void NAME(ascend)(const Tensor *t, const Options *o, int64_t start, int64_t n, int64_t far) {
    NAME(rates) r = NAME(rates_of)(t, o, start);
    (void)far;
    r.eta = (AT)o->eta;
    for (int64_t i = 0; i < n; i += BLOCK)
        NAME(ascend_span)((XT *)t->x + start + i, (const XT *)t->g + start + i, (int)(n - i < BLOCK ? n - i : BLOCK), r);
}

/* Sum of squares of v_{t+1}. v_{t+1} is not stored: the update pass recomputes it. 16 partial sums in a fixed order
 * give the same result on every instruction set. */
INLINE double NAME(norm)(const Tensor *t, const Options *o, int64_t start, int64_t n) {
    NAME(rates) r = NAME(rates_of)(t, o, start);
    const XT *x = (const XT *)t->x + start, *g = (const XT *)t->g + start;
    const ST *v = (const ST *)t->v + start;
    double sums[16] = {0.0};
    for (int64_t i = 0; i < n; i += 16) {
        int m = (int)(n - i < 16 ? n - i : 16);
        for (int k = 0; k < m; k++) {
            AT gi = NAME(gradient)(g[i + k], LOAD_X(x[i + k]), &r, r.plain);
            double vi = (double)NAME(lerp)(LOAD_S(v[i + k]), gi, r.gamma, r.low);
            sums[k] += vi * vi;
        }
    }
    double sum = 0.0;
    for (int k = 0; k < 16; k++) sum += sums[k];
    return sum;
}

#undef NEAR
#undef BLOCKS
#undef BLOCKS_OF
#undef PLACE
#undef KEY
#undef FIRST_BITS
#undef BITS
#undef NAME
#undef XT
#undef ST
#undef AT
#undef SQRT
#undef LOAD_X
#undef STORE_X
#undef LOAD_S
#undef STORE_S
#undef RANDOM
