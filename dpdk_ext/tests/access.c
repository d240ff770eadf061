/*
 * How long a C client waits for a ping, an insert of one transition and a sample of 32, over every path to the same appliance, with
 * 10^5 CartPole-size items: blocks of the rows in turns, one JSON object per block, row and call on standard output.
 * usage: access [BLOCKS [ROUNDS]]
 */
#include "server_process.h"
#include "toy.h"

enum { ITEMS = 100000, BATCH = 32, WARM = 50, MOST_ROUNDS = 100000 };

struct row {
    const char *placement;
    struct served served;
    struct nr_replay *replay;
    struct nr_actor *actor;
};

static struct row rows[] = {
    {"spinning", {.path = PATH_VHOST, .core = SERVER_CORE, .busy = true}},
    {"spinning", {.path = PATH_UDP, .core = SERVER_CORE, .busy = true}},
    {"spinning", {.path = PATH_TCP, .core = SERVER_CORE, .busy = true}},
    {"sleeping on two cores", {.path = PATH_VHOST, .core = SERVER_CORE}},
    {"sleeping on two cores", {.path = PATH_UDP, .core = SERVER_CORE}},
    {"sleeping on two cores", {.path = PATH_TCP, .core = SERVER_CORE}},
    {"sleeping on one core", {.path = PATH_VHOST, .core = CLIENT_CORE}},
    {"sleeping on one core", {.path = PATH_UDP, .core = CLIENT_CORE}},
    {"sleeping on one core", {.path = PATH_TCP, .core = CLIENT_CORE}},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

static struct toy_spec spec;
static struct toy_rows toy;
static struct line line;
static uint64_t samples[MOST_ROUNDS];
static uint32_t number;

static void append_one(struct row *row)
{
    number = (number + 1) & 0xfffff;
    toy_fill(&toy, 0, number, false, false);
    append_rows(row->actor, &toy.rows);
}

static void insert(struct row *row)
{
    append_one(row);
    flush_all(row->actor);
}

static void ping(struct row *row)
{
    struct nr_ping answer;
    struct nr_operation *operation;

    CHECK_EQUAL(nr_ping(row->replay, 0, &answer, PATIENCE_NS, &operation), NR_OK);
}

static void sample(struct row *row)
{
    static struct toy_row drawn[BATCH];
    struct nr_draw_head head;
    struct nr_sample *handle;

    CHECK_EQUAL(nr_sample_start(row->replay, 0, BATCH, drawn, &handle), NR_OK);
    CHECK_EQUAL(nr_sample_wait(handle, PATIENCE_NS), NR_OK);
    nr_sample_heads(handle, &head);
    nr_sample_settle(handle, 1);
}

static const struct {
    const char *name;
    void (*call)(struct row *row);
} calls[] = {{"ping", ping}, {"insert", insert}, {"sample", sample}};

#define CALLS (sizeof(calls) / sizeof(*calls))

static void open_row(struct row *row)
{
    int status;

    go_on(row->served.pid);
    row->replay = served_connect(&row->served, &spec.config);
    row->actor = nr_actor_open(row->replay, &spec.actor, &status);
    CHECK(row->actor != NULL);
    for (int i = 0; i <= ITEMS; i++)
        append_one(row);
    flush_all(row->actor);
    halt(row->served.pid);
}

static void measure(struct row *row, uint32_t block, uint32_t rounds)
{
    uint64_t p50[CALLS], p99[CALLS];

    go_on(row->served.pid);
    for (size_t c = 0; c < CALLS; c++) {
        for (uint32_t i = 0; i < rounds + WARM; i++) {
            uint64_t begin = now_ns();

            calls[c].call(row);
            if (i >= WARM)
                samples[i - WARM] = now_ns() - begin;
        }
        p50[c] = percentile(samples, rounds, 50);
        p99[c] = percentile(samples, rounds, 99);
    }
    settle(row->replay);
    halt(row->served.pid);
    uint64_t line_now = line_ns(&line);
    for (size_t c = 0; c < CALLS; c++)
        printf("{\"block\": %u, \"path\": \"%s\", \"placement\": \"%s\", \"call\": \"%s\", \"p50_ns\": %llu, \"p99_ns\": %llu, "
               "\"line_ns\": %llu}\n",
               block, path_names[row->served.path], row->placement, calls[c].name, (unsigned long long)p50[c],
               (unsigned long long)p99[c], (unsigned long long)line_now);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    uint32_t blocks = argc > 1 ? (uint32_t)atoi(argv[1]) : 15;
    uint32_t rounds = argc > 2 ? (uint32_t)atoi(argv[2]) : 300;
    char folder[] = "/tmp/netreplay-XXXXXX";

    if (blocks == 0 || rounds == 0 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: access [BLOCKS [ROUNDS]]\n");
        return 2;
    }
    alarm(300);
    CHECK(mkdtemp(folder) != NULL);
    toy_spec(&spec, ITEMS, 1, 1, 1, NR_AUTORESET_NONE);
    spec.table.exponent = 0.6;
    toy_rows(&toy);
    line_open(&line);
    for (size_t r = 0; r < ROWS; r++)
        served_start(&rows[r].served, &spec.config, folder);
    pin(CLIENT_CORE);
    for (size_t r = 0; r < ROWS; r++)
        open_row(&rows[r]);
    for (uint32_t block = 0; block < blocks; block++) {
        for (size_t r = 0; r < ROWS; r++)
            measure(&rows[r], block, rounds);
    }
    for (size_t r = 0; r < ROWS; r++) {
        kill(rows[r].served.pid, SIGKILL);
        unlink(rows[r].served.socket);
    }
    kill(line.partner, SIGKILL);
    rmdir(folder);
    return 0;
}
