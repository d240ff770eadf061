#include "frame.h"

/* Ethernet types. */
enum { TYPE_IP4 = 0x0800, TYPE_ARP = 0x0806, TYPE_VLAN = 0x8100, TYPE_IP6 = 0x86dd };
/* IP protocols. */
enum { ICMP4 = 1, UDP = 17, FRAGMENT6 = 44, ICMP6 = 58 };
/* ICMP types. */
enum { ECHO4_REPLY = 0, ECHO4_REQUEST = 8, ECHO6_REQUEST = 128, ECHO6_REPLY = 129, SOLICITATION = 135, ADVERTISEMENT = 136 };
/* Neighbour discovery. */
enum { SOURCE_LINK_ADDRESS = 1, TARGET_LINK_ADDRESS = 2, SOLICITED = 0x40, OVERRIDE = 0x20 };
/* Bytes of headers and of whole messages. */
enum { IP4_HEADER = 20, IP6_HEADER = 40, UDP_HEADER = 8, ICMP_HEADER = 8, ARP_BYTES = 28, SOLICITATION_BYTES = 24 };
/* Of what we send. */
enum { TIME_TO_LIVE = 64, DISCOVERY_HOPS = 255 };

/* The byte of an IPv6 peer that says that it wrote to the link-local address. */
#define PEER_LINK_LOCAL (NR_PEER_LENGTH_IP6 + 6)

static const uint8_t nobody[16];

/* ---- Bytes ---- */

static uint32_t get16(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

/*
 * Internet checksums are sums of 16-bit words with the carry added at the low end, and so are the same in either byte order, if the
 * result is stored as the words were loaded: here as the machine does.
 */
static uint32_t fold(uint64_t sum)
{
    sum = (sum >> 32) + (sum & 0xffffffff);
    sum = (sum >> 32) + (sum & 0xffffffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    return (uint32_t)sum;
}

/* The sum of up to 2^32 bytes, folded to 16 bits. */
static uint32_t sum_bytes(const uint8_t *bytes, uint32_t length)
{
    uint32_t words = length / 4, word;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < words; i++) {
        memcpy(&word, bytes + 4 * (size_t)i, sizeof(word));
        sum += word;
    }
    if (length % 4 != 0) {
        word = 0;
        memcpy(&word, bytes + 4 * (size_t)words, length % 4);
        sum += word;
    }
    return fold(sum);
}

/* The sum of bytes that stand at an odd place of what is summed. */
static uint32_t odd_place(uint32_t sum)
{
    return (sum & 0xff) << 8 | sum >> 8;
}

static uint32_t native16(uint32_t value)
{
    uint8_t bytes[2];
    uint16_t word;

    put16(bytes, value);
    memcpy(&word, bytes, sizeof(word));
    return word;
}

static void store_checksum(uint8_t *at, uint64_t sum)
{
    uint16_t word = (uint16_t)~fold(sum);

    memcpy(at, &word, sizeof(word));
}

/* The sum of the pseudo-header: addresses (both, adjacent), protocol, length of what follows the IP header. */
static uint64_t pseudo_sum(const uint8_t *addresses, uint32_t address_bytes, uint32_t protocol, uint32_t length)
{
    return (uint64_t)sum_bytes(addresses, address_bytes) + native16(protocol) + native16(length);
}

static bool is_right(uint64_t sum)
{
    return fold(sum) == 0xffff;
}

/* ---- Addresses ---- */

void nr_frame_link_local(const uint8_t mac[6], uint8_t address[16])
{
    memset(address, 0, 16);
    address[0] = 0xfe;
    address[1] = 0x80;
    memcpy(address + 8, mac, 3);
    address[8] ^= 0x02; /* universal or local: inverted in an interface identifier */
    address[11] = 0xff;
    address[12] = 0xfe;
    memcpy(address + 13, mac + 3, 3);
}

static bool is_ip4(const struct nr_frame_host *host, const uint8_t *address)
{
    return memcmp(address, host->ip4, 4) == 0 && memcmp(address, nobody, 4) != 0;
}

static bool is_link_local(const struct nr_frame_host *host, const uint8_t *address)
{
    return memcmp(address, host->link_local, 16) == 0 && memcmp(address, nobody, 16) != 0;
}

static bool is_ip6(const struct nr_frame_host *host, const uint8_t *address)
{
    return is_link_local(host, address) || (memcmp(address, host->ip6, 16) == 0 && memcmp(address, nobody, 16) != 0);
}

/* Whom an answer can be sent to: neither nobody nor several nor ourselves. */
static bool can_send4(const struct nr_frame_host *host, const uint8_t *address)
{
    return address[0] != 0 && address[0] < 224 && memcmp(address, host->ip4, 4) != 0;
}

static bool can_send6(const struct nr_frame_host *host, const uint8_t *address)
{
    return address[0] != 0xff && memcmp(address, nobody, 16) != 0 && !is_ip6(host, address);
}

/* The 24 last bits of an address select the group that is asked for its MAC: ff02::1:ffXX:XXXX. */
static bool is_group_of(const uint8_t *group, const uint8_t *address)
{
    static const uint8_t prefix[13] = {0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff};

    return memcmp(group, prefix, sizeof(prefix)) == 0 && memcmp(group + 13, address + 13, 3) == 0;
}

/* ---- Received frames ---- */

/* Bytes before the IP header and the Ethernet type there. False when the frame is too short or of another VLAN. */
static bool find_packet(const uint8_t *frame, uint32_t length, uint32_t *offset, uint32_t *type)
{
    *offset = NR_FRAME_ETHERNET;
    if (length < NR_FRAME_ETHERNET)
        return false;
    *type = get16(frame + 12);
    if (*type != TYPE_VLAN)
        return true;
    *offset += NR_FRAME_TAG;
    if (length < *offset || (get16(frame + 14) & 0xfff) != 0)
        return false;
    *type = get16(frame + 16);
    return true;
}

static enum nr_frame parse_arp(const struct nr_frame_host *host, const uint8_t *arp, uint32_t length)
{
    static const uint8_t request[8] = {0, 1, TYPE_IP4 >> 8, TYPE_IP4 & 0xff, 6, 4, 0, 1};

    if (length < ARP_BYTES)
        return NR_FRAME_BAD_LENGTH;
    /* One who tells of his own address (sender and target the same) wants no answer. */
    if (memcmp(arp, request, sizeof(request)) != 0 || !is_ip4(host, arp + 24) || memcmp(arp + 14, arp + 24, 4) == 0 ||
        (arp[8] & 1) != 0)
        return NR_FRAME_NOT_OURS;
    return NR_FRAME_ARP;
}

/* The UDP header and payload at `udp`, `length` bytes by the IP header. `pseudo` is the sum of its pseudo-header. */
static enum nr_frame parse_udp(const struct nr_frame_host *host, const uint8_t *udp, uint32_t length, uint64_t pseudo,
                               bool may_lack_checksum, uint32_t verified, struct nr_rx *rx)
{
    if (length < UDP_HEADER || get16(udp + 4) != length)
        return NR_FRAME_BAD_LENGTH;
    if (get16(udp + 2) != host->udp_port || get16(udp) == 0)
        return NR_FRAME_NOT_OURS;
    rx->flags = 0;
    if (get16(udp + 6) != 0) {
        if (!(verified & NR_FRAME_UDP_VERIFIED) && !is_right(pseudo + sum_bytes(udp, length)))
            return NR_FRAME_BAD_CHECKSUM;
        rx->flags = NR_RX_CHECKSUM_VERIFIED;
    } else if (!may_lack_checksum) {
        return NR_FRAME_BAD_CHECKSUM;
    }
    rx->data = udp + UDP_HEADER;
    rx->length = length - UDP_HEADER;
    memset(&rx->peer, 0, sizeof(rx->peer));
    memcpy(rx->peer.bytes + 2, udp, 2);
    return NR_FRAME_DATAGRAM;
}

static enum nr_frame parse_ip4(const struct nr_frame_host *host, const uint8_t *frame, const uint8_t *ip, uint32_t length,
                               uint32_t verified, struct nr_rx *rx)
{
    uint32_t total;

    if (length < IP4_HEADER)
        return NR_FRAME_BAD_LENGTH;
    if (!is_ip4(host, ip + 16) || !can_send4(host, ip + 12) || ip[0] != 0x45)
        return NR_FRAME_NOT_OURS;
    total = get16(ip + 2);
    if (total < IP4_HEADER || total > length)
        return NR_FRAME_BAD_LENGTH;
    if (!(verified & NR_FRAME_IP_VERIFIED) && !is_right(sum_bytes(ip, IP4_HEADER)))
        return NR_FRAME_BAD_CHECKSUM;
    if ((get16(ip + 6) & 0x3fff) != 0)
        return NR_FRAME_FRAGMENT;
    total -= IP4_HEADER;
    if (ip[9] == UDP) {
        enum nr_frame kind = parse_udp(host, ip + IP4_HEADER, total, pseudo_sum(ip + 12, 8, UDP, total), true, verified, rx);

        if (kind != NR_FRAME_DATAGRAM)
            return kind;
        rx->peer.bytes[0] = 4;
        memcpy(rx->peer.bytes + 4, ip + 12, 4);
        memcpy(rx->peer.bytes + NR_PEER_LENGTH_IP4, frame + 6, 6);
        rx->peer.length = NR_PEER_LENGTH_IP4;
        return NR_FRAME_DATAGRAM;
    }
    if (ip[9] != ICMP4)
        return NR_FRAME_NOT_OURS;
    if (total < ICMP_HEADER)
        return NR_FRAME_BAD_LENGTH;
    if (get16(ip + IP4_HEADER) != ECHO4_REQUEST << 8)
        return NR_FRAME_NOT_OURS;
    return is_right(sum_bytes(ip + IP4_HEADER, total)) ? NR_FRAME_PING : NR_FRAME_BAD_CHECKSUM;
}

/* A neighbour solicitation whose checksum is right. */
static enum nr_frame parse_solicitation(const struct nr_frame_host *host, const uint8_t *ip, uint32_t length)
{
    const uint8_t *icmp = ip + IP6_HEADER, *target = icmp + 8;
    bool is_probe = memcmp(ip + 8, nobody, 16) == 0; /* whether the address is taken already */
    bool is_grouped;

    if (length < SOLICITATION_BYTES)
        return NR_FRAME_BAD_LENGTH;
    if (ip[7] != DISCOVERY_HOPS || !is_ip6(host, target))
        return NR_FRAME_NOT_OURS;
    is_grouped = is_group_of(ip + 24, target);
    if (!is_grouped && (is_probe || memcmp(ip + 24, target, 16) != 0))
        return NR_FRAME_NOT_OURS;
    for (uint32_t at = SOLICITATION_BYTES; at < length;) {
        uint32_t bytes = length - at < 2 ? 0 : icmp[at + 1] * 8u;

        if (bytes == 0 || bytes > length - at)
            return NR_FRAME_BAD_LENGTH;
        if (is_probe && icmp[at] == SOURCE_LINK_ADDRESS)
            return NR_FRAME_NOT_OURS;
        at += bytes;
    }
    return is_probe || can_send6(host, ip + 8) ? NR_FRAME_NEIGHBOUR : NR_FRAME_NOT_OURS;
}

static enum nr_frame parse_icmp6(const struct nr_frame_host *host, const uint8_t *ip, uint32_t length)
{
    const uint8_t *icmp = ip + IP6_HEADER;
    uint32_t type;

    if (length < ICMP_HEADER)
        return NR_FRAME_BAD_LENGTH;
    type = get16(icmp);
    if (type != SOLICITATION << 8 && (type != ECHO6_REQUEST << 8 || !is_ip6(host, ip + 24) || !can_send6(host, ip + 8)))
        return NR_FRAME_NOT_OURS;
    if (!is_right(pseudo_sum(ip + 8, 32, ICMP6, length) + sum_bytes(icmp, length)))
        return NR_FRAME_BAD_CHECKSUM;
    return type == SOLICITATION << 8 ? parse_solicitation(host, ip, length) : NR_FRAME_PING;
}

static enum nr_frame parse_ip6(const struct nr_frame_host *host, const uint8_t *frame, const uint8_t *ip, uint32_t length,
                               uint32_t verified, struct nr_rx *rx)
{
    enum nr_frame kind;
    uint32_t payload;

    if (length < IP6_HEADER)
        return NR_FRAME_BAD_LENGTH;
    payload = get16(ip + 4);
    if (ip[0] >> 4 != 6)
        return NR_FRAME_NOT_OURS;
    if (payload > length - IP6_HEADER)
        return NR_FRAME_BAD_LENGTH;
    if (ip[6] == ICMP6)
        return parse_icmp6(host, ip, payload);
    if (!is_ip6(host, ip + 24) || !can_send6(host, ip + 8))
        return NR_FRAME_NOT_OURS;
    if (ip[6] == FRAGMENT6)
        return NR_FRAME_FRAGMENT;
    if (ip[6] != UDP)
        return NR_FRAME_NOT_OURS;
    kind = parse_udp(host, ip + IP6_HEADER, payload, pseudo_sum(ip + 8, 32, UDP, payload), false, verified, rx);
    if (kind != NR_FRAME_DATAGRAM)
        return kind;
    rx->peer.bytes[0] = 6;
    memcpy(rx->peer.bytes + 4, ip + 8, 16);
    memcpy(rx->peer.bytes + NR_PEER_LENGTH_IP6, frame + 6, 6);
    rx->peer.bytes[PEER_LINK_LOCAL] = is_link_local(host, ip + 24);
    rx->peer.length = NR_PEER_LENGTH_IP6;
    return NR_FRAME_DATAGRAM;
}

enum nr_frame nr_frame_parse(const struct nr_frame_host *host, const uint8_t *frame, uint32_t length, uint32_t verified,
                             struct nr_rx *rx)
{
    uint32_t offset, type;
    bool is_to_us;
    enum nr_frame kind;

    if (!find_packet(frame, length, &offset, &type))
        return length < offset ? NR_FRAME_BAD_LENGTH : NR_FRAME_NOT_OURS;
    is_to_us = memcmp(frame, host->mac, 6) == 0;
    if ((!is_to_us && (frame[0] & 1) == 0) || (frame[6] & 1) != 0)
        return NR_FRAME_NOT_OURS;
    if (type == TYPE_ARP)
        return parse_arp(host, frame + offset, length - offset);
    if (type == TYPE_IP4 && is_to_us)
        return parse_ip4(host, frame, frame + offset, length - offset, verified, rx);
    if (type != TYPE_IP6)
        return NR_FRAME_NOT_OURS;
    kind = parse_ip6(host, frame, frame + offset, length - offset, verified, rx);
    /* To a group only questions for a MAC may come. */
    return is_to_us || kind == NR_FRAME_NEIGHBOUR || kind > NR_FRAME_PING ? kind : NR_FRAME_NOT_OURS;
}

/* ---- Answers ---- */

static void ethernet_header(const struct nr_frame_host *host, const uint8_t *to, uint32_t type, uint8_t *out)
{
    memcpy(out, to, 6);
    memcpy(out + 6, host->mac, 6);
    put16(out + 12, type);
}

static void ip4_header(const uint8_t *from, const uint8_t *to, uint32_t protocol, uint32_t total, uint8_t *ip)
{
    static const uint8_t start[IP4_HEADER] = {[0] = 0x45, [6] = 0x40, [8] = TIME_TO_LIVE};

    memcpy(ip, start, sizeof(start));
    put16(ip + 2, total);
    ip[9] = (uint8_t)protocol;
    memcpy(ip + 12, from, 4);
    memcpy(ip + 16, to, 4);
    store_checksum(ip + 10, sum_bytes(ip, IP4_HEADER));
}

static void ip6_header(const uint8_t *from, const uint8_t *to, uint32_t protocol, uint32_t payload, uint32_t hops, uint8_t *ip)
{
    memcpy(ip, (const uint8_t[4]){0x60}, 4);
    put16(ip + 4, payload);
    ip[6] = (uint8_t)protocol;
    ip[7] = (uint8_t)hops;
    memcpy(ip + 8, from, 16);
    memcpy(ip + 24, to, 16);
}

static uint32_t answer_arp(const struct nr_frame_host *host, const uint8_t *frame, const uint8_t *request, uint8_t *out)
{
    uint8_t *arp = out + NR_FRAME_ETHERNET;

    ethernet_header(host, frame + 6, TYPE_ARP, out);
    memcpy(arp, request, 6);
    put16(arp + 6, 2);
    memcpy(arp + 8, host->mac, 6);
    memcpy(arp + 14, host->ip4, 4);
    memcpy(arp + 18, request + 8, 10);
    return NR_FRAME_ETHERNET + ARP_BYTES;
}

static uint32_t answer_neighbour(const struct nr_frame_host *host, const uint8_t *frame, const uint8_t *question, uint8_t *out)
{
    static const uint8_t all_nodes[16] = {0xff, 0x02, [15] = 1}, all_nodes_mac[6] = {0x33, 0x33, 0, 0, 0, 1};
    const uint32_t bytes = SOLICITATION_BYTES + 8;
    const uint8_t *asker = question + 8, *target = question + IP6_HEADER + 8;
    uint8_t *ip = out + NR_FRAME_ETHERNET, *icmp = ip + IP6_HEADER;
    bool is_probe = memcmp(asker, nobody, 16) == 0;

    ethernet_header(host, is_probe ? all_nodes_mac : frame + 6, TYPE_IP6, out);
    ip6_header(target, is_probe ? all_nodes : asker, ICMP6, bytes, DISCOVERY_HOPS, ip);
    memset(icmp, 0, bytes);
    icmp[0] = ADVERTISEMENT;
    icmp[4] = is_probe ? OVERRIDE : SOLICITED | OVERRIDE;
    memcpy(icmp + 8, target, 16);
    icmp[24] = TARGET_LINK_ADDRESS;
    icmp[25] = 1;
    memcpy(icmp + 26, host->mac, 6);
    store_checksum(icmp + 2, pseudo_sum(ip + 8, 32, ICMP6, bytes) + sum_bytes(icmp, bytes));
    return NR_FRAME_ETHERNET + IP6_HEADER + bytes;
}

static uint32_t answer_ping4(const struct nr_frame_host *host, const uint8_t *frame, const uint8_t *question, uint8_t *out)
{
    uint32_t total = get16(question + 2);
    uint8_t *icmp = out + NR_FRAME_ETHERNET + IP4_HEADER;

    ethernet_header(host, frame + 6, TYPE_IP4, out);
    ip4_header(question + 16, question + 12, ICMP4, total, out + NR_FRAME_ETHERNET);
    memcpy(icmp, question + IP4_HEADER, total - IP4_HEADER);
    icmp[0] = ECHO4_REPLY;
    put16(icmp + 2, 0);
    store_checksum(icmp + 2, sum_bytes(icmp, total - IP4_HEADER));
    return NR_FRAME_ETHERNET + total;
}

static uint32_t answer_ping6(const struct nr_frame_host *host, const uint8_t *frame, const uint8_t *question, uint8_t *out)
{
    uint32_t bytes = get16(question + 4);
    uint8_t *ip = out + NR_FRAME_ETHERNET, *icmp = ip + IP6_HEADER;

    ethernet_header(host, frame + 6, TYPE_IP6, out);
    ip6_header(question + 24, question + 8, ICMP6, bytes, TIME_TO_LIVE, ip);
    memcpy(icmp, question + IP6_HEADER, bytes);
    icmp[0] = ECHO6_REPLY;
    put16(icmp + 2, 0);
    store_checksum(icmp + 2, pseudo_sum(ip + 8, 32, ICMP6, bytes) + sum_bytes(icmp, bytes));
    return NR_FRAME_ETHERNET + IP6_HEADER + bytes;
}

uint32_t nr_frame_answer(const struct nr_frame_host *host, enum nr_frame kind, const uint8_t *frame, uint32_t length, uint8_t *out)
{
    uint32_t offset, type;

    if (!find_packet(frame, length, &offset, &type))
        return 0;
    if (kind == NR_FRAME_ARP)
        return answer_arp(host, frame, frame + offset, out);
    if (kind == NR_FRAME_NEIGHBOUR)
        return answer_neighbour(host, frame, frame + offset, out);
    if (kind != NR_FRAME_PING)
        return 0;
    return type == TYPE_IP4 ? answer_ping4(host, frame, frame + offset, out) : answer_ping6(host, frame, frame + offset, out);
}

/* ---- Datagrams to send ---- */

/* The sum of the payload, which may be in several pieces of any length. */
static uint64_t payload_sum(const struct nr_tx *tx)
{
    uint64_t sum = sum_bytes(tx->data, tx->length);
    uint32_t place = tx->length;

    for (uint32_t i = 0; i < tx->segments; i++) {
        uint32_t piece = sum_bytes(tx->segment[i].base, tx->segment[i].length);

        sum += place % 2 != 0 ? odd_place(piece) : piece;
        place += tx->segment[i].length;
    }
    return sum;
}

/* `pseudo` is the sum of the pseudo-header. */
static void udp_header(const struct nr_frame_host *host, const struct nr_tx *tx, uint32_t bytes, uint64_t pseudo,
                       enum nr_frame_checksum checksum, uint8_t *udp)
{
    put16(udp, host->udp_port);
    memcpy(udp + 2, tx->peer.bytes + 2, 2);
    put16(udp + 4, bytes);
    put16(udp + 6, 0);
    if (checksum == NR_FRAME_CHECKSUM_PSEUDO) {
        store_checksum(udp + 6, (uint16_t)~fold(pseudo));
    } else if (checksum == NR_FRAME_CHECKSUM_WHOLE) {
        store_checksum(udp + 6, pseudo + sum_bytes(udp, UDP_HEADER) + payload_sum(tx));
        if (get16(udp + 6) == 0)
            put16(udp + 6, 0xffff); /* the same number; zero would say that there is none */
    }
}

uint32_t nr_frame_headers(const struct nr_frame_host *host, const struct nr_tx *tx, uint32_t payload,
                          enum nr_frame_checksum checksum, uint8_t *out)
{
    const uint8_t *peer = tx->peer.bytes;
    uint8_t *ip = out + NR_FRAME_ETHERNET;
    uint32_t bytes = UDP_HEADER + payload;

    if (tx->peer.length == NR_PEER_LENGTH_IP4 && peer[0] == 4) {
        if (memcmp(host->ip4, nobody, 4) == 0)
            return 0;
        ethernet_header(host, peer + NR_PEER_LENGTH_IP4, TYPE_IP4, out);
        ip4_header(host->ip4, peer + 4, UDP, IP4_HEADER + bytes, ip);
        udp_header(host, tx, bytes, pseudo_sum(ip + 12, 8, UDP, bytes), checksum, ip + IP4_HEADER);
        return NR_FRAME_HEADERS_IP4;
    }
    if (tx->peer.length == NR_PEER_LENGTH_IP6 && peer[0] == 6) {
        const uint8_t *from = peer[PEER_LINK_LOCAL] ? host->link_local : host->ip6;

        if (memcmp(from, nobody, 16) == 0)
            return 0;
        ethernet_header(host, peer + NR_PEER_LENGTH_IP6, TYPE_IP6, out);
        ip6_header(from, peer + 4, UDP, bytes, TIME_TO_LIVE, ip);
        if (checksum == NR_FRAME_CHECKSUM_NONE)
            checksum = NR_FRAME_CHECKSUM_WHOLE;
        udp_header(host, tx, bytes, pseudo_sum(ip + 8, 32, UDP, bytes), checksum, ip + IP6_HEADER);
        return NR_FRAME_HEADERS_IP6;
    }
    return 0;
}
