/* Loaded before the program (LD_PRELOAD): a machine on which one call fails.
 *
 *   CPSCOPE_FAILING=CALL:FIRST:LAST   the FIRST-th to LAST-th call of CALL fail, counted from 1 in every process
 *   CPSCOPE_CALLS=FILE                how often CALL was called, written when the program ends
 *
 * CALL is one of memory (malloc and its kin), thread, write, rename. What happens before main is not counted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char failing[16];
static long first, last;
static atomic_long calls;

static int (*program)(int, char**, char**);

static int count_from_here(int argc, char** argv, char** environment) {
  const char* wanted = getenv("CPSCOPE_FAILING");
  char call[16];
  if (wanted != NULL && sscanf(wanted, "%15[a-z]:%ld:%ld", call, &first, &last) == 3)
    strcpy(failing, call);
  return program(argc, argv, environment);
}

int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(void),
                      void (*finish)(void), void (*finish_loader)(void), void* stack_end) {
  typedef int (*Start)(int (*)(int, char**, char**), int, char**, void (*)(void), void (*)(void),
                       void (*)(void), void*);
  Start start;
  *(void**)&start = dlsym(RTLD_NEXT, "__libc_start_main");
  program = main;
  return start(count_from_here, argc, argv, init, finish, finish_loader, stack_end);
}

__attribute__((destructor)) static void write_count(void) {
  const char* path = getenv("CPSCOPE_CALLS");
  failing[0] = 0;
  if (path == NULL) return;
  char text[32];
  const int length = snprintf(text, sizeof text, "%ld", (long)calls);
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0) return;
  if (syscall(SYS_write, file, text, (size_t)length) != length) unlink(path);
  close(file);
}

static int fails(const char* call) {
  if (strcmp(failing, call) != 0) return 0;
  const long number = atomic_fetch_add(&calls, 1) + 1;
  return number >= first && number <= last;
}

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static void* out_of_memory(void) {
  errno = ENOMEM;
  return NULL;
}

void* malloc(size_t size) { return fails("memory") ? out_of_memory() : __libc_malloc(size); }

void* calloc(size_t count, size_t size) {
  return fails("memory") ? out_of_memory() : __libc_calloc(count, size);
}

void* realloc(void* old, size_t size) {
  return fails("memory") ? out_of_memory() : __libc_realloc(old, size);
}

void* memalign(size_t alignment, size_t size) {
  return fails("memory") ? out_of_memory() : __libc_memalign(alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void** result, size_t alignment, size_t size) {
  void* made = memalign(alignment, size);
  if (made == NULL) return ENOMEM;
  *result = made;
  return 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) {
  static int (*create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (create == NULL) *(void**)&create = dlsym(RTLD_NEXT, "pthread_create");
  return fails("thread") ? EAGAIN : create(thread, attributes, body, argument);
}

static ssize_t disk_full(void) {
  errno = ENOSPC;
  return -1;
}

ssize_t write(int file, const void* bytes, size_t size) {
  return fails("write") ? disk_full() : syscall(SYS_write, file, bytes, size);
}

ssize_t writev(int file, const struct iovec* parts, int count) {
  return fails("write") ? disk_full() : syscall(SYS_writev, file, parts, count);
}

int rename(const char* from, const char* to) {
  if (!fails("rename")) return (int)syscall(SYS_rename, from, to);
  errno = EIO;
  return -1;
}
