#include "client_internal.h"

/* Congestion is judged by the round trip, in epochs of one window of answers: while the least round trip of an epoch stays within
 * twice the least ever plus a millisecond no queue stands, and the window grows; above that it shrinks in proportion. The least
 * of an epoch, because a standing queue delays every answer, while jitter and reordering delay some. Loss alone cuts the window
 * only above 15 % of an epoch (docs/protocol.md). */
enum { NR_SLACK = 1000 * 1000 /* ns over twice the least round trip */, NR_LOSS_PERCENT = 15 };

void nr_window_reset(struct nr_client *client)
{
    client->outstanding = 0;
    client->window = client->config.window ? client->config.window : 32;
    client->steady = false;
    client->epoch_answers = client->epoch_lost = 0;
    client->epoch_least = UINT64_MAX;
    client->smoothed = client->variance = client->least = 0; /* the way there may be another */
    client->served_until = 0; /* and the clock */
    memset(client->sent_counter, 0, sizeof(client->sent_counter));
}

void nr_window_sent(struct nr_client *client, uint64_t counter, uint64_t now)
{
    client->sent_counter[counter & (NR_SENT_RING - 1)] = counter;
    client->sent_at[counter & (NR_SENT_RING - 1)] = now;
}

static void cut(struct nr_client *client, double factor)
{
    client->steady = true;
    client->window *= factor;
    if (client->window < NR_LEAST_WINDOW)
        client->window = NR_LEAST_WINDOW;
}

static void judge(struct nr_client *client)
{
    uint64_t target = 2 * client->least + NR_SLACK;
    uint32_t datagrams = client->epoch_answers + client->epoch_lost;
    if (client->epoch_least > target)
        cut(client, 1.0 - 0.5 * (double)(client->epoch_least - target) / (double)client->epoch_least);
    else if (client->epoch_lost * 100 > datagrams * NR_LOSS_PERCENT && datagrams >= 32)
        cut(client, 0.5);
    else if (client->window < client->credits) /* what is not used says nothing about the path */
        client->window = client->steady ? client->window + 1 : client->window * 2;
    if (client->window > NR_MOST_WINDOW)
        client->window = NR_MOST_WINDOW;
    client->epoch_answers = client->epoch_lost = 0;
    client->epoch_least = UINT64_MAX;
}

uint64_t nr_window_answered(struct nr_client *client, const struct nr_wire_stamps *stamps, uint64_t now)
{
    uint64_t elapsed = 0;
    uint32_t place = stamps->echo & (NR_SENT_RING - 1);
    uint64_t counter = client->sent_counter[place];
    client->epoch_answers++;
    if (counter != 0 && (uint32_t)counter == stamps->echo && stamps->residence != UINT32_MAX) {
        elapsed = now - client->sent_at[place];
        uint64_t round_trip = elapsed > stamps->residence ? elapsed - stamps->residence : 1;
        client->view.round_trips++;
        if (client->smoothed == 0) {
            client->smoothed = round_trip;
            client->variance = round_trip / 2;
            client->least = round_trip;
        } else {
            uint64_t deviation = round_trip > client->smoothed ? round_trip - client->smoothed : client->smoothed - round_trip;
            client->variance += (int64_t)(deviation - client->variance) / 4; /* RFC 6298 */
            client->smoothed += (int64_t)(round_trip - client->smoothed) / 8;
            if (client->smoothed == 0)
                client->smoothed = 1;
            if (round_trip < client->least)
                client->least = round_trip;
        }
        if (round_trip < client->epoch_least)
            client->epoch_least = round_trip;
    }
    if (client->epoch_least != UINT64_MAX && (double)client->epoch_answers >= client->window)
        judge(client);
    return elapsed;
}

void nr_window_time(struct nr_client *client, const struct nr_wire_stamps *stamps, uint64_t sent, uint64_t now)
{
    uint64_t answered = stamps->received + stamps->residence;
    if (sent < client->timed_until)
        sent = client->timed_until;
    if (now > sent)
        client->view.answer_time += now - sent;
    client->timed_until = now;
    uint64_t received = stamps->received > client->served_until ? stamps->received : client->served_until;
    if (answered > received) {
        client->view.serving_time += answered - received;
        client->served_until = answered;
    }
    client->view.answers++;
}

void nr_window_lost(struct nr_client *client, uint32_t datagrams)
{
    client->epoch_lost += datagrams;
}

uint32_t nr_window_room(const struct nr_client *client)
{
    uint32_t limit = client->window < client->credits ? (uint32_t)client->window : client->credits;
    if (limit == 0)
        limit = 1;
    return client->outstanding < limit ? limit - client->outstanding : 0;
}

/* RFC 6298, with this protocol's bounds. */
uint64_t nr_window_timeout(const struct nr_client *client, uint32_t repeats)
{
    uint64_t least = client->config.least_timeout ? client->config.least_timeout : NR_LEAST_TIMEOUT;
    uint64_t timeout = client->smoothed ? client->smoothed + 4 * client->variance : NR_FIRST_TIMEOUT;
    if (timeout < least)
        timeout = least;
    timeout <<= repeats < 10 ? repeats : 10;
    return timeout < NR_MOST_TIMEOUT ? timeout : NR_MOST_TIMEOUT;
}
