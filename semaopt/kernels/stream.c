/* The limit that benchmarks compare with: the same bytes read and written, with no arithmetic to speak of. */

#include "step.h"

typedef struct {
    void *const *arrays;
    const int64_t *bytes; /* of one element */
    const int64_t *writes;
    int64_t count, n;
} Job;

/* A little of each array in turn, as a step goes over them: so the processor fetches all of them ahead. */
static void stream_chunk(void *argument, int64_t k) {
    const Job *job = argument;
    int64_t start = k * CHUNK, n = job->n - start < CHUNK ? job->n - start : CHUNK;
    uint64_t sum = 0;
    for (int64_t done = 0; done < n; done += 64) {
        int64_t m = n - done < 64 ? n - done : 64;
        for (int64_t a = 0; a < job->count; a++) {
            uint64_t *p = (uint64_t *)((char *)job->arrays[a] + (start + done) * job->bytes[a]);
            int64_t words = m * job->bytes[a] / 8;
            if (job->writes[a])
                for (int64_t i = 0; i < words; i++) p[i] ^= 1u;
            else
                for (int64_t i = 0; i < words; i++) sum ^= p[i];
        }
    }
    __asm__ volatile("" : : "r"(sum)); /* the reads are wanted */
}

/* Read `count` arrays of n elements each; those that are written are written back with a bit turned. */
EXPORT void semaopt_stream(void *const *arrays, const int64_t *bytes, const int64_t *writes, int64_t count, int64_t n,
                           int threads) {
    Job job = {arrays, bytes, writes, count, n};
    share(stream_chunk, &job, (n + CHUNK - 1) / CHUNK, n, threads);
}
