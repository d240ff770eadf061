#include "port.h"

#include <ctype.h>
#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_pause.h>

#include "../io/frame.h"

/* Frames taken from and given to the device at once. */
#define BURST 32
/* Objects that a mempool keeps for a core that uses it. */
#define CACHE 64
/* Descriptors of a queue unless the configuration says otherwise: the windows of sixteen clients of 64 datagrams. */
#define DESCRIPTORS 1024
/* Times that a full transmit queue is tried again before the rest of a burst is dropped. */
#define SEND_TRIES 64
/* Empty polls between two looks for mbufs that the device has finished with. */
#define POLLS_PER_CLEANUP 64
/* Fewer bytes of segments than this are copied: an mbuf more costs as much. */
#define LEAST_EXTERNAL 1024
/* Bytes of a frame besides its IP packet: Ethernet header, checksum, two VLAN tags. */
#define FRAME_OVERHEAD 26
/* Longest frame of several mbufs that is made one. */
#define LONGEST (NR_FRAME_HEADERS_IP6 + NR_FRAME_TAG + NR_MAX_DATAGRAM)
/* Bytes that net_af_packet's ring needs before a frame. */
#define RING_HEADER 96
/* net_af_xdp: mbufs with their headers must fit into a page; the kernel needs so much beside a frame; and the receive pool feeds four
 * rings of the kernel's, those of what is sent too. With 4,096 to spare a burst of large inserts emptied it, and nothing was sent any
 * more. */
#define XDP_LARGEST_ROOM 3712
#define XDP_OVERHEAD 256
#define XDP_DESCRIPTORS 12288

/* A segment that an mbuf refers to. */
struct external {
    struct rte_mbuf_ext_shared_info info; /* counts the references of mbufs */
    struct port *port;
    uint64_t token;
    uint32_t next;     /* in the list of free ones, or plus one in that of returned ones */
    _Atomic bool used; /* an mbuf refers to it; whoever clears this sees that `sent` is called */
};

struct port {
    struct nr_packet_io io; /* first: the shared part */

    uint16_t id;                       /* of the ethdev */
    bool verifies;                     /* the port looks at checksums of what it receives */
    bool external_segments;            /* segments are not copied */
    enum nr_frame_checksum checksum;   /* how datagrams get theirs */
    uint64_t rx_offloads, tx_offloads; /* asked for and got */
    uint32_t payload;                  /* bytes, what max_payload reports: over IPv4 20 more fit than over IPv6 */
    uint32_t mtu;                      /* bytes of IP packet */
    uint32_t capacity;                 /* see receive_capacity */
    struct nr_frame_host host;
    struct rte_mempool *rx_pool;       /* the device receives into these */
    struct rte_mempool *tx_pool;       /* headers and copied bytes */
    struct rte_mempool *segment_pool;  /* without data room, for segments; NULL where they are copied */

    struct rte_mbuf *held[BURST]; /* payloads of the last burst */
    uint32_t held_count;
    uint32_t polls;               /* empty ones since the last cleanup */

    struct external *external; /* [externals] */
    uint32_t externals;
    uint32_t free_external;    /* first free one; `externals`: none */
    uint32_t outstanding;      /* in use, or returned and not yet told of */
    _Atomic uint32_t returned; /* the newest one that no mbuf refers to any more, plus one; 0: none */

    const uint8_t *slab; /* where segments may point to; NULL: nowhere */
    uint64_t slab_bytes;
    bool registered;     /* with EAL by this port */
    bool mapped;         /* for the device by this port */
    bool started;

    uint64_t missed; /* what the device had missed before */
    struct nr_port_counters counters;
    struct nr_port_info info;
    struct rte_eth_dev_info device;

    uint8_t bounce[BURST][LONGEST]; /* frames that came in several mbufs */
};

/* ---- Segments ---- */

/* The last mbuf that refers to the segment is freed, by whatever thread had it last: on net_ring that of another port. Only the
 * owner may tell of it. */
static void segment_freed(void *base, void *opaque)
{
    struct external *external = opaque;
    struct port *port = external->port;
    uint32_t index = (uint32_t)(external - port->external), newest;

    (void)base;
    if (!atomic_exchange_explicit(&external->used, false, memory_order_acquire))
        return;
    newest = atomic_load_explicit(&port->returned, memory_order_relaxed);
    do
        external->next = newest;
    while (!atomic_compare_exchange_weak_explicit(&port->returned, &newest, index + 1, memory_order_release, memory_order_relaxed));
}

static void tell_of(struct port *port, struct external *external)
{
    external->next = port->free_external;
    port->free_external = (uint32_t)(external - port->external);
    port->outstanding--;
    port->io.sent(port->io.sent_context, external->token);
}

/* Tells of the references that have come back. In the owner's thread. */
static void take_returned(struct port *port)
{
    uint32_t at, next;

    if (atomic_load_explicit(&port->returned, memory_order_relaxed) == 0)
        return;
    at = atomic_exchange_explicit(&port->returned, 0, memory_order_acquire);
    for (; at != 0; at = next) {
        next = port->external[at - 1].next;
        tell_of(port, &port->external[at - 1]);
    }
}

/* Drops the references of a datagram whose segments were copied, or that is not sent. */
static void drop_references(struct port *port, const struct nr_tx *tx, uint32_t first)
{
    for (uint32_t i = first; i < tx->segments; i++) {
        if (tx->segment[i].token != NR_TOKEN_NONE)
            port->io.sent(port->io.sent_context, tx->segment[i].token);
    }
}

static bool is_in_slab(const struct port *port, const struct nr_segment *segment)
{
    uint64_t offset = (uint64_t)((uintptr_t)segment->base - (uintptr_t)port->slab);

    return offset < port->slab_bytes && segment->length <= port->slab_bytes - offset && segment->length <= UINT16_MAX;
}

static bool leave_uncopied(const struct port *port, const struct nr_tx *tx)
{
    uint32_t bytes = 0;

    if (!port->external_segments)
        return false;
    for (uint32_t i = 0; i < tx->segments; i++) {
        if (tx->segment[i].token == NR_TOKEN_NONE)
            continue;
        if (!is_in_slab(port, &tx->segment[i]))
            return false;
        bytes += tx->segment[i].length;
    }
    return bytes >= LEAST_EXTERNAL;
}

/* An mbuf that refers to the segment. NULL when there is none left: the reference is still the caller's. */
static struct rte_mbuf *refer(struct port *port, const struct nr_segment *segment)
{
    struct external *external;
    struct rte_mbuf *mbuf;

    if (port->free_external == port->externals)
        return NULL;
    mbuf = rte_pktmbuf_alloc(port->segment_pool);
    if (mbuf == NULL)
        return NULL;
    external = &port->external[port->free_external];
    port->free_external = external->next;
    port->outstanding++;
    atomic_store_explicit(&external->used, true, memory_order_relaxed);
    external->token = segment->token;
    rte_mbuf_ext_refcnt_set(&external->info, 1);
    /* With addresses of the process as addresses of the device, see zero_copy_is_possible(). */
    rte_pktmbuf_attach_extbuf(mbuf, (void *)(uintptr_t)segment->base, (rte_iova_t)(uintptr_t)segment->base,
                              (uint16_t)segment->length, &external->info);
    mbuf->data_off = 0;
    mbuf->data_len = (uint16_t)segment->length;
    mbuf->pkt_len = segment->length;
    return mbuf;
}

/* Asks for what the device has sent, so that its mbufs and with them the references come back. Not every driver can say. */
static void clean_up(struct port *port)
{
    port->polls = 0;
    (void)rte_eth_tx_done_cleanup(port->id, 0, 0);
}

static struct rte_mbuf *new_frame(struct port *port)
{
    struct rte_mbuf *mbuf = rte_pktmbuf_alloc(port->tx_pool);

    if (mbuf == NULL) {
        clean_up(port);
        mbuf = rte_pktmbuf_alloc(port->tx_pool);
        if (mbuf == NULL)
            port->counters.no_mbuf++;
    }
    return mbuf;
}

/* An mbuf with the bytes of a segment that is the caller's own. */
static struct rte_mbuf *copy(struct port *port, const struct nr_segment *segment)
{
    struct rte_mbuf *mbuf = new_frame(port);

    if (mbuf != NULL)
        memcpy(rte_pktmbuf_append(mbuf, (uint16_t)segment->length), segment->base, segment->length);
    return mbuf;
}

/* Appends the segments to a frame. Without mbufs for them returns false, having dropped every reference once. */
static bool append_references(struct port *port, struct rte_mbuf *head, const struct nr_tx *tx)
{
    struct rte_mbuf *last = head;

    for (uint32_t i = 0; i < tx->segments; i++) {
        bool own = tx->segment[i].token == NR_TOKEN_NONE;
        struct rte_mbuf *mbuf = own ? copy(port, &tx->segment[i]) : refer(port, &tx->segment[i]);

        if (mbuf == NULL) {
            rte_pktmbuf_free(head); /* with it go those before i */
            drop_references(port, tx, i);
            return false;
        }
        last->next = mbuf;
        last = mbuf;
        head->nb_segs++;
        head->pkt_len += mbuf->data_len;
        port->counters.external_segments += !own;
        port->counters.copied_segments += own;
    }
    return true;
}

static void append_copies(struct port *port, struct rte_mbuf *head, const struct nr_tx *tx)
{
    uint8_t *at = rte_pktmbuf_mtod_offset(head, uint8_t *, head->data_len);
    uint32_t bytes = 0;

    for (uint32_t i = 0; i < tx->segments; i++) {
        memcpy(at + bytes, tx->segment[i].base, tx->segment[i].length);
        bytes += tx->segment[i].length;
    }
    head->data_len = (uint16_t)(head->data_len + bytes);
    head->pkt_len += bytes;
    port->counters.copied_segments += tx->segments;
    drop_references(port, tx, 0);
}

/* ---- Send ---- */

static void refuse(struct port *port, const struct nr_tx *tx, int error)
{
    struct nr_io_counters *counters = &port->io.counters;

    counters->send_dropped++;
    counters->send_too_long += error == -EMSGSIZE;
    counters->last_send_error = error;
    drop_references(port, tx, 0);
}

/* The frame of a datagram. NULL when it is dropped; then it has been counted and holds no reference. */
static struct rte_mbuf *make_frame(struct port *port, const struct nr_tx *tx, uint32_t payload)
{
    struct rte_mbuf *mbuf;
    uint32_t headers;
    uint8_t *at;

    if (payload > NR_MAX_DATAGRAM) {
        refuse(port, tx, -EMSGSIZE);
        return NULL;
    }
    mbuf = new_frame(port);
    if (mbuf == NULL) {
        refuse(port, tx, -ENOBUFS);
        return NULL;
    }
    at = rte_pktmbuf_mtod(mbuf, uint8_t *);
    headers = nr_frame_headers(&port->host, tx, payload, port->checksum, at);
    if (headers == 0 || headers - NR_FRAME_ETHERNET + payload > port->mtu) {
        rte_pktmbuf_free(mbuf);
        refuse(port, tx, headers == 0 ? -EAFNOSUPPORT : -EMSGSIZE);
        return NULL;
    }
    if (port->checksum == NR_FRAME_CHECKSUM_PSEUDO) {
        mbuf->l2_len = NR_FRAME_ETHERNET;
        mbuf->l3_len = headers - NR_FRAME_ETHERNET - 8;
        mbuf->ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM | (headers == NR_FRAME_HEADERS_IP4 ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6);
    }
    memcpy(at + headers, tx->data, tx->length);
    mbuf->data_len = (uint16_t)(headers + tx->length);
    mbuf->pkt_len = mbuf->data_len;
    if (tx->segments == 0)
        return mbuf;
    if (!leave_uncopied(port, tx)) {
        append_copies(port, mbuf, tx);
        return mbuf;
    }
    if (append_references(port, mbuf, tx))
        return mbuf;
    port->counters.no_mbuf++;
    port->io.counters.send_dropped++;
    port->io.counters.last_send_error = -ENOBUFS;
    return NULL;
}

/* Gives frames to the device; how many it took of the first. The rest is freed. */
static uint32_t transmit(struct port *port, struct rte_mbuf **frames, uint32_t count)
{
    uint32_t done = 0, ready = count;

    if (port->checksum == NR_FRAME_CHECKSUM_PSEUDO)
        ready = rte_eth_tx_prepare(port->id, 0, frames, (uint16_t)count);
    for (int i = 0; i < SEND_TRIES && done < ready; i++) {
        if (i > 0)
            rte_pause();
        done += rte_eth_tx_burst(port->id, 0, frames + done, (uint16_t)(ready - done));
    }
    if (done < count)
        rte_pktmbuf_free_bulk(frames + done, count - done);
    return done;
}

static void send_some(struct port *port, const struct nr_tx *tx, uint32_t count)
{
    struct nr_io_counters *counters = &port->io.counters;
    struct rte_mbuf *frames[BURST];
    uint32_t payload[BURST];
    uint32_t ready = 0, done;

    for (uint32_t i = 0; i < count; i++) {
        payload[ready] = nr_frame_payload(&tx[i]);
        frames[ready] = make_frame(port, &tx[i], payload[ready]);
        ready += frames[ready] != NULL;
    }
    done = transmit(port, frames, ready);
    for (uint32_t i = 0; i < done; i++)
        counters->sent_bytes += payload[i];
    counters->sent += done;
    if (done < ready) {
        counters->send_dropped += ready - done;
        counters->last_send_error = -EAGAIN;
    }
}

static uint32_t send_burst(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    struct port *port = (struct port *)io;

    for (uint32_t done = 0; done < count; done += BURST)
        send_some(port, tx + done, count - done < BURST ? count - done : BURST);
    take_returned(port);
    return count;
}

/* ---- Receive ---- */

/* Answers a question about this host. */
static void answer(struct port *port, enum nr_frame kind, const uint8_t *frame, uint32_t length)
{
    uint64_t *counter = kind == NR_FRAME_ARP         ? &port->counters.arp
                        : kind == NR_FRAME_NEIGHBOUR ? &port->counters.neighbour
                                                     : &port->counters.ping;
    struct rte_mbuf *mbuf;

    if (length > port->mtu + FRAME_OVERHEAD) {
        port->counters.bad_length++;
        return;
    }
    mbuf = new_frame(port);
    if (mbuf == NULL)
        return;
    mbuf->data_len = (uint16_t)nr_frame_answer(&port->host, kind, frame, length, rte_pktmbuf_mtod(mbuf, uint8_t *));
    mbuf->pkt_len = mbuf->data_len;
    *counter += transmit(port, &mbuf, 1);
}

static uint32_t what_is_verified(const struct port *port, const struct rte_mbuf *mbuf)
{
    uint64_t ip = mbuf->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK, udp = mbuf->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
    uint32_t verified = 0;

    if (!port->verifies)
        return 0;
    /* "None" says that the checksum is not there yet and the bytes are right: they never left the host. */
    if (ip == RTE_MBUF_F_RX_IP_CKSUM_GOOD || ip == RTE_MBUF_F_RX_IP_CKSUM_NONE)
        verified |= NR_FRAME_IP_VERIFIED;
    if (udp == RTE_MBUF_F_RX_L4_CKSUM_GOOD || udp == RTE_MBUF_F_RX_L4_CKSUM_NONE)
        verified |= NR_FRAME_UDP_VERIFIED;
    return verified;
}

/* The frame in one piece; NULL when it is too long for that. */
static const uint8_t *in_one_piece(struct port *port, struct rte_mbuf *mbuf, uint32_t place)
{
    if (mbuf->nb_segs == 1)
        return rte_pktmbuf_mtod(mbuf, const uint8_t *);
    if (mbuf->pkt_len > LONGEST)
        return NULL;
    return rte_pktmbuf_read(mbuf, 0, mbuf->pkt_len, port->bounce[place]);
}

/* True when *rx is a datagram for the caller, who then uses the frame. */
static bool take_frame(struct port *port, const uint8_t *frame, uint32_t length, uint32_t verified, struct nr_rx *rx)
{
    enum nr_frame kind = nr_frame_parse(&port->host, frame, length, verified, rx);

    switch (kind) {
    case NR_FRAME_DATAGRAM:
        if (rx->length > NR_MAX_DATAGRAM) {
            port->io.counters.receive_truncated++;
            return false;
        }
        port->io.counters.received++;
        port->io.counters.received_bytes += rx->length;
        return true;
    case NR_FRAME_ARP:
    case NR_FRAME_NEIGHBOUR:
    case NR_FRAME_PING:
        answer(port, kind, frame, length);
        break;
    case NR_FRAME_NOT_OURS:
        port->counters.not_ours++;
        break;
    case NR_FRAME_BAD_LENGTH:
        port->counters.bad_length++;
        break;
    case NR_FRAME_BAD_CHECKSUM:
        port->counters.bad_checksum++;
        break;
    case NR_FRAME_FRAGMENT:
        port->counters.fragments++;
        break;
    }
    return false;
}

/* Whether this thread has a number with EAL, or cannot have one: mempools keep caches only for threads with numbers. */
static _Thread_local bool is_known;

static void forget_thread(void *unused)
{
    (void)unused;
    rte_thread_unregister();
}

/* The number is given back when the thread ends: the one that closes the port is another. */
static void make_known(void)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_key_t at_exit;
    static bool has_key;

    is_known = true;
    if (rte_lcore_id() != LCORE_ID_ANY)
        return;
    pthread_mutex_lock(&mutex);
    has_key = has_key || pthread_key_create(&at_exit, forget_thread) == 0;
    pthread_mutex_unlock(&mutex);
    if (has_key && rte_thread_register() == 0)
        pthread_setspecific(at_exit, &is_known);
}

static uint32_t receive_burst(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    struct port *port = (struct port *)io;
    struct rte_mbuf *frames[BURST];
    uint32_t good = 0, count;

    if (!is_known)
        make_known();
    take_returned(port);
    if (port->held_count > 0) {
        rte_pktmbuf_free_bulk(port->held, port->held_count);
        port->held_count = 0;
    }
    count = rte_eth_rx_burst(port->id, 0, frames, (uint16_t)(max < BURST ? max : BURST));
    if (count == 0) {
        io->counters.empty_polls++;
        if (++port->polls >= POLLS_PER_CLEANUP && port->outstanding > 0)
            clean_up(port);
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct rte_mbuf *mbuf = frames[i];
        const uint8_t *frame = in_one_piece(port, mbuf, good);

        if (i + 1 < count)
            rte_prefetch0(rte_pktmbuf_mtod(frames[i + 1], void *));
        if (frame == NULL)
            io->counters.receive_truncated++;
        if (frame != NULL && take_frame(port, frame, mbuf->pkt_len, what_is_verified(port, mbuf), &rx[good])) {
            good++;
            if (mbuf->nb_segs == 1) {
                port->held[port->held_count++] = mbuf;
                continue;
            }
        }
        rte_pktmbuf_free(mbuf);
    }
    return good;
}

/* ---- The rest of packet I/O ---- */

static int descriptor(struct nr_packet_io *io)
{
    (void)io;
    return -1;
}

static uint32_t max_payload(struct nr_packet_io *io)
{
    return ((struct port *)io)->payload;
}

static uint32_t receive_capacity(struct nr_packet_io *io)
{
    return ((struct port *)io)->capacity;
}

/* A pool some of whose mbufs are elsewhere (another port of this process) must outlive them. */
static bool free_pool(struct rte_mempool *pool)
{
    if (pool != NULL && !rte_mempool_full(pool))
        return false;
    rte_mempool_free(pool);
    return true;
}

static void unregister_slab(struct port *port)
{
    if (port->mapped)
        (void)rte_dev_dma_unmap(port->device.device, (void *)(uintptr_t)port->slab, (uint64_t)(uintptr_t)port->slab,
                                port->slab_bytes);
    if (port->registered)
        (void)rte_extmem_unregister((void *)(uintptr_t)port->slab, port->slab_bytes);
    port->mapped = port->registered = false;
}

/* Takes back what the port owns. The ethdev stays configured unless it was started, so that another try is possible. */
static void close_port(struct nr_packet_io *io)
{
    struct port *port = (struct port *)io;
    bool all_back;

    if (port->held_count > 0)
        rte_pktmbuf_free_bulk(port->held, port->held_count);
    port->held_count = 0;
    if (port->started) {
        clean_up(port);
        unregister_slab(port);
        (void)rte_eth_dev_stop(port->id);
        (void)rte_eth_dev_close(port->id);
    } else {
        unregister_slab(port);
    }
    /* The device is gone. What still refers to segments is on its way inside of this process, and may read other bytes there. */
    for (uint32_t i = 0; i < port->externals; i++) {
        if (atomic_exchange_explicit(&port->external[i].used, false, memory_order_acquire))
            tell_of(port, &port->external[i]);
    }
    while (port->outstanding > 0) /* another thread is between two lines of segment_freed() */
        take_returned(port);
    all_back = free_pool(port->rx_pool);
    all_back = free_pool(port->tx_pool) && all_back;
    all_back = free_pool(port->segment_pool) && all_back;
    if (!all_back)
        return; /* late frees of mbufs come to this memory */
    free(port->external);
    free(port);
}

static const struct nr_packet_io_ops port_ops = {
    .receive_burst = receive_burst,
    .send_burst = send_burst,
    .descriptor = descriptor,
    .max_payload = max_payload,
    .receive_capacity = receive_capacity,
    .close = close_port,
};

static void sent_to_nobody(void *context, uint64_t token)
{
    (void)context;
    (void)token;
}

/* ---- Open ---- */

/* Where an error goes. */
struct failure {
    int *error; /* negative errno */
    char *text; /* 256 bytes */
};

__attribute__((format(printf, 3, 4))) static bool fail(const struct failure *failure, int error, const char *format, ...)
{
    va_list arguments;

    *failure->error = error;
    va_start(arguments, format);
    vsnprintf(failure->text, 256, format, arguments);
    va_end(arguments);
    return false;
}

/* The kernel's driver of a PCI device; false when it has none or there is no such device. */
static bool kernel_driver(const char *device, char name[64])
{
    char path[128], target[256];
    ssize_t length;

    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s%s/driver", strlen(device) == 7 ? "0000:" : "", device);
    length = readlink(path, target, sizeof(target) - 1);
    if (length < 0)
        return false;
    target[length] = 0;
    const char *slash = strrchr(target, '/');
    snprintf(name, 64, "%.63s", slash != NULL ? slash + 1 : target);
    return true;
}

static bool no_such_port(const char *device, const struct failure *failure)
{
    char name[RTE_ETH_NAME_MAX_LEN], ports[160] = "", driver[64];
    size_t used = 0;
    uint16_t id;

    if (kernel_driver(device, driver)) {
        if (strcmp(driver, "vfio-pci") == 0 || strstr(driver, "uio") != NULL)
            return fail(failure, -ENODEV, "%s is bound to %s, but EAL did not take it: allow it with -a %s, without --no-pci",
                        device, driver, device);
        return fail(failure, -ENODEV, "%s is bound to the kernel driver %s: dpdk-devbind.py --bind=vfio-pci %s", device, driver,
                    device);
    }
    RTE_ETH_FOREACH_DEV(id)
    {
        if (rte_eth_dev_get_name_by_port(id, name) == 0 && used < sizeof(ports))
            used += (size_t)snprintf(ports + used, sizeof(ports) - used, "%s%s", used > 0 ? ", " : "", name);
    }
    return fail(failure, -ENODEV, "no port '%s'; there is %s%s", device, used > 0 ? ports : "none",
                used > 0 ? "" : ": EAL's arguments make one (--vdev, -a)");
}

/* The value of a device's argument as EAL got it ("framesz=2048"), or `otherwise`. */
static uint32_t device_argument(const struct port *port, const char *name, uint32_t otherwise)
{
    const struct rte_devargs *arguments = rte_dev_devargs(port->device.device);
    const char *at = arguments != NULL ? arguments->args : NULL;
    size_t length = strlen(name);

    while (at != NULL && *at != 0) {
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return (uint32_t)strtoul(at + length + 1, NULL, 10);
        at = strchr(at, ',');
        at += at != NULL;
    }
    return otherwise;
}

static bool is_driver(const struct port *port, const char *name)
{
    return strcmp(port->info.driver, name) == 0;
}

static bool is_virtual(const struct port *port)
{
    return strcmp(rte_bus_name(rte_dev_bus(port->device.device)), "vdev") == 0;
}

static bool find_device(struct port *port, const struct nr_port_config *config, const struct failure *failure)
{
    struct rte_ether_addr mac;
    int result;

    if (config->device == NULL || config->udp_port == 0)
        return fail(failure, -EINVAL, "a port needs a device and a UDP port");
    if (rte_eth_dev_get_port_by_name(config->device, &port->id) != 0)
        return no_such_port(config->device, failure);
    result = rte_eth_dev_info_get(port->id, &port->device);
    if (result == 0)
        result = rte_eth_macaddr_get(port->id, &mac);
    if (result != 0)
        return fail(failure, result, "%s says nothing about itself: %s", config->device, rte_strerror(-result));
    snprintf(port->info.driver, sizeof(port->info.driver), "%s", port->device.driver_name);
    port->info.port_id = port->id;
    memcpy(port->info.mac, mac.addr_bytes, 6);
    memcpy(port->host.mac, mac.addr_bytes, 6);
    memcpy(port->host.ip4, config->ip4, 4);
    memcpy(port->host.ip6, config->ip6, 16);
    nr_frame_link_local(port->host.mac, port->host.link_local);
    port->host.udp_port = config->udp_port;
    return true;
}

/* The MTU of the network interface that the device stands on; 0 for none. */
static uint32_t interface_mtu(const struct port *port, char name[IF_NAMESIZE])
{
    struct ifreq request = {0};
    uint32_t mtu = 0;
    int fd;

    if (port->device.if_index == 0 || if_indextoname(port->device.if_index, name) == NULL)
        return 0;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(request.ifr_name, IF_NAMESIZE, "%s", name);
    if (fd >= 0 && ioctl(fd, SIOCGIFMTU, &request) == 0)
        mtu = (uint32_t)request.ifr_mtu;
    if (fd >= 0)
        close(fd);
    return mtu;
}

/* What one mbuf's data room must hold for a frame to come in one piece, or 0 when it cannot. */
static uint32_t room_for_frames(struct port *port, const struct failure *failure)
{
    uint32_t frame = port->mtu + FRAME_OVERHEAD, room;

    if (is_driver(port, "net_af_xdp")) {
        room = RTE_PKTMBUF_HEADROOM + RTE_MAX(2048u, frame + XDP_OVERHEAD);
        if (room > XDP_LARGEST_ROOM) {
            fail(failure, -EINVAL, "net_af_xdp takes an MTU of %u at most, not %u: frames must fit into a page",
                 XDP_LARGEST_ROOM - RTE_PKTMBUF_HEADROOM - XDP_OVERHEAD - FRAME_OVERHEAD, port->mtu);
            return 0;
        }
        return room;
    }
    /* Some NICs take whole kilobytes only. */
    room = RTE_PKTMBUF_HEADROOM + RTE_MAX(2048u, RTE_ALIGN_CEIL(frame, 1024u));
    if (is_driver(port, "net_af_packet")) {
        uint32_t slot = device_argument(port, "framesz", 2048);

        if (frame + RING_HEADER > slot) {
            fail(failure, -EINVAL, "MTU %u needs larger frames: add framesz=%u,blocksz=%u to the device's arguments", port->mtu,
                 rte_align32pow2(RTE_MAX(4096u, frame + RING_HEADER)), rte_align32pow2(RTE_MAX(4096u, frame + RING_HEADER)));
            return 0;
        }
        room = RTE_MAX(room, RTE_PKTMBUF_HEADROOM + slot);
    }
    room = RTE_MAX(room, RTE_PKTMBUF_HEADROOM + port->device.min_rx_bufsize);
    if (room > UINT16_MAX) {
        fail(failure, -EINVAL, "mbufs of %u bytes would be needed; an mbuf holds 65535", room);
        return 0;
    }
    return room;
}

/*
 * Tells the device the MTU. net_af_packet and net_memif say that they take frames of 1,514 bytes, refuse to be told of longer ones,
 * and carry what their rings have room for: they are left at 1,500 and checked by their own arguments.
 */
static bool configure(struct port *port, const struct failure *failure)
{
    struct rte_eth_conf conf = {0};
    char interface[IF_NAMESIZE];
    uint32_t mtu = interface_mtu(port, interface);
    int log = rte_log_register("lib.ethdev"), level = log < 0 ? -1 : rte_log_get_level((uint32_t)log), result;
    bool may_refuse;

    if (mtu != 0 && mtu < port->mtu)
        return fail(failure, -EINVAL, "%s has MTU %u, not %u: ip link set %s mtu %u", interface, mtu, port->mtu, interface,
                    port->mtu);
    port->rx_offloads = port->device.rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
    port->tx_offloads = port->device.tx_offload_capa & (RTE_ETH_TX_OFFLOAD_UDP_CKSUM | RTE_ETH_TX_OFFLOAD_MULTI_SEGS);
    conf.rxmode.offloads = port->rx_offloads;
    conf.txmode.offloads = port->tx_offloads;
    conf.rxmode.mtu = port->mtu;
    may_refuse = port->mtu > RTE_ETHER_MTU && (is_driver(port, "net_af_packet") || is_driver(port, "net_memif"));
    if (may_refuse && log >= 0)
        rte_log_set_level((uint32_t)log, RTE_LOG_EMERG);
    result = rte_eth_dev_configure(port->id, 1, 1, &conf);
    if (may_refuse && log >= 0)
        rte_log_set_level((uint32_t)log, (uint32_t)level);
    if (result == -EINVAL && may_refuse) {
        conf.rxmode.mtu = 0;
        result = rte_eth_dev_configure(port->id, 1, 1, &conf);
    }
    if (result == -EINVAL && port->mtu > port->device.max_mtu)
        return fail(failure, result, "%s takes an MTU of %u at most, not %u", port->info.driver, port->device.max_mtu, port->mtu);
    if (result != 0)
        return fail(failure, result, "%s refuses MTU %u with one queue pair: %s; EAL's log may say more", port->info.driver,
                    port->mtu, rte_strerror(-result));
    return true;
}

static struct rte_mempool *make_pool(struct port *port, const char *what, uint32_t count, uint32_t room,
                                     const struct failure *failure)
{
    static _Atomic uint32_t number; /* names are the process's */
    char name[RTE_MEMPOOL_NAMESIZE];
    struct rte_mempool *pool;

    snprintf(name, sizeof(name), "nr-%s-%u", what, (unsigned int)atomic_fetch_add(&number, 1));
    pool = rte_pktmbuf_pool_create(name, count, CACHE, 0, (uint16_t)room, rte_eth_dev_socket_id(port->id));
    if (pool == NULL) {
        uint64_t bytes = (uint64_t)count * (room + sizeof(struct rte_mbuf) + 64);

        fail(failure, rte_errno == 0 ? -ENOMEM : -rte_errno,
             "no memory for %u %s mbufs of %u bytes (%u MiB): give EAL more (-m, hugepages) or ask for fewer descriptors: %s",
             count, what, room, (unsigned int)(bytes >> 20) + 1, rte_strerror(rte_errno));
        return NULL;
    }
    port->info.memory_bytes += (uint64_t)count * (pool->header_size + pool->elt_size + pool->trailer_size);
    return pool;
}

/*
 * Mbufs of a pool: those in the device's queue, two bursts on the way, and what idles in the caches (half as much again). Enough for
 * sending where each mbuf takes a descriptor, as on NICs. Where one descriptor holds a frame of several mbufs (net_ring), a full queue
 * of frames with copied segments between references would take up to three times as many: then the pool is the limit, not the queue.
 */
static uint32_t pool_size(uint32_t descriptors)
{
    return descriptors + 2 * BURST + 2 * CACHE;
}

static bool set_up_queues(struct port *port, uint32_t descriptors, const struct failure *failure)
{
    uint16_t rx = (uint16_t)RTE_MIN(descriptors, (uint32_t)UINT16_MAX), tx = rx;
    int socket = rte_eth_dev_socket_id(port->id), result;
    struct rte_eth_rxconf rx_conf = port->device.default_rxconf;
    struct rte_eth_txconf tx_conf = port->device.default_txconf;
    uint32_t room = room_for_frames(port, failure), spare = is_driver(port, "net_af_xdp") ? XDP_DESCRIPTORS : 0;

    if (room == 0)
        return false;
    result = rte_eth_dev_adjust_nb_rx_tx_desc(port->id, &rx, &tx);
    if (result != 0)
        return fail(failure, result, "%s has no queues of %u descriptors: %s", port->info.driver, descriptors,
                    rte_strerror(-result));
    port->info.rx_descriptors = rx;
    port->info.tx_descriptors = tx;
    port->info.mbufs = pool_size(rx) + spare;
    port->info.mbuf_bytes = room;
    port->rx_pool = make_pool(port, "receive", port->info.mbufs, room, failure);
    if (port->rx_pool == NULL)
        return false;
    port->tx_pool = make_pool(port, "send", pool_size(tx), room, failure);
    if (port->tx_pool == NULL)
        return false;
    rx_conf.offloads = port->rx_offloads;
    tx_conf.offloads = port->tx_offloads;
    result = rte_eth_rx_queue_setup(port->id, 0, rx, (unsigned int)socket, &rx_conf, port->rx_pool);
    if (result == 0)
        result = rte_eth_tx_queue_setup(port->id, 0, tx, (unsigned int)socket, &tx_conf);
    if (result != 0)
        return fail(failure, result,
                    "%s refuses queues of %u and %u descriptors with mbufs of %u bytes: %s; EAL's log may say more",
                    port->info.driver, rx, tx, room, rte_strerror(-result));
    return true;
}

/* Lets the device read the slab. Virtual devices read through the processor and need no permission. */
static bool register_slab(struct port *port)
{
    void *slab = (void *)(uintptr_t)port->slab;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (((uintptr_t)slab | port->slab_bytes) % RTE_PGSIZE_2M == 0)
        page = RTE_PGSIZE_2M;
    port->registered = rte_extmem_register(slab, port->slab_bytes, NULL, 0, page) == 0;
    if (is_virtual(port))
        return true;
    if (!port->registered && rte_errno != EEXIST)
        return false;
    port->mapped = rte_dev_dma_map(port->device.device, slab, (uint64_t)(uintptr_t)slab, port->slab_bytes) == 0;
    return port->mapped || rte_errno == EEXIST || rte_errno == ENOTSUP;
}

/* Segments stay where they are if the device takes frames of several pieces and reads the process's own addresses. */
static bool zero_copy_is_possible(const struct port *port)
{
    uint16_t most = port->device.tx_desc_lim.nb_mtu_seg_max;

    return port->slab != NULL && (port->tx_offloads & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0 && (most == 0 || most > NR_TX_SEGMENTS) &&
           (is_virtual(port) || rte_eal_iova_mode() == RTE_IOVA_VA);
}

static bool set_up_segments(struct port *port, const struct nr_port_config *config, const struct failure *failure)
{
    port->slab = config->slab;
    port->slab_bytes = config->slab_bytes;
    if (!zero_copy_is_possible(port) || !register_slab(port))
        return true;
    port->externals = NR_TX_SEGMENTS * pool_size(port->info.tx_descriptors);
    port->segment_pool = make_pool(port, "segment", port->externals, 0, failure);
    if (port->segment_pool == NULL)
        return false;
    port->external = calloc(port->externals, sizeof(*port->external));
    if (port->external == NULL)
        return fail(failure, -ENOMEM, "no memory for %u references to segments", port->externals);
    for (uint32_t i = 0; i < port->externals; i++) {
        port->external[i].port = port;
        port->external[i].next = i + 1;
        port->external[i].info.free_cb = segment_freed;
        port->external[i].info.fcb_opaque = &port->external[i];
    }
    port->external_segments = true;
    port->info.memory_bytes += port->externals * sizeof(*port->external);
    return true;
}

/* Questions for our MAC come to groups in IPv6. */
static bool hear_groups(struct port *port, const struct nr_port_config *config, const struct failure *failure)
{
    static const uint8_t none[16];
    int result = rte_eth_allmulticast_enable(port->id);

    if (result != 0)
        result = rte_eth_promiscuous_enable(port->id);
    if (result != 0 && !is_virtual(port) && memcmp(config->ip6, none, 16) != 0)
        return fail(failure, result, "%s receives no multicast frames, without which IPv6 does not work: %s", port->info.driver,
                    rte_strerror(-result));
    return true;
}

static bool start(struct port *port, const struct nr_port_config *config, const struct failure *failure)
{
    int result = rte_eth_dev_start(port->id);

    if (result != 0)
        return fail(failure, result, "%s does not start: %s; EAL's log may say more", port->info.driver, rte_strerror(-result));
    port->started = true;
    return hear_groups(port, config, failure);
}

static uint64_t missed_by_device(const struct port *port)
{
    struct rte_eth_stats stats;

    return rte_eth_stats_get(port->id, &stats) == 0 ? stats.imissed + stats.rx_nombuf : 0;
}

static void reckon(struct port *port, const struct nr_port_config *config)
{
    static const uint8_t none[16];
    bool is_ip4_only = memcmp(config->ip6, none, 16) == 0 && memcmp(config->ip4, none, 4) != 0;
    uint32_t clamp = config->max_payload != 0 && config->max_payload < NR_MAX_DATAGRAM ? config->max_payload : NR_MAX_DATAGRAM;

    port->payload = port->mtu + NR_FRAME_ETHERNET - (is_ip4_only ? NR_FRAME_HEADERS_IP4 : NR_FRAME_HEADERS_IP6);
    port->payload = RTE_MIN(port->payload, clamp);
    port->capacity = port->info.rx_descriptors;
    if (is_driver(port, "net_af_packet"))
        port->capacity = device_argument(port, "framecnt", 512);
    port->verifies = port->rx_offloads != 0;
    port->checksum = port->tx_offloads & RTE_ETH_TX_OFFLOAD_UDP_CKSUM ? NR_FRAME_CHECKSUM_PSEUDO
                     : config->zero_checksum                          ? NR_FRAME_CHECKSUM_NONE
                                                                      : NR_FRAME_CHECKSUM_WHOLE;
    port->info.mtu = (uint16_t)port->mtu;
    port->info.checksum_offload = (uint8_t)((port->rx_offloads & RTE_ETH_RX_OFFLOAD_IPV4_CKSUM ? 1 : 0) |
                                            (port->tx_offloads & RTE_ETH_TX_OFFLOAD_UDP_CKSUM ? 2 : 0) |
                                            (port->rx_offloads & RTE_ETH_RX_OFFLOAD_UDP_CKSUM ? 4 : 0));
    port->info.zero_copy = port->external_segments;
    port->missed = missed_by_device(port);
}

struct nr_packet_io *nr_port_open(const struct nr_port_config *config, int *error, char text[256])
{
    const struct failure failure = {.error = error, .text = text};
    struct port *port = calloc(1, sizeof(*port));
    bool is_open;

    *error = 0;
    text[0] = 0;
    if (port == NULL) {
        fail(&failure, -ENOMEM, "no memory for a port");
        return NULL;
    }
    port->io.ops = &port_ops;
    port->io.sent = config->sent != NULL ? config->sent : sent_to_nobody;
    port->io.sent_context = config->sent_context;
    port->mtu = config->mtu != 0 ? config->mtu : RTE_ETHER_MTU;
    is_open = find_device(port, config, &failure) && configure(port, &failure) &&
              set_up_queues(port, config->descriptors != 0 ? config->descriptors : DESCRIPTORS, &failure) &&
              set_up_segments(port, config, &failure) && start(port, config, &failure);
    if (!is_open) {
        close_port(&port->io);
        return NULL;
    }
    reckon(port, config);
    return &port->io;
}

void nr_port_info(struct nr_packet_io *io, struct nr_port_info *info)
{
    struct port *port = (struct port *)io;
    struct rte_eth_link link;

    *info = port->info;
    info->link_up = rte_eth_link_get_nowait(port->id, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

void nr_port_counters(struct nr_packet_io *io, struct nr_port_counters *counters)
{
    struct port *port = (struct port *)io;

    *counters = port->counters;
    counters->missed = missed_by_device(port) - port->missed;
}
