/*
 * serve - the command server of a guest, on TCP port 7.
 *
 * A shell could do this, but under emulation each program that it starts takes about ten
 * milliseconds, and the tests run thousands of commands.
 *
 * A connection carries one request: a line of words, and the bytes that it announces.
 *
 *   exec SEC B64CMD                   -> output bytes, then NUL "rc=N" LF; N is 124 after SEC
 *
 *   put MODE SIZE B64PATH, SIZE bytes -> "ok" LF
 *
 *   get B64PATH                       -> "SIZE MODE" LF, SIZE bytes   (or "-" LF)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PORT	     7
#define LONGEST_LINE (1 << 20)
#define GRACE	     2 /* seconds between SIGTERM and SIGKILL */

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void put_all(int fd, const void *data, size_t n)
{
	for (const char *p = data; n > 0;) {
		ssize_t done = write(fd, p, n);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			die("write");
		p += done;
		n -= done;
	}
}

/* Returns the first line without its end. The bytes after it stay in the socket. */
static char *read_line(int fd)
{
	char *line = malloc(LONGEST_LINE);
	if (!line)
		die("malloc");
	size_t n = 0;
	while (n < LONGEST_LINE - 1) {
		ssize_t seen = recv(fd, line + n, LONGEST_LINE - 1 - n, MSG_PEEK);
		if (seen <= 0)
			exit(1);
		char *end = memchr(line + n, '\n', seen);
		size_t take = end ? (size_t)(end - line - n) + 1 : (size_t)seen;
		if (recv(fd, line + n, take, MSG_WAITALL) != (ssize_t)take)
			exit(1);
		n += take;
		if (end) {
			line[n - 1] = 0;
			return line;
		}
	}
	exit(1);
}

/* Decodes base64 in place. Other characters are ignored. */
static char *decode64(char *text)
{
	static const char alphabet[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	unsigned bits = 0;
	int have = 0;
	char *out = text;
	for (const char *in = text; *in; in++) {
		const char *at = strchr(alphabet, *in);
		if (!at)
			continue;
		bits = bits << 6 | (unsigned)(at - alphabet);
		have += 6;
		if (have >= 8) {
			have -= 8;
			*out++ = (char)(bits >> have);
		}
	}
	*out = 0;
	return text;
}

/* Waits some seconds for a child. Returns 0 if it has ended. */
static int ended(pid_t pid, int seconds, int *status)
{
	struct timespec now, until;
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += seconds;
	for (;;) {
		if (waitpid(pid, status, WNOHANG) == pid)
			return 0;
		clock_gettime(CLOCK_MONOTONIC, &now);
		long long left =
			(until.tv_sec - now.tv_sec) * 1000000000LL + until.tv_nsec - now.tv_nsec;
		if (left <= 0)
			return -1;
		struct timespec wait = {left / 1000000000, left % 1000000000};
		sigtimedwait(&child, NULL, &wait);
	}
}

static void run(int fd, int seconds, const char *command)
{
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	pid_t pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		sigprocmask(SIG_UNBLOCK, &child, NULL);
		setsid();
		int null = open("/dev/null", O_RDONLY);
		struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
		setrlimit(RLIMIT_MEMLOCK, &unlimited);
		if (null < 0 || dup2(null, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0 ||
		    chdir("/root") < 0)
			_exit(126);
		close(null);
		close(fd);
		execl("/bin/dash", "dash", "-c", command, NULL);
		_exit(127);
	}
	int status = 0, late = ended(pid, seconds, &status);
	if (late) {
		kill(-pid, SIGTERM);
		if (ended(pid, GRACE, &status)) {
			kill(-pid, SIGKILL);
			waitpid(pid, &status, 0);
		}
	}
	int rc = late ? 124 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	char end[32];
	int n = snprintf(end, sizeof(end), "%crc=%d\n", 0, rc);
	put_all(fd, end, n);
}

static void make_directories(const char *path)
{
	char *copy = strdup(path);
	for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		mkdir(copy, 0755);
		*slash = '/';
	}
	free(copy);
}

static void put(int fd, mode_t mode, size_t size, const char *path)
{
	static char block[1 << 16];
	make_directories(path);
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
	if (file < 0)
		die(path);
	while (size > 0) {
		ssize_t n = recv(fd, block, size < sizeof(block) ? size : sizeof(block), 0);
		if (n <= 0)
			exit(1);
		put_all(file, block, n);
		size -= n;
	}
	if (fchmod(file, mode) < 0 || close(file) < 0)
		die(path);
	put_all(fd, "ok\n", 3);
}

static void get(int fd, const char *path)
{
	static char block[1 << 16];
	struct stat st;
	int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0 || fstat(file, &st) < 0 || !S_ISREG(st.st_mode)) {
		put_all(fd, "-\n", 2);
		return;
	}
	int n = snprintf(block, sizeof(block), "%lld %o\n", (long long)st.st_size,
			 st.st_mode & 07777);
	put_all(fd, block, n);
	for (ssize_t got; (got = read(file, block, sizeof(block))) > 0;)
		put_all(fd, block, got);
}

static void serve(int fd)
{
	char *words[4] = {0};
	char *rest = read_line(fd);
	for (int i = 0; i < 4; i++)
		words[i] = strsep(&rest, " ");
	if (!strcmp(words[0], "exec") && words[2])
		run(fd, atoi(words[1]), decode64(words[2]));
	else if (!strcmp(words[0], "put") && words[3])
		put(fd, strtoul(words[1], NULL, 8), strtoull(words[2], NULL, 10),
		    decode64(words[3]));
	else if (!strcmp(words[0], "get") && words[1])
		get(fd, decode64(words[1]));
}

int main(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
	int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    bind(listener, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(listener, 64) < 0)
		die("serve");
	signal(SIGCHLD, SIG_IGN); /* children are not waited for */
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		pid_t pid = fork();
		if (pid == 0) {
			signal(SIGCHLD, SIG_DFL);
			serve(fd);
			exit(0);
		}
		close(fd);
	}
}
