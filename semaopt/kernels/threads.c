/* Parallel execution on the threads of the OpenMP runtime that torch has loaded. These threads are awake after a
 * backward pass, and a second pool would compete for the cores. */

#include "step.h"

#include <stddef.h>

#if !defined(_WIN32)
#include <pthread.h>
#endif

/* GOMP_parallel(f, argument, threads, flags), the entry point of libgomp; Intel's and LLVM's runtimes have it too. */
typedef void Parallel(void (*)(void *), void *, unsigned, unsigned);
static Parallel *parallel;

/* After fork() the runtime would wait forever for threads that do not exist in the child. */
static int in_child;
#if !defined(_WIN32)
static void after_fork(void) { in_child = 1; }
#endif

EXPORT void semaopt_use_threads(Parallel *given) {
    parallel = given;
#if !defined(_WIN32)
    static int registered;
    if (!registered) registered = pthread_atfork(NULL, NULL, after_fork) == 0;
#endif
}

/* Number of threads to use, given the requested number. */
EXPORT int semaopt_threads(int wanted) { return wanted > 1 && parallel != NULL && !in_child ? wanted : 1; }

/* Number of chunks that a thread takes at a time. They are adjacent, because the processor prefetches contiguous
 * memory, but few, so that no thread waits long for the last one. */
enum { RUNS = 16, LONGEST = 64 };

typedef struct {
    void (*chunk)(void *, int64_t);
    void *argument;
    int64_t chunks, next, run;
} Job;

static void take_chunks(void *argument) {
    Job *job = argument;
    int64_t k;
    while ((k = fetch_add(&job->next, job->run)) < job->chunks)
        for (int64_t end = k + job->run < job->chunks ? k + job->run : job->chunks; k < end; k++)
            job->chunk(job->argument, k);
}

void share(void (*chunk)(void *, int64_t), void *argument, int64_t chunks, int64_t elements, int threads) {
    threads = elements <= ALONE ? 1 : semaopt_threads(threads < chunks ? threads : (int)chunks);
    int64_t run = chunks / (threads * RUNS);
    Job job = {chunk, argument, chunks, 0, run < 1 ? 1 : run > LONGEST ? LONGEST : run};
    if (threads > 1)
        parallel(take_chunks, &job, (unsigned)threads, 0);
    else
        take_chunks(&job);
}
