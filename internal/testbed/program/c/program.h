/* Declarations shared by the files of the program. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_SGE 4
#define NAME	64

enum kind {
	PD,
	MR,
	MW,
	CQ,
	SRQ,
	QP,
	XRCD
};

/* An object has the name that the script assigned. */
struct object {
	struct object *next;
	enum kind kind;
	char name[NAME];
	union {
		struct ibv_pd *pd;
		struct ibv_mr *mr;
		struct ibv_mw *mw;
		struct ibv_cq *cq;
		struct ibv_srq *srq;
		struct ibv_qp *qp;
		struct ibv_xrcd *xrcd;
		void *any;
	};
	uint8_t *mem;	       /* MR */
	int shared;	       /* MR: the memory belongs to another region */
	int extended;	       /* QP: created with the extended API */
	struct ibv_ah_attr av; /* QP: address vector of the peer */
	struct ibv_ah *ah;     /* UD QP: created from av on first use */
};

extern struct object *objects;
extern struct ibv_context *ctx;
extern struct ibv_comp_channel *channel;
extern int gid_index;
extern int num_words; /* of the line */

/* program.c */
void fail(const char *format, ...);
void fail_errno(const char *what);
uint64_t number(int i);
const char *text(int i);

/* objects.c */
struct object *find(enum kind kind, const char *name);
struct object *must_find(enum kind kind, const char *name);
struct object *add(enum kind kind, const char *name, void *any);
void forget(struct object *gone);
struct ibv_pd *pd_named(const char *name);
struct object *cq_named(const char *name);
void do_reset(void);

/* memory.c */
void do_mr(void);
void do_dereg(void);
void do_read(void);
size_t parse_hex(const char *hex, uint8_t *to, size_t room);
void do_write(void);
void do_mw(void);
void do_free(void);

/* queues.c */
void do_cq(void);
void do_arm(void);
void do_notice(void);
int no_xrc(void);
void do_xrcd(void);
void do_srq(void);
void do_resize(void);
void do_limit(void);
void do_poll(void);
void do_event(void);

/* qp.c */
void do_qp(void);
void do_destroy(void);
void do_modify(void);
void do_query(void);
void do_state(void);
void do_attach(void);
void do_detach(void);

/* work.c */
void do_send(void);
void do_bind(void);
void do_recv(void);

#endif
