#include "checkpointer.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "../engine/checkpoint.h"
#include "checkpoint_file.h"

enum {
    BLOCKS = 8,
    RENAMES = 8,                       /* of the file that we want to lock, by others, before we give up */
    PATHS = 4096,                      /* bytes of a path */
    PARTS = NR_CHECKPOINT_SEGMENTS + 1, /* of a block's payload */
    NAP_NS = 100000,                   /* between two looks at whether the thread is done */
};

#define PARTIAL ".partial"

struct block {
    struct nr_segment segment[NR_CHECKPOINT_SEGMENTS];
    struct nr_pieces pieces;
    bool last;      /* nothing follows, all is well */
};

struct nr_checkpointer {
    struct block block[BLOCKS];
    uint8_t *own; /* BLOCKS x NR_CHECKPOINT_OWN */
    char *spec;
    char path[PATHS], partial[PATHS + sizeof(PARTIAL)];

    /* The owner's. */
    uint64_t returned; /* blocks that came back */
    bool begun;        /* the engine is at it */
    bool ended;        /* its last block was handed over, or it has stopped */
    int verdict;       /* of the engine, where that ended it early; else NR_OK */

    /* Between owner and thread. */
    _Alignas(64) _Atomic uint64_t filled; /* blocks handed over; the owner's */
    _Atomic uint64_t items;               /* of the engine so far, the owner's */
    _Atomic uint64_t estimate, longest;
    _Alignas(64) _Atomic uint64_t written; /* blocks done with; the thread's */
    _Atomic uint64_t bytes;                /* the thread's */
    sem_t ready;                           /* posted for each block handed over, and to stop */

    _Alignas(64) _Atomic int stage; /* enum stage */
    _Atomic int failed;            /* errno of the thread, or 0 */
    _Atomic uint32_t count;
    _Atomic int status, error;
    _Atomic uint64_t began, finished; /* ns */
    pthread_mutex_t asking;           /* of those who ask */
    pthread_t thread;
    bool joinable;
};

enum stage {
    IDLE,
    WRITING, /* owner and thread are at it */
    LEFT,    /* the thread has ended; the owner has blocks to take back */
    DONE,
};

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- The thread ---- */

struct output {
    struct nr_checkpointer *checkpointer;
    uint64_t bytes;
    uint32_t number; /* of the next block */
    int fd;
};

static int write_all(struct output *output, struct iovec *parts, int count)
{
    while (count > 0) {
        ssize_t put = writev(output->fd, parts, count);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return errno;
        output->bytes += (uint64_t)put;
        atomic_store_explicit(&output->checkpointer->bytes, output->bytes, memory_order_relaxed);
        while (count > 0 && (size_t)put >= parts->iov_len) {
            put -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            /* A short write: the disk is full, which the next one says, or was interrupted. */
            parts->iov_base = (uint8_t *)parts->iov_base + put;
            parts->iov_len -= (size_t)put;
        }
    }
    return 0;
}

static int write_block(struct output *output, uint32_t kind, const struct nr_segment *parts, uint32_t count)
{
    struct nr_block_head head = nr_block_head(kind, output->number++, parts, count);
    struct iovec vector[1 + PARTS] = {{.iov_base = &head, .iov_len = sizeof(head)}};

    for (uint32_t i = 0; i < count; i++)
        vector[i + 1] = (struct iovec){.iov_base = (void *)(uintptr_t)parts[i].base, .iov_len = parts[i].length};
    return write_all(output, vector, (int)count + 1);
}

/* The file beside the path: empty, ours and locked, so that another process that saves to the same path is refused and neither
 * writes into the other's. One that a killed process left is used again. */
static int open_partial(struct output *output)
{
    const char *partial = output->checkpointer->partial;

    for (int tries = 0; tries < RENAMES; tries++) {
        struct stat opened, named;
        int fd = open(partial, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644), error = 0;

        if (fd < 0)
            return errno;
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            error = errno;
        } else if (fstat(fd, &opened) == 0 && lstat(partial, &named) == 0 && opened.st_dev == named.st_dev &&
                   opened.st_ino == named.st_ino) {
            if (ftruncate(fd, 0) == 0) {
                output->fd = fd;
                return 0;
            }
            error = errno;
        }
        close(fd);
        if (error != 0)
            return error;
        /* Its owner gave it the checkpoint's name before we had the lock: it is whole, and not ours. */
    }
    return EAGAIN;
}

static int write_start(struct output *output)
{
    struct nr_file_head head = nr_file_head();
    struct iovec vector = {.iov_base = &head, .iov_len = sizeof(head)};
    struct nr_segment spec = {.base = output->checkpointer->spec, .length = (uint32_t)strlen(output->checkpointer->spec)};
    int error = open_partial(output);

    if (error == 0)
        error = write_all(output, &vector, 1);
    return error != 0 ? error : write_block(output, NR_BLOCK_SPEC, &spec, 1);
}

static int write_pieces(struct output *output, const struct nr_pieces *pieces)
{
    struct nr_segment parts[PARTS] = {{.base = pieces->own, .length = pieces->front}};

    memcpy(parts + 1, pieces->segment, pieces->count * sizeof(*parts));
    return write_block(output, NR_BLOCK_DATA, parts, pieces->count + 1);
}

/* What is renamed must be on the disk, and so must the name. */
static int write_end(struct output *output)
{
    struct nr_checkpointer *checkpointer = output->checkpointer;
    struct nr_block_end end = {.blocks = output->number, .bytes = output->bytes};
    struct nr_segment part = {.base = &end, .length = sizeof(end)};
    char folder[PATHS];
    int error = write_block(output, NR_BLOCK_END, &part, 1);

    if (error == 0 && fsync(output->fd) != 0)
        error = errno;
    if (error == 0 && rename(checkpointer->partial, checkpointer->path) != 0)
        error = errno;
    if (error != 0)
        return error;
    close(output->fd); /* with the lock; all of it is on the disk */
    output->fd = -1;
    snprintf(folder, sizeof(folder), "%s", checkpointer->path);
    int fd = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    /* A file system that cannot synchronise a folder says EINVAL. */
    error = fsync(fd) != 0 && errno != EINVAL ? errno : 0;
    close(fd);
    return error;
}

static void *run(void *argument)
{
    struct nr_checkpointer *checkpointer = argument;
    struct output output = {.checkpointer = checkpointer, .fd = -1};
    int error = write_start(&output);
    bool last = false;

    for (uint64_t at = 0; !last; at++) {
        if (error != 0)
            atomic_store_explicit(&checkpointer->failed, error, memory_order_release);
        while (sem_wait(&checkpointer->ready) != 0)
            ;
        if (at == atomic_load_explicit(&checkpointer->filled, memory_order_acquire))
            break; /* stopped */
        const struct block *block = &checkpointer->block[at % BLOCKS];
        last = block->last;
        if (error == 0)
            error = write_pieces(&output, &block->pieces);
        if (error == 0 && last)
            error = write_end(&output);
        if (error != 0)
            atomic_store_explicit(&checkpointer->failed, error, memory_order_release);
        atomic_store_explicit(&checkpointer->written, at + 1, memory_order_release);
    }
    if (output.fd >= 0) {
        (void)unlink(checkpointer->partial); /* under the lock, so that it is nobody else's */
        close(output.fd);
    }
    atomic_store_explicit(&checkpointer->error, error, memory_order_relaxed);
    if (!last && error == 0)
        atomic_store_explicit(&checkpointer->status, NR_CLOSED, memory_order_relaxed);
    else
        atomic_store_explicit(&checkpointer->status, error != 0 ? NR_SYSTEM : NR_OK, memory_order_relaxed);
    if (last && error == 0)
        atomic_fetch_add_explicit(&checkpointer->count, 1, memory_order_relaxed);
    atomic_store_explicit(&checkpointer->finished, clock_ns(), memory_order_relaxed);
    atomic_store_explicit(&checkpointer->stage, LEFT, memory_order_release);
    return NULL;
}

/* ---- Whoever asks ---- */

int nr_checkpointer_begin(struct nr_checkpointer *checkpointer, const char *path, int *error)
{
    int status = NR_OK;

    *error = 0;
    if (strlen(path) >= PATHS) {
        *error = ENAMETOOLONG;
        return NR_SYSTEM;
    }
    pthread_mutex_lock(&checkpointer->asking);
    if (nr_checkpointer_running(checkpointer)) {
        status = NR_WAIT_TURN;
    } else {
        sigset_t all, before;

        if (checkpointer->joinable)
            pthread_join(checkpointer->thread, NULL);
        snprintf(checkpointer->path, sizeof(checkpointer->path), "%s", path);
        snprintf(checkpointer->partial, sizeof(checkpointer->partial), "%s" PARTIAL, path);
        while (sem_trywait(&checkpointer->ready) == 0)
            ;
        atomic_store(&checkpointer->filled, 0);
        atomic_store(&checkpointer->written, 0);
        atomic_store(&checkpointer->bytes, 0);
        atomic_store(&checkpointer->items, 0);
        atomic_store(&checkpointer->estimate, 0);
        atomic_store(&checkpointer->longest, 0);
        atomic_store(&checkpointer->failed, 0);
        atomic_store(&checkpointer->began, clock_ns());
        checkpointer->returned = 0;
        checkpointer->begun = checkpointer->ended = false;
        checkpointer->verdict = NR_OK;
        atomic_store(&checkpointer->stage, WRITING);
        /* Signals are for the threads that know what to do with them. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        *error = pthread_create(&checkpointer->thread, NULL, run, checkpointer);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        checkpointer->joinable = *error == 0;
        if (*error != 0) {
            atomic_store(&checkpointer->status, NR_SYSTEM);
            atomic_store(&checkpointer->error, *error);
            atomic_store(&checkpointer->finished, clock_ns());
            atomic_store(&checkpointer->stage, LEFT);
            status = NR_SYSTEM;
        }
    }
    pthread_mutex_unlock(&checkpointer->asking);
    return status;
}

bool nr_checkpointer_running(const struct nr_checkpointer *checkpointer)
{
    int stage = atomic_load_explicit(&checkpointer->stage, memory_order_acquire);

    return stage == WRITING || stage == LEFT;
}

void nr_checkpointer_progress(const struct nr_checkpointer *checkpointer, struct nr_checkpoint_progress *progress)
{
    int stage = atomic_load_explicit(&checkpointer->stage, memory_order_acquire);
    uint64_t began = atomic_load(&checkpointer->began);

    *progress = (struct nr_checkpoint_progress){
        .state = stage == IDLE ? NR_CHECKPOINT_IDLE : NR_CHECKPOINT_RUNNING,
        .count = atomic_load(&checkpointer->count),
        .bytes = atomic_load(&checkpointer->bytes),
        .estimate = atomic_load(&checkpointer->estimate),
        .items = atomic_load(&checkpointer->items),
        .longest_quantum_ns = atomic_load(&checkpointer->longest),
    };
    if (stage == DONE) {
        progress->status = atomic_load(&checkpointer->status);
        progress->error = atomic_load(&checkpointer->error);
        progress->state = progress->status == NR_OK ? NR_CHECKPOINT_WRITTEN : NR_CHECKPOINT_FAILED;
        progress->elapsed_ns = atomic_load(&checkpointer->finished) - began;
    } else if (stage != IDLE) {
        progress->elapsed_ns = clock_ns() - began;
    }
}

/* ---- The owner ---- */

static void take_back(struct nr_checkpointer *checkpointer, struct nr_engine *engine, uint64_t end)
{
    for (; checkpointer->returned < end; checkpointer->returned++) {
        const struct nr_pieces *pieces = &checkpointer->block[checkpointer->returned % BLOCKS].pieces;

        for (uint32_t i = 0; i < pieces->count; i++)
            nr_checkpoint_sent(engine, pieces->segment[i].token);
    }
}

static void give_up(struct nr_checkpointer *checkpointer, struct nr_engine *engine)
{
    if (checkpointer->ended)
        return;
    if (checkpointer->begun)
        nr_checkpoint_end(engine);
    checkpointer->ended = true;
    sem_post(&checkpointer->ready); /* for no block: the end */
}

static void hand_over(struct nr_checkpointer *checkpointer, struct block *block, uint64_t filled, bool last)
{
    block->last = last;
    checkpointer->ended = last;
    atomic_store_explicit(&checkpointer->filled, filled + 1, memory_order_release);
    sem_post(&checkpointer->ready);
}

bool nr_checkpointer_work(struct nr_checkpointer *checkpointer, struct nr_engine *engine, uint64_t now)
{
    int stage = atomic_load_explicit(&checkpointer->stage, memory_order_acquire);

    if (stage != WRITING && stage != LEFT)
        return false;
    uint64_t filled = atomic_load_explicit(&checkpointer->filled, memory_order_relaxed);
    if (stage == LEFT) {
        take_back(checkpointer, engine, filled);
        give_up(checkpointer, engine);
        if (checkpointer->verdict != NR_OK)
            atomic_store(&checkpointer->status, checkpointer->verdict);
        atomic_store_explicit(&checkpointer->stage, DONE, memory_order_release);
        return false;
    }
    take_back(checkpointer, engine, atomic_load_explicit(&checkpointer->written, memory_order_acquire));
    if (atomic_load_explicit(&checkpointer->failed, memory_order_acquire) != 0)
        give_up(checkpointer, engine);
    if (checkpointer->ended || filled - checkpointer->returned == BLOCKS)
        return false;
    if (!checkpointer->begun) {
        checkpointer->begun = nr_checkpoint_begin(engine) == NR_OK;
        return checkpointer->begun;
    }

    struct block *block = &checkpointer->block[filled % BLOCKS];
    block->pieces = (struct nr_pieces){.own = checkpointer->own + (filled % BLOCKS) * NR_CHECKPOINT_OWN,
                                       .least = NR_CHECKPOINT_LEAST,
                                       .room = NR_CHECKPOINT_SEGMENTS,
                                       .segment = block->segment};
    uint64_t start = clock_ns();
    int status = nr_checkpoint_next(engine, &block->pieces, NR_CHECKPOINT_WORK, now);
    uint64_t took = clock_ns() - start;
    if (took > atomic_load_explicit(&checkpointer->longest, memory_order_relaxed))
        atomic_store_explicit(&checkpointer->longest, took, memory_order_relaxed);
    atomic_store_explicit(&checkpointer->estimate, nr_checkpoint_estimate(engine), memory_order_relaxed);
    atomic_store_explicit(&checkpointer->items, nr_checkpoint_items(engine), memory_order_relaxed);
    if (block->pieces.length > 0 || block->pieces.count > 0)
        hand_over(checkpointer, block, filled, status == NR_OK);
    if (status != NR_OK && status != NR_PENDING && status != NR_WAIT_SPACE) {
        checkpointer->verdict = status;
        give_up(checkpointer, engine);
    }
    return status == NR_PENDING;
}

int nr_checkpointer_finish(struct nr_checkpointer *checkpointer, struct nr_engine *engine, uint64_t wait_ns)
{
    uint64_t begin = clock_ns(), now = begin;

    while (nr_checkpointer_running(checkpointer)) {
        struct timespec nap = {.tv_nsec = NAP_NS};

        if (now - begin >= wait_ns)
            return NR_PENDING;
        if (!nr_checkpointer_work(checkpointer, engine, now))
            nanosleep(&nap, NULL);
        now = clock_ns();
    }
    return NR_OK;
}

/* ---- Opening and closing ---- */

struct nr_checkpointer *nr_checkpointer_open(const char *spec, int *status)
{
    struct nr_checkpointer *checkpointer = aligned_alloc(64, (sizeof(*checkpointer) + 63) / 64 * 64);

    *status = NR_NO_MEMORY;
    if (checkpointer == NULL)
        return NULL;
    memset(checkpointer, 0, sizeof(*checkpointer));
    checkpointer->spec = strdup(spec);
    checkpointer->own = aligned_alloc(64, (size_t)BLOCKS * NR_CHECKPOINT_OWN);
    if (checkpointer->spec == NULL || checkpointer->own == NULL) {
        free(checkpointer->spec);
        free(checkpointer->own);
        free(checkpointer);
        return NULL;
    }
    sem_init(&checkpointer->ready, 0, 0);
    pthread_mutex_init(&checkpointer->asking, NULL);
    *status = NR_OK;
    return checkpointer;
}

void nr_checkpointer_cancel(struct nr_checkpointer *checkpointer, struct nr_engine *engine)
{
    while (nr_checkpointer_running(checkpointer)) {
        struct timespec nap = {.tv_nsec = NAP_NS};

        give_up(checkpointer, engine);
        nr_checkpointer_work(checkpointer, engine, 0);
        nanosleep(&nap, NULL);
    }
}

void nr_checkpointer_close(struct nr_checkpointer *checkpointer, struct nr_engine *engine)
{
    if (checkpointer == NULL)
        return;
    nr_checkpointer_cancel(checkpointer, engine);
    if (checkpointer->joinable)
        pthread_join(checkpointer->thread, NULL);
    sem_destroy(&checkpointer->ready);
    pthread_mutex_destroy(&checkpointer->asking);
    free(checkpointer->spec);
    free(checkpointer->own);
    free(checkpointer);
}
