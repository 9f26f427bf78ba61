/* Memory bandwidth baseline for benchmarks: reads and writes the same bytes with almost no arithmetic. */

#include "step.h"

typedef struct {
    void *const *arrays; /* arrays of the first tensor, then of the second, ... */
    const int64_t *bytes; /* bytes per element */
    const int64_t *writes;
    int64_t count;
    const Chunk *chunks;
} Job;

/* Read a block of each array in turn, in the access pattern of a step, so that the processor prefetches all of them. */
static void stream_chunk(void *argument, int64_t k) {
    const Job *job = argument;
    const Chunk *c = &job->chunks[k];
    uint64_t sum = 0;
    for (int64_t done = 0; done < c->n; done += 64) {
        int64_t m = c->n - done < 64 ? c->n - done : 64;
        for (int64_t a = 0; a < job->count; a++) {
            char *array = job->arrays[c->tensor * job->count + a];
            uint64_t *p = (uint64_t *)(array + (c->start + done) * job->bytes[a]);
            int64_t words = m * job->bytes[a] / 8;
            if (job->writes[a])
                for (int64_t i = 0; i < words; i++) p[i] ^= 1u;
            else
                for (int64_t i = 0; i < words; i++) sum ^= p[i];
        }
    }
    volatile uint64_t kept = sum; /* keeps the compiler from removing the reads */
    (void)kept;
}

/* Read `count` arrays of each tensor chunk by chunk; arrays marked as written are written back with one bit flipped. */
EXPORT void semaopt_stream(void *const *arrays, const int64_t *bytes, const int64_t *writes, int64_t count,
                           const Chunk *chunks, int64_t n_chunks, int64_t elements, int threads) {
    Job job = {arrays, bytes, writes, count, chunks};
    share(stream_chunk, &job, n_chunks, elements, threads);
}
