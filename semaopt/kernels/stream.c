/* The limit that benchmarks compare with: the same bytes read and written, with no arithmetic to speak of. */

#include "step.h"

typedef struct {
    void *const *arrays; /* those of the first tensor, then those of the second ... */
    const int64_t *bytes; /* of one element */
    const int64_t *writes;
    int64_t count;
    const Chunk *chunks;
} Job;

/* A little of each array in turn, as a step goes over them: so the processor fetches all of them ahead. */
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
    __asm__ volatile("" : : "r"(sum)); /* the reads are wanted */
}

/* Read `count` arrays of each tensor chunk by chunk; those that are written are written back with a bit turned. */
EXPORT void semaopt_stream(void *const *arrays, const int64_t *bytes, const int64_t *writes, int64_t count,
                           const Chunk *chunks, int64_t n_chunks, int64_t elements, int threads) {
    Job job = {arrays, bytes, writes, count, chunks};
    share(stream_chunk, &job, n_chunks, elements, threads);
}
