#include "vhost_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Most bytes that one client may make us map. */
#define MOST_MEMORY (256u << 20)

/*
 * What is mapped of clients in this process, for the SIGBUS handler. A seal keeps a client from shrinking its memory, and holes that
 * it punches are filled when touched. But the kernel may have no page to fill them with (where it does not overcommit, any client can
 * bring that about), or none any more (a page that was swapped out cannot be read, or its memory is broken): then who touches it gets
 * the signal. Entries are taken and given back under the lock, read by the handler.
 */
static struct region {
    _Atomic(uint8_t *) base; /* NULL: a free entry. Written last, taken away first */
    _Atomic size_t bytes;
    _Atomic uint32_t faults; /* pages of it that had gone */
} regions[2 * NR_VHOST_MOST_CLIENTS];

static pthread_mutex_t regions_lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic uint32_t nr_vhost_all_faults; /* sum of faults, ever */
static struct sigaction previous_action;
static bool handler_installed; /* under regions_lock */
static size_t page_bytes;

/* Puts a page of zeros where the memory had gone. Any other fault goes to who was there before. */
static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    uint8_t *at = info->si_addr;
    int saved = errno;

    for (uint32_t i = 0; i < sizeof(regions) / sizeof(regions[0]); i++) {
        uint8_t *base = atomic_load(&regions[i].base);

        if (base == NULL || at < base || at >= base + atomic_load(&regions[i].bytes))
            continue;
        uint8_t *page = (uint8_t *)((uintptr_t)at & ~(uintptr_t)(page_bytes - 1));
        if (mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            break;
        atomic_fetch_add(&regions[i].faults, 1);
        atomic_fetch_add(&nr_vhost_all_faults, 1);
        errno = saved;
        return;
    }
    errno = saved;
    if (previous_action.sa_flags & SA_SIGINFO)
        previous_action.sa_sigaction(signal, info, context);
    else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
        previous_action.sa_handler(signal);
    else
        sigaction(SIGBUS, &(struct sigaction){.sa_handler = SIG_DFL}, NULL); /* and faults again */
}

int nr_vhost_catch_faults(void)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK, .sa_sigaction = on_bus_error};
    int result = 0;

    pthread_mutex_lock(&regions_lock);
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (!handler_installed) {
        sigemptyset(&action.sa_mask);
        result = sigaction(SIGBUS, &action, &previous_action) == 0 ? 0 : -errno;
        handler_installed = result == 0;
    }
    pthread_mutex_unlock(&regions_lock);
    return result;
}

static bool enter_region(uint8_t *base, size_t bytes, uint32_t *index)
{
    bool found = false;

    pthread_mutex_lock(&regions_lock);
    for (uint32_t i = 0; i < sizeof(regions) / sizeof(regions[0]) && !found; i++) {
        if (atomic_load(&regions[i].base) != NULL)
            continue;
        atomic_store(&regions[i].bytes, bytes);
        atomic_store(&regions[i].faults, 0);
        atomic_store(&regions[i].base, base);
        *index = i;
        found = true;
    }
    pthread_mutex_unlock(&regions_lock);
    return found;
}

/* How many of its pages had gone. */
static uint32_t leave_region(uint32_t index)
{
    pthread_mutex_lock(&regions_lock);
    uint32_t faults = atomic_load(&regions[index].faults);
    atomic_store(&regions[index].base, NULL);
    pthread_mutex_unlock(&regions_lock);
    return faults;
}

/* Maps the client's memory, if it cannot be taken away and is of a sensible size. */
bool nr_vhost_map(struct vhost *vhost, struct device *device, struct nr_vhost_memory table, int fd)
{
    struct stat status;
    struct statfs system;
    int seals = fcntl(fd, F_GET_SEALS);

    if (device->memory != NULL || table.regions != 1 || seals < 0 || !(seals & F_SEAL_SHRINK) || fstatfs(fd, &system) != 0 ||
        system.f_type != TMPFS_MAGIC || fstat(fd, &status) != 0)
        return false; /* pages of hugetlbfs are not of the size that the handler puts in their place */
    if (table.size == 0 || table.size > MOST_MEMORY || table.offset % page_bytes != 0 || table.offset > (uint64_t)status.st_size ||
        table.size > (uint64_t)status.st_size - table.offset || table.guest_address > UINT64_MAX - table.size ||
        table.user_address > UINT64_MAX - table.size)
        return false;
    void *memory = mmap(NULL, table.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)table.offset);
    if (memory == MAP_FAILED)
        return false;
    if (!enter_region(memory, table.size, &device->region)) {
        munmap(memory, table.size);
        return false;
    }
    device->memory = memory;
    device->memory_bytes = table.size;
    device->guest_address = table.guest_address;
    device->user_address = table.user_address;
    vhost->info.memory_bytes += table.size;
    return true;
}

void nr_vhost_unmap(struct vhost *vhost, struct device *device)
{
    if (device->memory == NULL)
        return;
    vhost->info.faults += leave_region(device->region);
    munmap(device->memory, device->memory_bytes);
    vhost->info.memory_bytes -= device->memory_bytes;
    device->memory = NULL;
}

bool nr_vhost_faulted(const struct device *device)
{
    return device->memory != NULL && atomic_load(&regions[device->region].faults) != 0;
}

/* So many bytes at a user address, aligned as they must be; NULL when they are not all in the memory. */
void *nr_vhost_at_user(const struct device *device, uint64_t address, uint64_t bytes, uint64_t alignment)
{
    uint64_t offset = address - device->user_address;

    if (address < device->user_address || bytes > device->memory_bytes || offset > device->memory_bytes - bytes ||
        offset % alignment != 0)
        return NULL;
    return device->memory + offset;
}
