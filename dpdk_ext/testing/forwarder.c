#include "forwarder.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../io/address.h"

#define BURST 64
#define SOCKET_BUFFER (4 << 20)
#define DEFAULT_QUEUE 8192
#define DEFAULT_RATE_QUEUE 65536u
#define DEFAULT_DEPTH 3u
#define DEFAULT_REORDER_NS 10000000u
#define LONGEST_NS 3600000000000u /* of any configured time */
#define NONE UINT32_MAX

/* epoll tokens; clients follow. */
enum { TOKEN_LISTEN, TOKEN_WAKE, TOKEN_CLIENT };

/* A datagram that waits: in the heap by its due time, and while it is held for reordering also in its flow's list. */
struct item {
    uint64_t due_ns;       /* when it moves on */
    uint64_t sequence;     /* orders equal due times */
    uint64_t jitter_ns;    /* drawn when it came, added when it leaves */
    uint64_t client_number; /* whose it is; stale when the client's place has been taken by another */
    uint32_t client;       /* index of that place */
    uint32_t length;       /* bytes in its buffer */
    uint32_t heap_at;      /* index in the heap, NONE when not there */
    uint32_t passes_left;  /* held: datagrams that must still pass it */
    uint32_t next, prev;   /* held: neighbours in the flow's list; free: next free item */
    uint8_t direction;
    bool held;
};

/* One client in one direction. */
struct flow {
    struct nr_fault_stream stream;
    uint32_t held_first, held_last; /* items held for reordering, oldest first */
};

struct client {
    union nr_address address; /* of the client */
    uint64_t hash;            /* of the address, 0 for a free place */
    uint64_t number;          /* in order of first datagram */
    uint64_t last_used;       /* datagram clock of its newest datagram */
    int fd;                   /* connected to the server */
    struct flow flow[2];
};

struct counters {
    _Atomic uint64_t received, forwarded, forwarded_bytes, lost, duplicated, reordered, corrupted, overflowed, refused;
};

struct nr_forwarder {
    int listen_fd, wake_fd, epoll_fd;
    uint16_t port;
    uint64_t seed;
    union nr_address server;

    /* Shared with other threads. */
    atomic_bool stopping;
    _Atomic uint64_t clients_seen;
    struct counters counters[2];
    pthread_mutex_t wanted_lock;           /* guards wanted */
    struct nr_forwarder_faults wanted[2];  /* as last set */
    _Atomic uint32_t wanted_version;       /* grows with each change of wanted */

    /* The running thread's. */
    struct nr_forwarder_faults faults[2];
    uint32_t faults_version;
    uint64_t now_ns;             /* read once per burst */
    uint64_t datagram_clock;     /* counts datagrams, for finding the least recent client */
    uint64_t sequence;           /* next item's */
    uint64_t link_free_ns[2];    /* when the rate limited link has sent all that was given to it */
    uint32_t max_clients, last_client;
    uint32_t queue, free_item;   /* items in all; first free one */
    uint32_t heap_count;
    uint32_t *heap;              /* items by due time */
    struct item *items;
    uint8_t (*item_buffer)[NR_FORWARDER_BUFFER];

    /* Datagrams about to be sent through one socket. */
    int out_fd;
    uint32_t out_count;
    uint8_t out_direction;
    uint32_t out_item[BURST]; /* to be freed afterwards, or NONE */
    struct mmsghdr out_message[BURST];
    struct iovec out_vector[BURST];

    struct mmsghdr rx_message[BURST];
    struct iovec rx_vector[BURST];
    union nr_address rx_address[BURST];
    struct client clients[NR_FORWARDER_CLIENTS];
    uint8_t rx_buffer[BURST][NR_FORWARDER_BUFFER];
};

/* Decisions. */

static uint64_t split_mix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static uint64_t draw(struct nr_fault_stream *stream)
{
    uint64_t *s = stream->state;
    uint64_t result = rotate(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

/* Uniform in [0, 1): never reaches a probability of 0, always below one of 1. */
static double draw_unit(struct nr_fault_stream *stream)
{
    return (double)(draw(stream) >> 11) * 0x1p-53;
}

void nr_fault_stream_init(struct nr_fault_stream *stream, uint64_t seed, uint64_t client, int direction)
{
    uint64_t state = seed;

    state = split_mix(&state) ^ client;
    state = split_mix(&state) ^ (uint64_t)direction;
    for (int i = 0; i < 4; i++)
        stream->state[i] = split_mix(&state);
}

struct nr_fault nr_fault_next(struct nr_fault_stream *stream, const struct nr_forwarder_faults *faults, uint32_t length)
{
    struct nr_fault fault = {0};

    fault.lost = draw_unit(stream) < faults->loss;
    fault.duplicated = draw_unit(stream) < faults->duplicate;
    fault.reordered = draw_unit(stream) < faults->reorder;
    fault.corrupted = draw_unit(stream) < faults->corrupt && length > 0;
    uint64_t where = draw(stream);
    fault.corrupt_bits = (uint8_t)(1 + (where & 0xffff) % 255);
    fault.corrupt_offset = length > 0 ? (uint32_t)((where >> 16) % length) : 0;
    fault.jitter_ns[0] = (uint64_t)(draw_unit(stream) * (double)faults->jitter_ns);
    fault.jitter_ns[1] = (uint64_t)(draw_unit(stream) * (double)faults->jitter_ns);
    return fault;
}

static bool faults_valid(const struct nr_forwarder_faults *f)
{
    /* Written so that NaN fails. */
    return f->loss >= 0 && f->loss <= 1 && f->duplicate >= 0 && f->duplicate <= 1 && f->reorder >= 0 && f->reorder <= 1 &&
           f->corrupt >= 0 && f->corrupt <= 1 && f->reorder_timeout_ns <= LONGEST_NS && f->delay_ns <= LONGEST_NS &&
           f->jitter_ns <= LONGEST_NS;
}

/* Counters have one writer, so no read-modify-write is needed. */
static void add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The heap of waiting items. */

static bool due_before(const struct nr_forwarder *f, uint32_t a, uint32_t b)
{
    const struct item *x = &f->items[a], *y = &f->items[b];

    return x->due_ns != y->due_ns ? x->due_ns < y->due_ns : x->sequence < y->sequence;
}

static void heap_place(struct nr_forwarder *f, uint32_t at, uint32_t item)
{
    f->heap[at] = item;
    f->items[item].heap_at = at;
}

static void heap_settle(struct nr_forwarder *f, uint32_t at, uint32_t item)
{
    while (at > 0 && due_before(f, item, f->heap[(at - 1) / 2])) {
        heap_place(f, at, f->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= f->heap_count)
            break;
        if (child + 1 < f->heap_count && due_before(f, f->heap[child + 1], f->heap[child]))
            child++;
        if (!due_before(f, f->heap[child], item))
            break;
        heap_place(f, at, f->heap[child]);
        at = child;
    }
    heap_place(f, at, item);
}

static void heap_insert(struct nr_forwarder *f, uint32_t item, uint64_t due_ns)
{
    f->items[item].due_ns = due_ns;
    f->items[item].sequence = f->sequence++;
    f->heap_count++;
    heap_settle(f, f->heap_count - 1, item);
}

static void heap_remove(struct nr_forwarder *f, uint32_t item)
{
    uint32_t at = f->items[item].heap_at;
    uint32_t last = f->heap[--f->heap_count];

    f->items[item].heap_at = NONE;
    if (last != item)
        heap_settle(f, at, last);
}

static uint32_t item_take(struct nr_forwarder *f, uint32_t client, uint8_t direction, const uint8_t *data, uint32_t length)
{
    uint32_t index = f->free_item;

    if (index == NONE)
        return NONE;
    struct item *item = &f->items[index];
    f->free_item = item->next;
    item->client = client;
    item->client_number = f->clients[client].number;
    item->direction = direction;
    item->length = length;
    item->held = false;
    memcpy(f->item_buffer[index], data, length);
    return index;
}

static void item_free(struct nr_forwarder *f, uint32_t index)
{
    f->items[index].next = f->free_item;
    f->free_item = index;
}

/* Sending on. */

static void flush(struct nr_forwarder *f)
{
    struct counters *counters = &f->counters[f->out_direction];
    bool retried = false;
    uint32_t done = 0;

    while (done < f->out_count) {
        int sent = sendmmsg(f->out_fd, f->out_message + done, f->out_count - done, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent > 0) {
            uint64_t bytes = 0;

            for (int i = 0; i < sent; i++)
                bytes += f->out_message[done + (uint32_t)i].msg_len;
            add(&counters->forwarded, (uint64_t)sent);
            add(&counters->forwarded_bytes, bytes);
            done += (uint32_t)sent;
            retried = false;
        } else if (errno == ECONNREFUSED && !retried) {
            retried = true; /* a report about an earlier datagram; this one was not tried */
        } else if (errno != EINTR) {
            add(&counters->refused, 1);
            done++;
            retried = false;
        }
    }
    for (uint32_t i = 0; i < f->out_count; i++) {
        if (f->out_item[i] != NONE)
            item_free(f, f->out_item[i]);
    }
    f->out_count = 0;
}

/* Queues a datagram for the next flush; data must stay until then. The item, if one is given, is freed by it. */
static void emit(struct nr_forwarder *f, uint32_t client, uint8_t direction, uint8_t *data, uint32_t length, uint32_t item)
{
    struct client *c = &f->clients[client];
    int fd = direction == NR_FORWARDER_TO_SERVER ? c->fd : f->listen_fd;

    if (f->out_count == BURST || (f->out_count > 0 && f->out_fd != fd))
        flush(f);
    uint32_t at = f->out_count++;
    struct msghdr *header = &f->out_message[at].msg_hdr;
    f->out_fd = fd;
    f->out_direction = direction;
    f->out_item[at] = item;
    f->out_vector[at] = (struct iovec){.iov_base = data, .iov_len = length};
    header->msg_name = direction == NR_FORWARDER_TO_SERVER ? NULL : &c->address;
    header->msg_namelen = direction == NR_FORWARDER_TO_SERVER ? 0 : nr_address_length(&c->address);
}

/* Past loss and reordering: through the rate limit and the delay. `item` is NONE or already holds the data. */
static void transmit(struct nr_forwarder *f, uint32_t client, uint8_t direction, uint8_t *data, uint32_t length, uint64_t jitter_ns,
                     uint32_t item)
{
    const struct nr_forwarder_faults *faults = &f->faults[direction];
    uint64_t due = f->now_ns;

    if (faults->rate > 0) {
        double limit = (double)(faults->rate_queue_bytes > 0 ? faults->rate_queue_bytes : DEFAULT_RATE_QUEUE);
        uint64_t start = f->link_free_ns[direction] > due ? f->link_free_ns[direction] : due;
        double backlog = (double)(start - due) * 1e-9 * (double)faults->rate;
        double takes_ns = (double)length * 1e9 / (double)faults->rate;

        /* At an empty queue any datagram passes, however small the limit. */
        if (takes_ns > (double)LONGEST_NS || (start > due && backlog + (double)length > limit)) {
            add(&f->counters[direction].overflowed, 1);
            if (item != NONE)
                item_free(f, item);
            return;
        }
        f->link_free_ns[direction] = start + (uint64_t)takes_ns;
        due = f->link_free_ns[direction];
    }
    due += faults->delay_ns + jitter_ns;
    if (due <= f->now_ns) {
        emit(f, client, direction, data, length, item);
        return;
    }
    if (item == NONE)
        item = item_take(f, client, direction, data, length);
    if (item == NONE) {
        add(&f->counters[direction].overflowed, 1);
        return;
    }
    heap_insert(f, item, due);
}

/* Reordering. */

static void hold(struct nr_forwarder *f, uint32_t index, uint64_t jitter_ns)
{
    struct item *item = &f->items[index];
    struct flow *flow = &f->clients[item->client].flow[item->direction];
    const struct nr_forwarder_faults *faults = &f->faults[item->direction];

    item->held = true;
    item->jitter_ns = jitter_ns;
    item->passes_left = faults->reorder_depth > 0 ? faults->reorder_depth : DEFAULT_DEPTH;
    item->next = NONE;
    item->prev = flow->held_last;
    if (flow->held_last != NONE)
        f->items[flow->held_last].next = index;
    else
        flow->held_first = index;
    flow->held_last = index;
    heap_insert(f, index, f->now_ns + (faults->reorder_timeout_ns > 0 ? faults->reorder_timeout_ns : DEFAULT_REORDER_NS));
}

static void unhold(struct nr_forwarder *f, uint32_t index)
{
    struct item *item = &f->items[index];
    struct flow *flow = &f->clients[item->client].flow[item->direction];

    if (item->prev != NONE)
        f->items[item->prev].next = item->next;
    else
        flow->held_first = item->next;
    if (item->next != NONE)
        f->items[item->next].prev = item->prev;
    else
        flow->held_last = item->prev;
    item->held = false;
}

/* A datagram of the flow has passed: those that waited for it go on. */
static void passed(struct nr_forwarder *f, struct flow *flow)
{
    uint32_t index = flow->held_first;

    while (index != NONE) {
        struct item *item = &f->items[index];
        uint32_t next = item->next;

        if (--item->passes_left == 0) {
            heap_remove(f, index);
            unhold(f, index);
            transmit(f, item->client, item->direction, f->item_buffer[index], item->length, item->jitter_ns, index);
        }
        index = next;
    }
}

static void admit(struct nr_forwarder *f, uint32_t client, uint8_t direction, uint8_t *data, uint32_t length)
{
    struct flow *flow = &f->clients[client].flow[direction];
    struct counters *counters = &f->counters[direction];
    struct nr_fault fault = nr_fault_next(&flow->stream, &f->faults[direction], length);

    add(&counters->received, 1);
    if (fault.lost) {
        add(&counters->lost, 1);
        return;
    }
    if (fault.corrupted) {
        add(&counters->corrupted, 1);
        data[fault.corrupt_offset] ^= fault.corrupt_bits;
    }
    if (fault.duplicated)
        add(&counters->duplicated, 1);
    if (fault.reordered) {
        uint32_t item = item_take(f, client, direction, data, length);

        if (item != NONE) {
            add(&counters->reordered, 1);
            hold(f, item, fault.jitter_ns[0]);
        } else {
            add(&counters->overflowed, 1);
        }
    } else {
        transmit(f, client, direction, data, length, fault.jitter_ns[0], NONE);
    }
    if (fault.duplicated)
        transmit(f, client, direction, data, length, fault.jitter_ns[1], NONE);
    if (!fault.reordered && flow->held_first != NONE)
        passed(f, flow);
}

static void fire_timers(struct nr_forwarder *f)
{
    f->now_ns = clock_ns();
    while (f->heap_count > 0 && f->items[f->heap[0]].due_ns <= f->now_ns) {
        uint32_t index = f->heap[0];
        struct item *item = &f->items[index];

        heap_remove(f, index);
        if (item->client_number != f->clients[item->client].number) {
            add(&f->counters[item->direction].overflowed, 1);
            item_free(f, index);
        } else if (item->held) {
            unhold(f, index);
            transmit(f, item->client, item->direction, f->item_buffer[index], item->length, item->jitter_ns, index);
        } else {
            emit(f, item->client, item->direction, f->item_buffer[index], item->length, index);
        }
    }
    flush(f);
}

/* Clients. */

static uint64_t address_hash(const union nr_address *address)
{
    uint64_t state = address->any.sa_family;

    if (address->any.sa_family == AF_INET) {
        state ^= (uint64_t)address->ip4.sin_addr.s_addr << 32 | (uint64_t)address->ip4.sin_port << 16;
    } else {
        uint64_t halves[2];

        memcpy(halves, &address->ip6.sin6_addr, sizeof(halves));
        state ^= halves[0] ^ (uint64_t)address->ip6.sin6_port << 32 ^ (uint64_t)address->ip6.sin6_scope_id << 48;
        state = split_mix(&state) ^ halves[1];
    }
    uint64_t hash = split_mix(&state);
    return hash != 0 ? hash : 1;
}

static bool address_equal(const union nr_address *a, const union nr_address *b)
{
    if (a->any.sa_family != b->any.sa_family)
        return false;
    if (a->any.sa_family == AF_INET)
        return a->ip4.sin_port == b->ip4.sin_port && a->ip4.sin_addr.s_addr == b->ip4.sin_addr.s_addr;
    return a->ip6.sin6_port == b->ip6.sin6_port && a->ip6.sin6_scope_id == b->ip6.sin6_scope_id &&
           memcmp(&a->ip6.sin6_addr, &b->ip6.sin6_addr, sizeof(a->ip6.sin6_addr)) == 0;
}

static void client_leave(struct nr_forwarder *f, struct client *client)
{
    /* Its delayed items are found stale when they are due; its held ones leave the list with it. */
    for (int direction = 0; direction < 2; direction++) {
        for (uint32_t i = client->flow[direction].held_first, next; i != NONE; i = next) {
            next = f->items[i].next;
            heap_remove(f, i);
            item_free(f, i);
            add(&f->counters[direction].overflowed, 1);
        }
    }
    close(client->fd);
    client->hash = 0;
    client->number = UINT64_MAX;
}

/* The client at an address, taken in when it is new. NONE when the system gives no socket. */
static uint32_t client_find(struct nr_forwarder *f, const union nr_address *address)
{
    uint64_t hash = address_hash(address);
    uint32_t place = 0;

    if (f->clients[f->last_client].hash == hash && address_equal(&f->clients[f->last_client].address, address))
        return f->last_client;
    for (uint32_t i = 0; i < f->max_clients; i++) {
        struct client *c = &f->clients[i];

        if (c->hash == hash && address_equal(&c->address, address))
            return f->last_client = i;
        if (c->hash == 0 ? f->clients[place].hash != 0 : f->clients[place].hash != 0 && c->last_used < f->clients[place].last_used)
            place = i;
    }

    struct client *client = &f->clients[place];
    flush(f);
    if (client->hash != 0)
        client_leave(f, client);
    client->fd = nr_address_open(&f->server, true);
    if (client->fd < 0)
        return NONE;
    nr_address_buffers(client->fd, SOCKET_BUFFER, SOCKET_BUFFER);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = TOKEN_CLIENT + place};
    if (epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, client->fd, &event) < 0) {
        close(client->fd);
        return NONE;
    }
    client->address = *address;
    client->hash = hash;
    client->number = atomic_load_explicit(&f->clients_seen, memory_order_relaxed);
    for (int direction = 0; direction < 2; direction++) {
        nr_fault_stream_init(&client->flow[direction].stream, f->seed, client->number, direction);
        client->flow[direction].held_first = client->flow[direction].held_last = NONE;
    }
    add(&f->clients_seen, 1);
    return f->last_client = place;
}

/* Running. */

/* After a receive, so that what was sent after nr_forwarder_set() returned meets the new faults. */
static void take_faults(struct nr_forwarder *f)
{
    if (atomic_load(&f->wanted_version) == f->faults_version)
        return;
    pthread_mutex_lock(&f->wanted_lock);
    memcpy(f->faults, f->wanted, sizeof(f->faults));
    f->faults_version = atomic_load(&f->wanted_version);
    pthread_mutex_unlock(&f->wanted_lock);
}

static void receive(struct nr_forwarder *f, int fd, uint8_t direction, uint32_t client)
{
    for (int i = 0; i < BURST; i++)
        f->rx_message[i].msg_hdr.msg_namelen = sizeof(f->rx_address[i]);
    int count = recvmmsg(fd, f->rx_message, BURST, MSG_DONTWAIT, NULL);
    if (count <= 0)
        return; /* nothing, or a report that the server refused: its clients see that as silence */

    take_faults(f);
    f->now_ns = clock_ns();
    for (int i = 0; i < count; i++) {
        if (direction == NR_FORWARDER_TO_SERVER)
            client = client_find(f, &f->rx_address[i]);
        if (client == NONE || f->rx_message[i].msg_hdr.msg_flags & MSG_TRUNC) {
            add(&f->counters[direction].received, 1);
            add(&f->counters[direction].overflowed, 1);
            continue;
        }
        f->clients[client].last_used = ++f->datagram_clock;
        admit(f, client, direction, f->rx_buffer[i], f->rx_message[i].msg_len);
    }
    flush(f);
}

static int wait_for_work(struct nr_forwarder *f)
{
    struct pollfd fd = {.fd = f->epoll_fd, .events = POLLIN};
    struct timespec timeout = {0};

    if (f->heap_count > 0) {
        uint64_t due = f->items[f->heap[0]].due_ns, now = clock_ns();

        if (due <= now)
            return 0;
        timeout.tv_sec = (time_t)((due - now) / 1000000000u);
        timeout.tv_nsec = (long)((due - now) % 1000000000u);
    }
    if (ppoll(&fd, 1, f->heap_count > 0 ? &timeout : NULL, NULL) < 0 && errno != EINTR)
        return -errno;
    return 0;
}

int nr_forwarder_run(struct nr_forwarder *f)
{
    struct epoll_event events[BURST];
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    int result = 0;

    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    while (!atomic_load(&f->stopping)) {
        int count = epoll_wait(f->epoll_fd, events, BURST, 0);

        if (count < 0 && errno != EINTR) {
            result = -errno;
            break;
        }
        for (int i = 0; i < count; i++) {
            uint32_t token = events[i].data.u32;

            if (token == TOKEN_LISTEN)
                receive(f, f->listen_fd, NR_FORWARDER_TO_SERVER, NONE);
            else if (token >= TOKEN_CLIENT && f->clients[token - TOKEN_CLIENT].hash != 0)
                receive(f, f->clients[token - TOKEN_CLIENT].fd, NR_FORWARDER_TO_CLIENT, token - TOKEN_CLIENT);
        }
        fire_timers(f);
        if (count <= 0 && (result = wait_for_work(f)) < 0)
            break;
    }
    if (slack > 0)
        prctl(PR_SET_TIMERSLACK, (unsigned long)slack, 0, 0, 0);
    return result;
}

void nr_forwarder_stop(struct nr_forwarder *f)
{
    const uint64_t one = 1;
    int saved = errno; /* a signal handler may be calling */

    atomic_store(&f->stopping, true);
    (void)!write(f->wake_fd, &one, sizeof(one));
    errno = saved;
}

int nr_forwarder_set(struct nr_forwarder *f, int direction, const struct nr_forwarder_faults *faults)
{
    if (direction < NR_FORWARDER_TO_SERVER || direction > NR_FORWARDER_BOTH || !faults_valid(faults))
        return -EINVAL;
    pthread_mutex_lock(&f->wanted_lock);
    for (int i = 0; i < 2; i++) {
        if (direction == i || direction == NR_FORWARDER_BOTH)
            f->wanted[i] = *faults;
    }
    atomic_fetch_add(&f->wanted_version, 1);
    pthread_mutex_unlock(&f->wanted_lock);
    return 0;
}

void nr_forwarder_counters(const struct nr_forwarder *f, int direction, struct nr_forwarder_counters *counters)
{
    const struct counters *from = &f->counters[direction == NR_FORWARDER_TO_CLIENT];

    counters->received = atomic_load_explicit(&from->received, memory_order_relaxed);
    counters->forwarded = atomic_load_explicit(&from->forwarded, memory_order_relaxed);
    counters->forwarded_bytes = atomic_load_explicit(&from->forwarded_bytes, memory_order_relaxed);
    counters->lost = atomic_load_explicit(&from->lost, memory_order_relaxed);
    counters->duplicated = atomic_load_explicit(&from->duplicated, memory_order_relaxed);
    counters->reordered = atomic_load_explicit(&from->reordered, memory_order_relaxed);
    counters->corrupted = atomic_load_explicit(&from->corrupted, memory_order_relaxed);
    counters->overflowed = atomic_load_explicit(&from->overflowed, memory_order_relaxed);
    counters->refused = atomic_load_explicit(&from->refused, memory_order_relaxed);
}

uint64_t nr_forwarder_clients(const struct nr_forwarder *f)
{
    return atomic_load_explicit(&f->clients_seen, memory_order_relaxed);
}

uint16_t nr_forwarder_port(const struct nr_forwarder *f)
{
    return f->port;
}

void nr_forwarder_close(struct nr_forwarder *f)
{
    if (f == NULL)
        return;
    for (uint32_t i = 0; i < f->max_clients; i++) {
        if (f->clients[i].hash != 0)
            close(f->clients[i].fd);
    }
    if (f->listen_fd >= 0)
        close(f->listen_fd);
    if (f->wake_fd >= 0)
        close(f->wake_fd);
    if (f->epoll_fd >= 0)
        close(f->epoll_fd);
    pthread_mutex_destroy(&f->wanted_lock);
    free(f->heap);
    free(f->items);
    free(f->item_buffer);
    free(f);
}

/* Opening. */

static int open_sockets(struct nr_forwarder *f, const struct nr_forwarder_config *config)
{
    union nr_address address;
    socklen_t length = sizeof(address);
    struct nr_peer self;

    /* Opened once to learn which of the server's addresses can be used, so that names are never resolved while running. */
    int fd = nr_address_socket(config->server_host, config->server_port, true, &f->server);
    if (fd < 0)
        return fd;
    close(fd);
    f->listen_fd = nr_address_socket(config->listen_host, config->listen_port, false, &address);
    if (f->listen_fd < 0)
        return f->listen_fd;
    nr_address_buffers(f->listen_fd, SOCKET_BUFFER, SOCKET_BUFFER);
    if (getsockname(f->listen_fd, &address.any, &length) < 0)
        return -errno;
    nr_address_to_peer(&address, &self);
    f->port = nr_peer_port(&self);
    f->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (f->wake_fd < 0 || f->epoll_fd < 0)
        return -errno;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = TOKEN_LISTEN};
    if (epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, f->listen_fd, &event) < 0)
        return -errno;
    event.data.u32 = TOKEN_WAKE;
    if (epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, f->wake_fd, &event) < 0)
        return -errno;
    return 0;
}

struct nr_forwarder *nr_forwarder_open(const struct nr_forwarder_config *config, int *error)
{
    struct nr_forwarder *f;

    *error = -EINVAL;
    if (config->server_port == 0 || config->max_clients > NR_FORWARDER_CLIENTS || config->queue_datagrams > 1u << 24 ||
        !faults_valid(&config->faults[0]) || !faults_valid(&config->faults[1]))
        return NULL;
    *error = -ENOMEM;
    f = calloc(1, sizeof(*f));
    if (f == NULL)
        return NULL;
    f->listen_fd = f->wake_fd = f->epoll_fd = -1;
    f->seed = config->seed;
    f->max_clients = config->max_clients > 0 ? config->max_clients : NR_FORWARDER_CLIENTS;
    f->queue = config->queue_datagrams > 0 ? config->queue_datagrams : DEFAULT_QUEUE;
    memcpy(f->faults, config->faults, sizeof(f->faults));
    memcpy(f->wanted, config->faults, sizeof(f->wanted));
    pthread_mutex_init(&f->wanted_lock, NULL);
    f->heap = calloc(f->queue, sizeof(*f->heap));
    f->items = calloc(f->queue, sizeof(*f->items));
    /* Pages are touched only when that many datagrams wait at once. */
    f->item_buffer = calloc(f->queue, sizeof(*f->item_buffer));
    if (f->heap == NULL || f->items == NULL || f->item_buffer == NULL) {
        nr_forwarder_close(f);
        return NULL;
    }
    for (uint32_t i = 0; i < f->queue; i++)
        f->items[i].next = i + 1 < f->queue ? i + 1 : NONE;
    for (int i = 0; i < BURST; i++) {
        f->rx_vector[i] = (struct iovec){.iov_base = f->rx_buffer[i], .iov_len = NR_FORWARDER_BUFFER};
        f->rx_message[i].msg_hdr.msg_iov = &f->rx_vector[i];
        f->rx_message[i].msg_hdr.msg_iovlen = 1;
        f->rx_message[i].msg_hdr.msg_name = &f->rx_address[i];
        f->out_message[i].msg_hdr.msg_iov = &f->out_vector[i];
        f->out_message[i].msg_hdr.msg_iovlen = 1;
    }
    *error = open_sockets(f, config);
    if (*error < 0) {
        nr_forwarder_close(f);
        return NULL;
    }
    return f;
}
