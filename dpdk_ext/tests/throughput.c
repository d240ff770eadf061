/*
 * Bytes per second of a C client with Atari-size experience: batches of 4-frame stacks of 84x84 sampled, and frames inserted, over
 * every path to the same appliance, beside a memcpy of the same pieces within one thread. Blocks in turns, one JSON object per block,
 * row and direction on standard output. Bytes count once, as they stand in the batch, or in the frame.
 * usage: throughput [BLOCKS [BATCH [STEPS [PATH]]]]    PATH: vhost, udp or tcp alone
 */
#include "engine/random.h"
#include "server_process.h"

enum {
    FRAME = 84 * 84,
    STACK = 4,
    FRAMES = STACK + 1,      /* of a row: the stack and the next observation's last */
    STEP = FRAME + 16,       /* frame, action, reward, terminated, truncated; rounded up to 8 */
    ROW_HEAD = 48,           /* key, probability, the item's own columns, action */
    ROW = ROW_HEAD + FRAMES * FRAME,
    BATCHES = 6,             /* of one block */
    AHEAD = 2,               /* samples open at once */
    INSERTS = 1500,          /* of one block */
    SOURCES = 64,            /* frames that the environment writes into, one after the other */
    SLACK = 4096,            /* steps beyond the table's items: what samples and the stream's tail hold */
};

static struct nr_store_config store = {
    .step_bytes = STEP, .observation_bytes = FRAME, .window = FRAMES, .in_flight = 64, .streams = 1};
static struct nr_gather gathers[FRAMES + 1] = {{.source = FRAME, .length = 8, .target = ROW_HEAD - 8}};
static struct nr_table_config table = {.exponent = 0.6,
                                       .limits.min_size = 1,
                                       .leases = 4096,
                                       .window = FRAMES,
                                       .row_bytes = ROW,
                                       .item_bytes = 24,
                                       .gather_count = FRAMES + 1};
static struct nr_engine_config config = {.seed = 7,
                                         .lease_ns = UINT64_C(10000000000),
                                         .start_seconds = 1700000000,
                                         .store_count = 1,
                                         .table_count = 1,
                                         .stores = &store,
                                         .tables = &table,
                                         .gathers = gathers};
static const struct nr_former_config former = {
    .stack = STACK, .n = 1, .gamma = 0.99, .reward_offset = 8, .discount_offset = 12, .length_offset = 16, .version_offset = 0};
static const uint32_t column_offset[2] = {0, FRAME}, column_bytes[2] = {FRAME, 8};
static const struct nr_actor_config actor_config = {.streams = 1,
                                                    .column_count = 2,
                                                    .observation_columns = 1,
                                                    .former_count = 1,
                                                    .column_offset = column_offset,
                                                    .column_bytes = column_bytes,
                                                    .reward_offset = FRAME + 8,
                                                    .terminated_offset = FRAME + 12,
                                                    .truncated_offset = FRAME + 13,
                                                    .formers = &former};

struct row {
    struct served served;
    struct nr_replay *replay;
    struct nr_actor *actor;
};

static struct row rows[] = {
    {.served = {.path = PATH_VHOST, .core = SERVER_CORE, .busy = true}},
    {.served = {.path = PATH_UDP, .core = SERVER_CORE, .busy = true}},
    {.served = {.path = PATH_TCP, .core = SERVER_CORE, .busy = true}},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

static uint32_t batch;
static uint8_t *batches[AHEAD]; /* batch * ROW bytes each */
static uint8_t *slab;           /* of the floor: store.steps * STEP bytes, in memory of the engine's kind */
static uint8_t sources[SOURCES][FRAME];
static uint64_t number; /* frames made */
static struct nr_random dice;
static struct line line;

static void *big(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(memory != MAP_FAILED);
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    return memory;
}

/* The next frame of the environment: its first bytes are new. */
static const uint8_t *next_frame(void)
{
    uint8_t *frame = sources[++number % SOURCES];

    memcpy(frame, &number, sizeof(number));
    return frame;
}

static void append_frame(struct row *row)
{
    static const uint64_t stride[2] = {FRAME, 8};
    static const uint8_t no = 0;
    const float reward = (float)(number % 16);
    const int64_t action = (int64_t)number;
    const void *column[2] = {next_frame(), &action};

    append_rows(row->actor,
                &(struct nr_rows){.column = column, .row_stride = stride, .reward = &reward, .terminated = &no, .truncated = &no});
}

/* ---- What is measured: ns of one block ---- */

static uint64_t sample_block(struct row *row)
{
    struct nr_sample *open[AHEAD];
    struct nr_draw_head heads[8];
    uint64_t begin = now_ns();

    for (uint32_t i = 0; i < BATCHES + AHEAD; i++) {
        if (i >= AHEAD) {
            struct nr_sample *sample = open[i % AHEAD];

            CHECK_EQUAL(nr_sample_wait(sample, PATIENCE_NS), NR_OK);
            nr_sample_heads(sample, heads);
            nr_sample_settle(sample, 1);
        }
        if (i < BATCHES)
            CHECK_EQUAL(nr_sample_start(row->replay, 0, batch, batches[i % AHEAD], &open[i % AHEAD]), NR_OK);
    }
    return now_ns() - begin;
}

static uint64_t insert_block(struct row *row)
{
    uint64_t begin = now_ns();

    for (uint32_t i = 0; i < INSERTS; i++)
        append_frame(row);
    flush_all(row->actor);
    return now_ns() - begin;
}

static uint64_t sample_floor(void)
{
    uint64_t begin = now_ns();

    for (uint32_t i = 0; i < BATCHES; i++) {
        for (uint32_t r = 0; r < batch; r++) {
            const uint8_t *step = slab + (uint64_t)nr_random_below(&dice, store.steps - FRAMES) * STEP;
            uint8_t *target = batches[i % AHEAD] + (size_t)r * ROW + ROW_HEAD;

            for (int f = 0; f < FRAMES; f++)
                memcpy(target + f * FRAME, step + f * STEP, FRAME);
        }
    }
    return now_ns() - begin;
}

static uint64_t insert_floor(void)
{
    uint64_t begin = now_ns();

    for (uint32_t i = 0; i < INSERTS; i++)
        memcpy(slab + (uint64_t)nr_random_below(&dice, store.steps) * STEP, next_frame(), FRAME);
    return now_ns() - begin;
}

static void print(uint32_t block, const char *path, uint64_t sample_ns, uint64_t insert_ns)
{
    uint64_t line_now = line_ns(&line);

    printf("{\"block\": %u, \"path\": \"%s\", \"call\": \"sample\", \"gbps\": %.4f, \"line_ns\": %llu}\n", block, path,
           (double)BATCHES * batch * FRAMES * FRAME / (double)sample_ns, (unsigned long long)line_now);
    printf("{\"block\": %u, \"path\": \"%s\", \"call\": \"insert\", \"gbps\": %.4f, \"line_ns\": %llu}\n", block, path,
           (double)INSERTS * FRAME / (double)insert_ns, (unsigned long long)line_now);
    fflush(stdout);
}

static void measure(struct row *row, uint32_t block)
{
    go_on(row->served.pid);
    uint64_t sample_ns = sample_block(row);
    uint64_t insert_ns = insert_block(row);
    settle(row->replay);
    halt(row->served.pid);
    print(block, path_names[row->served.path], sample_ns, insert_ns);
}

static void open_row(struct row *row)
{
    int status;

    go_on(row->served.pid);
    row->replay = served_connect(&row->served, &config);
    row->actor = nr_actor_open(row->replay, &actor_config, &status);
    CHECK(row->actor != NULL);
    for (uint32_t i = 0; i < table.capacity + STACK; i++)
        append_frame(row);
    flush_all(row->actor);
    halt(row->served.pid);
}

int main(int argc, char **argv)
{
    uint32_t blocks = argc > 1 ? (uint32_t)atoi(argv[1]) : 11;
    uint32_t steps = argc > 3 ? (uint32_t)atoi(argv[3]) : 50000;
    size_t first = 0, last = ROWS;
    char folder[] = "/tmp/netreplay-XXXXXX";

    batch = argc > 2 ? (uint32_t)atoi(argv[2]) : 512;
    if (blocks == 0 || batch == 0 || batch > 2048 || steps < 2 * SLACK) {
        fprintf(stderr, "usage: throughput [BLOCKS [BATCH [STEPS [PATH]]]]\n");
        return 2;
    }
    for (size_t r = 0; argc > 4 && r < ROWS; r++) {
        if (strcmp(argv[4], path_names[rows[r].served.path]) == 0)
            first = r, last = r + 1;
    }
    alarm(300);
    CHECK(mkdtemp(folder) != NULL);
    store.steps = steps;
    table.capacity = steps - SLACK;
    for (int f = 0; f < FRAMES; f++)
        gathers[f + 1] = (struct nr_gather){.delta = f + 1 - STACK, .length = FRAME, .target = (uint32_t)(ROW_HEAD + f * FRAME)};
    nr_random_seed(&dice, 3);
    line_open(&line);
    for (size_t r = first; r < last; r++)
        served_start(&rows[r].served, &config, folder);
    pin(CLIENT_CORE);
    for (int i = 0; i < AHEAD; i++)
        batches[i] = big((size_t)batch * ROW);
    slab = big((size_t)steps * STEP);
    for (size_t r = first; r < last; r++)
        open_row(&rows[r]);
    for (uint32_t block = 0; block < blocks; block++) {
        print(block, "memcpy", sample_floor(), insert_floor());
        for (size_t r = first; r < last; r++)
            measure(&rows[r], block);
    }
    for (size_t r = first; r < last; r++) {
        kill(rows[r].served.pid, SIGKILL);
        unlink(rows[r].served.socket);
    }
    kill(line.partner, SIGKILL);
    rmdir(folder);
    return 0;
}
