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
    uint32_t timestep; /* of a sequence */
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

/* The window of `length` steps from t on. */
static struct expected item_of(uint32_t table, uint32_t stack, uint64_t t, uint32_t length)
{
    uint64_t first = t + 1 >= stack ? t + 1 - stack : 0;

    if (first < steps[t].start)
        first = steps[t].start;
    return (struct expected){.table = table,
                             .t = t,
                             .first = first,
                             .anchor = (uint32_t)(t - first),
                             .length = length,
                             .steps = (uint32_t)(t + length - first + 1)};
}

/* The sequences of the episode in steps [begin, end), whose last step is the final observation if it is over. */
static uint32_t model_sequences(uint64_t begin, uint64_t end, uint32_t table, const struct nr_former_config *rule, uint32_t found,
                                uint64_t *dropped)
{
    bool over = steps[end - 1].final;
    uint64_t actions = end - 1 - begin; /* whose next observation is known */
    uint64_t offset = rule->start, covered = offset;
    struct expected item;

    for (; offset + rule->n <= actions; offset += rule->stride) {
        item = item_of(table, rule->stack, begin + offset, rule->n);
        item.row = steps[begin + offset + rule->n].row;
        item.timestep = (uint32_t)offset;
        wanted[found++] = item;
        covered = offset + rule->n;
    }
    if (!over || offset >= actions || covered >= actions)
        return found;
    if (rule->end == NR_END_DROP) {
        ++*dropped;
        return found;
    }
    if (rule->end == NR_END_SHIFT) {
        offset = rule->start;
        while (actions - offset > rule->n)
            offset++;
    }
    item = item_of(table, rule->stack, begin + offset, (uint32_t)(actions - offset));
    item.row = steps[end - 1].row;
    item.timestep = (uint32_t)offset;
    wanted[found++] = item;
    return found;
}

/* Every item of every anchor, from the whole run at once. */
static uint32_t model(uint32_t count, const struct nr_former_config *tables, uint32_t table_count, uint64_t *dropped)
{
    uint32_t found = 0;

    *dropped = 0;
    for (uint64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && steps[end].start == begin; end++)
            ;
        for (uint32_t i = 0; i < table_count; i++) {
            if (tables[i].kind == NR_WINDOW_SEQUENCE)
                found = model_sequences(begin, end, i, &tables[i], found, dropped);
        }
    }
    for (uint32_t t = 0; t < count; t++) {
        if (steps[t].final)
            continue;
        for (uint32_t i = 0; i < table_count; i++) {
            uint32_t n = tables[i].n, k = 0;
            double sum = 0;

            if (tables[i].kind == NR_WINDOW_SEQUENCE)
                continue;

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
            struct expected item = item_of(i, tables[i].stack, t, k);

            item.row = steps[t + k].row;
            item.reward = (float)sum;
            item.discount = terminated ? 0.0F : (float)pow(tables[i].gamma, k);
            wanted[found++] = item;
        }
    }
    for (uint32_t i = 0; i < found; i++)
        wanted[i].version = wanted[i].row / 7;
    qsort(wanted, found, sizeof(wanted[0]), by_row_anchor_table);
    return found;
}

static void compare(const struct nr_formed *formed, const struct expected *expected, uint32_t kind)
{
    float reward, discount;
    int32_t timestep;
    int32_t length;
    uint64_t version;

    memcpy(&reward, formed->columns + 8, 4);
    memcpy(&timestep, formed->columns + 8, 4);
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
    if (kind == NR_WINDOW_SEQUENCE)
        CHECK_EQUAL(timestep, expected->timestep);
    else
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
        compare(&formed[i], &wanted[i], tables[formed[i].former].kind);
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

static struct nr_former_config sequence(uint32_t stack, uint32_t length, uint32_t stride, uint32_t start, uint32_t end)
{
    return (struct nr_former_config){.kind = NR_WINDOW_SEQUENCE,
                                     .stack = stack,
                                     .n = length,
                                     .stride = stride,
                                     .start = start,
                                     .end = end,
                                     .length_offset = 0,
                                     .timestep_offset = 8,
                                     .version_offset = 16};
}

static void sequences_of_every_shape(void)
{
    for (uint32_t length = 1; length <= 7; length++) {
        for (uint32_t stride = 1; stride <= 9; stride += 1 + draw(2)) {
            for (uint32_t end = NR_END_PAD; end <= NR_END_SHIFT; end++) {
                struct nr_former_config table = sequence(1 + draw(4), length, stride, draw(3) ? 0 : draw(6), end);

                run(draw(3), &table, 1, 1 + draw(3 * length));
            }
        }
    }
}

static void sequences_beside_transitions(void)
{
    for (int i = 0; i < 100; i++) {
        struct nr_former_config tables[TABLES];

        for (int j = 0; j < TABLES; j++)
            tables[j] =
                draw(2) ? rule(1 + draw(5), 1 + draw(6), 0.9) : sequence(1 + draw(5), 1 + draw(12), 1 + draw(14), draw(4), draw(3));
        run(draw(3), tables, 1 + draw(TABLES), 1 + draw(24));
    }
}

static void long_sequences_of_long_episodes(void)
{
    struct nr_former_config table = sequence(4, 500, 250, 0, NR_END_SHIFT);

    run(NR_AUTORESET_NEXT_STEP, &table, 1, 900);
    table = sequence(1, NR_MAX_WINDOW - 1, NR_MAX_WINDOW - 1, 0, NR_END_PAD);
    run(NR_AUTORESET_NONE, &table, 1, 100000);
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
    struct nr_former_config bad[] = {
        rule(0, 1, 1),           rule(1, 0, 1),           rule(4000, 1000, 1),     rule(1, 1, 1),
        sequence(1, 0, 1, 0, 0), sequence(1, 1, 0, 0, 0), sequence(1, 1, 1, 0, 3), sequence(2, NR_MAX_WINDOW - 1, 1, 0, 0),
        sequence(1, 1, 1, 0, 0), sequence(1, 1, 1, 0, 0)};
    int status;

    bad[3].version_offset = ITEM_BYTES - 4;
    bad[8].timestep_offset = ITEM_BYTES - 3;
    bad[9].kind = 2;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
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
    sequences_of_every_shape();
    sequences_beside_transitions();
    long_sequences_of_long_episodes();
    rows_that_contradict_their_mode();
    rules_that_cannot_be();
    return 0;
}
