// SPDX-License-Identifier: Apache-2.0
/*
 * Sockets over RDMA are not there yet. Programs that could use them find the functions, which
 * fail; the first of them, rsocket, is all that most ever call.
 */
#include <rdma/rsocket.h>

#include <errno.h>

#include "rdmacm.h"

static int none(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

CM_PUBLIC int rsocket(int domain, int type, int protocol)
{
	(void)domain, (void)type, (void)protocol;
	return none();
}

CM_PUBLIC int rbind(int fd, const struct sockaddr *addr, socklen_t len)
{
	(void)fd, (void)addr, (void)len;
	return none();
}

CM_PUBLIC int rlisten(int fd, int backlog)
{
	(void)fd, (void)backlog;
	return none();
}

CM_PUBLIC int raccept(int fd, struct sockaddr *addr, socklen_t *len)
{
	(void)fd, (void)addr, (void)len;
	return none();
}

CM_PUBLIC int rconnect(int fd, const struct sockaddr *addr, socklen_t len)
{
	(void)fd, (void)addr, (void)len;
	return none();
}

CM_PUBLIC int rshutdown(int fd, int how)
{
	(void)fd, (void)how;
	return none();
}

CM_PUBLIC int rclose(int fd)
{
	(void)fd;
	return none();
}

CM_PUBLIC ssize_t rrecv(int fd, void *buf, size_t len, int flags)
{
	(void)fd, (void)buf, (void)len, (void)flags;
	return none();
}

CM_PUBLIC ssize_t rrecvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *src,
			    socklen_t *srclen)
{
	(void)fd, (void)buf, (void)len, (void)flags, (void)src, (void)srclen;
	return none();
}

CM_PUBLIC ssize_t rrecvmsg(int fd, struct msghdr *msg, int flags)
{
	(void)fd, (void)msg, (void)flags;
	return none();
}

CM_PUBLIC ssize_t rsend(int fd, const void *buf, size_t len, int flags)
{
	(void)fd, (void)buf, (void)len, (void)flags;
	return none();
}

CM_PUBLIC ssize_t rsendto(int fd, const void *buf, size_t len, int flags,
			  const struct sockaddr *dst, socklen_t dstlen)
{
	(void)fd, (void)buf, (void)len, (void)flags, (void)dst, (void)dstlen;
	return none();
}

CM_PUBLIC ssize_t rsendmsg(int fd, const struct msghdr *msg, int flags)
{
	(void)fd, (void)msg, (void)flags;
	return none();
}

CM_PUBLIC ssize_t rread(int fd, void *buf, size_t count)
{
	(void)fd, (void)buf, (void)count;
	return none();
}

CM_PUBLIC ssize_t rreadv(int fd, const struct iovec *iov, int n)
{
	(void)fd, (void)iov, (void)n;
	return none();
}

CM_PUBLIC ssize_t rwrite(int fd, const void *buf, size_t count)
{
	(void)fd, (void)buf, (void)count;
	return none();
}

CM_PUBLIC ssize_t rwritev(int fd, const struct iovec *iov, int n)
{
	(void)fd, (void)iov, (void)n;
	return none();
}

CM_PUBLIC int rpoll(struct pollfd *fds, nfds_t n, int timeout)
{
	(void)fds, (void)n, (void)timeout;
	return none();
}

CM_PUBLIC int rselect(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	(void)n, (void)r, (void)w, (void)e, (void)timeout;
	return none();
}

CM_PUBLIC int rgetpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
	(void)fd, (void)addr, (void)len;
	return none();
}

CM_PUBLIC int rgetsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	(void)fd, (void)addr, (void)len;
	return none();
}

CM_PUBLIC int rsetsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	(void)fd, (void)level, (void)name, (void)value, (void)len;
	return none();
}

CM_PUBLIC int rgetsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	(void)fd, (void)level, (void)name, (void)value, (void)len;
	return none();
}

CM_PUBLIC int rfcntl(int fd, int cmd, ...)
{
	(void)fd, (void)cmd;
	return none();
}

CM_PUBLIC off_t riomap(int fd, void *buf, size_t len, int prot, int flags, off_t offset)
{
	(void)fd, (void)buf, (void)len, (void)prot, (void)flags, (void)offset;
	return none();
}

CM_PUBLIC int riounmap(int fd, void *buf, size_t len)
{
	(void)fd, (void)buf, (void)len;
	return none();
}

CM_PUBLIC size_t riowrite(int fd, const void *buf, size_t count, off_t offset, int flags)
{
	(void)fd, (void)buf, (void)count, (void)offset, (void)flags;
	errno = EOPNOTSUPP;
	return (size_t)-1;
}
