/* Take functions of the C library in their oldest version, so that what is built here loads from glibc 2.17 on.
 *
 * glibc 2.34 moved dlopen and the functions of threads into libc.so.6 under a new version, and keeps the old one beside it. build.py
 * includes this file first, and names libdl.so.2 and libpthread.so.0 as needed, where older glibc has them. A stand-in may use what has
 * had one version since 2.17 (open, read, snprintf, strtoul, getenv, nanosleep, time), and the functions below; it may not use
 * stat, fstat or sscanf and strtol with newer C standards. A test reads the versions that the stand-ins ask for.
 */
#if defined(__x86_64__)
#define NVGRAFT_OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define NVGRAFT_OLDEST "GLIBC_2.17"
#else
#error "stand-ins are made for x86_64 and aarch64"
#endif

#define NVGRAFT_TAKE_OLDEST(name) __asm__(".symver " #name ", " #name "@" NVGRAFT_OLDEST)

NVGRAFT_TAKE_OLDEST(dlopen);
NVGRAFT_TAKE_OLDEST(dlsym);
NVGRAFT_TAKE_OLDEST(dlclose);
NVGRAFT_TAKE_OLDEST(dlerror);
NVGRAFT_TAKE_OLDEST(dladdr);
NVGRAFT_TAKE_OLDEST(pthread_mutex_lock);
NVGRAFT_TAKE_OLDEST(pthread_mutex_unlock);
NVGRAFT_TAKE_OLDEST(pthread_once);
NVGRAFT_TAKE_OLDEST(pthread_key_create);
NVGRAFT_TAKE_OLDEST(pthread_getspecific);
NVGRAFT_TAKE_OLDEST(pthread_setspecific);
NVGRAFT_TAKE_OLDEST(pthread_create);
NVGRAFT_TAKE_OLDEST(pthread_join);
NVGRAFT_TAKE_OLDEST(__libc_start_main);
