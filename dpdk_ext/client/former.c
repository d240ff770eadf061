#include "former.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    NOT_THERE = UINT32_MAX,
    SEQUENCES = 3, /* that one row can complete at most: two steps may come with it, and the episode's end */
};
#define NO_ANCHOR UINT64_MAX

static bool column_fits(uint32_t offset, uint32_t bytes, uint32_t item_bytes)
{
    return offset == NOT_THERE || (uint64_t)offset + bytes <= item_bytes;
}

static bool rule_fits(const struct nr_former_config *config, uint32_t item_bytes)
{
    bool own = config->kind == NR_WINDOW_NSTEP
                   ? column_fits(config->reward_offset, sizeof(float), item_bytes) &&
                         column_fits(config->discount_offset, sizeof(float), item_bytes)
                   : config->kind == NR_WINDOW_SEQUENCE && config->stride >= 1 && config->end <= NR_END_SHIFT &&
                         column_fits(config->timestep_offset, sizeof(int32_t), item_bytes);

    return own && config->n >= 1 && config->stack >= 1 && (uint64_t)config->n + config->stack <= NR_MAX_WINDOW &&
           item_bytes <= NR_MAX_ITEM_COLUMNS && column_fits(config->length_offset, sizeof(int32_t), item_bytes) &&
           column_fits(config->version_offset, sizeof(uint64_t), item_bytes);
}

struct nr_formers *nr_formers_create(uint32_t count, const struct nr_former_config *configs, const uint32_t *item_bytes,
                                     int *status)
{
    size_t powers = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (!rule_fits(&configs[i], item_bytes[i])) {
            *status = NR_BAD_CONFIG;
            return NULL;
        }
        if (configs[i].kind == NR_WINDOW_NSTEP)
            powers += configs[i].n + 1;
    }

    struct nr_formers *formers = malloc(sizeof(*formers) + count * sizeof(*formers->former) + powers * sizeof(double));

    if (formers == NULL) {
        *status = NR_NO_MEMORY;
        return NULL;
    }
    formers->count = count;
    formers->longest = 1;
    formers->most = 0;
    formers->former = (struct nr_former *)(formers + 1);

    double *power = (double *)(formers->former + count);

    for (uint32_t i = 0; i < count; i++) {
        struct nr_former *former = &formers->former[i];
        uint32_t n = configs[i].n;

        *former = (struct nr_former){.config = configs[i], .item_bytes = item_bytes[i]};
        if (configs[i].kind == NR_WINDOW_SEQUENCE) {
            formers->most += SEQUENCES;
            continue;
        }
        former->power = power;
        for (uint32_t e = 0; e <= n; e++)
            power[e] = pow(configs[i].gamma, e);
        power += n + 1;
        if (n > formers->longest)
            formers->longest = n;
        formers->most += n + 1;
    }
    formers->reward_ring = 1;
    while (formers->reward_ring < formers->longest + 2)
        formers->reward_ring *= 2;
    *status = NR_OK;
    return formers;
}

void nr_formers_free(struct nr_formers *formers)
{
    free(formers);
}

int nr_row_kind(const struct nr_episode *episode, uint32_t autoreset, bool end, bool done, bool final)
{
    if (autoreset == NR_AUTORESET_SAME_STEP)
        return end || done != final ? 0 : done ? NR_ROW_BOTH : NR_ROW_STEP;
    if (final || (end && !episode->awaiting))
        return 0;
    if (!episode->awaiting)
        return NR_ROW_STEP;
    return end || autoreset == NR_AUTORESET_NEXT_STEP ? NR_ROW_FINAL : 0;
}

static void put(uint8_t *columns, uint32_t offset, const void *value, size_t bytes)
{
    if (offset != NOT_THERE)
        memcpy(columns + offset, value, bytes);
}

/* What a row brought, and what it means. */
struct arrival {
    uint64_t start; /* first step of the episode */
    uint64_t fresh; /* first step whose observation came */
    uint64_t last;  /* newest step whose observation is known */
    bool final;     /* `last` is the final observation */
    bool over;      /* of a terminated episode */
};

/* An anchor that the arrival completes. */
struct anchor {
    uint64_t step;   /* NO_ANCHOR: none */
    uint32_t length; /* k; 0: it is completed without item */
};

static struct anchor nstep_from(const struct nr_former_config *config, const struct arrival *arrival, uint64_t from)
{
    uint32_t n = config->n;

    if (arrival->fresh > n && from < arrival->fresh - n)
        from = arrival->fresh - n;
    if (from < arrival->start)
        from = arrival->start;
    if (from >= arrival->last || (!arrival->final && arrival->last - from < n))
        return (struct anchor){.step = NO_ANCHOR};
    if (arrival->last - from >= n)
        return (struct anchor){.step = from, .length = n};
    bool whole = arrival->over || n >= config->stack;
    return (struct anchor){.step = from, .length = whole ? (uint32_t)(arrival->last - from) : 0};
}

/* The first of base, base + stride, ... that is not before `step`. */
static uint64_t next_of(uint64_t base, uint32_t stride, uint64_t step)
{
    return step <= base ? base : base + (step - base + stride - 1) / stride * stride;
}

static struct anchor sequence_from(const struct nr_former_config *config, const struct arrival *arrival, uint64_t from)
{
    uint32_t n = config->n, stride = config->stride;
    uint64_t base = arrival->start + config->start;
    uint64_t full = next_of(base, stride, arrival->fresh > n && from < arrival->fresh - n ? arrival->fresh - n : from);

    if (full + n <= arrival->last)
        return (struct anchor){.step = full, .length = n};
    if (!arrival->final || base >= arrival->last)
        return (struct anchor){.step = NO_ANCHOR};

    /* The first that the episode has no room for, and how far the one before it came. */
    uint64_t next = arrival->last < n ? base : next_of(base, stride, arrival->last - n + 1);
    uint64_t covered = next > base ? next - stride + n : base;
    uint64_t back = arrival->last - base > n ? arrival->last - n : base;
    uint64_t step = config->end == NR_END_SHIFT ? back : next;

    if (next >= arrival->last || covered >= arrival->last || step < from)
        return (struct anchor){.step = NO_ANCHOR};
    return (struct anchor){.step = step, .length = config->end == NR_END_DROP ? 0 : (uint32_t)(arrival->last - step)};
}

/* The first anchor not before `from` that the arrival completes for the rule. */
static struct anchor anchor_from(const struct nr_former *former, const struct arrival *arrival, uint64_t from)
{
    return former->config.kind == NR_WINDOW_SEQUENCE ? sequence_from(&former->config, arrival, from)
                                                     : nstep_from(&former->config, arrival, from);
}

static void put_nstep(const struct nr_formers *formers, const struct nr_former *former, const float *rewards, struct anchor anchor,
                      bool over, uint8_t *columns)
{
    double sum = 0;

    for (uint32_t i = 0; i < anchor.length; i++)
        sum += former->power[i] * (double)rewards[(anchor.step + i) & (formers->reward_ring - 1)];

    float reward = (float)sum, discount = over ? 0.0F : (float)former->power[anchor.length];

    put(columns, former->config.reward_offset, &reward, sizeof(reward));
    put(columns, former->config.discount_offset, &discount, sizeof(discount));
}

static void form(const struct nr_formers *formers, const struct nr_former *former, const struct arrival *arrival,
                 const float *rewards, struct anchor anchor, uint64_t version, struct nr_formed *formed)
{
    uint64_t into = anchor.step - arrival->start;
    uint32_t reach = former->config.stack - 1 < into ? former->config.stack - 1 : (uint32_t)into;
    int32_t length = (int32_t)anchor.length, timestep = into < INT32_MAX ? (int32_t)into : INT32_MAX;

    formed->item = (struct nr_item){
        .first_step = anchor.step - reach,
        .steps = reach + anchor.length + 1,
        .anchor = reach,
        .length = anchor.length,
    };
    memset(formed->columns, 0, sizeof(formed->columns));
    if (former->config.kind == NR_WINDOW_SEQUENCE)
        put(formed->columns, former->config.timestep_offset, &timestep, sizeof(timestep));
    else
        put_nstep(formers, former, rewards, anchor, arrival->over && anchor.step + anchor.length == arrival->last, formed->columns);
    put(formed->columns, former->config.length_offset, &length, sizeof(length));
    put(formed->columns, former->config.version_offset, &version, sizeof(version));
}

uint32_t nr_form(const struct nr_formers *formers, struct nr_episode *episode, float *rewards, int kind, float reward,
                 bool terminated, bool truncated, uint64_t version, uint32_t row, struct nr_formed *formed, uint64_t *dropped)
{
    struct arrival arrival = {.start = episode->start, .fresh = episode->next, .final = (kind & NR_ROW_FINAL) != 0};
    uint32_t count = 0;

    if (kind & NR_ROW_STEP) {
        rewards[episode->next++ & (formers->reward_ring - 1)] = reward;
        episode->terminated = terminated;
        episode->awaiting = terminated || truncated;
    }
    if (arrival.final)
        episode->next++;
    arrival.last = episode->next - 1;
    arrival.over = arrival.final && episode->terminated;

    for (uint64_t from = 0, next; from != NO_ANCHOR; from = next) {
        next = NO_ANCHOR;
        for (uint32_t i = 0; i < formers->count; i++) {
            const struct nr_former *former = &formers->former[i];
            struct anchor anchor = anchor_from(former, &arrival, from);

            if (anchor.step == from) {
                if (anchor.length == 0) {
                    ++*dropped;
                } else {
                    formed[count].former = i;
                    formed[count].row = row;
                    form(formers, former, &arrival, rewards, anchor, version, &formed[count]);
                    count++;
                }
                anchor = anchor_from(former, &arrival, from + 1);
            }
            if (anchor.step < next)
                next = anchor.step;
        }
    }
    if (arrival.final) {
        episode->start = episode->next;
        episode->awaiting = 0;
        episode->terminated = 0;
    }
    return count;
}
