#include "former.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_THERE = UINT32_MAX };

static bool column_fits(uint32_t offset, uint32_t bytes, uint32_t item_bytes)
{
    return offset == NOT_THERE || (uint64_t)offset + bytes <= item_bytes;
}

static bool rule_fits(const struct nr_former_config *config, uint32_t item_bytes)
{
    return config->n >= 1 && config->stack >= 1 && (uint64_t)config->n + config->stack <= NR_MAX_WINDOW &&
           item_bytes <= NR_MAX_ITEM_COLUMNS && column_fits(config->reward_offset, sizeof(float), item_bytes) &&
           column_fits(config->discount_offset, sizeof(float), item_bytes) &&
           column_fits(config->length_offset, sizeof(int32_t), item_bytes) &&
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

        *former = (struct nr_former){.config = configs[i], .item_bytes = item_bytes[i], .power = power};
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

/* The item of anchor t with k steps; `over`: step t + k is the final observation of a terminated episode. */
static void form(const struct nr_formers *formers, const struct nr_former *former, uint64_t start, const float *rewards, uint64_t t,
                 uint32_t k, bool over, uint64_t version, struct nr_formed *formed)
{
    uint32_t reach = former->config.stack - 1;
    uint64_t first = t - start < reach ? start : t - reach;
    double sum = 0;

    for (uint32_t i = 0; i < k; i++)
        sum += former->power[i] * (double)rewards[(t + i) & (formers->reward_ring - 1)];

    float reward = (float)sum, discount = over ? 0.0F : (float)former->power[k];
    int32_t length = (int32_t)k;

    formed->item = (struct nr_item){
        .first_step = first,
        .steps = (uint32_t)(t + k - first) + 1,
        .anchor = (uint32_t)(t - first),
        .length = k,
    };
    memset(formed->columns, 0, sizeof(formed->columns));
    put(formed->columns, former->config.reward_offset, &reward, sizeof(reward));
    put(formed->columns, former->config.discount_offset, &discount, sizeof(discount));
    put(formed->columns, former->config.length_offset, &length, sizeof(length));
    put(formed->columns, former->config.version_offset, &version, sizeof(version));
}

uint32_t nr_form(const struct nr_formers *formers, struct nr_episode *episode, float *rewards, int kind, float reward,
                 bool terminated, bool truncated, uint64_t version, uint32_t row, struct nr_formed *formed, uint64_t *dropped)
{
    uint64_t fresh = episode->next; /* first step whose observation this row brings */
    uint64_t start = episode->start;
    bool final = (kind & NR_ROW_FINAL) != 0;
    uint32_t count = 0;

    if (kind & NR_ROW_STEP) {
        rewards[episode->next++ & (formers->reward_ring - 1)] = reward;
        episode->terminated = terminated;
        episode->awaiting = terminated || truncated;
    }
    if (final)
        episode->next++;

    uint64_t last = episode->next - 1; /* newest step whose observation is known */
    bool over = final && episode->terminated;
    uint64_t t = fresh - start > formers->longest ? fresh - formers->longest : start;

    for (; t < last; t++) {
        for (uint32_t i = 0; i < formers->count; i++) {
            const struct nr_former *former = &formers->former[i];
            uint32_t n = former->config.n;
            uint32_t k = n;

            if (t + n < fresh)
                continue;
            if (t + n > last) {
                if (!final)
                    continue;
                if (!over && n < former->config.stack) {
                    ++*dropped;
                    continue;
                }
                k = (uint32_t)(last - t);
            }
            formed[count].former = i;
            formed[count].row = row;
            form(formers, former, start, rewards, t, k, over && t + k == last, version, &formed[count]);
            count++;
        }
    }
    if (final) {
        episode->start = episode->next;
        episode->awaiting = 0;
        episode->terminated = 0;
    }
    return count;
}
