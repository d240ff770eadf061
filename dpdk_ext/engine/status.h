/* Every outcome that a caller of the C can meet, local or remote. The values travel on the wire (docs/protocol.md), so they
 * never change meaning; new ones are appended. Creators return NULL and set one of these; all other functions return it. */
#ifndef NR_ENGINE_STATUS_H
#define NR_ENGINE_STATUS_H

#include <stdint.h>

enum nr_status {
    NR_OK = 0,

    /* Not an error: the work goes on, or has been done before. */
    NR_PENDING = 1,   /* accepted, not finished; on the wire: fragments are missing */
    NR_DUPLICATE = 2, /* this step or item was stored before; nothing changed */

    /* Waiting: nothing is wrong, and the same call may succeed later. struct nr_wait says what is lacking. */
    NR_WAIT_LIMITER = 10, /* the table's rate limiter holds the call back: have/need items */
    NR_WAIT_EMPTY = 11,   /* nothing has positive weight: have = items, need = 1 */
    NR_WAIT_SPACE = 12,   /* no step or item place can be freed now: have = free, need = wanted */
    NR_WAIT_LEASES = 13,  /* too many drawn items are held by learners: have = leased, need = the cap */
    NR_WAIT_STEPS = 14,   /* an item's steps have not all arrived */
    NR_WAIT_TURN = 15,    /* an earlier insert of the session has not committed, or another publisher is writing */
    NR_WAIT_SAMPLES = 16, /* the ratio holds draws back: have = samples drawn with these, need = allowed by the inserts so far */
    NR_WAIT_INSERTS = 17, /* the ratio holds inserts back: have = samples taken, need = those that must have been */
    NR_WAIT_LEAVING = 18, /* items are leaving, expired or by a reset, in quanta: have = items still in the table, need = 0 */
    NR_WAIT_PASSES = 19,  /* the last pass over the table is over: have = items not yet drawn, need = items wanted */

    /* Refusals of one item, key or call. Everything else in the call stands. */
    NR_BAD_PRIORITY = 30, /* NaN, infinite or negative */
    NR_BAD_WINDOW = 31,   /* the item names steps that the stream does not hold, or none */
    NR_BAD_LENGTH = 32,   /* bytes do not fit the step, column, row or message they are for */
    NR_NO_STORE = 33,
    NR_NO_TABLE = 34,
    NR_NO_SET = 35,        /* no such parameter set */
    NR_STREAM_GONE = 36,   /* the stream was evicted or never opened in this session */
    NR_STREAM_OWNED = 37,  /* another live session owns the stream */
    NR_STALE = 38,         /* the key's item has left the table */
    NR_CONFLICT = 39,      /* publish(expect=) met another version */
    NR_RESTART = 40,       /* the parameters being read were replaced: read the newer ones */
    NR_LEASE_EXPIRED = 41, /* the draw was reclaimed before all its bytes were read */
    NR_BAD_COUNT = 42,     /* zero, or above a limit of protocol/wire.h */
    NR_BAD_LIMITS = 43,    /* a table's limits contradict each other, or its capacity */

    /* Refusals of the conversation. */
    NR_MALFORMED = 60,
    NR_BAD_VERSION = 61, /* the peer speaks another version of the protocol */
    NR_NO_SESSION = 62,  /* unknown or swept session: say HELLO again */
    NR_TOO_MANY = 63,    /* sessions or streams are at their configured number */
    NR_REFUSED = 64,     /* authentication */

    /* Local to one process; never sent. */
    NR_NO_MEMORY = 80,
    NR_TIMEOUT = 81,
    NR_CLOSED = 82,
    NR_BAD_CONFIG = 83,
    NR_FORKED = 84, /* used in a child of the process that opened it */
    NR_BAD_ADDRESS = 85,
    NR_SYSTEM = 86, /* the operating system refused; a separate errno says why */
};

/* Why a call waits, with the numbers that an error message shows. */
struct nr_wait {
    int32_t reason; /* enum nr_status, NR_WAIT_*; 0 when not waiting */
    uint32_t table; /* index of the table concerned; UINT32_MAX for none */
    uint64_t have;
    uint64_t need;
};

static inline int nr_is_wait(int status)
{
    return status >= NR_WAIT_LIMITER && status <= NR_WAIT_PASSES;
}

#endif
