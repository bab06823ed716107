// Package verbs is RDMA for Go programs: queue pairs, memory regions and completion
// queues on a softroce NIC, with the names that the field knows from libibverbs.
//
// A Context is an opened NIC. From it come protection domains (PD), completion queues
// (CQ) and shareable memory (Buffer); from a PD come memory regions (MR), queue pairs
// (QP) and address handles (AH). The usual order is
//
//	ctx, err := verbs.Open(context.Background(), "")     // the first NIC of the daemon
//	pd, err := ctx.AllocPD()
//	buf, err := ctx.AllocBuffer(1 << 20)
//	mr, err := pd.RegMR(buf.Bytes(), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
//	cq, err := ctx.CreateCQ(256, nil)
//	qp, err := pd.CreateQP(verbs.QPInitAttr{QPType: verbs.RC, SendCQ: cq, RecvCQ: cq,
//		Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1}})
//	info, err := qp.Info(verbs.AnyGID)                     // tell the peer
//	err = qp.Connect(context.Background(), theirs, verbs.DefaultConnectOptions())
//	err = qp.PostSend(verbs.SendWR{WRID: 1, Opcode: verbs.WRSend,
//		SendFlags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 64)}})
//	err = cq.Wait(ctx)
//	n, err := cq.Poll(wc)
//
// Posting and polling are stores and loads in memory that the NIC shares; they make no
// system call while the NIC's engine is awake, and never allocate.
//
// Every method of every type may be called from several goroutines at once. Closing an
// object while another goroutine still uses it makes that use fail with ErrClosed.
// Closing a Context closes everything that came from it.
//
// Errors of the daemon are *Error and match the system's error numbers:
// errors.Is(err, syscall.ENOMEM). Errors of work requests are in the completion:
// WC.Err gives a *WCError.
package verbs
