// SPDX-License-Identifier: Apache-2.0
/*
 * Sharing the processor with the daemon's engine and with other programs. If more threads poll than
 * there are processors, an empty completion queue may wait for a thread that waits for this
 * processor: the engine, or the peer. So polling yields the processor after some empty polls.
 */
#include "ibverbs/cq.h"
#include "ibverbs/qp.h"

#include <errno.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

/*
 * The number of empty polls from one yield to the next is MANY_POLLS as long as yields let no other
 * thread run. Else it depends on where the engine runs. On this processor it may be what waits:
 * FEW_POLLS. If it runs on another one, it works while this thread polls, and the peer may have had
 * this processor during the yield: SOME_POLLS.
 */
#define FEW_POLLS  2
#define SOME_POLLS 64
#define MANY_POLLS 256

/*
 * A yield that took as long as this, in nanoseconds, let a thread run that does not yield itself,
 * which is no reason to yield more often.
 */
#define PREEMPTED 200000

/*
 * The kernel tells whether yields let other threads run. While they do, it is asked after one of
 * CHECKED_YIELDS only: that takes half as long as a yield. Where it does not count switches, a
 * yield that takes longer than SWITCHED, in nanoseconds, lets another thread run: it contains two
 * of them.
 */
#define CHECKED_YIELDS 16
#define SWITCHED       1500

/* An empty poll takes no longer than this, in nanoseconds. What takes longer is other work. */
#define POLL_TIME 500

static int64_t nanoseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static _Atomic uint32_t *word(struct sr_context *ctx, size_t offset)
{
	return sr_shm_word(&ctx->doorbells, offset);
}

/*
 * Publishes the processor of this thread, which it returns, and that it has waited for some more
 * units of time. If several threads do that at once, some of it is lost.
 */
static uint32_t publish_processor(struct sr_context *ctx, uint32_t waited)
{
	_Atomic uint32_t *published = word(ctx, SOFTROCE_DOORBELL_PROCESSOR);
	uint32_t processor = (uint32_t)(sched_getcpu() + 1) & SOFTROCE_PROCESSOR_MASK;
	uint32_t old = atomic_load_explicit(published, memory_order_relaxed);
	uint32_t new = (old & ~SOFTROCE_PROCESSOR_MASK) | processor;
	new += waited *SOFTROCE_PROCESSOR_WAITED;
	if (new != old)
		atomic_store_explicit(published, new, memory_order_relaxed);
	return processor;
}

/*
 * The engine may have lent this processor to the program until it posts. A program that has not
 * waited since its last post most likely has more to post. To yield after each of these posts would
 * take two switches of threads for every message.
 */
void sr_return_processor(struct sr_context *ctx)
{
	publish_processor(ctx, 0);
	if (atomic_load_explicit(word(ctx, SOFTROCE_DOORBELL_LENT), memory_order_relaxed) &&
	    sr_take_flag(&ctx->waited))
		sched_yield();
	else if (!atomic_load_explicit(&ctx->posted, memory_order_relaxed))
		atomic_store_explicit(&ctx->posted, true, memory_order_relaxed);
}

static _Thread_local long known_switches;

/* How often another thread has run although this one could have run on; 0: unknown. */
static long count_switches(void)
{
	struct rusage usage;
	int saved = errno; /* a filter of system calls may forbid this one */
	long n = getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_nivcsw;
	errno = saved;
	return n;
}

/* Reports whether there were any since known_switches. The last yield took so many nanoseconds. */
static bool was_switched(int64_t took)
{
	long before = known_switches;
	known_switches = count_switches();
	return known_switches ? known_switches != before : took > SWITCHED;
}

/* Moves the thread to a processor, if it may run there. The kernel may move it again later. */
static void move_to(uint32_t processor)
{
	cpu_set_t may, only, set;
	int saved = errno;
	if (processor < CPU_SETSIZE && !sched_getaffinity(0, sizeof may, &may) &&
	    CPU_ISSET(processor, &may)) {
		CPU_ZERO(&only);
		CPU_SET(processor, &only);
		if (!sched_setaffinity(0, sizeof only, &only) &&
		    !sched_getaffinity(0, sizeof set, &set) &&
		    CPU_EQUAL(&set, &only)) /* not set by another thread meanwhile */
			sched_setaffinity(0, sizeof may, &may);
	}
	errno = saved;
}

/* Leaves the engine's processor if the engine has asked for that. */
static void leave_engine(struct sr_context *ctx, uint32_t engine)
{
	_Atomic uint32_t *move = word(ctx, SOFTROCE_DOORBELL_MOVE);
	if (!atomic_load_explicit(move, memory_order_relaxed))
		return;
	uint32_t to = atomic_exchange_explicit(move, 0, memory_order_relaxed);
	if (to && (uint32_t)(sched_getcpu() + 1) == engine)
		move_to(to - 1);
}

static void yield_processor(struct sr_cq *q, struct sr_context *ctx)
{
	uint32_t engine =
		atomic_load_explicit(word(ctx, SOFTROCE_DOORBELL_ENGINE), memory_order_relaxed);
	leave_engine(ctx, engine);
	atomic_store_explicit(&ctx->posted, false, memory_order_relaxed);
	/* Otherwise a switch between yields, at a tick of the kernel, would count. */
	if (!q->shared)
		known_switches = count_switches();
	int64_t start = nanoseconds();
	sched_yield();
	int64_t end = nanoseconds();
	int64_t polled = (int64_t)(q->empty_polls - q->yield_empty_polls) * POLL_TIME;
	if (polled > start - q->yielded)
		polled = start - q->yielded;
	q->waited += polled + end - start;
	q->yielded = end;
	q->yield_empty_polls = q->empty_polls;
	uint32_t here = publish_processor(ctx, q->waited / SOFTROCE_WAITED_UNIT);
	q->waited %= SOFTROCE_WAITED_UNIT;

	if (end - start >= PREEMPTED)
		q->shared = false;
	else if (!q->shared || ++q->shared_yields % CHECKED_YIELDS == 0)
		q->shared = was_switched(end - start);
	if (q->shared)
		q->yield_polls = engine && engine != here ? SOME_POLLS : FEW_POLLS;
	else if (q->yield_polls < MANY_POLLS)
		q->yield_polls = q->yield_polls ? 2 * q->yield_polls : FEW_POLLS;
	q->polls_to_yield = q->yield_polls;
}

void sr_share_processor(struct sr_cq *q)
{
	struct sr_context *ctx = sr_ctx(q->ibv.context);
	if (!atomic_load_explicit(&ctx->waited, memory_order_relaxed))
		atomic_store_explicit(&ctx->waited, true, memory_order_relaxed);
	if (!q->polls_to_yield || sr_take_flag(&ctx->engine_woken) ||
	    (q->shared && sr_take_flag(&ctx->posted)))
		yield_processor(q, ctx);
	else
		q->polls_to_yield--;
}
