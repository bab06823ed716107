package abi

// SnapshotReply comes with a descriptor of memory that holds Length bytes of JSON: the state of the
// daemon, as "softroce show" prints it. Needs no open device.
type SnapshotReply struct {
	Length uint64
}

// StartCaptureRequest comes with the descriptor to write the capture to. Needs root or the daemon's
// user. The capture ends with OpStopCapture or the connection.
type StartCaptureRequest struct {
	Device [NameSize]byte // empty: all
}

// SetPKeysRequest replaces the P_Key table of a device: queue pairs use the key that is now at
// their index, and clients get PKEY_CHANGE. Needs root or the daemon's user.
type SetPKeysRequest struct {
	Device [NameSize]byte
	Count  uint32
	_      uint32
	PKeys  [MaxPKeys]uint16 // 0: no key at this index
}

// SetLinkRequest disables the port of a device, or enables it again: clients get PORT_ERR or
// PORT_ACTIVE. Needs root or the daemon's user.
type SetLinkRequest struct {
	Device [NameSize]byte
	Up     uint32 // 0 or 1
	Port   uint32 // 0 is port 1
}

// AddFaultsRequest is followed by Length bytes of text in the fault language, whose rules are added
// to those that the daemon has. Needs root or the daemon's user.
type AddFaultsRequest struct {
	Length uint32 // at most FaultsMax
	_      uint32
}

// FaultsMax is the most bytes of text in an AddFaultsRequest.
const FaultsMax = 15 * 4096

// AddFaultsReply has the IDs of the rules that were added: those from First to Last, in the order
// of their lines. If there is none, Last is below First.
type AddFaultsReply struct {
	First, Last uint32
}

// RemoveFaultRequest removes a rule; ENOENT if there is none of this ID. Needs root or the daemon's
// user.
type RemoveFaultRequest struct {
	ID uint32
	_  uint32
}

// FireEventRequest raises an asynchronous event, with what belongs to it: PORT_ERR takes the link
// down, CQ_ERR and QP_FATAL stop what they are about. ENOENT if the object does not exist. Needs
// root or the daemon's user.
type FireEventRequest struct {
	Device [NameSize]byte
	Event  uint32 // ibv_event_type
	Number uint32 // queue pair number, ID of the CQ or SRQ in the snapshot, or port; 0 for other events
}

// SetCounterRequest sets a counter, from which it then counts on. EINVAL if there is none of this
// name. Needs root or the daemon's user.
type SetCounterRequest struct {
	Device  [NameSize]byte
	Counter [NameSize]byte // as softroce show counters prints it
	Value   uint64
}

// SetCongestionRequest sets a parameter of a device's congestion control, or "algorithm". EINVAL if
// there is none of this name, or the value is out of range. Needs root or the daemon's user.
type SetCongestionRequest struct {
	Device [NameSize]byte
	Name   [NameSize]byte
	Value  [NameSize]byte // text
}

// MaxPKeys is the size of the largest P_Key table.
const MaxPKeys = 64

// CaptureReply is the state of this connection's capture.
type CaptureReply struct {
	Packets uint64
	Bytes   uint64
	Dropped uint64 // packets that the writer could not write in time
}
