/* The front end of vhost-user against a small back end in the same process: no DPDK, no privileges. */
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_ring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "io/link.h"
#include "io/vring.h"
#include "waiting.h"

#define SECOND 1000000000u
#define VIRTIO sizeof(struct nr_virtio_header)
#define PREFIX NR_LINK_PREFIX
#define ALL_FEATURES (NR_VIRTIO_NET_MRG_RXBUF | NR_VIRTIO_VERSION_1 | NR_VIRTIO_IN_ORDER | 1ull << 28 | 1ull << 30)

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

/* ---- The back end ---- */

struct ring {
    struct vring_desc *desc;
    struct vring_avail *avail;
    struct vring_used *used;
    uint32_t size;
    uint16_t next; /* index of the next buffer to take */
    int kick, call;
};

struct back {
    int socket; /* our end, -1 without a connection */
    int other;  /* the end that the next dial gets, -1 for not yet */
    int dials;
    uint64_t features; /* offered */
    uint64_t accepted; /* by the front end */
    int memory_fd;
    uint8_t *memory;
    struct nr_vhost_memory table;
    struct ring ring[NR_VHOST_RINGS];
};

static void *at_user(const struct back *back, uint64_t address, size_t length)
{
    CHECK(address >= back->table.user_address && address + length <= back->table.user_address + back->table.size);
    return back->memory + (address - back->table.user_address);
}

static uint8_t *at_guest(const struct back *back, const struct vring_desc *desc)
{
    CHECK(desc->addr >= back->table.guest_address);
    CHECK(desc->addr + desc->len <= back->table.guest_address + back->table.size);
    return back->memory + (desc->addr - back->table.guest_address);
}

static void back_plug(struct back *back)
{
    int pair[2];

    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    back->socket = pair[0];
    back->other = pair[1];
}

static void back_unplug(struct back *back)
{
    for (int i = 0; i < NR_VHOST_RINGS; i++) {
        if (back->ring[i].kick > 0)
            close(back->ring[i].kick);
        if (back->ring[i].call > 0)
            close(back->ring[i].call);
    }
    memset(back->ring, 0, sizeof(back->ring));
    if (back->memory != NULL) {
        munmap(back->memory, back->table.size);
        close(back->memory_fd);
        back->memory = NULL;
    }
    if (back->socket >= 0)
        close(back->socket);
    back->socket = -1;
}

static int dial(void *context)
{
    struct back *back = context;
    int fd = back->other;

    back->dials++;
    if (fd < 0)
        return -EAGAIN;
    back->other = -1;
    return fd;
}

/* Answers one message, if there is one. False at the end of the connection. */
static bool back_serve(struct back *back, bool *any)
{
    struct nr_vhost_message message;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec vector = {.iov_base = &message, .iov_len = NR_VHOST_HEADER};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t length = recvmsg(back->socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    int fd = -1;

    *any = length > 0;
    if (length < 0) {
        CHECK_EQUAL(errno, EAGAIN);
        return true;
    }
    if (length == 0)
        return false;
    CHECK_EQUAL(length, NR_VHOST_HEADER);
    CHECK_EQUAL(message.flags, NR_VHOST_VERSION);
    CHECK(message.size <= sizeof(message.payload));
    if (message.size != 0)
        CHECK_EQUAL(recv(back->socket, &message.payload, message.size, 0), message.size);
    if (CMSG_FIRSTHDR(&header) != NULL)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(fd));

    struct ring *ring = &back->ring[message.payload.ring.index & 1];
    switch (message.request) {
    case NR_VHOST_SET_OWNER:
        break;
    case NR_VHOST_GET_FEATURES:
        message.flags = NR_VHOST_VERSION | NR_VHOST_REPLY;
        message.size = sizeof(message.payload.number);
        message.payload.number = back->features;
        /* In two pieces, as a stream may. */
        CHECK_EQUAL(send(back->socket, &message, 7, MSG_NOSIGNAL), 7);
        CHECK_EQUAL(send(back->socket, (uint8_t *)&message + 7, NR_VHOST_HEADER + 8 - 7, MSG_NOSIGNAL), NR_VHOST_HEADER + 1);
        break;
    case NR_VHOST_SET_FEATURES:
        back->accepted = message.payload.number;
        CHECK_EQUAL(back->accepted & ~back->features, 0);
        break;
    case NR_VHOST_SET_MEM_TABLE:
        CHECK_EQUAL(message.payload.memory.regions, 1);
        back->table = message.payload.memory;
        back->memory_fd = fd;
        back->memory = mmap(NULL, back->table.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)back->table.offset);
        CHECK(back->memory != MAP_FAILED);
        break;
    case NR_VHOST_SET_VRING_NUM:
        ring->size = message.payload.ring.value;
        break;
    case NR_VHOST_SET_VRING_BASE:
        ring->next = (uint16_t)message.payload.ring.value;
        break;
    case NR_VHOST_SET_VRING_ADDR:
        ring->desc = at_user(back, message.payload.address.descriptors, ring->size * sizeof(struct vring_desc));
        ring->avail = at_user(back, message.payload.address.available, 6 + 2 * ring->size);
        ring->used = at_user(back, message.payload.address.used, 6 + 8 * ring->size);
        ring->used->flags = VRING_USED_F_NO_NOTIFY;
        break;
    case NR_VHOST_SET_VRING_CALL:
        ring->call = fd;
        break;
    case NR_VHOST_SET_VRING_KICK:
        ring->kick = fd;
        break;
    default:
        CHECK(!"a request that the back end does not know");
    }
    return true;
}

/* The next frame from the front end, with its virtio header; NULL for none. */
static const uint8_t *back_receive(struct back *back, uint32_t *length)
{
    struct ring *ring = &back->ring[NR_VHOST_TX];
    uint16_t place = ring->next & (uint16_t)(ring->size - 1);

    if (__atomic_load_n(&ring->avail->idx, __ATOMIC_ACQUIRE) == ring->next)
        return NULL;
    CHECK_EQUAL(ring->avail->ring[place], place);
    CHECK_EQUAL(ring->desc[place].flags, 0);
    *length = ring->desc[place].len;
    return at_guest(back, &ring->desc[place]);
}

/* Gives back the frame that back_receive() returned last. */
static void back_done(struct back *back)
{
    struct ring *ring = &back->ring[NR_VHOST_TX];
    uint16_t place = ring->next & (uint16_t)(ring->size - 1);

    ring->used->ring[place] = (struct vring_used_elem){.id = place, .len = 0};
    ring->next++;
    __atomic_store_n(&ring->used->idx, ring->next, __ATOMIC_RELEASE);
}

/* How a reply may break the rules. */
enum damage { SOUND, NO_BUFFERS, TOO_MANY_BUFFERS, WRONG_PLACE, TOO_LONG, NO_HEADER };

/* Sends a frame (with room for a virtio header before it), over as many buffers as it fills. False when there are too few. */
static bool back_send(struct back *back, const uint8_t *frame, uint32_t length, enum damage damage)
{
    struct ring *ring = &back->ring[NR_VHOST_RX];
    uint16_t available = (uint16_t)(__atomic_load_n(&ring->avail->idx, __ATOMIC_ACQUIRE) - ring->next);
    uint32_t slot = ring->desc[0].len, count = (length + slot - 1) / slot;
    struct nr_virtio_header *first = NULL;

    if (count > available)
        return false;
    for (uint32_t i = 0, done = 0; i < count; i++) {
        uint16_t place = ring->next & (uint16_t)(ring->size - 1);
        uint32_t piece = length - done < slot ? length - done : slot;
        uint8_t *buffer = at_guest(back, &ring->desc[place]);

        CHECK_EQUAL(ring->desc[place].flags, VRING_DESC_F_WRITE);
        memcpy(buffer, frame + done, piece);
        if (i == 0) {
            first = (struct nr_virtio_header *)buffer;
            *first = (struct nr_virtio_header){.buffers = (uint16_t)count};
        }
        ring->used->ring[place] = (struct vring_used_elem){.id = place, .len = piece};
        if (damage == WRONG_PLACE)
            ring->used->ring[place].id = (place + 1) & (ring->size - 1);
        if (damage == TOO_LONG)
            ring->used->ring[place].len = slot + 1;
        if (damage == NO_HEADER)
            ring->used->ring[place].len = VIRTIO - 1;
        done += piece;
        ring->next++;
    }
    if (damage == NO_BUFFERS)
        first->buffers = 0;
    if (damage == TOO_MANY_BUFFERS)
        first->buffers = (uint16_t)(count + 1);
    __atomic_store_n(&ring->used->idx, ring->next, __ATOMIC_RELEASE);
    atomic_thread_fence(memory_order_seq_cst);
    if (!(__atomic_load_n(&ring->avail->flags, __ATOMIC_RELAXED) & VRING_AVAIL_F_NO_INTERRUPT))
        CHECK_EQUAL(eventfd_write(ring->call, 1), 0);
    return true;
}

static void turn_round(uint8_t *frame)
{
    uint8_t kept[6];

    memcpy(kept, frame, 6), memcpy(frame, frame + 6, 6), memcpy(frame + 6, kept, 6);
    memcpy(kept, frame + 26, 4), memcpy(frame + 26, frame + 30, 4), memcpy(frame + 30, kept, 4);
    memcpy(kept, frame + 34, 2), memcpy(frame + 34, frame + 36, 2), memcpy(frame + 36, kept, 2);
}

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

/* The frame is what a NIC would take: lengths agree and the IPv4 checksum is right. */
static void check_frame(const uint8_t *frame, uint32_t length)
{
    uint32_t sum = 0;

    CHECK(length >= NR_LINK_HEADERS);
    CHECK_EQUAL(get16(frame + 12), 0x0800);
    CHECK_EQUAL(get16(frame + 16), length - 14);
    CHECK_EQUAL(get16(frame + 38), length - 34);
    for (int i = 0; i < 20; i += 2)
        sum += get16(frame + 14 + i);
    sum = (sum & 0xffff) + (sum >> 16);
    CHECK_EQUAL((sum & 0xffff) + (sum >> 16), 0xffff);
}

/* Sends everything that waits back where it came from; how many. */
static uint32_t back_echo(struct back *back)
{
    static uint8_t copy[PREFIX + NR_MAX_DATAGRAM];
    const uint8_t *frame;
    uint32_t length, count = 0;

    while ((frame = back_receive(back, &length)) != NULL) {
        CHECK(length <= sizeof(copy));
        memcpy(copy, frame, length);
        check_frame(copy + VIRTIO, length - (uint32_t)VIRTIO);
        turn_round(copy + VIRTIO);
        if (!back_send(back, copy, length, SOUND))
            break;
        back_done(back);
        count++;
    }
    return count;
}

/* ---- The front end ---- */

static const struct nr_vhost_end here = {.mac = {2, 0, 0, 0, 0, 1}, .address = {10, 0, 0, 1}, .port = 16385};
static const struct nr_vhost_end there = {.mac = {2, 0, 0, 0, 0, 2}, .address = {10, 0, 0, 2}, .port = 7447};

static void count_sent(void *context, uint64_t token)
{
    *(uint64_t *)context += token;
}

static struct nr_packet_io *open_front(struct back *back, uint32_t descriptors, uint32_t slot, uint64_t *sent)
{
    int error = 1;
    struct nr_packet_io *io = nr_vring_open(&(struct nr_vring_config){.dial = dial,
                                                                      .dial_context = back,
                                                                      .local = here,
                                                                      .remote = there,
                                                                      .descriptors = descriptors,
                                                                      .slot = slot,
                                                                      .tx_bytes = 64 << 10,
                                                                      .sent = sent != NULL ? count_sent : NULL,
                                                                      .sent_context = sent},
                                            &error);

    CHECK_EQUAL(error, 0);
    CHECK(io != NULL);
    return io;
}

static enum nr_vring_state state_of(const struct nr_packet_io *io)
{
    struct nr_vring_info info;

    nr_vring_info(io, &info);
    return info.state;
}

/* A sleep, and the look that ends it. Nothing may have come. */
static void doze(struct nr_packet_io *io, uint64_t timeout_ns)
{
    struct nr_rx rx[1];

    wait_on(io, timeout_ns);
    CHECK_EQUAL(nr_io_receive_burst(io, rx, 1), 0);
}

/* Serves and polls until the connection is in the wished state. */
static void reach(struct nr_packet_io *io, struct back *back, enum nr_vring_state state)
{
    uint64_t end = now_ns() + 5ull * SECOND;
    bool any = true;

    while (state_of(io) != state || any) {
        CHECK(now_ns() < end);
        doze(io, 1000000);
        any = false;
        if (back->socket >= 0 && !back_serve(back, &any))
            back_unplug(back);
    }
}

static struct back new_back(void)
{
    struct back back = {.socket = -1, .other = -1, .features = ALL_FEATURES};

    back_plug(&back);
    return back;
}

static void connect_both(struct nr_packet_io *io, struct back *back)
{
    reach(io, back, NR_VRING_READY);
    CHECK_EQUAL(back->accepted, NR_VIRTIO_NET_MRG_RXBUF | NR_VIRTIO_VERSION_1 | NR_VIRTIO_IN_ORDER);
}

static void fill(uint8_t *bytes, uint32_t length, uint32_t seed)
{
    for (uint32_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

static void check_payload(const struct nr_rx *rx, uint32_t length, uint32_t seed)
{
    char text[NR_PEER_TEXT];

    CHECK_EQUAL(rx->length, length);
    CHECK_EQUAL(rx->flags, NR_RX_CHECKSUM_VERIFIED);
    CHECK_EQUAL(strcmp(nr_peer_format(&rx->peer, text), "10.0.0.2:7447"), 0);
    for (uint32_t i = 0; i < length; i++)
        CHECK_EQUAL(rx->data[i], (uint8_t)(seed + i * 7 + (i >> 8)));
}

static void test_every_length_comes_back_over_many_laps(void)
{
    static const uint32_t slots[] = {1024, 2048, 16384};

    for (int s = 0; s < 3; s++) {
        struct back back = new_back();
        uint64_t sent = 0, expected = 0;
        struct nr_packet_io *io = open_front(&back, 32, slots[s], &sent);
        uint8_t payload[NR_MAX_DATAGRAM];
        struct nr_rx rx[4];

        connect_both(io, &back);
        for (uint32_t length = 0; length <= NR_MAX_DATAGRAM; length += length < 2100 ? 1 : 17) {
            uint32_t own = length / 3, first = length / 4;
            struct nr_tx tx = {.data = payload, .length = (uint16_t)own};

            fill(payload, length, length);
            if (length > 100) {
                tx.segments = 2;
                tx.segment[0] = (struct nr_segment){.base = payload + own, .length = first, .token = 1};
                tx.segment[1] = (struct nr_segment){.base = payload + own + first, .length = length - own - first, .token = 2};
                expected += 3;
            } else {
                tx.length = (uint16_t)length;
            }
            CHECK_EQUAL(nr_io_send_burst(io, &tx, 1), 1);
            CHECK_EQUAL(sent, expected);
            CHECK_EQUAL(back_echo(&back), 1);
            CHECK_EQUAL(nr_io_receive_burst(io, rx, 4), 1);
            check_payload(&rx[0], length, length);
        }
        CHECK_EQUAL(io->counters.receive_errors, 0);
        CHECK_EQUAL(io->counters.sent_bytes, io->counters.received_bytes);
        nr_io_close(io);
        back_unplug(&back);
    }
}

static void test_a_full_ring_takes_what_fits_and_goes_on(void)
{
    struct back back = new_back();
    struct nr_packet_io *io = open_front(&back, 16, 2048, NULL);
    static uint8_t payload[NR_MAX_DATAGRAM];
    struct nr_tx tx[32];
    struct nr_rx rx[32];
    uint32_t total = 0;

    connect_both(io, &back);
    for (uint32_t length = 18; length <= NR_MAX_DATAGRAM; length += 8954) {
        for (int i = 0; i < 32; i++)
            tx[i] = (struct nr_tx){.data = payload, .length = (uint16_t)length};
        for (int round = 0; round < 100; round++) {
            uint32_t taken = nr_io_send_burst(io, tx, 32), came = 0;

            /* 16 descriptors; 7 frames of 9 KB in 64 KiB, or 6 where one would have to wrap. */
            CHECK(length == 18 ? taken == 16 : taken == 7 || taken == 6);
            CHECK_EQUAL(nr_io_send_burst(io, tx, 1), 0);
            while (came < taken) {
                CHECK(back_echo(&back) > 0); /* some buffers are free each time, although payloads are held until receive */
                came += nr_io_receive_burst(io, rx, 32);
                CHECK_EQUAL(nr_io_receive_burst(io, rx, 32), 0);
            }
            total += came;
        }
    }
    CHECK_EQUAL(io->counters.received, total);
    CHECK_EQUAL(io->counters.send_dropped, 0);
    nr_io_close(io);
    back_unplug(&back);
}

static void test_too_long_is_dropped_and_counted(void)
{
    struct back back = new_back();
    struct nr_packet_io *io = open_front(&back, 32, 2048, NULL);
    static uint8_t payload[NR_MAX_DATAGRAM + 1];

    connect_both(io, &back);
    CHECK_EQUAL(nr_io_max_payload(io), NR_MAX_DATAGRAM);
    CHECK_EQUAL(nr_io_send_burst(io, &(struct nr_tx){.data = payload, .length = NR_MAX_DATAGRAM + 1}, 1), 1);
    CHECK_EQUAL(io->counters.send_too_long, 1);
    CHECK_EQUAL(back_echo(&back), 0);
    nr_io_close(io);
    back_unplug(&back);
}

static void test_the_memory_cannot_be_taken_away(void)
{
    struct back back = new_back();
    struct nr_packet_io *io = open_front(&back, 32, 2048, NULL);

    connect_both(io, &back);
    CHECK_EQUAL(fcntl(back.memory_fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
    CHECK_EQUAL(ftruncate(back.memory_fd, 0), -1);
    nr_io_close(io);
    back_unplug(&back);
}

static uint32_t open_descriptors(void)
{
    uint32_t count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void test_either_side_of_a_loss_goes_on(void)
{
    struct back back = new_back();
    struct nr_packet_io *io = open_front(&back, 32, 2048, NULL);
    uint8_t payload[300];
    struct nr_tx tx = {.data = payload, .length = sizeof(payload)};
    struct nr_rx rx[4];
    struct nr_vring_info info;
    uint32_t open_before = 0;

    fill(payload, sizeof(payload), 5);
    for (int i = 0; i < 50; i++) {
        connect_both(io, &back);
        for (int k = 0; k < i; k++) {
            CHECK_EQUAL(nr_io_send_burst(io, &tx, 1), 1);
            CHECK_EQUAL(back_echo(&back), 1);
            CHECK_EQUAL(nr_io_receive_burst(io, rx, 4), 1);
            check_payload(&rx[0], sizeof(payload), 5);
        }
        CHECK_EQUAL(nr_io_send_burst(io, &tx, 1), 1); /* lost on the way */
        if (i == 1)
            open_before = open_descriptors();
        back_unplug(&back);
        reach(io, &back, NR_VRING_DOWN);
        CHECK_EQUAL(nr_io_send_burst(io, &tx, 1), 1);
        CHECK_EQUAL(io->counters.send_dropped, i + 1);
        CHECK_EQUAL(io->counters.last_send_error, -ECONNREFUSED);
        back_plug(&back);
    }
    connect_both(io, &back);
    CHECK_EQUAL(open_descriptors(), open_before);
    nr_vring_info(io, &info);
    CHECK_EQUAL(info.connections, 51);
    CHECK_EQUAL(info.refused, 0);
    nr_io_close(io);
    back_unplug(&back);
}

static void test_a_spinning_owner_notices_a_loss_too(void)
{
    struct back back = new_back();
    struct nr_packet_io *io = open_front(&back, 32, 2048, NULL);
    uint64_t end = now_ns() + 5ull * SECOND;
    struct nr_rx rx[1];

    connect_both(io, &back);
    back_unplug(&back);
    while (state_of(io) != NR_VRING_DOWN) {
        CHECK(now_ns() < end);
        CHECK_EQUAL(nr_io_receive_burst(io, rx, 1), 0);
    }
    nr_io_close(io);
}

static void test_a_back_end_without_the_features_is_refused(void)
{
    struct back back = new_back();
    struct nr_packet_io *io = open_front(&back, 32, 2048, NULL);

    back.features &= ~NR_VIRTIO_IN_ORDER;
    reach(io, &back, NR_VRING_CLOSING);
    CHECK_EQUAL(io->counters.last_unreachable, -EPROTONOSUPPORT);
    back_unplug(&back);
    reach(io, &back, NR_VRING_DOWN);
    back.features = ALL_FEATURES;
    back_plug(&back);
    connect_both(io, &back);
    nr_io_close(io);
    back_unplug(&back);
}

static void test_frames_of_others_are_dropped(void)
{
    static const struct {
        uint32_t at;
        uint8_t value;
    } changes[] = {{12, 0x86}, {14, 0x46}, {23, 6},    {20, 0x20}, {21, 1}, {33, 9},
                   {36, 1},    {37, 2},    {16, 0xff}, {38, 0xff}, {39, 7}};
    struct back back = new_back();
    struct nr_packet_io *io = open_front(&back, 32, 2048, NULL);
    uint8_t payload[100], frame[PREFIX + sizeof(payload)];
    struct nr_rx rx[4];
    uint32_t length;

    connect_both(io, &back);
    fill(payload, sizeof(payload), 1);
    CHECK_EQUAL(nr_io_send_burst(io, &(struct nr_tx){.data = payload, .length = sizeof(payload)}, 1), 1);
    const uint8_t *sent = back_receive(&back, &length);
    CHECK(sent != NULL);
    CHECK_EQUAL(length, sizeof(frame));
    for (uint32_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        memcpy(frame, sent, sizeof(frame));
        turn_round(frame + VIRTIO);
        frame[VIRTIO + changes[i].at] = changes[i].value;
        CHECK(back_send(&back, frame, sizeof(frame), SOUND));
        CHECK_EQUAL(nr_io_receive_burst(io, rx, 4), 0);
        CHECK_EQUAL(io->counters.receive_errors, i + 1);
    }
    for (uint32_t cut = VIRTIO; cut < sizeof(frame); cut++) {
        memcpy(frame, sent, sizeof(frame));
        turn_round(frame + VIRTIO);
        CHECK(back_send(&back, frame, cut, SOUND));
        CHECK_EQUAL(nr_io_receive_burst(io, rx, 4), 0);
    }
    CHECK(back_send(&back, frame, sizeof(frame), SOUND));
    CHECK_EQUAL(nr_io_receive_burst(io, rx, 4), 1);
    CHECK_EQUAL(io->counters.last_receive_error, -EBADMSG);
    nr_io_close(io);
    back_unplug(&back);
}

static void test_a_back_end_that_breaks_the_ring_is_hung_up_on(void)
{
    for (enum damage damage = NO_BUFFERS; damage <= NO_HEADER; damage++) {
        struct back back = new_back();
        struct nr_packet_io *io = open_front(&back, 32, 2048, NULL);
        uint8_t frame[PREFIX + 10] = {0};
        struct nr_rx rx[4];

        connect_both(io, &back);
        CHECK(back_send(&back, frame, sizeof(frame), damage));
        CHECK_EQUAL(nr_io_receive_burst(io, rx, 4), 0);
        CHECK_EQUAL(state_of(io), NR_VRING_CLOSING);
        CHECK_EQUAL(io->counters.last_receive_error, -EPROTO);
        back.dials = 0;
        doze(io, 0);
        CHECK_EQUAL(back.dials, 0); /* not before it has let go of the memory */
        back_unplug(&back);
        reach(io, &back, NR_VRING_DOWN);
        back_plug(&back);
        connect_both(io, &back);
        nr_io_close(io);
        back_unplug(&back);
    }
}

static void test_the_back_end_is_woken_only_where_it_asks(void)
{
    struct back back = new_back();
    struct nr_packet_io *io = open_front(&back, 32, 2048, NULL);
    uint8_t payload[4] = {0};
    struct nr_tx tx = {.data = payload, .length = sizeof(payload)};
    uint64_t count;

    connect_both(io, &back);
    (void)!read(back.ring[NR_VHOST_TX].kick, &count, sizeof(count));
    CHECK_EQUAL(nr_io_send_burst(io, &tx, 1), 1);
    CHECK_EQUAL(read(back.ring[NR_VHOST_TX].kick, &count, sizeof(count)), -1);
    back.ring[NR_VHOST_TX].used->flags = 0;
    CHECK_EQUAL(nr_io_send_burst(io, &tx, 1), 1);
    CHECK_EQUAL(read(back.ring[NR_VHOST_TX].kick, &count, sizeof(count)), sizeof(count));
    nr_io_close(io);
    back_unplug(&back);
}

static struct back *sleepers_back;

static void *answer_late(void *context)
{
    struct timespec pause = {.tv_nsec = 20000000};

    (void)context;
    nanosleep(&pause, NULL);
    CHECK_EQUAL(back_echo(sleepers_back), 1);
    return NULL;
}

static void test_a_sleeper_wakes_for_frames_losses_and_dials(void)
{
    struct back back = new_back();
    struct nr_packet_io *io = open_front(&back, 32, 2048, NULL);
    uint8_t payload[4] = {0};
    struct nr_rx rx[4];
    pthread_t thread;

    connect_both(io, &back);
    CHECK_EQUAL(nr_io_send_burst(io, &(struct nr_tx){.data = payload, .length = sizeof(payload)}, 1), 1);
    sleepers_back = &back;
    CHECK_EQUAL(pthread_create(&thread, NULL, answer_late, NULL), 0);
    CHECK_EQUAL(wait_on(io, NR_WAIT_FOREVER), NR_WAITER_READABLE);
    pthread_join(thread, NULL);
    CHECK_EQUAL(wait_on(io, NR_WAIT_FOREVER), NR_WAITER_READABLE); /* still there */
    CHECK_EQUAL(nr_io_receive_burst(io, rx, 4), 1);
    CHECK_EQUAL(nr_io_receive_burst(io, rx, 4), 0);
    CHECK_EQUAL(wait_on(io, 1000000), 0); /* an event that was seen is over */

    back_unplug(&back);
    CHECK_EQUAL(wait_on(io, NR_WAIT_FOREVER), NR_WAITER_READABLE); /* the loss, */
    CHECK_EQUAL(nr_io_receive_burst(io, rx, 4), 0);
    back.dials = 0;
    while (back.dials < 3) { /* and then the time to dial */
        CHECK_EQUAL(wait_on(io, NR_WAIT_FOREVER), NR_WAITER_READABLE);
        CHECK_EQUAL(nr_io_receive_burst(io, rx, 4), 0);
    }
    nr_io_close(io);
}

static void test_a_back_end_that_does_not_answer_is_hung_up_on(void)
{
    struct back back = new_back();
    struct nr_packet_io *io = open_front(&back, 32, 2048, NULL);
    struct nr_rx rx[1];
    char byte;

    while (io->counters.last_unreachable != -ETIMEDOUT) {
        wait_on(io, NR_WAIT_FOREVER);
        CHECK_EQUAL(nr_io_receive_burst(io, rx, 1), 0);
    }
    while (recv(back.socket, &byte, 1, 0) > 0)
        ;
    CHECK_EQUAL(back.dials, 1);
    back_unplug(&back);
    back_plug(&back);
    connect_both(io, &back);
    nr_io_close(io);
    back_unplug(&back);
}

static void test_bad_configurations_are_refused(void)
{
    struct nr_vring_config config = {.dial = dial, .local = here, .remote = there};
    int error;

    config.descriptors = 48;
    CHECK(nr_vring_open(&config, &error) == NULL && error == -EINVAL);
    config.descriptors = 16;
    config.slot = 1024; /* not two frames of the largest kind */
    CHECK(nr_vring_open(&config, &error) == NULL && error == -EINVAL);
    config.slot = 0;
    config.tx_bytes = 9000;
    CHECK(nr_vring_open(&config, &error) == NULL && error == -EINVAL);
    config.tx_bytes = 0;
    config.dial = NULL;
    CHECK(nr_vring_open(&config, &error) == NULL && error == -EINVAL);
}

int main(void)
{
    test_every_length_comes_back_over_many_laps();
    test_a_full_ring_takes_what_fits_and_goes_on();
    test_too_long_is_dropped_and_counted();
    test_the_memory_cannot_be_taken_away();
    test_either_side_of_a_loss_goes_on();
    test_a_spinning_owner_notices_a_loss_too();
    test_a_back_end_without_the_features_is_refused();
    test_frames_of_others_are_dropped();
    test_a_back_end_that_breaks_the_ring_is_hung_up_on();
    test_the_back_end_is_woken_only_where_it_asks();
    test_a_sleeper_wakes_for_frames_losses_and_dials();
    test_a_back_end_that_does_not_answer_is_hung_up_on();
    test_bad_configurations_are_refused();
    return 0;
}
