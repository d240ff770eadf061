#include "layout.h"

#include <stdlib.h>
#include <string.h>

#include "../engine/view.h"

static bool gathers_fit(const struct nr_engine_config *config, const struct nr_table_config *table)
{
    const struct nr_store_config *store = &config->stores[table->store];

    for (uint32_t i = 0; i < table->gather_count; i++) {
        const struct nr_gather *gather = &config->gathers[table->first_gather + i];

        if ((uint64_t)gather->source + gather->length > store->step_bytes || gather->more >= NR_MAX_WINDOW ||
            gather->target + nr_gather_bytes(gather) > table->row_bytes)
            return false;
    }
    return true;
}

static bool tables_fit(const struct nr_engine_config *config)
{
    for (uint32_t i = 0; i < config->table_count; i++) {
        const struct nr_table_config *table = &config->tables[i];

        if (table->store >= config->store_count || table->item_bytes > NR_MAX_ITEM_COLUMNS ||
            table->row_bytes < NR_ROW_HEAD + table->item_bytes || table->gather_count > NR_MAX_GATHERS || table->window == 0 ||
            table->window > config->stores[table->store].window || !gathers_fit(config, table))
            return false;
    }
    for (uint32_t i = 0; i < config->store_count; i++) {
        const struct nr_store_config *store = &config->stores[i];

        if (store->step_bytes == 0 || store->observation_bytes > store->step_bytes || store->window == 0 ||
            store->window > NR_MAX_WINDOW)
            return false;
    }
    return true;
}

static uint64_t gather_count(const struct nr_engine_config *config)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < config->table_count; i++) {
        uint64_t end = (uint64_t)config->tables[i].first_gather + config->tables[i].gather_count;

        if (end > count)
            count = end;
    }
    return count;
}

struct nr_layout *nr_layout_copy(const struct nr_engine_config *config, int *status)
{
    if (config->store_count > NR_MAX_STORES || config->table_count > NR_MAX_TABLES || config->set_count > NR_MAX_SETS ||
        !tables_fit(config)) {
        *status = NR_BAD_CONFIG;
        return NULL;
    }

    size_t stores = config->store_count * sizeof(*config->stores);
    size_t tables = config->table_count * sizeof(*config->tables);
    size_t sets = config->set_count * sizeof(*config->sets);
    size_t gathers = (size_t)gather_count(config) * sizeof(*config->gathers);
    /* Each struct's size is a multiple of its alignment; the widest come first. */
    struct nr_layout *layout = malloc(sizeof(*layout) + tables + sets + stores + gathers);
    uint8_t *place;

    if (layout == NULL) {
        *status = NR_NO_MEMORY;
        return NULL;
    }
    layout->config = *config;
    place = (uint8_t *)(layout + 1);
    if (tables != 0)
        layout->config.tables = memcpy(place, config->tables, tables);
    place += tables;
    if (sets != 0)
        layout->config.sets = memcpy(place, config->sets, sets);
    place += sets;
    if (stores != 0)
        layout->config.stores = memcpy(place, config->stores, stores);
    place += stores;
    if (gathers != 0)
        layout->config.gathers = memcpy(place, config->gathers, gathers);
    *status = NR_OK;
    return layout;
}
