/*
 * The control thread of checkpoints: files that are whole, read without the reader, beside an engine at work; and full disks, folders,
 * rival processes, closing midway and kill -9 that end one: the old file stays, nothing is left beside it, the engine has its steps back.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "engine/checkpoint.h"
#include "engine/checkpoint_format.h"
#include "engine/crc32c.h"
#include "loop/checkpointer.h"

enum { STEP = 5000, OBSERVATION = 4096, CAPACITY = 2000, ITEM_BYTES = 8, OWNER = 1 };

static const struct nr_store_config store = {
    .step_bytes = STEP, .observation_bytes = OBSERVATION, .steps = CAPACITY + 600, .window = 2, .in_flight = 8, .streams = 2};
static const struct nr_gather gather = {.length = 8, .target = NR_ROW_HEAD + ITEM_BYTES};
static const struct nr_table_config table = {.capacity = CAPACITY,
                                             .leases = 16,
                                             .window = 2,
                                             .row_bytes = NR_ROW_HEAD + ITEM_BYTES + 8,
                                             .item_bytes = ITEM_BYTES,
                                             .gather_count = 1,
                                             .exponent = 1};
static const struct nr_engine_config config = {.seed = 1,
                                               .lease_ns = 1,
                                               .start_seconds = 77,
                                               .store_count = 1,
                                               .table_count = 1,
                                               .stores = &store,
                                               .tables = &table,
                                               .gathers = &gather};
static const char spec[] = "{\"names\": [\"a\"]}";

static char folder[] = "/tmp/test_checkpointer.XXXXXX";
static char path[256], partial[300];

struct writer {
    struct nr_engine *engine;
    struct nr_checkpointer *checkpointer;
    uint32_t handle;
    uint64_t steps, items;
};

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A step, and the item that ends with it. */
static void insert(struct writer *writer)
{
    uint8_t step[STEP];
    struct nr_wait wait;
    uint64_t key;

    memset(step, (int)(writer->steps % 251), sizeof(step));
    memcpy(step, &writer->steps, 8);
    CHECK_EQUAL(nr_step_write(writer->engine, writer->handle, OWNER, writer->steps++, STEP, 0, step, STEP, 1, &wait), NR_OK);
    if (writer->steps < 2)
        return;
    struct nr_item item = {.number = writer->items,
                           .first_step = writer->items,
                           .steps = 2,
                           .length = 1,
                           .priority = (double)(writer->items % 7),
                           .columns = &writer->items};
    CHECK_EQUAL(nr_item_insert(writer->engine, 0, writer->handle, OWNER, &item, writer->items, &key, &wait), NR_OK);
    writer->items++;
}

static struct writer writer_open(uint32_t items)
{
    static const uint8_t id[16] = {1};
    struct nr_stream_position position;
    struct writer writer = {0};
    int status;

    writer.engine = nr_engine_create(&config, &status);
    CHECK_EQUAL(status, NR_OK);
    writer.checkpointer = nr_checkpointer_open(spec, &status);
    CHECK_EQUAL(status, NR_OK);
    CHECK_EQUAL(nr_stream_open(writer.engine, 0, id, OWNER, &position), NR_OK);
    writer.handle = position.handle;
    while (writer.items < items)
        insert(&writer);
    return writer;
}

static void audit(const struct writer *writer)
{
    char message[256];

    if (nr_engine_audit(writer->engine, message, sizeof(message)) != NR_OK) {
        fprintf(stderr, "%s\n", message);
        exit(1);
    }
}

static void writer_close(struct writer *writer)
{
    nr_checkpointer_close(writer->checkpointer, writer->engine);
    audit(writer);
    nr_engine_destroy(writer->engine);
}

/* The owner's turns until it is over; `each` is done between two. */
static struct nr_checkpoint_progress drive(struct writer *writer, void (*each)(struct writer *))
{
    struct nr_checkpoint_progress progress;
    uint64_t end = clock_ns() + 30000000000u;

    while (nr_checkpointer_running(writer->checkpointer)) {
        if (!nr_checkpointer_work(writer->checkpointer, writer->engine, 5))
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        else if (each != NULL)
            each(writer);
        CHECK(clock_ns() < end);
    }
    nr_checkpointer_progress(writer->checkpointer, &progress);
    CHECK(!nr_checkpoint_running(writer->engine));
    audit(writer);
    return progress;
}

static void begin(struct writer *writer, const char *where)
{
    int error;

    CHECK_EQUAL(nr_checkpointer_begin(writer->checkpointer, where, &error), NR_OK);
}

static struct nr_checkpoint_progress checkpoint(struct writer *writer, const char *where, void (*each)(struct writer *))
{
    begin(writer, where);
    return drive(writer, each);
}

/* ---- Reading it back ---- */

static bool exists(const char *file)
{
    struct stat found;

    return lstat(file, &found) == 0;
}

static uint8_t *contents(const char *file, size_t *bytes)
{
    struct stat found;
    int in = open(file, O_RDONLY);

    CHECK(in >= 0 && fstat(in, &found) == 0);
    uint8_t *all = malloc((size_t)found.st_size + 1);
    CHECK(all != NULL);
    *bytes = (size_t)found.st_size;
    for (size_t at = 0; at < *bytes;) {
        ssize_t got = read(in, all + at, *bytes - at);

        CHECK(got > 0);
        at += (size_t)got;
    }
    close(in);
    return all;
}

struct counted {
    uint64_t blocks, steps, items, done, bytes;
};

/* Every record of a DATA block. */
static void count_records(const uint8_t *at, const uint8_t *end, struct counted *counted)
{
    while (at < end) {
        struct nr_saved_head head;

        CHECK(end - at >= (ptrdiff_t)sizeof(head));
        memcpy(&head, at, sizeof(head));
        at += sizeof(head);
        CHECK(end - at >= head.length);
        CHECK_EQUAL(counted->done, 0);
        if (head.kind == NR_SAVED_STEP) {
            const uint8_t *step = at + sizeof(struct nr_saved_step);
            uint64_t number;

            /* Never torn, never another step's. */
            CHECK_EQUAL(head.length, sizeof(struct nr_saved_step) + STEP);
            memcpy(&number, step, 8);
            for (uint32_t i = 8; i < STEP; i++)
                CHECK(step[i] == number % 251);
            counted->steps++;
        }
        counted->items += head.kind == NR_SAVED_ITEM;
        counted->done += head.kind == NR_SAVED_DONE;
        at += head.length;
    }
    CHECK(at == end);
}

/* Whole as docs/checkpoint.md says, read without the reader. */
static struct counted check_whole(const char *file)
{
    struct counted counted = {0};
    size_t bytes;
    uint8_t *all = contents(file, &bytes);
    struct nr_file_head file_head;
    struct nr_block_end end;
    size_t at = sizeof(file_head);

    CHECK(bytes > at);
    memcpy(&file_head, all, sizeof(file_head));
    CHECK(memcmp(file_head.magic, NR_FILE_MAGIC, 8) == 0 && file_head.version == NR_FILE_VERSION);
    CHECK(file_head.crc == nr_crc32c_tables(0, all, offsetof(struct nr_file_head, crc)));
    for (bool ended = false; !ended; counted.blocks++) {
        struct nr_block_head head;

        CHECK(bytes - at >= sizeof(head));
        memcpy(&head, all + at, sizeof(head));
        uint32_t crc = head.crc;
        head.crc = 0;
        CHECK(head.magic == NR_BLOCK_MAGIC && head.number == counted.blocks && head.length <= bytes - at - sizeof(head));
        const uint8_t *payload = all + at + sizeof(head);
        CHECK(crc == nr_crc32c_tables(nr_crc32c_tables(0, &head, sizeof(head)), payload, head.length));
        CHECK_EQUAL(head.kind == NR_BLOCK_SPEC, counted.blocks == 0);
        if (head.kind == NR_BLOCK_SPEC)
            CHECK(head.length == strlen(spec) && memcmp(payload, spec, head.length) == 0);
        if (head.kind == NR_BLOCK_DATA)
            count_records(payload, payload + head.length, &counted);
        if (head.kind == NR_BLOCK_END) {
            CHECK_EQUAL(head.length, sizeof(end));
            memcpy(&end, payload, sizeof(end));
            CHECK(end.blocks == counted.blocks && end.bytes == at);
            ended = true;
        }
        at += sizeof(head) + head.length;
    }
    CHECK_EQUAL(at, bytes);
    CHECK_EQUAL(counted.done, 1);
    counted.bytes = bytes;
    free(all);
    return counted;
}

/* ---- Tests ---- */

static void insert_some(struct writer *writer)
{
    for (int i = 0; i < 20; i++)
        insert(writer);
}

static void check_written(struct writer *writer, void (*each)(struct writer *))
{
    struct nr_checkpoint_progress progress = checkpoint(writer, path, each);

    CHECK_EQUAL(progress.state, NR_CHECKPOINT_WRITTEN);
    CHECK(progress.elapsed_ns > 0 && progress.longest_quantum_ns > 0);
    CHECK(!exists(partial));
    struct counted counted = check_whole(path);
    CHECK_EQUAL(progress.bytes, counted.bytes);
    CHECK_EQUAL(progress.items, counted.items);
    if (each == NULL)
        CHECK_EQUAL(counted.items, writer->items < CAPACITY ? writer->items : CAPACITY);
}

/* Over the same file, again and again, with items that come and leave meanwhile. */
static void it_writes_whole_files(void)
{
    static const uint32_t sizes[] = {0, 1, CAPACITY, CAPACITY + 500};

    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct writer writer = writer_open(sizes[i]);

        check_written(&writer, NULL);
        for (int times = 0; times < 3; times++)
            check_written(&writer, insert_some);
        writer_close(&writer);
    }
}

static void check_same(const uint8_t *before, size_t bytes)
{
    size_t now;
    uint8_t *after = contents(path, &now);

    CHECK(now == bytes && memcmp(before, after, bytes) == 0);
    free(after);
}

static void check_failed(const struct nr_checkpoint_progress *progress, int error)
{
    CHECK_EQUAL(progress->state, NR_CHECKPOINT_FAILED);
    CHECK_EQUAL(progress->status, NR_SYSTEM);
    CHECK_EQUAL(progress->error, error);
}

/* A limit of the process stands in for a full disk; where it lies, SIGXFSZ would end the process. */
static void the_old_file_survives_every_failure(void)
{
    struct writer writer = writer_open(CAPACITY);
    struct nr_checkpoint_progress progress;
    struct rlimit unlimited, limit;
    size_t bytes;

    check_written(&writer, NULL);
    uint8_t *before = contents(path, &bytes);
    CHECK_EQUAL(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
    for (rlim_t most = 0; most < bytes - 1; most = most * 4 + 1000) {
        limit = (struct rlimit){most < bytes ? most : bytes - 1, unlimited.rlim_max};
        CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &limit), 0);
        progress = checkpoint(&writer, path, insert_some);
        CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
        check_failed(&progress, EFBIG);
        CHECK(!exists(partial));
        check_same(before, bytes);
    }

    char other[300], other_partial[320];
    snprintf(other, sizeof(other), "%s/none/file", folder);
    progress = checkpoint(&writer, other, NULL);
    check_failed(&progress, ENOENT);
    snprintf(other, sizeof(other), "%s/folder", folder);
    snprintf(other_partial, sizeof(other_partial), "%s.partial", other);
    CHECK_EQUAL(mkdir(other, 0700), 0);
    progress = checkpoint(&writer, other, NULL);
    check_failed(&progress, EISDIR);
    CHECK(!exists(other_partial));
    CHECK_EQUAL(rmdir(other), 0);
    check_written(&writer, NULL);
    free(before);
    writer_close(&writer);
}

/* Who comes second is refused, and what the first one is writing stays. */
static void two_processes_do_not_write_one_file(void)
{
    struct writer first = writer_open(CAPACITY), second = writer_open(3);
    struct nr_checkpoint_progress progress;

    check_written(&first, NULL);
    for (int quanta = 1; quanta < 10; quanta++) {
        begin(&first, path);
        do
            nr_checkpointer_work(first.checkpointer, first.engine, 5);
        while (!exists(partial));
        for (int i = 0; i < quanta; i++)
            nr_checkpointer_work(first.checkpointer, first.engine, 5);
        progress = checkpoint(&second, path, NULL);
        check_failed(&progress, EWOULDBLOCK);
        progress = drive(&first, NULL);
        CHECK_EQUAL(progress.state, NR_CHECKPOINT_WRITTEN);
        CHECK_EQUAL(check_whole(path).items, CAPACITY);
    }
    check_written(&second, NULL);

    /* What a killed process left. */
    int left = open(partial, O_WRONLY | O_CREAT, 0600);
    CHECK(left >= 0 && write(left, "NRCKPT\r\n and so on", 19) == 19 && close(left) == 0);
    check_written(&second, NULL);
    writer_close(&first);
    writer_close(&second);
}

static void closing_midway_gives_everything_back(void)
{
    struct writer writer = writer_open(CAPACITY);
    size_t bytes;

    check_written(&writer, NULL);
    uint8_t *before = contents(path, &bytes);
    for (int quanta = 0; quanta < 12; quanta++) {
        int status;

        begin(&writer, path);
        for (int i = 0; i < quanta; i++)
            nr_checkpointer_work(writer.checkpointer, writer.engine, 5);
        nr_checkpointer_close(writer.checkpointer, writer.engine);
        CHECK(!nr_checkpoint_running(writer.engine));
        audit(&writer);
        CHECK(!exists(partial));
        check_same(before, bytes);
        writer.checkpointer = nr_checkpointer_open(spec, &status);
        CHECK_EQUAL(status, NR_OK);
    }
    check_written(&writer, NULL);
    free(before);
    writer_close(&writer);
}

/* Killed at any moment: the path has a whole file, the one before or the new one. */
static void the_last_whole_file_survives_kill(void)
{
    struct writer writer = writer_open(10);

    check_written(&writer, NULL);
    writer_close(&writer);
    for (int i = 0; i < 40; i++) {
        int told[2];
        char byte;

        CHECK_EQUAL(pipe(told), 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct writer mine = writer_open(CAPACITY);

            CHECK_EQUAL(write(told[1], "x", 1), 1);
            for (;;)
                checkpoint(&mine, path, insert_some);
        }
        CHECK_EQUAL(read(told[0], &byte, 1), 1);
        nanosleep(&(struct timespec){.tv_nsec = i * 1500000}, NULL); /* not a wait: the moment is what the test varies */
        CHECK_EQUAL(kill(child, SIGKILL), 0);
        CHECK_EQUAL(waitpid(child, NULL, 0), child);
        close(told[0]);
        close(told[1]);
        check_whole(path);
    }
}

int main(void)
{
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/checkpoint", folder);
    snprintf(partial, sizeof(partial), "%s.partial", path);
    it_writes_whole_files();
    the_old_file_survives_every_failure();
    two_processes_do_not_write_one_file();
    closing_midway_gives_everything_back();
    the_last_whole_file_survives_kill();
    unlink(partial);
    CHECK_EQUAL(unlink(path), 0);
    CHECK_EQUAL(rmdir(folder), 0);
    return 0;
}
