#include "checkpoint_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../engine/crc32c.h"

/* ---- Heads ---- */

struct nr_file_head nr_file_head(void)
{
    struct nr_file_head head = {.version = NR_FILE_VERSION};

    memcpy(head.magic, NR_FILE_MAGIC, sizeof(head.magic));
    head.crc = nr_crc32c(0, &head, offsetof(struct nr_file_head, crc));
    return head;
}

struct nr_block_head nr_block_head(uint32_t kind, uint32_t number, const struct nr_segment *parts, uint32_t count)
{
    struct nr_block_head head = {.magic = NR_BLOCK_MAGIC, .kind = kind, .number = number};
    uint32_t crc;

    for (uint32_t i = 0; i < count; i++)
        head.length += parts[i].length;
    crc = nr_crc32c(0, &head, sizeof(head));
    for (uint32_t i = 0; i < count; i++)
        crc = nr_crc32c(crc, parts[i].base, parts[i].length);
    head.crc = crc;
    return head;
}

/* ---- Reading ---- */

struct reader {
    struct nr_checkpoint_file *file;
    int fd;
    uint64_t at;      /* bytes read */
    uint8_t *payload; /* of the present block */
    uint64_t room;    /* bytes of payload */
    uint32_t *crc;    /* by block, from the first time: what is taken is what was looked through */
    uint32_t crcs;    /* entries */
    uint32_t crc_room;
};

__attribute__((format(printf, 3, 4))) static int refuse(struct nr_checkpoint_file *file, int status, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(file->complaint, sizeof(file->complaint), format, arguments);
    va_end(arguments);
    return status;
}

static int refuse_errno(struct nr_checkpoint_file *file, const char *what)
{
    file->error = errno;
    return refuse(file, NR_SYSTEM, "%s: %s", what, strerror(file->error));
}

static int read_exactly(struct reader *reader, void *target, uint64_t length)
{
    uint8_t *at = target;

    if (length > reader->file->bytes - reader->at)
        return refuse(reader->file, NR_MALFORMED, "block at byte %llu: the file ends within it",
                      (unsigned long long)reader->file->offset);
    while (length > 0) {
        ssize_t got = read(reader->fd, at, length < 1u << 30 ? length : 1u << 30);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return refuse_errno(reader->file, "read");
        if (got == 0)
            return refuse(reader->file, NR_MALFORMED, "the file has become shorter while it was read");
        at += got;
        length -= (uint64_t)got;
        reader->at += (uint64_t)got;
    }
    return NR_OK;
}

static int read_file_head(struct reader *reader)
{
    struct nr_file_head head, expected = nr_file_head();

    reader->file->offset = 0;
    if (reader->file->bytes < sizeof(head))
        return refuse(reader->file, NR_MALFORMED, "%llu bytes are no checkpoint", (unsigned long long)reader->file->bytes);
    int status = read_exactly(reader, &head, sizeof(head));
    if (status != NR_OK)
        return status;
    if (memcmp(head.magic, expected.magic, sizeof(head.magic)) != 0)
        return refuse(reader->file, NR_MALFORMED, "byte 0: not a checkpoint");
    if (head.crc != nr_crc32c(0, &head, offsetof(struct nr_file_head, crc)))
        return refuse(reader->file, NR_MALFORMED, "byte 0: the file's head is damaged");
    if (head.version != NR_FILE_VERSION)
        return refuse(reader->file, NR_BAD_VERSION, "the file is of version %u, this program reads %u", head.version,
                      (unsigned)NR_FILE_VERSION);
    return NR_OK;
}

static int keep_crc(struct reader *reader, uint32_t number, uint32_t crc)
{
    if (number == reader->crc_room) {
        uint32_t room = reader->crc_room > 0 ? reader->crc_room * 2 : 1024;
        uint32_t *crcs = realloc(reader->crc, (size_t)room * sizeof(*crcs));

        if (crcs == NULL)
            return refuse(reader->file, NR_NO_MEMORY, "no memory for the checksums of %u blocks", room);
        reader->crc = crcs;
        reader->crc_room = room;
    }
    reader->crc[number] = crc;
    reader->crcs = number + 1;
    return NR_OK;
}

/* The records were found sound the first time; what comes now must be those. */
static int same_block(struct reader *reader, uint32_t number, uint32_t crc)
{
    if (number >= reader->crcs || reader->crc[number] != crc)
        return refuse(reader->file, NR_MALFORMED, "block at byte %llu: has changed while the file was read",
                      (unsigned long long)reader->file->offset);
    return NR_OK;
}

static int read_block(struct reader *reader, uint32_t number, bool again, struct nr_block_head *head)
{
    struct nr_checkpoint_file *file = reader->file;
    unsigned long long offset = file->offset = reader->at;
    int status = read_exactly(reader, head, sizeof(*head));

    if (status != NR_OK)
        return status;
    if (head->magic != NR_BLOCK_MAGIC || head->number != number || head->kind < NR_BLOCK_SPEC || head->kind > NR_BLOCK_END)
        return refuse(file, NR_MALFORMED, "block at byte %llu: damaged", offset);
    if (head->length > file->bytes - reader->at)
        return refuse(file, NR_MALFORMED, "block at byte %llu: the file ends within it", offset);
    if (head->length + 1 > reader->room) {
        uint8_t *payload = realloc(reader->payload, head->length + 1);

        if (payload == NULL)
            return refuse(file, NR_NO_MEMORY, "block at byte %llu: no memory for %llu bytes", offset,
                          (unsigned long long)head->length);
        reader->payload = payload;
        reader->room = head->length + 1;
    }
    status = read_exactly(reader, reader->payload, head->length);
    if (status != NR_OK)
        return status;
    struct nr_block_head checked = *head;
    checked.crc = 0;
    if (nr_crc32c(nr_crc32c(0, &checked, sizeof(checked)), reader->payload, head->length) != head->crc)
        return refuse(file, NR_MALFORMED, "block at byte %llu: its checksum does not match", offset);
    return again ? same_block(reader, number, head->crc) : keep_crc(reader, number, head->crc);
}

/* One time through the file; the spec is kept the first time. */
static int read_through(struct reader *reader, struct nr_restore *restore, bool again,
                        int (*give)(struct nr_restore *restore, const void *payload, uint64_t length))
{
    struct nr_checkpoint_file *file = reader->file;
    int status = read_file_head(reader);

    for (uint32_t number = 0; status == NR_OK; number++) {
        struct nr_block_head head;

        status = read_block(reader, number, again, &head);
        if (status != NR_OK)
            break;
        if ((number == 0) != (head.kind == NR_BLOCK_SPEC))
            return refuse(file, NR_MALFORMED, "block at byte %llu: out of turn", (unsigned long long)file->offset);
        if (head.kind == NR_BLOCK_SPEC && file->spec == NULL) {
            file->spec = malloc(head.length + 1);
            if (file->spec == NULL)
                return refuse(file, NR_NO_MEMORY, "no memory for the spec");
            memcpy(file->spec, reader->payload, head.length);
            file->spec[head.length] = 0;
            file->spec_bytes = head.length;
        } else if (head.kind == NR_BLOCK_DATA) {
            status = give(restore, reader->payload, head.length);
            if (status != NR_OK)
                return refuse(file, status, "block at byte %llu: %s", (unsigned long long)file->offset,
                              nr_restore_complaint(restore));
        } else if (head.kind == NR_BLOCK_END) {
            struct nr_block_end end = {.blocks = number, .bytes = file->offset};

            if (head.length != sizeof(end) || memcmp(reader->payload, &end, sizeof(end)) != 0 || reader->at != file->bytes)
                return refuse(file, NR_MALFORMED, "block at byte %llu: not the end that it says it is",
                              (unsigned long long)file->offset);
            file->blocks = number;
            return NR_OK;
        }
    }
    return status;
}

static int read_file(const char *path, struct nr_restore *restore, bool take, struct nr_checkpoint_file *file)
{
    struct reader reader = {.file = file, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    struct stat stat;
    int status = NR_OK;

    if (reader.fd < 0)
        return refuse_errno(file, "open");
    if (fstat(reader.fd, &stat) != 0)
        status = refuse_errno(file, "stat");
    else if (!S_ISREG(stat.st_mode))
        status = refuse(file, NR_MALFORMED, "not a regular file");
    if (status == NR_OK) {
        file->bytes = (uint64_t)stat.st_size;
        (void)posix_fadvise(reader.fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        status = read_through(&reader, restore, false, nr_restore_scan);
    }
    if (status == NR_OK) {
        status = nr_restore_scanned(restore);
        if (status != NR_OK)
            refuse(file, status, "%s", status == NR_NO_MEMORY ? "no memory" : nr_restore_complaint(restore));
    }
    if (status == NR_OK && take) {
        reader.at = 0;
        if (lseek(reader.fd, 0, SEEK_SET) != 0)
            status = refuse_errno(file, "seek");
        else
            status = read_through(&reader, restore, true, nr_restore_take);
        if (status == NR_OK) {
            status = nr_restore_finish(restore);
            if (status != NR_OK)
                refuse(file, status, "%s", nr_restore_complaint(restore));
        }
    }
    free(reader.crc);
    free(reader.payload);
    close(reader.fd);
    return status;
}

int nr_checkpoint_inspect(const char *path, struct nr_checkpoint_file *file)
{
    int status;

    *file = (struct nr_checkpoint_file){0};
    struct nr_restore *restore = nr_restore_inspect(&status);
    if (restore == NULL)
        return status;
    status = read_file(path, restore, false, file);
    nr_restore_report(restore, &file->restored);
    nr_restore_close(restore);
    return status;
}

int nr_checkpoint_restore(const char *path, struct nr_engine *engine, const struct nr_restore_map *map,
                          struct nr_checkpoint_file *file)
{
    struct timespec now;
    int status;

    *file = (struct nr_checkpoint_file){0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct nr_restore *restore = nr_restore_open(engine, map, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec, &status);
    if (restore == NULL)
        return status;
    status = read_file(path, restore, true, file);
    nr_restore_report(restore, &file->restored);
    nr_restore_close(restore);
    return status;
}

void nr_checkpoint_file_free(struct nr_checkpoint_file *file)
{
    free(file->spec);
    file->spec = NULL;
}
