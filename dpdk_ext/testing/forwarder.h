/*
 * A seeded UDP forwarder: a bad network between clients and one server, made of loss, duplication, reordering, delay, a rate limit
 * and corruption. Clients speak to its port; each gets a socket of its own towards the server, by which replies come back.
 *
 * Decisions are a fixed sequence for each client and direction, drawn from the seed alone: the n-th datagram of a client meets the
 * same fate whatever the timing. Clients are numbered in the order in which they first speak.
 *
 * Corruption changes the payload and sends it with a right UDP checksum, so receivers must not count on the checksum behind it.
 * One thread runs it; the functions that say so may be called from others meanwhile. All memory is taken when it opens.
 */
#ifndef NR_TESTING_FORWARDER_H
#define NR_TESTING_FORWARDER_H

#include <stdbool.h>
#include <stdint.h>

/* Most clients at once; a further one takes the place of the one that was silent longest. */
#define NR_FORWARDER_CLIENTS 256
/* Bytes of the largest datagram that passes; longer ones are dropped and counted. */
#define NR_FORWARDER_BUFFER 9216

enum nr_forwarder_direction {
    NR_FORWARDER_TO_SERVER = 0,
    NR_FORWARDER_TO_CLIENT = 1,
    NR_FORWARDER_BOTH = 2, /* for nr_forwarder_set() only */
};

/* What happens to datagrams in one direction. Zero everywhere means that all pass at once. */
struct nr_forwarder_faults {
    double loss;                /* probability, 0 to 1; 1 is a partition */
    double duplicate;           /* probability that a second copy follows */
    double reorder;             /* probability that a datagram is held until others of its client have passed */
    double corrupt;             /* probability that one byte is changed (in both copies) */
    uint32_t reorder_depth;     /* datagrams that pass a held one; 0 means 3 */
    uint64_t reorder_timeout_ns; /* a held one goes after this time at the latest; 0 means 10 ms */
    uint64_t delay_ns;          /* added to every datagram */
    uint64_t jitter_ns;         /* added besides, uniform from 0 to this; reorders by itself */
    uint64_t rate;              /* payload bytes per second, shared by all clients; 0 means no limit */
    uint64_t rate_queue_bytes;  /* bytes that may wait for the rate; beyond, the newest is dropped; 0 means 64 KiB */
};

/* How to open one. */
struct nr_forwarder_config {
    const char *listen_host;               /* numeric address or name to listen on */
    uint16_t listen_port;                  /* UDP port; 0: the kernel chooses */
    const char *server_host;               /* numeric address or name of the server */
    uint16_t server_port;                  /* its UDP port */
    uint64_t seed;                         /* of every decision */
    uint32_t max_clients;                  /* 1 to NR_FORWARDER_CLIENTS; 0 means that many */
    uint32_t queue_datagrams;              /* datagrams that may be held or delayed in all; 0 means 8192 */
    struct nr_forwarder_faults faults[2];  /* by direction, TO_SERVER and TO_CLIENT */
};

/* What happened in one direction. Once nothing is held: received + duplicated = forwarded + lost + overflowed + refused. */
struct nr_forwarder_counters {
    uint64_t received;        /* datagrams that came */
    uint64_t forwarded;       /* datagrams sent on, second copies included */
    uint64_t forwarded_bytes; /* their payload bytes */
    uint64_t lost;            /* dropped by `loss` */
    uint64_t duplicated;      /* second copies made */
    uint64_t reordered;       /* held back */
    uint64_t corrupted;       /* changed */
    uint64_t overflowed;      /* dropped because a queue was full (rate or memory), too long, or of a replaced client */
    uint64_t refused;         /* refused by the kernel when sent on */
};

/* The fate of one datagram. */
struct nr_fault {
    bool lost;
    bool duplicated;
    bool reordered;
    bool corrupted;
    uint8_t corrupt_bits;     /* XORed into the byte; never 0 */
    uint32_t corrupt_offset;  /* byte that changes */
    uint64_t jitter_ns[2];    /* of the datagram and of its copy, 0 to faults.jitter_ns */
};

/* The decisions of one client in one direction. */
struct nr_fault_stream {
    uint64_t state[4]; /* xoshiro256** */
};

/* Starts the sequence for a client (numbered from 0) and direction. */
void nr_fault_stream_init(struct nr_fault_stream *stream, uint64_t seed, uint64_t client, int direction);

/* Draws the next datagram's fate. Each fault has a draw of its own, so changing one probability leaves the others' sequence. */
struct nr_fault nr_fault_next(struct nr_fault_stream *stream, const struct nr_forwarder_faults *faults, uint32_t length);

struct nr_forwarder;

/* Opens and listens. NULL on failure, with *error a negative errno: -EINVAL for a bad setting, else as nr_udp_listen(). */
struct nr_forwarder *nr_forwarder_open(const struct nr_forwarder_config *config, int *error);

/* The port that clients speak to. From any thread. */
uint16_t nr_forwarder_port(const struct nr_forwarder *forwarder);

/* Forwards until nr_forwarder_stop(); to be run in a thread of its own. 0, or a negative errno if the system refuses to go on. */
int nr_forwarder_run(struct nr_forwarder *forwarder);

/* Ends nr_forwarder_run(), also one that has yet to start. From any thread or signal handler. */
void nr_forwarder_stop(struct nr_forwarder *forwarder);

/*
 * Replaces the faults of a direction (enum nr_forwarder_direction). What is sent to the forwarder after this returns meets the new
 * ones; what is held or delayed keeps its fate. 0 or -EINVAL. From any thread.
 */
int nr_forwarder_set(struct nr_forwarder *forwarder, int direction, const struct nr_forwarder_faults *faults);

/* Copies the counters of TO_SERVER or TO_CLIENT. From any thread. */
void nr_forwarder_counters(const struct nr_forwarder *forwarder, int direction, struct nr_forwarder_counters *counters);

/* Clients seen since it opened, replaced ones included. From any thread. */
uint64_t nr_forwarder_clients(const struct nr_forwarder *forwarder);

/* Frees everything; held datagrams are gone. No thread may be in any function of this forwarder. NULL is allowed. */
void nr_forwarder_close(struct nr_forwarder *forwarder);

#endif
