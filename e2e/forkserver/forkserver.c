// SPDX-License-Identifier: Apache-2.0
/*
 * forkserver - a TCP echo server that forks for each of two connections, and its client.
 *
 *	forkserver serve ADDR PORT
 *	forkserver connect ADDR PORT BYTES
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONNECTIONS 2

static void require(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void write_all(int fd, const char *b, ssize_t n)
{
	while (n > 0) {
		ssize_t done = write(fd, b, n);
		require(done > 0, "write");
		b += done;
		n -= done;
	}
}

static void echo(int fd)
{
	char b[65536];
	ssize_t n;
	while ((n = read(fd, b, sizeof b)) > 0)
		write_all(fd, b, n);
	require(n == 0, "read");
}

static void serve(const struct sockaddr_in *a)
{
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	require(s >= 0 && !setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), "socket");
	require(!bind(s, (const struct sockaddr *)a, sizeof *a) && !listen(s, 5), "listen");
	for (int i = 0; i < CONNECTIONS; i++) {
		int fd = accept(s, NULL, NULL);
		require(fd >= 0, "accept");
		pid_t child = fork();
		require(child >= 0, "fork");
		if (!child) {
			echo(fd);
			close(fd);
			_exit(0);
		}
		close(fd);
	}
	for (int status, i = 0; i < CONNECTIONS; i++)
		require(wait(&status) > 0 && !status, "child process");
}

static void connect_to(const struct sockaddr_in *a, long bytes)
{
	char sent[10000], got[10000];
	int s = socket(AF_INET, SOCK_STREAM, 0);
	require(s >= 0 && !connect(s, (const struct sockaddr *)a, sizeof *a), "connect");
	for (long done = 0; done < bytes; done += sizeof sent) {
		memset(sent, (int)(done / (long)sizeof sent), sizeof sent);
		write_all(s, sent, sizeof sent);
		for (size_t n = 0; n < sizeof got;) {
			ssize_t more = read(s, got + n, sizeof got - n);
			require(more > 0, "read");
			n += more;
		}
		require(!memcmp(sent, got, sizeof sent), "echo differs");
	}
	shutdown(s, SHUT_RDWR);
	close(s);
}

int main(int argc, char **argv)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	if (argc < 4 || inet_pton(AF_INET, argv[2], &a.sin_addr) != 1)
		return 2;
	a.sin_port = htons(atoi(argv[3]));
	if (argc > 4)
		connect_to(&a, atol(argv[4]));
	else
		serve(&a);
	return 0;
}
