/* A fault layer between the gateway and the operating system: preloaded, it counts and fails system calls.

   Only files below one directory are touched. What fails is read from memory that is shared with the harness
   (`shim.py` has the same layout). It also remembers how much of each file of the log was synced, and which names
   were, so that the harness can take away what a power cut would. What is removed from the log is kept beside the
   directory, for the harness to read. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum kind { LOG, INDEX, KEYS, KINDS, NONE = KINDS };
enum call { OPEN, WRITE, SYNC, TRUNCATE, RENAME, READ, UNLINK, CALLS };
enum { DESCRIPTORS = 1 << 16, FILES = 4096 };

struct rule {
    int32_t error;    /* errno of the calls that fail, 0 for none */
    int32_t left;     /* how many are still to fail, -1 for all */
    int32_t delay_us; /* that each call takes longer */
    int32_t halves;   /* a write does half of what it is asked for, first */
    int32_t calls;    /* how many there were, and how many failed */
    int32_t failed;
    int32_t halved;
    int32_t unused;
};

struct file { /* of the log */
    uint64_t inode;
    int64_t synced;    /* bytes that outlive a power cut */
    int32_t lost;      /* a sync failed: what was written before it may never reach the disk */
    int32_t unnamed;   /* its directory was not synced since it was made */
    int32_t renamed;   /* ... since it was renamed */
    int32_t unlinked;  /* ... since it was removed */
};

struct control {
    int64_t clock_ns; /* added to the time of day */
    int32_t kill_step; /* after so many steps of retention the process kills itself; 0 for never */
    int32_t steps;    /* how many there were */
    struct rule rules[KINDS][CALLS];
    struct file files[FILES];
};

static struct control *control;
static char root[4096];
static size_t root_length;
static uint8_t kinds[DESCRIPTORS]; /* 0, or 1 + kind */
static uint8_t directories[DESCRIPTORS];
static uint8_t retiring[DESCRIPTORS]; /* files that retention and compaction write */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name, type, ...)                                     \
    static type (*real)(__VA_ARGS__);                             \
    if (real == NULL) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* Called by the process itself, once it knows where it works. */
void faults_attach(const char *path, const char *data) {
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    void *memory = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (memory == MAP_FAILED) abort();
    strncpy(root, data, sizeof root - 1);
    root_length = strlen(root);
    control = memory;
}

__attribute__((constructor)) static void attach_by_environment(void) {
    const char *path = getenv("FAULTS_CONTROL"), *data = getenv("FAULTS_DATA");
    if (path != NULL && data != NULL) faults_attach(path, data);
}

static enum kind kind_of_path(const char *path) {
    if (control == NULL || strncmp(path, root, root_length) != 0) return NONE;
    const char *rest = path + root_length;
    if (strncmp(rest, "/log", 4) == 0) return LOG;
    if (strncmp(rest, "/index.sqlite", 13) == 0) return INDEX;
    return strncmp(rest, "/keys", 5) == 0 ? KEYS : NONE;
}

static enum kind kind_of(int descriptor) {
    if (control == NULL || descriptor < 0 || descriptor >= DESCRIPTORS || kinds[descriptor] == 0) return NONE;
    return kinds[descriptor] - 1;
}

/* Whether this call fails: then errno is set. */
static int fails(enum kind kind, enum call call) {
    if (kind == NONE) return 0;
    struct rule *rule = &control->rules[kind][call];
    __atomic_add_fetch(&rule->calls, 1, __ATOMIC_SEQ_CST);
    if (rule->delay_us > 0) usleep(rule->delay_us);
    int error = rule->error;
    if (error == 0 || rule->left == 0) return 0;
    if (rule->left > 0) __atomic_sub_fetch(&rule->left, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&rule->failed, 1, __ATOMIC_SEQ_CST);
    errno = error;
    return 1;
}

/* What retention and compaction do to the names in the log begins, or has ended. */
static void step(void) {
    if (control == NULL) return;
    __atomic_add_fetch(&control->steps, 1, __ATOMIC_SEQ_CST);
    if (control->kill_step > 0 && __atomic_sub_fetch(&control->kill_step, 1, __ATOMIC_SEQ_CST) == 0) kill(getpid(), SIGKILL);
}

static int is_retiring(const char *path) { return strstr(path, "/.retire-") != NULL; }

/* How much of *size* a write may do now. */
static size_t allowed(enum kind kind, size_t size) {
    struct rule *rule = kind == NONE ? NULL : &control->rules[kind][WRITE];
    if (rule == NULL || size < 2 || !rule->halves || rule->left == 0) return size;
    if (rule->error == 0) {
        __atomic_add_fetch(&rule->failed, 1, __ATOMIC_SEQ_CST);
        return size / 2;
    }
    if (__atomic_xor_fetch(&rule->halved, 1, __ATOMIC_SEQ_CST)) return size / 2;
    return size;
}

/* What is remembered of a file; the lock is held. */
static struct file *file_of(const struct stat *about, int fresh) {
    struct file *files = control->files;
    for (size_t n = 0; n < FILES; n++) {
        struct file *file = &files[(about->st_ino + n) % FILES];
        if (file->inode == 0) {
            file->inode = about->st_ino;
            file->synced = fresh ? 0 : about->st_size;
        }
        if (file->inode == about->st_ino) return file;
    }
    abort();
}

static void opened(int descriptor, enum kind kind, int flags, int existed) {
    if (descriptor < 0 || descriptor >= DESCRIPTORS) return;
    kinds[descriptor] = kind == NONE ? 0 : 1 + kind;
    directories[descriptor] = 0;
    struct stat about;
    if (kind != LOG || fstat(descriptor, &about) != 0) return;
    directories[descriptor] = S_ISDIR(about.st_mode);
    if (directories[descriptor] || (flags & O_ACCMODE) == O_RDONLY) return;
    pthread_mutex_lock(&lock);
    struct file *file = file_of(&about, !existed);
    if (!existed) {
        file->synced = file->lost = file->renamed = 0;
        file->unnamed = 1;
    } else if (flags & O_TRUNC) {
        file->synced = file->lost = 0;
    }
    pthread_mutex_unlock(&lock);
}

static int open_file(int at, const char *path, int flags, mode_t mode) {
    REAL("openat", int, int, const char *, int, mode_t);
    enum kind kind = kind_of_path(path);
    int existed = kind == LOG && access(path, F_OK) == 0;
    if (fails(kind, OPEN)) return -1;
    int descriptor = real(at, path, flags, mode);
    int error = errno;
    opened(descriptor, kind, flags, existed);
    if (descriptor >= 0 && descriptor < DESCRIPTORS) retiring[descriptor] = kind == LOG && is_retiring(path);
    errno = error;
    return descriptor;
}

#define MODE                                          \
    mode_t mode = 0;                                  \
    if (flags & (O_CREAT | __O_TMPFILE)) {            \
        va_list more;                                 \
        va_start(more, flags);                        \
        mode = va_arg(more, mode_t);                  \
        va_end(more);                                 \
    }

int open(const char *path, int flags, ...) { MODE return open_file(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return open_file(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int at, const char *path, int flags, ...) { MODE return open_file(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE return open_file(at, path, flags | O_LARGEFILE, mode); }

int close(int descriptor) {
    REAL("close", int, int);
    if (descriptor >= 0 && descriptor < DESCRIPTORS) kinds[descriptor] = directories[descriptor] = 0;
    return real(descriptor);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL("write", ssize_t, int, const void *, size_t);
    enum kind kind = kind_of(descriptor);
    if (kind == NONE) return real(descriptor, data, size);
    size_t some = allowed(kind, size);
    return some == size && fails(kind, WRITE) ? -1 : real(descriptor, data, some);
}

static ssize_t write_at(int descriptor, const void *data, size_t size, off_t offset) {
    REAL("pwrite64", ssize_t, int, const void *, size_t, off_t);
    enum kind kind = kind_of(descriptor);
    if (kind == NONE) return real(descriptor, data, size, offset);
    size_t some = allowed(kind, size);
    return some == size && fails(kind, WRITE) ? -1 : real(descriptor, data, some, offset);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) { return write_at(descriptor, data, size, at); }
ssize_t pwrite64(int descriptor, const void *data, size_t size, off_t at) { return write_at(descriptor, data, size, at); }

static ssize_t read_at(int descriptor, void *data, size_t size, off_t offset) {
    REAL("pread64", ssize_t, int, void *, size_t, off_t);
    return fails(kind_of(descriptor), READ) ? -1 : real(descriptor, data, size, offset);
}

ssize_t pread(int descriptor, void *data, size_t size, off_t at) { return read_at(descriptor, data, size, at); }
ssize_t pread64(int descriptor, void *data, size_t size, off_t at) { return read_at(descriptor, data, size, at); }

/* All names in the log's directory are on disk. */
static void named(void) {
    for (size_t n = 0; n < FILES; n++) {
        struct file *file = &control->files[n];
        file->unnamed = file->renamed = file->unlinked = 0;
    }
}

static int sync_file(int descriptor, int (*real)(int)) {
    enum kind kind = kind_of(descriptor);
    struct stat about;
    int is_step = kind == LOG && (directories[descriptor] || retiring[descriptor]);
    if (is_step) step();
    int failing = fails(kind, SYNC), error = errno;
    int known = kind == LOG && fstat(descriptor, &about) == 0;
    int result = failing ? -1 : real(descriptor); /* what was written since `fstat` may be on disk as well */
    if (!failing) error = errno;
    if (known) {
        pthread_mutex_lock(&lock);
        if (directories[descriptor]) {
            if (result == 0) named();
        } else {
            struct file *file = file_of(&about, 0);
            if (result != 0) file->lost = 1;
            else if (!file->lost) file->synced = about.st_size;
        }
        pthread_mutex_unlock(&lock);
    }
    if (is_step) step();
    errno = error;
    return result;
}

int fsync(int descriptor) {
    REAL("fsync", int, int);
    return sync_file(descriptor, real);
}

int fdatasync(int descriptor) {
    REAL("fdatasync", int, int);
    return sync_file(descriptor, real);
}

static int truncate_file(int descriptor, off_t size) {
    REAL("ftruncate64", int, int, off_t);
    enum kind kind = kind_of(descriptor);
    if (fails(kind, TRUNCATE)) return -1;
    int result = real(descriptor, size);
    struct stat about;
    if (result == 0 && kind == LOG && fstat(descriptor, &about) == 0) {
        pthread_mutex_lock(&lock);
        struct file *file = file_of(&about, 0);
        if (size <= file->synced) {
            file->synced = size;
            file->lost = 0; /* what a failed sync left in doubt is gone */
        }
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int ftruncate(int descriptor, off_t size) { return truncate_file(descriptor, size); }
int ftruncate64(int descriptor, off_t size) { return truncate_file(descriptor, size); }

int rename(const char *from, const char *to) {
    REAL("rename", int, const char *, const char *);
    enum kind kind = kind_of_path(from);
    struct stat about;
    int is_step = kind == LOG && is_retiring(from);
    if (is_step) step();
    if (fails(kind, RENAME)) return -1;
    int result = real(from, to), error = errno;
    if (result == 0 && kind == LOG && stat(to, &about) == 0) {
        pthread_mutex_lock(&lock);
        file_of(&about, 0)->renamed = 1;
        pthread_mutex_unlock(&lock);
    }
    if (is_step) step();
    errno = error;
    return result;
}

int unlink(const char *path) {
    REAL("unlink", int, const char *);
    enum kind kind = kind_of_path(path);
    if (kind == LOG) step();
    if (fails(kind, UNLINK)) return -1;
    if (kind != LOG) return real(path);
    struct stat about;
    char kept[2 * sizeof root];
    snprintf(kept, sizeof kept, "%s.gone%s", root, strrchr(path, '/'));
    int known = stat(path, &about) == 0;
    if (known && link(path, kept) != 0 && errno == EEXIST && real(kept) == 0) link(path, kept);
    int result = real(path), error = errno;
    if (result == 0 && known) {
        pthread_mutex_lock(&lock);
        file_of(&about, 0)->unlinked = 1;
        pthread_mutex_unlock(&lock);
    }
    step();
    errno = error;
    return result;
}

static void shift(struct timespec *now) {
    if (control == NULL || control->clock_ns == 0) return;
    int64_t nanoseconds = now->tv_sec * 1000000000LL + now->tv_nsec + control->clock_ns;
    now->tv_sec = nanoseconds / 1000000000LL;
    now->tv_nsec = nanoseconds % 1000000000LL;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL("clock_gettime", int, clockid_t, struct timespec *);
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) shift(now);
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}
