/* The forming of items against a model that reads SEMANTICS.md 2 word by word over whole episodes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "client/former.h"

enum { TABLES = 3, MOST_STEPS = 4000, ITEM_BYTES = 24 };

static uint64_t state = 1;

static uint32_t draw(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 20) % below);
}

/* A step of the whole run, as the model remembers it. */
struct step {
    float reward;
    bool terminated, truncated;
    bool final;      /* observation only */
    uint32_t row;    /* call that brought it */
    uint64_t start;  /* first step of its episode */
};

struct expected {
    uint32_t row, table, anchor, length, steps;
    uint64_t t, first;
    float reward, discount;
    uint64_t version;
};

static struct step steps[MOST_STEPS];
static struct expected wanted[MOST_STEPS * TABLES];

static int by_row_anchor_table(const void *a, const void *b)
{
    const struct expected *x = a, *y = b;

    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    if (x->t != y->t)
        return x->t < y->t ? -1 : 1;
    return x->table < y->table ? -1 : x->table > y->table;
}

/* Every item of every anchor, from the whole run at once. */
static uint32_t model(uint32_t count, const struct nr_former_config *tables, uint32_t table_count, uint64_t *dropped)
{
    uint32_t found = 0;

    *dropped = 0;
    for (uint32_t t = 0; t < count; t++) {
        if (steps[t].final)
            continue;
        for (uint32_t i = 0; i < table_count; i++) {
            uint32_t n = tables[i].n, k = 0;
            double sum = 0;

            while (k < n && t + k + 1 < count && !steps[t + k].final) {
                sum += pow(tables[i].gamma, k) * (double)steps[t + k].reward;
                k++;
                if (steps[t + k].final)
                    break;
            }
            bool at_end = t + k < count && steps[t + k].final;
            bool terminated = at_end && steps[t + k - 1].terminated;

            if (k < n && !at_end)
                continue; /* not complete yet */
            if (k < n && !terminated && n < tables[i].stack) {
                ++*dropped;
                continue;
            }
            uint64_t first = t + 1 >= tables[i].stack ? t + 1 - tables[i].stack : 0;
            if (first < steps[t].start)
                first = steps[t].start;
            wanted[found++] = (struct expected){
                .row = steps[t + k].row,
                .table = i,
                .t = t,
                .first = first,
                .anchor = (uint32_t)(t - first),
                .length = k,
                .steps = (uint32_t)(t + k - first + 1),
                .reward = (float)sum,
                .discount = terminated ? 0.0F : (float)pow(tables[i].gamma, k),
                .version = steps[t + k].row / 7,
            };
        }
    }
    qsort(wanted, found, sizeof(wanted[0]), by_row_anchor_table);
    return found;
}

static void compare(const struct nr_formed *formed, const struct expected *expected)
{
    float reward, discount;
    int32_t length;
    uint64_t version;

    memcpy(&reward, formed->columns + 8, 4);
    memcpy(&discount, formed->columns + 4, 4);
    memcpy(&length, formed->columns, 4);
    memcpy(&version, formed->columns + 16, 8);
    CHECK_EQUAL(formed->row, expected->row);
    CHECK_EQUAL(formed->former, expected->table);
    CHECK_EQUAL(formed->item.first_step, expected->first);
    CHECK_EQUAL(formed->item.anchor, expected->anchor);
    CHECK_EQUAL(formed->item.length, expected->length);
    CHECK_EQUAL(formed->item.steps, expected->steps);
    CHECK_EQUAL(formed->item.anchor + formed->item.length, formed->item.steps - 1);
    CHECK_EQUAL(length, expected->length);
    CHECK_EQUAL(version, expected->version);
    CHECK(reward == expected->reward);
    CHECK(discount == expected->discount);
}

/* One stream in one autoreset mode: rows are fed, some of them twice (a rollback between), and all items compared. */
static void run(uint32_t autoreset, const struct nr_former_config *tables, uint32_t table_count, uint32_t mean_length)
{
    const uint32_t item_bytes[TABLES] = {ITEM_BYTES, ITEM_BYTES, ITEM_BYTES};
    int status = NR_PENDING;
    struct nr_formers *formers = nr_formers_create(table_count, tables, item_bytes, &status);
    struct nr_episode episode = {0};
    uint32_t count = 0, row = 0, got = 0;
    uint64_t dropped = 0, model_dropped, start = 0;

    CHECK(formers != NULL && status == NR_OK);
    float *rewards = calloc(formers->reward_ring, sizeof(float));
    struct nr_formed *formed = calloc(formers->most * (size_t)MOST_STEPS, sizeof(*formed));

    while (count + 2 < MOST_STEPS) {
        bool awaited = episode.awaiting;
        bool done = draw(mean_length) == 0;
        bool terminated = done && draw(2), truncated = done && (!terminated || draw(4) == 0);
        float reward = (float)draw(1000) / 37.0F - 10.0F;
        bool end = autoreset == NR_AUTORESET_NONE && awaited;
        bool final = autoreset == NR_AUTORESET_SAME_STEP && done;
        int kind = nr_row_kind(&episode, autoreset, end, done, final);
        uint64_t version = row / 7;

        CHECK_EQUAL(kind, awaited ? NR_ROW_FINAL : final ? NR_ROW_BOTH : NR_ROW_STEP);
        if (draw(3) == 0) {
            struct nr_episode saved = episode;
            uint64_t ignored = 0;

            nr_form(formers, &episode, rewards, NR_ROW_BOTH, 77.0F, true, false, 99, row, formed + got, &ignored);
            episode = saved;
        }
        if (kind & NR_ROW_STEP)
            steps[count++] = (struct step){reward, terminated, truncated, false, row, start};
        if (kind & NR_ROW_FINAL) {
            steps[count++] = (struct step){.final = true, .row = row, .start = start};
            start = count;
        }
        uint32_t made =
            nr_form(formers, &episode, rewards, kind, reward, terminated, truncated, version, row, formed + got, &dropped);
        CHECK(made <= formers->most);
        got += made;
        row++;
        CHECK_EQUAL(episode.next, count);
        CHECK_EQUAL(episode.awaiting, done && (kind == NR_ROW_STEP));
    }
    CHECK_EQUAL(model(count, tables, table_count, &model_dropped), got);
    CHECK_EQUAL(dropped, model_dropped);
    for (uint32_t i = 0; i < got; i++)
        compare(&formed[i], &wanted[i]);
    free(formed);
    free(rewards);
    nr_formers_free(formers);
}

static struct nr_former_config rule(uint32_t stack, uint32_t n, double gamma)
{
    return (struct nr_former_config){
        .stack = stack, .n = n, .gamma = gamma, .length_offset = 0, .discount_offset = 4, .reward_offset = 8, .version_offset = 16};
}

static void one_table_of_every_stack_and_n(void)
{
    for (uint32_t stack = 1; stack <= 5; stack++) {
        for (uint32_t n = 1; n <= 6; n++) {
            struct nr_former_config table = rule(stack, n, 0.97);

            for (uint32_t mode = NR_AUTORESET_NONE; mode <= NR_AUTORESET_SAME_STEP; mode++) {
                run(mode, &table, 1, 1);
                run(mode, &table, 1, 3);
                run(mode, &table, 1, 20);
            }
        }
    }
}

static void several_tables_of_one_store(void)
{
    for (int i = 0; i < 60; i++) {
        struct nr_former_config tables[TABLES];

        for (int j = 0; j < TABLES; j++)
            tables[j] = rule(1 + draw(5), 1 + draw(6), draw(4) ? 0.9 : j);
        run(draw(3), tables, 1 + draw(TABLES), 1 + draw(12));
    }
}

static void rows_that_contradict_their_mode(void)
{
    struct nr_episode running = {.next = 3}, over = {.next = 3, .awaiting = 1};

    CHECK_EQUAL(nr_row_kind(&over, NR_AUTORESET_NONE, false, false, false), 0);
    CHECK_EQUAL(nr_row_kind(&running, NR_AUTORESET_NONE, true, false, false), 0);
    CHECK_EQUAL(nr_row_kind(&running, NR_AUTORESET_NONE, false, true, true), 0);
    CHECK_EQUAL(nr_row_kind(&over, NR_AUTORESET_NONE, true, false, false), NR_ROW_FINAL);
    CHECK_EQUAL(nr_row_kind(&over, NR_AUTORESET_NEXT_STEP, false, true, false), NR_ROW_FINAL);
    CHECK_EQUAL(nr_row_kind(&running, NR_AUTORESET_NEXT_STEP, false, true, true), 0);
    CHECK_EQUAL(nr_row_kind(&running, NR_AUTORESET_SAME_STEP, false, true, false), 0);
    CHECK_EQUAL(nr_row_kind(&running, NR_AUTORESET_SAME_STEP, false, false, true), 0);
    CHECK_EQUAL(nr_row_kind(&running, NR_AUTORESET_SAME_STEP, true, true, true), 0);
}

static void rules_that_cannot_be(void)
{
    const uint32_t item_bytes = ITEM_BYTES;
    struct nr_former_config bad[] = {rule(0, 1, 1), rule(1, 0, 1), rule(4000, 1000, 1), rule(1, 1, 1)};
    int status;

    bad[3].version_offset = ITEM_BYTES - 4;
    for (int i = 0; i < 4; i++) {
        status = NR_OK;
        CHECK(nr_formers_create(1, &bad[i], &item_bytes, &status) == NULL);
        CHECK_EQUAL(status, NR_BAD_CONFIG);
    }
    struct nr_formers *none = nr_formers_create(0, NULL, NULL, &status);
    CHECK(none != NULL);
    CHECK_EQUAL(none->most, 0);
    nr_formers_free(none);
}

int main(int count, char **arguments)
{
    state = count > 1 ? strtoull(arguments[1], NULL, 0) | 1 : 20260101;
    one_table_of_every_stack_and_n();
    several_tables_of_one_store();
    rows_that_contradict_their_mode();
    rules_that_cannot_be();
    return 0;
}
