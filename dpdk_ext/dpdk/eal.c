#include "eal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rte_build_config.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>

/*
 * While EAL starts, standard output and standard error lead into a file in memory: it logs there, prints a screenful of usage on bad
 * arguments, and says the last word of a failure on standard error by itself. What other threads print meanwhile is caught too.
 */
struct capture {
    FILE *log;      /* what EAL logs into; the same file */
    int file;       /* descriptor of the file in memory */
    int standard_output, standard_error; /* descriptors of where they led */
};

static void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

static void end_capture(struct capture *capture)
{
    if (capture->log != NULL) {
        rte_openlog_stream(stderr);
        fclose(capture->log);
    }
    fflush(stdout);
    fflush(stderr);
    if (capture->standard_output >= 0)
        dup2(capture->standard_output, STDOUT_FILENO);
    if (capture->standard_error >= 0)
        dup2(capture->standard_error, STDERR_FILENO);
    close_if_open(capture->standard_output);
    close_if_open(capture->standard_error);
}

static int start_capture(struct capture *capture)
{
    int copy;

    *capture = (struct capture){.file = memfd_create("eal", MFD_CLOEXEC), .standard_output = -1, .standard_error = -1};
    if (capture->file < 0 || fcntl(capture->file, F_SETFL, O_APPEND) < 0)
        return -errno;
    copy = fcntl(capture->file, F_DUPFD_CLOEXEC, 0);
    capture->log = copy < 0 ? NULL : fdopen(copy, "a");
    if (capture->log == NULL) {
        close_if_open(copy);
        return -ENOMEM;
    }
    setvbuf(capture->log, NULL, _IOLBF, 0);
    fflush(stdout);
    fflush(stderr);
    /* Either may be closed already: then there is nothing to keep quiet. */
    capture->standard_output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    capture->standard_error = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (capture->standard_output >= 0)
        dup2(capture->file, STDOUT_FILENO);
    if (capture->standard_error >= 0)
        dup2(capture->file, STDERR_FILENO);
    rte_openlog_stream(capture->log);
    return 0;
}

/* The first that was said: what went wrong comes before the usage. */
static void read_capture(const struct capture *capture, char text[NR_EAL_TEXT])
{
    ssize_t length = pread(capture->file, text, NR_EAL_TEXT - 1, 0);

    text[length > 0 ? length : 0] = 0;
}

/* EAL keeps the arguments: copies that live as long as the process. */
static char **copy_arguments(int argc, const char *const *argv)
{
    char **copies = calloc((size_t)argc + 1, sizeof(*copies));

    for (int i = 0; copies != NULL && i < argc; i++) {
        copies[i] = strdup(argv[i]);
        if (copies[i] == NULL)
            return NULL;
    }
    return copies;
}

static int start(int argc, const char *const *argv, char text[NR_EAL_TEXT])
{
    char **arguments = copy_arguments(argc, argv);
    struct capture capture;
    int result;

    if (arguments == NULL)
        return -ENOMEM;
    result = start_capture(&capture);
    if (result == 0) {
        int taken = rte_eal_init(argc, arguments);

        result = taken >= 0 ? 0 : rte_errno > 0 ? -rte_errno : -EINVAL;
        if (taken >= 0 && taken + 1 < argc)
            result = -EINVAL;
        end_capture(&capture);
        read_capture(&capture, text);
        if (taken >= 0 && taken + 1 < argc)
            snprintf(text, NR_EAL_TEXT, "EAL: not an option: '%s'\n", arguments[taken + 1]);
    } else {
        end_capture(&capture);
    }
    close_if_open(capture.file);
    return result;
}

int nr_eal_start(int argc, const char *const *argv, char text[NR_EAL_TEXT])
{
    static _Atomic int started;
    cpu_set_t affinity;
    int result;

    text[0] = 0;
    if (atomic_exchange(&started, 1))
        return -EALREADY;
    /* EAL pins this thread to its main lcore, and threads started later would inherit that. */
    bool is_known = pthread_getaffinity_np(pthread_self(), sizeof(affinity), &affinity) == 0;
    result = start(argc, argv, text);
    if (is_known)
        pthread_setaffinity_np(pthread_self(), sizeof(affinity), &affinity);
    return result;
}

const char *nr_eal_driver_folder(void)
{
#ifdef RTE_EAL_PMD_PATH
    return RTE_EAL_PMD_PATH;
#else
    return "";
#endif
}
