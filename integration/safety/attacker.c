/* An attacker that changes a root file system while a hook works in it: 100,000 and more changes a second.
 *
 * usage: attacker COUNTER SEED {KIND A B}...
 *
 * It repeatedly chooses one of the moves and makes it many times. Each move is made and taken back, so the tree is whole
 * between two moves and everything else keeps working. The file COUNTER holds the number of successful changes, as 8 bytes.
 * SIGTERM ends it with the tree whole. It also ends with the process that started it.
 *
 *   exchange A B   A and B change places                    away A B    A is moved to B and comes back
 *   link A B       a symbolic link to B appears at A        file A -    a file appears at A
 *   dir A -        a directory appears at A                 fifo A -    a FIFO appears at A
 *   remake A -     the empty directory A is removed and made again, as another inode
 *   mount A B      A is bound on B
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONGEST_BURST = 2048 };

static volatile uint64_t *counter;
static volatile sig_atomic_t stopped;
static uint64_t state;

static uint32_t next_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

static void stop(int number)
{
	(void)number;
	stopped = 1;
}

static int make_file(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
	return fd < 0 ? -1 : close(fd);
}

static int change(const char *kind, const char *a, const char *b)
{
	if (!strcmp(kind, "exchange"))
		return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
	if (!strcmp(kind, "away"))
		return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_NOREPLACE);
	if (!strcmp(kind, "link"))
		return symlink(b, a);
	if (!strcmp(kind, "file"))
		return make_file(a);
	if (!strcmp(kind, "dir"))
		return mkdir(a, 0755);
	if (!strcmp(kind, "fifo"))
		return mkfifo(a, 0644);
	if (!strcmp(kind, "remake"))
		return rmdir(a);
	if (!strcmp(kind, "mount"))
		return mount(a, b, NULL, MS_BIND, NULL);
	fprintf(stderr, "attacker: unknown move: %s\n", kind);
	exit(2);
}

static int take_back(const char *kind, const char *a, const char *b)
{
	if (!strcmp(kind, "exchange"))
		return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
	if (!strcmp(kind, "away"))
		return renameat2(AT_FDCWD, b, AT_FDCWD, a, RENAME_NOREPLACE);
	if (!strcmp(kind, "dir"))
		return rmdir(a);
	if (!strcmp(kind, "remake"))
		return mkdir(a, 0755);
	if (!strcmp(kind, "mount"))
		return umount2(b, MNT_DETACH);
	return unlink(a);
}

int main(int argc, char **argv)
{
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGTERM, stop);
	if (argc < 6 || argc % 3 != 0) {
		fprintf(stderr, "usage: attacker COUNTER SEED {KIND A B}...\n");
		return 2;
	}
	fd = open(argv[1], O_RDWR | O_CLOEXEC);
	counter = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (counter == MAP_FAILED) {
		perror(argv[1]);
		return 2;
	}
	state = strtoull(argv[2], NULL, 10) * 2654435761u + 88172645463325252u;
	while (!stopped) {
		char **move = argv + 3 + 3 * (next_random() % (uint32_t)(argc / 3 - 1));
		/* Short and long bursts: the victims take from microseconds to milliseconds. */
		uint32_t burst = 1 + next_random() % (1u << next_random() % 12) % LONGEST_BURST;

		while (burst-- && !stopped) {
			if (change(move[0], move[1], move[2]))
				break; /* it is not there (yet): try another move */
			*counter += 1;
			/* It may have changed meanwhile (a directory that is not empty any more): try again. */
			for (int tries = 0; tries < 1000; tries++) {
				if (take_back(move[0], move[1], move[2]) == 0) {
					*counter += 1;
					break;
				}
			}
		}
	}
	return 0;
}
