/*
 * What the files of the vhost server share; only vhost*.c include it. Calls go down:
 *
 *   vhost.c          the socket; opening and closing
 *   vhost_ring.c     the data path: frames out of and into the rings, and sleeping until there are some
 *   vhost_door.c     the control path: who is let in, and what epoll tells of
 *   vhost_setup.c    the hello and the vhost-user messages of one client, until its rings are there
 *   vhost_device.c   devices taken in and away, active and idle ones
 *   vhost_memory.c   clients' memory, and its faults
 */
#ifndef NR_IO_VHOST_INTERNAL_H
#define NR_IO_VHOST_INTERNAL_H

#include <linux/virtio_ring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <sys/un.h>

#include "common.h"
#include "link.h"
#include "vhost.h"

/* Datagrams that one receive_burst hands up at most; each has room for the largest. */
#define NR_VHOST_BURST 64
/* Bytes between two payloads in the private buffer, at most. */
#define NR_VHOST_ROOM ((NR_LINK_PREFIX + NR_MAX_DATAGRAM + 63u) / 64 * 64 + 64)
/* What epoll tells: a kind, and the index of a device in the low half. */
#define NR_VHOST_TELL(kind, index) ((uint64_t)(kind) << 32 | (index))

enum { NR_VHOST_LISTENER, NR_VHOST_TIMER, NR_VHOST_CONNECTION, NR_VHOST_KICK };
enum state { FREE, GREETING, SETUP, READY };

/*
 * One split virtqueue of a client, all of it in memory that changes under our hands: indices of ours are never read back from it,
 * and each of the client's values is read once, by load16() and the like, and checked.
 */
struct ring {
    const struct vring_desc *desc; /* [size] */
    struct vring_avail *avail;     /* the client's */
    struct vring_used *used;       /* ours to write */
    uint16_t size;                 /* descriptors, a power of two; 0: not said yet */
    uint16_t next;                 /* index of the next available entry to take; who arms reads it */
    uint16_t known;                /* the client's index of available entries as last read */
    uint16_t done;                 /* what used->idx becomes */
    bool addressed, kicked;        /* SET_VRING_ADDR and SET_VRING_KICK came */
    struct nr_vhost_address address; /* as the client gave it */
};

struct device {
    enum state state;
    uint32_t index;     /* of this device */
    struct ring rx, tx; /* named as the client sees them: we take from tx and fill rx */

    uint8_t *memory;        /* the client's, mapped; NULL: not yet */
    uint64_t memory_bytes;  /* of it */
    uint64_t guest_address; /* what descriptors count from */
    uint64_t user_address;  /* what ring addresses count from */
    uint32_t region;        /* index of the memory among the regions of vhost_memory.c */

    struct nr_link link; /* both ends */
    struct nr_peer peer; /* the client */

    uint32_t idle;           /* rounds without a frame */
    uint32_t place;          /* in vhost.order */
    uint32_t unpublished;    /* bytes copied to it and not yet shown */
    bool touched;            /* listed in vhost.touched */
    struct nr_vhost_client client; /* for telemetry */

    int socket_fd;       /* its connection */
    int kick_fd;         /* eventfd, the client wakes us; in the epoll set */
    uint64_t deadline;   /* CLOCK_MONOTONIC, nanoseconds: to be READY by */
    uint32_t got;        /* bytes of hello or message got so far */
    int passed_fd;       /* that came with the message, or -1 */
    union {
        struct nr_vhost_hello hello;     /* GREETING */
        struct nr_vhost_message message; /* SETUP */
    };
};

struct vhost {
    struct nr_packet_io io; /* first: the shared part */

    struct device *device; /* [limit] */
    uint32_t *order;       /* [limit] ready devices: first the active ones, then the idle */
    uint32_t *touched;     /* [limit] devices that got something in this burst */
    uint32_t limit;        /* devices */
    uint32_t ready;        /* of them */
    uint32_t active;       /* of these, looked at each round */
    uint32_t start;        /* place in order where the next round begins */
    uint32_t round;        /* counts rounds */
    uint32_t polls;        /* calls since the clock was read */
    uint32_t faults_seen;  /* of nr_vhost_all_faults */
    uint64_t looked;       /* CLOCK_MONOTONIC, nanoseconds, of the last look */
    uint8_t *buffer;       /* NR_VHOST_BURST * NR_VHOST_ROOM bytes: what was handed up */

    uint32_t setting_up;  /* devices in GREETING or SETUP */
    uint64_t closed_till; /* the same clock; nobody is let in before; 0: open */
    uint32_t clamp;       /* bytes, largest payload */
    int listen_fd, epoll_fd, timer_fd;
    struct sockaddr_un address;
    dev_t socket_device; /* of the socket's file, which at the end is removed if it still is this one */
    ino_t socket_inode;
    struct nr_vhost_info info;

    pthread_mutex_t gate; /* over `armed` and which rings are ready: the sleeper's arm and disarm against take_in and take_away */
    _Alignas(64) atomic_bool armed; /* somebody sleeps or is about to */
    atomic_bool woken;              /* somebody slept since the last look */
};

/* ---- vhost_memory.c ---- */

/* Pages of clients' memory, in this process and ever, that had gone when they were touched. */
extern _Atomic uint32_t nr_vhost_all_faults;

/* Installs the SIGBUS handler, once. 0 or a negative errno. */
int nr_vhost_catch_faults(void);
/* Maps the client's memory, if it cannot be taken away and is of a sensible size. */
bool nr_vhost_map(struct vhost *vhost, struct device *device, struct nr_vhost_memory table, int fd);
void nr_vhost_unmap(struct vhost *vhost, struct device *device);
/* A page of its memory had gone. */
bool nr_vhost_faulted(const struct device *device);
/* So many bytes at a user address, aligned as they must be; NULL when they are not all in the memory. */
void *nr_vhost_at_user(const struct device *device, uint64_t address, uint64_t bytes, uint64_t alignment);

/* ---- vhost_device.c ---- */

void nr_vhost_make_active(struct vhost *vhost, struct device *device);
void nr_vhost_make_idle(struct vhost *vhost, struct device *device);
/* The rings are whole: from now on they are polled. */
void nr_vhost_take_in(struct vhost *vhost, struct device *device);
void nr_vhost_take_away(struct vhost *vhost, struct device *device);
/* The same for one that broke the rules, before and after it was taken in. */
void nr_vhost_refuse(struct vhost *vhost, struct device *device);
void nr_vhost_misbehaved(struct vhost *vhost, struct device *device);
/* Takes away those whose memory had gone; `faults` is what nr_vhost_all_faults says. */
void nr_vhost_see_faults(struct vhost *vhost, uint32_t faults);

/* ---- vhost_setup.c ---- */

void nr_vhost_answer_hello(const struct vhost *vhost, int fd, int32_t status, const struct nr_vhost_answer *ends);
/* Something came on the connection, or it ended. */
void nr_vhost_hear(struct vhost *vhost, struct device *device);

/* ---- vhost_door.c ---- */

/* Everything that epoll tells of. A few system calls. */
void nr_vhost_look(struct vhost *vhost);

/* ---- vhost_ring.c: as packet I/O says ---- */

uint32_t nr_vhost_receive_burst(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max);
uint32_t nr_vhost_send_burst(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count);
bool nr_vhost_arm(struct nr_packet_io *io);
void nr_vhost_disarm(struct nr_packet_io *io);

#endif
