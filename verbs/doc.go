// Package verbs is RDMA for Go programs: queue pairs, memory regions and completion queues on a
// softroce NIC, with the names of libibverbs.
//
// A Context is an opened NIC. Protection domains (PD), completion queues (CQ) and shareable memory
// (Buffer) come from it; memory regions (MR), queue pairs (QP) and address handles (AH) come from a
// PD. The usual order is
//
//	nic, err := verbs.Open(ctx, "")     // the first NIC of the daemon
//	pd, err := nic.AllocPD(ctx)
//	buf, err := nic.AllocBuffer(1 << 20)
//	mr, err := pd.RegMR(ctx, buf.Bytes(), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
//	cq, err := nic.CreateCQ(ctx, 256, nil)
//	qp, err := pd.CreateQP(ctx, verbs.QPInitAttr{QPType: verbs.RC, SendCQ: cq, RecvCQ: cq,
//		Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1}})
//	info, err := qp.Info(ctx, verbs.AnyGID)     // for the peer
//	err = qp.Connect(ctx, peer, verbs.DefaultConnectOptions())
//	err = qp.PostSend(verbs.SendWR{WRID: 1, Opcode: verbs.WRSend,
//		SendFlags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 64)}})
//	err = cq.Wait(ctx)
//	n, err := cq.Poll(wcs)
//
// Posting and polling are stores and loads in memory that the NIC shares. They make no system call
// while the NIC's engine is awake, and never allocate.
//
// Functions that wait take a context. A call to the daemon whose context ends returns the context's
// error at once; an object that the daemon creates after that is destroyed.
//
// Every method of every type may be called from several goroutines at once. Using an object that
// another goroutine closes fails with ErrClosed. Closing a Context closes everything that came from
// it.
//
// Errors of the daemon are *Error and match the system's error numbers: errors.Is(err,
// syscall.ENOMEM). The error of a work request is in its completion: WC.Err returns a *WCError.
//
// Package verbs/rdmacm connects queue pairs by IP address and port. Package verbs/verbstest
// provides NICs to tests.
package verbs
