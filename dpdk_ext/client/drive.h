/* Who moves datagrams between the socket and the protocol client. Private to client/.
 *
 * Any thread that holds the replay's mutex may receive and send without sleeping. Whoever waits drives: it receives, gives way,
 * and at last sleeps in the kernel; at most one thread sleeps there, the others sleep on `changed`. While nobody waits, the
 * progress thread looks after what is open: it sleeps in the kernel where an answer is awaited that the user will want soon (rows
 * asked for ahead), and else looks now and then, so that a call that follows a call pays nothing for it. */
#ifndef NR_CLIENT_DRIVE_H
#define NR_CLIENT_DRIVE_H

#include "../io/packet_io.h"
#include "../io/waiter.h"
#include "../protocol/client.h"
#include "runtime.h"

enum { NR_DRIVE_BURST = 64 /* datagrams received or sent at once */ };

struct nr_network {
    struct nr_replay replay; /* first */
    struct nr_client *client;
    struct nr_packet_io *io;
    struct nr_waiter *waiter; /* on it */
    bool busy;            /* enum nr_poll: spin instead of sleeping */
    bool waiting;         /* a caller drives and has given up the mutex */
    bool sleeping;        /* a thread is in nr_waiter_wait */
    bool begun;           /* the progress thread was started */
    bool parked;          /* it sleeps until it is signalled */
    bool flowing;         /* the last sign of life was a datagram, not the beginning of a call */
    bool slept;           /* a caller has slept in nr_waiter_wait since a datagram came */
    uint32_t misses;      /* answers in a row that came soon, but only after a sleep */
    uint32_t waits;       /* answers to callers */
    uint32_t outstanding; /* datagrams sent and unanswered */
    uint64_t wakeup;      /* when nr_client_send is due, ns; UINT64_MAX: never */
    uint64_t sleep_until; /* until when the thread in nr_waiter_wait sleeps, ns */
    uint64_t tick;        /* until when the progress thread sleeps, ns */
    uint64_t active;      /* when a call last began, or a datagram came, ns */
    uint64_t called;      /* when a call last began or waited, ns */
    uint64_t progress;    /* of the client, as last seen */
    uint64_t unreachable; /* reports of the socket before the last datagram that came */
    uint64_t sessions;    /* of the client, as last seen */
    pthread_t thread;     /* the progress thread */
    pthread_cond_t work;  /* on CLOCK_MONOTONIC: wakes it */
    struct nr_sample *pending, **last_pending; /* samples not whole yet, by age */
    struct nr_actor *dead;                     /* closed actors whose streams the client still sends */
    struct nr_loss *losses;                    /* not yet taken, [loss_count] */
    uint32_t loss_count;
    struct nr_outbox outbox;
    struct nr_tx tx[NR_DRIVE_BURST];
    struct nr_rx rx[NR_DRIVE_BURST];
    uint8_t *arena; /* of the outbox */
};

static inline struct nr_network *nr_network_of(const struct nr_replay *replay)
{
    return (struct nr_network *)replay;
}

/* NR_OK or NR_NO_MEMORY. The socket stays the caller's until then. */
int nr_drive_open(struct nr_network *network, struct nr_packet_io *io, bool busy);
/* The replay is closed and nobody is inside: ends the progress thread and closes the socket. */
void nr_drive_close(struct nr_network *network);

/* Mutex held, never sleeps: sends what is due. */
void nr_drive_send(struct nr_network *network, uint64_t now);
/* Receives what is there, then sends what is due. True when anything came. */
bool nr_drive_step(struct nr_network *network, uint64_t now);
/* The two halves of a blocking call, see struct nr_backend. */
void nr_drive_wait(struct nr_replay *replay, uint64_t now, uint64_t until);
void nr_drive_leave(struct nr_replay *replay);
/* Wakes whoever sleeps, wherever. */
void nr_drive_wake(struct nr_network *network);

/* Provided by network.c: the client's progress has risen. */
void nr_network_progress(struct nr_network *network);

#endif
