#include "link.h"

void nr_link_prepare(struct nr_link *link, const struct nr_vhost_end *local, const struct nr_vhost_end *remote)
{
    uint8_t *frame = link->prefix + sizeof(struct nr_virtio_header), *ip = frame + 14, *udp = ip + 20;

    memset(link, 0, sizeof(*link));
    memcpy(frame, remote->mac, 6);
    memcpy(frame + 6, local->mac, 6);
    nr_link_put16(frame + 12, 0x0800);
    ip[0] = 0x45;
    nr_link_put16(ip + 6, 0x4000); /* DF */
    ip[8] = 64;
    ip[9] = 17;
    memcpy(ip + 12, local->address, 4);
    memcpy(ip + 16, remote->address, 4);
    nr_link_put16(udp, local->port);
    nr_link_put16(udp + 2, remote->port); /* the checksum stays zero: none */
    for (int i = 0; i < 20; i += 2)
        link->ip_sum += nr_link_get16(ip + i);
    memcpy(link->local, local->address, 4);
    nr_link_put16(link->local + 4, local->port);
}
